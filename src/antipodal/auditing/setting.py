"""One line of an audit: a code, a way to search it, and what that keeps."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.checks import Ids

OVERSAMPLES = (1, 2, 4, 8, 16, 32, 64)  # candidates for each result, then rescored
SHARES = (0.95, 0.99)
_SIZES = {"1M": 10**6, "100M": 10**8, "1G": 10**9}


@dataclass(frozen=True)
class Cost:
    """What a code takes: bytes and seconds."""

    bytes: int
    fit_seconds: float
    encoded_per_second: float
    queries_per_second: float


@dataclass(frozen=True)
class Setting:
    """A code, searched in one way.

    Attributes
    ----------
    method : str
        Hasher with its settings, model file, or a quantiser of Faiss.
    bits : int
        Of a code; of other quantisers, 8 times their bytes.
    search : {"hamming", "asymmetric"}
        Whether queries become bits too, or stay real.
    by_query : (q,)
        Share of the true neighbours among as many results, for every query.
    with_floats, with_int8 : dict
        Recall for so many candidates per result, put in order by their vectors as they are or
        in one byte per feature.
    ndcg : dict
        Where there are judgements, nDCG of the results for so many candidates per result, put in
        order by their vectors where they are more than one.
    judged_recall : float, optional
        Share of the relevant rows among the results.
    distances : (2, bits + 1), optional
        How many neighbours, and how many other rows, are at each Hamming distance.
    found : (q, k), optional
        The results of every query, before any vectors are looked at.
    """

    method: str
    bits: int
    search: str
    by_query: NDArray[np.float64] = field(repr=False)
    with_floats: dict[int, float]
    with_int8: dict[int, float]
    cost: Cost
    ndcg: dict[int, float] = field(default_factory=dict)
    judged_recall: float | None = None
    distances: NDArray[np.int64] | None = field(default=None, repr=False)
    found: Ids | None = field(default=None, repr=False)

    @property
    def recall(self) -> float:
        """The mean share over queries."""
        return float(self.by_query.mean())

    @property
    def recall_error(self) -> float:
        """1.96 standard errors of the recall, over queries."""
        if len(self.by_query) == 1:
            return 0.0
        return float(1.96 * self.by_query.std(ddof=1) / np.sqrt(len(self.by_query)))

    def candidates_for(self, share: float) -> int | None:
        """Return how many candidates per result keep that share once vectors put them in order.

        None if none of the numbers that were tried does.
        """
        return next((r for r, recall in self.with_floats.items() if recall >= share), None)

    def to_dict(self, n_features: int, itemsize: int) -> dict[str, Any]:
        """Return everything but what is of single queries, flat, as JSON has it."""
        record = {
            name: getattr(self, name)
            for name in ("method", "bits", "search", "recall", "recall_error")
        }
        record |= asdict(self.cost)
        record["compression"] = n_features * itemsize / self.cost.bytes
        record |= {f"bytes_{name}": n * self.cost.bytes for name, n in _SIZES.items()}
        record |= {f"recall_x{r}": value for r, value in self.with_floats.items() if r > 1}
        record |= {f"recall_int8_x{r}": value for r, value in self.with_int8.items() if r > 1}
        record |= {f"candidates_for_{share}": self.candidates_for(share) for share in SHARES}
        if self.ndcg:
            record |= {f"ndcg_x{r}" if r > 1 else "ndcg": value for r, value in self.ndcg.items()}
            record["judged_recall"] = self.judged_recall
        return {n: round(v, 6) if isinstance(v, float) else v for n, v in record.items()}


def ranks(found: Ids, truth: Ids) -> NDArray[np.int64]:
    """Return where each true neighbour (q, k) stands among those found (q, m); m if nowhere."""
    places = np.full(truth.shape, found.shape[1], np.int64)
    for j in range(truth.shape[1]):
        same = found == truth[:, j, None]
        hit = same.any(axis=1)
        places[hit, j] = same[hit].argmax(axis=1)
    return places


def without_own(found: Ids, own: Ids | None, m: int) -> Ids:
    """Return the first m found for each query, its own row left out."""
    if own is None:
        return found[:, :m]
    mine = found == own[:, None]
    order = np.argsort(mine, axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1)[:, :m]

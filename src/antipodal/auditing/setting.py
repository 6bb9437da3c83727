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
    recall : float
        Mean share of the true neighbours among as many results.
    recall_error : float
        1.96 standard errors of it, over queries.
    with_floats, with_int8 : dict
        Recall for so many candidates per result, put in order by their vectors as they are or
        in one byte per feature.
    floats_needed : dict
        For 0.95 and 0.99, how many candidates per result keep that share once they are put in order
        by their vectors; None if none of those tried does.
    ndcg, judged_recall : float, optional
        Of the results, against judgements.
    by_query : (q,)
        Recall of every query.
    distances : (2, bits + 1), optional
        How many neighbours, and how many other rows, are at each Hamming distance.
    """

    method: str
    bits: int
    search: str
    k: int
    recall: float
    recall_error: float
    with_floats: dict[int, float]
    with_int8: dict[int, float]
    floats_needed: dict[float, int | None]
    cost: Cost
    by_query: NDArray[np.float64] = field(repr=False)
    ndcg: float | None = None
    judged_recall: float | None = None
    distances: NDArray[np.int64] | None = field(default=None, repr=False)

    def to_dict(self, n_features: int, itemsize: int) -> dict[str, Any]:
        """Return everything but what is of single queries, flat, as JSON has it."""
        record = {
            name: getattr(self, name)
            for name in ("method", "bits", "search", "k", "recall", "recall_error")
        }
        record |= asdict(self.cost)
        record["compression"] = n_features * itemsize / self.cost.bytes
        record |= {f"bytes_{name}": n * self.cost.bytes for name, n in _SIZES.items()}
        record |= {f"recall_x{r}": value for r, value in self.with_floats.items() if r > 1}
        record |= {f"recall_int8_x{r}": value for r, value in self.with_int8.items() if r > 1}
        record |= {f"candidates_for_{s}": needed for s, needed in self.floats_needed.items()}
        if self.ndcg is not None:
            record |= {"ndcg": self.ndcg, "judged_recall": self.judged_recall}
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


def mean_and_error(shares: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean over queries, and 1.96 standard errors of it."""
    error = 1.96 * shares.std(ddof=1) / np.sqrt(len(shares)) if len(shares) > 1 else 0.0
    return float(shares.mean()), float(error)

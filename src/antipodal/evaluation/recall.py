"""Recall: exact neighbours, relevance judgements, and the result of one search setting."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from antipodal.hashers.rows import unit_rows
from antipodal.index.rerank import best_first, query_blocks, vector_scores
from antipodal.validation import Ids

Metric = Literal["cosine", "dot", "euclidean"]
Rows = NDArray[Any]

METRICS: tuple[str, ...] = get_args(Metric)
_SPARE = 8  # rows to score again in double precision beyond those asked for
_SCORES_AT_ONCE = 2**23


def prepared(rows: Rows, metric: Metric) -> NDArray[np.float32]:
    """Return rows as float32, for the cosine at length 1."""
    floats = np.ascontiguousarray(rows, dtype=np.float32)
    if metric != "cosine":
        return floats
    return unit_rows(torch.tensor(floats)).numpy()  # a copy: torch warns of rows it may not write


def true_neighbours(
    X: Rows,
    queries: Rows,
    k: int,
    metric: Metric,
    *,
    own: Ids | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Ids:
    """Find the k rows of X nearest to each query, (q, k), in the order (score, row).

    Scores are the cosine, the inner product, or minus the squared Euclidean distance.

    Parameters
    ----------
    own : (q,), optional
        The row that each query is itself; it does not count.
    progress : callable
        Called with the number of rows seen and of all.
    """
    Q = prepared(queries, metric)
    n_kept = min(k + _SPARE, len(X) - (own is not None))
    best = np.full((len(Q), 0), -np.inf, np.float32)
    ids = np.empty((len(Q), 0), np.int64)
    size = max(1, _SCORES_AT_ONCE // len(Q))
    for start in range(0, len(X), size):
        rows = prepared(X[start : start + size], metric)
        scores = _products(Q, rows, metric)
        if own is not None:
            mine = np.flatnonzero((own >= start) & (own < start + len(rows)))
            scores[mine, own[mine] - start] = -np.inf
        numbers = np.broadcast_to(np.arange(start, start + len(rows)), scores.shape)
        best, ids = _largest(
            np.concatenate([best, scores], axis=1), np.concatenate([ids, numbers], axis=1), n_kept
        )
        progress(start + len(rows), len(X))
    return _in_order(X, queries, ids, metric)[:, :k]


def _products(Q: Rows, rows: Rows, metric: Metric) -> NDArray[np.float32]:
    """Return scores in single precision, (q, m); -‖q - x‖² without ‖q‖², which is all the same."""
    scores: NDArray[np.float32] = Q @ rows.T
    if metric == "euclidean":
        scores *= 2
        scores -= np.einsum("mn,mn->m", rows, rows)
    return scores


def _largest(scores: NDArray[np.float32], ids: Ids, n: int) -> tuple[NDArray[np.float32], Ids]:
    """Return the n largest scores of every row and their ids, in any order."""
    if scores.shape[1] <= n:
        return scores, ids
    place = np.argpartition(scores, -n, axis=1)[:, -n:]
    return np.take_along_axis(scores, place, axis=1), np.take_along_axis(ids, place, axis=1)


def _in_order(X: Rows, queries: Rows, ids: Ids, metric: Metric) -> Ids:
    """Sort the candidates of each query by scores in double precision, equal ones by row."""
    scores = candidate_scores(X, queries, ids, metric)
    order = best_first(scores, ids, ids.shape[1])
    return np.take_along_axis(ids, order, axis=1)


def candidate_scores(X: Any, queries: Rows, ids: Ids, metric: Metric) -> NDArray[np.float64]:
    """Score each query's own candidates, (q, m), in double precision; X gives rows by number."""
    scores = np.empty(ids.shape)
    Q = queries.astype(np.float64)
    for part in query_blocks(len(ids), ids.shape[1] * Q.shape[1]):
        scores[part] = vector_scores(Q[part], X[ids[part]].astype(np.float64), metric)
    return scores


@dataclass(frozen=True)
class Judgements:
    """Grades of (query, document) pairs, by row number; pairs that are not named have grade 0.

    Parameters
    ----------
    query, document : (p,)
        Row numbers.
    grade : (p,)
        At least 0.
    """

    query: Ids
    document: Ids
    grade: NDArray[np.float64]

    @classmethod
    def of(cls, table: ArrayLike, n_queries: int, n_documents: int) -> "Judgements":
        """Take a table (p, 2) of query and document, or (p, 3) with a grade, and check it."""
        rows = np.asarray(table)
        if rows.ndim != 2 or rows.shape[1] not in (2, 3) or rows.dtype.kind not in "iuf":
            raise ValueError(
                "relevance must have a row per judgement: query, document and, if they differ, a "
                f"grade: got {rows.dtype} of shape {rows.shape}"
            )
        grades = rows[:, 2].astype(np.float64) if rows.shape[1] == 3 else np.ones(len(rows))
        pairs = rows[:, :2].astype(np.int64)
        for column, n, name in ((0, n_queries, "query"), (1, n_documents, "document")):
            wrong = (pairs[:, column] < 0) | (pairs[:, column] >= n)
            if wrong.any() or (pairs[:, column] != rows[:, column]).any():
                odd = rows[np.flatnonzero(wrong | (pairs[:, column] != rows[:, column]))[0], column]
                raise ValueError(
                    f"relevance names a {name} that is not there: {odd}. They are row numbers from "
                    f"0 to {n - 1}"
                )
        if not (np.isfinite(grades) & (grades >= 0)).all():
            raise ValueError("grades of relevance must be finite and not negative")
        if not (grades > 0).any():
            raise ValueError("relevance has no judgement with a grade above 0")
        return cls(pairs[:, 0], pairs[:, 1], grades)

    def judged(self) -> Ids:
        """Return the queries that have a relevant document, ascending."""
        return np.unique(self.query[self.grade > 0])

    def grades_of(self, queries: Ids, found: Ids) -> NDArray[np.float64]:
        """Return the grades of the documents found for each query, (q, m)."""
        width = int(max(self.document.max(), found.max(initial=0))) + 1
        keys = self.query * width + self.document
        order = np.argsort(keys)
        wanted = queries[:, None] * width + found
        place = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
        hit = keys[order[place]] == wanted
        grades: NDArray[np.float64] = np.where(hit, self.grade[order[place]], 0.0)
        return grades

    def ndcg(self, queries: Ids, found: Ids) -> NDArray[np.float64]:
        """Return nDCG@k of each query, for the k documents found, best first.

        DCG = Σ_r grade_r / log₂(r + 1),    nDCG = DCG / DCG of the best order
        """
        k = found.shape[1]
        discounts = 1 / np.log2(np.arange(2, k + 2))
        gained = self.grades_of(queries, found) @ discounts
        best = np.zeros(len(queries))
        for i, query in enumerate(queries):
            grades = np.sort(self.grade[self.query == query])[::-1][:k]
            best[i] = grades @ discounts[: len(grades)]
        return gained / best

    def recall(self, queries: Ids, found: Ids) -> NDArray[np.float64]:
        """Return the share of each query's relevant documents that was found."""
        counts = np.bincount(self.query[self.grade > 0], minlength=queries.max(initial=0) + 1)
        hits = (self.grades_of(queries, found) > 0).sum(axis=1)
        shares: NDArray[np.float64] = hits / counts[queries]
        return shares

    def scores(self, found: Ids) -> tuple[float, float]:
        """Return nDCG and recall of what was found for all queries, the mean over judged ones."""
        asked = self.judged()
        ndcg, recall = self.ndcg(asked, found[asked]), self.recall(asked, found[asked])
        return float(ndcg.mean()), float(recall.mean())


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

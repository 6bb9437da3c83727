"""Recall: exact neighbours, relevance judgements, and the results of one code and search."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.hashers.operations import unit_rows
from antipodal.index.rerank import best_first, query_blocks, vector_scores
from antipodal.validation import Ids

Metric = Literal["cosine", "dot", "euclidean"]
Rows = NDArray[Any]

METRICS: tuple[str, ...] = get_args(Metric)
_SPARE = 8  # candidates beyond k that are rescored in double precision
_TIE = 1e-6  # relative difference of equal scores, due to rounding of the vectors
_SCORES_AT_ONCE = 2**23
_KEPT_SCORES = 2**24  # of all pairs of a query and a row, 128 MiB


def prepared(rows: Rows, metric: Metric) -> NDArray[np.float32]:
    """Return rows as float32, normalised to length 1 for the cosine."""
    floats = np.ascontiguousarray(rows, dtype=np.float32)
    if metric != "cosine":
        return floats
    return unit_rows(floats)


class Scorer:
    """Scores of candidates by their vectors, in double precision.

    Candidates differ from code to code. If the scores of all pairs of a query and a row fit into
    memory, they are computed once, by a matrix product, except Euclidean distances, which would
    lose precision.

    Parameters
    ----------
    vectors : (m, n)
        Rows of candidates, indexed by row number.
    queries : (q, n)
        One row per query.
    """

    def __init__(self, vectors: Any, queries: Rows, metric: Metric) -> None:
        self.vectors, self.queries, self.metric = vectors, queries, metric
        self._all: NDArray[np.float64] | None = None

    def scores(self, ids: Ids, queries: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
        """Score the candidates (q, m) of all queries, or of those that a mask selects."""
        chosen = slice(None) if queries is None else queries
        if self.metric == "euclidean" or len(self.queries) * len(self.vectors) > _KEPT_SCORES:
            return candidate_scores(self.vectors, self.queries[chosen], ids, self.metric)
        if self._all is None:
            Q = self.queries.astype(np.float64)
            X = self.vectors[np.arange(len(self.vectors))].astype(np.float64)
            self._all = Q @ X.T
            if self.metric == "cosine":
                lengths = np.outer(np.linalg.norm(Q, axis=1), np.linalg.norm(X, axis=1))
                self._all /= np.where(lengths > 0, lengths, 1)
        return np.take_along_axis(self._all[chosen], ids, axis=1)


@dataclass(frozen=True)
class Truth:
    """True neighbours of queries. Rows that tie with the k-th neighbour are also correct.

    Attributes
    ----------
    ids : (q, k)
        The k nearest rows of each query, ordered by score, then by row.
    scores : (q, k)
        Their scores.
    tied : (q,)
        Whether further rows have the score of the last.
    """

    ids: Ids
    scores: NDArray[np.float64]
    tied: NDArray[np.bool_]
    X: Rows
    queries: Rows
    metric: Metric
    scorer: Scorer = field(repr=False)

    def hits(self, found: Ids) -> NDArray[np.bool_]:
        """Return which results (q, m) are true neighbours or tie with the last of them."""
        correct = np.zeros(found.shape, bool)
        for ids in self.ids.T:
            correct |= found == ids[:, None]
        if self.tied.any():  # candidates are scored only in this case
            scores = self.scorer.scores(found[self.tied], self.tied)
            correct[self.tied] |= scores >= _tying(self.scores[self.tied, -1:])
        return correct & (found >= 0)  # Faiss fills missing results with -1

    def nearest(self, k: int) -> "Truth":
        """Return the k nearest of the neighbours."""
        if k == self.ids.shape[1]:
            return self
        tied = self.scores[:, k] >= _tying(self.scores[:, k - 1])
        return replace(self, ids=self.ids[:, :k], scores=self.scores[:, :k], tied=tied)

    def recall(self, found: Ids) -> NDArray[np.float64]:
        """Return recall@k of each query for results (q, m), of which at most k count."""
        k = self.ids.shape[1]
        shares: NDArray[np.float64] = np.minimum(self.hits(found).sum(axis=1), k) / k
        return shares


def true_neighbours(
    X: Rows,
    queries: Rows,
    k: int,
    metric: Metric,
    *,
    query_rows: Ids | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Truth:
    """Return the k rows of X nearest to each query.

    Scores are the cosine, the inner product, or minus the Euclidean distance.

    Parameters
    ----------
    query_rows : (q,), optional
        Rows of X that are the queries; a query is not its own neighbour.
    progress : callable
        Called with the number of rows processed and the total.
    """
    Q = prepared(queries, metric)
    n_kept = min(k + _SPARE, len(X) - (query_rows is not None))
    best = np.full((len(Q), 0), -np.inf, np.float32)
    ids = np.empty((len(Q), 0), np.int64)
    size = max(1, _SCORES_AT_ONCE // len(Q))
    for start in range(0, len(X), size):
        rows = prepared(X[start : start + size], metric)
        scores = _products(Q, rows, metric)
        if query_rows is not None:
            inside = np.flatnonzero((query_rows >= start) & (query_rows < start + len(rows)))
            scores[inside, query_rows[inside] - start] = -np.inf
        numbers = np.broadcast_to(np.arange(start, start + len(rows)), scores.shape)
        best, ids = _largest(
            np.concatenate([best, scores], axis=1), np.concatenate([ids, numbers], axis=1), n_kept
        )
        progress(start + len(rows), len(X))
    exact = candidate_scores(X, queries, ids, metric)  # in double precision
    order = best_first(exact, ids, ids.shape[1])
    ids = np.take_along_axis(ids, order, axis=1)
    exact = np.take_along_axis(exact, order, axis=1)
    tied: NDArray[np.bool_] = np.any(exact[:, k:] >= _tying(exact[:, k - 1 : k]), axis=1)
    return Truth(ids[:, :k], exact[:, :k], tied, X, queries, metric, Scorer(X, queries, metric))


def _tying(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the least scores that count as equal to these."""
    return scores - _TIE * np.abs(scores)


def _products(Q: Rows, rows: Rows, metric: Metric) -> NDArray[np.float32]:
    """Return scores in single precision, (q, m); Euclidean ones omit the constant ‖q‖²."""
    scores: NDArray[np.float32] = Q @ rows.T
    if metric == "euclidean":
        scores *= 2
        scores -= np.einsum("mn,mn->m", rows, rows)
    return scores


def _largest(scores: NDArray[np.float32], ids: Ids, n: int) -> tuple[NDArray[np.float32], Ids]:
    """Return the n largest scores of every row and their ids, unordered."""
    if scores.shape[1] <= n:
        return scores, ids
    place = np.argpartition(scores, -n, axis=1)[:, -n:]
    return np.take_along_axis(scores, place, axis=1), np.take_along_axis(ids, place, axis=1)


def candidate_scores(X: Any, queries: Rows, ids: Ids, metric: Metric) -> NDArray[np.float64]:
    """Score the candidates of each query, (q, m), in double precision; X is indexed by row."""
    scores = np.empty(ids.shape)
    Q = queries.astype(np.float64)
    for part in query_blocks(len(ids), ids.shape[1] * Q.shape[1]):
        scores[part] = vector_scores(Q[part], X[ids[part]].astype(np.float64), metric)
    return scores


@dataclass(frozen=True)
class Judgements:
    """Relevance judgements: grades of pairs of query and document; other pairs have grade 0.

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
        """Check and convert a table of query and document, (p, 2), or with a grade, (p, 3)."""
        rows = np.asarray(table)
        if rows.ndim != 2 or rows.shape[1] not in (2, 3) or rows.dtype.kind not in "iuf":
            raise ValueError(
                "relevance must have one row per judgement, (query, document) or (query, document, "
                f"grade): got {rows.dtype} of shape {rows.shape}"
            )
        grades = rows[:, 2].astype(np.float64) if rows.shape[1] == 3 else np.ones(len(rows))
        pairs = rows[:, :2].astype(np.int64)
        for column, n, name in ((0, n_queries, "query"), (1, n_documents, "document")):
            wrong = (pairs[:, column] < 0) | (pairs[:, column] >= n)
            if wrong.any() or (pairs[:, column] != rows[:, column]).any():
                odd = rows[np.flatnonzero(wrong | (pairs[:, column] != rows[:, column]))[0], column]
                raise ValueError(f"relevance must have {name} rows from 0 to {n - 1}: got {odd}")
        valid = np.isfinite(grades) & (grades >= 0)
        if not valid.all():
            raise ValueError(
                f"relevance must have finite grades, none negative: got {grades[~valid][0]}"
            )
        if not (grades > 0).any():
            raise ValueError(
                "relevance must have a judgement with a grade above 0: all grades are 0"
            )
        return cls(pairs[:, 0], pairs[:, 1], grades)

    def judged_queries(self) -> Ids:
        """Return the queries that have a relevant document, in ascending order."""
        return np.unique(self.query[self.grade > 0])

    def grades_of(self, queries: Ids, found: Ids) -> NDArray[np.float64]:
        """Return the grades of the documents retrieved for each query, (q, m)."""
        width = int(max(self.document.max(), found.max(initial=0))) + 1
        keys = self.query * width + self.document
        order = np.argsort(keys)
        wanted = queries[:, None] * width + found
        place = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
        hit = keys[order[place]] == wanted
        grades: NDArray[np.float64] = np.where(hit, self.grade[order[place]], 0.0)
        return grades

    def ndcg(self, queries: Ids, found: Ids) -> NDArray[np.float64]:
        """Return nDCG@k of each query for k documents, best first.

        DCG = Σ_r grade_r / log₂(r + 1),    nDCG = DCG / DCG of the ideal order
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
        """Return the recall of each query: the share of its relevant documents retrieved."""
        counts = np.bincount(self.query[self.grade > 0], minlength=queries.max(initial=0) + 1)
        hits = (self.grades_of(queries, found) > 0).sum(axis=1)
        shares: NDArray[np.float64] = hits / counts[queries]
        return shares

    def scores(self, found: Ids) -> tuple[float, float]:
        """Return mean nDCG and mean recall over the judged queries, given the results of all."""
        judged = self.judged_queries()
        ndcg, recall = self.ndcg(judged, found[judged]), self.recall(judged, found[judged])
        return float(ndcg.mean()), float(recall.mean())


OVERSAMPLING = (1, 2, 4, 8, 16, 32, 64)
TARGETS = (0.95, 0.99)  # recall for which the necessary oversampling is reported
_SIZES = {"1M": 10**6, "100M": 10**8, "1G": 10**9}


@dataclass(frozen=True)
class Cost:
    """Cost of a code: bytes per vector, time to fit, throughput."""

    bytes: int
    fit_seconds: float
    encoded_per_second: float
    queries_per_second: float


@dataclass(frozen=True)
class Setting:
    """Recall and cost of one code with one search.

    Attributes
    ----------
    method : str
        Hasher with its settings, or a quantiser of another library.
    bits : int
        Code length; for quantisers of other libraries, 8 times their bytes.
    search : {"hamming", "asymmetric"}
        Whether queries are binary, or float vectors.
    correct : (q, k)
        Which results of each query are true neighbours, or tie with the last of them.
    with_floats, with_int8 : dict
        recall@k by oversampling factor, after reranking by the float vectors, or by vectors of one
        byte per feature. `with_int8` is measured for codes of antipodal with their own scoring.
    served : bool
        Whether `antipodal build` and `antipodal search` reproduce this setting.
    extrapolated : dict
        If a sample was audited: recall@k by oversampling factor, extrapolated to all rows.
    ndcg : dict
        With relevance judgements: nDCG@k by oversampling factor, after reranking by the float
        vectors if the factor exceeds 1.
    judged_recall : float, optional
        Share of the relevant rows among the results.
    distances : (2, bits + 1), optional
        Number of neighbours and of other rows at each Hamming distance.
    found : (q, k), optional
        Results of every query without reranking.
    """

    method: str
    bits: int
    search: str
    correct: NDArray[np.bool_] = field(repr=False)
    with_floats: dict[int, float]
    with_int8: dict[int, float]
    cost: Cost
    served: bool = False
    extrapolated: dict[int, float] = field(default_factory=dict)
    ndcg: dict[int, float] = field(default_factory=dict)
    judged_recall: float | None = None
    distances: NDArray[np.int64] | None = field(default=None, repr=False)
    found: Ids | None = field(default=None, repr=False)

    @property
    def by_query(self) -> NDArray[np.float64]:
        """recall@k of every query, (q,)."""
        shares: NDArray[np.float64] = self.correct.mean(axis=1)
        return shares

    @property
    def recall(self) -> float:
        """recall@k: the mean over queries."""
        return float(self.by_query.mean())

    @property
    def recall_error(self) -> float:
        """1.96 standard errors of the mean over queries."""
        if len(self.by_query) == 1:
            return 0.0
        return float(1.96 * self.by_query.std(ddof=1) / np.sqrt(len(self.by_query)))

    def candidates_for(self, target: float) -> int | None:
        """Return the smallest oversampling factor that reaches a recall, or None."""
        return next((r for r, recall in self.with_floats.items() if recall >= target), None)

    def to_dict(self, n_features: int, itemsize: int) -> dict[str, Any]:
        """Return the means over queries and the cost as a flat, JSON-serialisable record."""
        record = {
            name: getattr(self, name)
            for name in ("method", "bits", "search", "recall", "recall_error")
        }
        record |= asdict(self.cost)
        record["compression"] = n_features * itemsize / self.cost.bytes
        record |= {f"bytes_{name}": n * self.cost.bytes for name, n in _SIZES.items()}
        record |= {f"recall_x{r}": value for r, value in self.with_floats.items() if r > 1}
        record |= {f"recall_int8_x{r}": value for r, value in self.with_int8.items() if r > 1}
        record |= {
            "recall_all_rows" if r == 1 else f"recall_all_rows_x{r}": value
            for r, value in self.extrapolated.items()
        }
        record |= {f"candidates_for_{target}": self.candidates_for(target) for target in TARGETS}
        if self.ndcg:
            record |= {f"ndcg_x{r}" if r > 1 else "ndcg": value for r, value in self.ndcg.items()}
            record["judged_recall"] = self.judged_recall
        return {n: round(v, 6) if isinstance(v, float) else v for n, v in record.items()}


def drop_query_rows(found: Ids, query_rows: Ids | None, m: int) -> Ids:
    """Return the first m results of each query without the row that is the query itself."""
    if query_rows is None:
        return found[:, :m]
    order = np.argsort(found == query_rows[:, None], axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1)[:, :m]

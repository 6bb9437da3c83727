"""The true neighbours of queries among all rows: found exactly, a block of rows at a time."""

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from antipodal.checks import Ids
from antipodal.hashers.parts.rows import unit_rows
from antipodal.index.rescore import best_first, query_blocks, vector_scores

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

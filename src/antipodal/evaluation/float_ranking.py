"""Evaluation of rankings by float scores: an upper bound for codes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.evaluation.ranking import TiedRanking, blocks
from antipodal.validation import known_labels

_BYTES_AN_ITEM = 160  # that scoring takes for an item of a ranking, all temporary arrays together


@dataclass(frozen=True)
class FloatEvaluation:
    """What `evaluate_floats` measured: percentages and counts, as in `antipodal.Evaluation`."""

    queries: int
    queries_without_relevant: int
    database: int
    chance: float
    map: float
    map_worst: float
    map_best: float


def evaluate_floats(
    query: ArrayLike,
    database: ArrayLike,
    query_labels: ArrayLike,
    database_labels: ArrayLike,
    *,
    block_bytes: int = 2**26,
) -> FloatEvaluation:
    """Rank the database by inner product with each query, largest first, and score the rankings.

    Equal products, which rows that are equal have, are ties: as in `antipodal.evaluate` the mAP
    is the expectation over their order, with the worst and the best order beside it.

    Parameters
    ----------
    query, database : arrays (n, d)
        Class probabilities, or features; for cosine similarity, of length 1. Used in float32.
    query_labels, database_labels : arrays (n,) or (n, n_concepts)
        Classes, where an item is relevant if its label is the query's; or a table of 0 and 1,
        where it is relevant if it shares at least one concept.
    block_bytes : int
        Roughly how much memory to work in; there is never a table of all queries by all items.

    Returns
    -------
    FloatEvaluation
        Queries without any relevant item are counted and left out of every mean.

    Examples
    --------
    >>> probabilities = [[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]
    >>> round(evaluate_floats([[1.0, 0.0]], probabilities, [0], [0, 1, 0]).map, 2)
    83.33
    """
    Q, D = _check_floats(query, "query"), _check_floats(database, "database")
    if Q.shape[1] != D.shape[1]:
        raise ValueError(
            f"query and database must have the same columns: got {Q.shape[1]} and {D.shape[1]}"
        )
    q_labels = _check_labels(query_labels, len(Q), "query")
    d_labels = _check_labels(database_labels, len(D), "database")
    if q_labels.shape[1:] != d_labels.shape[1:]:
        raise ValueError(
            "query_labels and database_labels must be of one kind, both (n,) or both "
            f"(n, n_concepts): got shapes {q_labels.shape} and {d_labels.shape}"
        )
    scores, found = [], 0
    for rows in blocks(len(Q), block_bytes // (_BYTES_AN_ITEM * len(D))):
        relevant = _relevant(q_labels[rows], d_labels)
        scored = relevant.any(axis=1)
        if scored.any():
            ranking = _ranking(Q[rows][scored] @ D.T, relevant[scored])
            scores.append(np.stack(ranking.average_precision()))
            found += int(ranking.n_relevant.sum())
    if not scores:
        raise ValueError(
            "no query has a relevant item in the database. "
            "Do query_labels and database_labels use the same names?"
        )
    precisions = np.concatenate(scores, axis=1)
    n_scored = precisions.shape[1]
    expected, worst, best = (100 * float(order.mean()) for order in precisions)
    return FloatEvaluation(
        queries=len(Q),
        queries_without_relevant=len(Q) - n_scored,
        database=len(D),
        chance=100 * found / (n_scored * len(D)),
        map=expected,
        map_worst=worst,
        map_best=best,
    )


def _ranking(products: NDArray[np.float32], relevant: NDArray[np.bool_]) -> TiedRanking:
    """Sort each row, largest first, and count the items in each run of equal values."""
    n_rows, n_items = products.shape
    order = np.argsort(-products, axis=1)
    ordered = np.take_along_axis(products, order, axis=1)
    starts = np.ones((n_rows, n_items), bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    # A run is counted in the column of its first item; the columns of the others stay empty.
    first = np.maximum.accumulate(np.where(starts, np.arange(n_items), 0), axis=1)
    cell = (first + n_items * np.arange(n_rows)[:, None]).ravel()
    hits = np.take_along_axis(relevant, order, axis=1).ravel()
    items = np.bincount(cell, minlength=cell.size).reshape(first.shape)
    found = np.bincount(cell[hits], minlength=cell.size).reshape(first.shape)
    return TiedRanking(items, found)


def _relevant(query: NDArray[Any], database: NDArray[Any]) -> NDArray[np.bool_]:
    if query.ndim == 1:
        same: NDArray[np.bool_] = query[:, None] == database
        return same
    shared: NDArray[np.bool_] = query.astype(np.float32) @ database.T.astype(np.float32) > 0
    return shared


def _check_floats(rows: ArrayLike, name: str) -> NDArray[np.float32]:
    array = np.asarray(rows, np.float32)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"{name} must be a table with a row per item: got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} contains NaN, infinity or a value too large for float32")
    return array


def _check_labels(labels: ArrayLike, n: int, side: str) -> NDArray[Any]:
    array = known_labels(labels, f"{side}_labels")
    if array.ndim not in (1, 2) or len(array) != n:
        raise ValueError(
            f"{side}_labels must have a row per item, shape ({n},) or ({n}, n_concepts): "
            f"got shape {array.shape}"
        )
    if array.ndim == 2 and not np.isin(array, (0, 1)).all():
        raise ValueError(
            f"{side}_labels with a column per concept must be 0 or 1: got other values"
        )
    return array

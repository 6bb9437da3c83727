"""Retrieval metrics of rankings by inner product: upper bounds for binary codes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.evaluation.metrics import check_labels
from antipodal.evaluation.ranking import TiedRanking, blocks, relevant_pairs

_BYTES_PER_ITEM = 160  # of a ranking, in all temporary arrays


@dataclass(frozen=True)
class FloatEvaluation:
    """Result of `evaluate_floats`: percentages and counts, as in `antipodal.Evaluation`."""

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
    """Score the rankings of a database by inner product with each query, largest first.

    Equal products are ties, as equal distances are in `antipodal.evaluate`. mAP is the mean over
    the orders of ties; the worst and the best order are also returned.

    Parameters
    ----------
    query, database : arrays (n, d)
        Class probabilities or features, converted to float32. Rows of length 1 are ranked by
        cosine similarity.
    query_labels, database_labels : arrays (n,) or (n, n_concepts)
        Labels, as in `antipodal.evaluate`.
    block_bytes : int
        Approximate working memory; products of all queries with all items are never stored.

    Returns
    -------
    FloatEvaluation
        Queries without any relevant item are counted and excluded from every mean.

    Examples
    --------
    >>> probabilities = [[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]
    >>> round(evaluate_floats([[1.0, 0.0]], probabilities, [0], [0, 1, 0]).map, 2)
    83.33
    """
    Q, D = _check_floats(query, "query"), _check_floats(database, "database")
    if Q.shape[1] != D.shape[1]:
        raise ValueError(
            f"query and database must have the same number of columns: got {Q.shape[1]} and "
            f"{D.shape[1]}"
        )
    q_labels, d_labels = check_labels(query_labels, database_labels, len(Q), len(D))
    scores, found = [], 0
    for rows in blocks(len(Q), block_bytes // (_BYTES_PER_ITEM * len(D))):
        relevant = relevant_pairs(q_labels[..., rows], d_labels)
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
    # A run is counted in the column of its first item; its other columns stay 0.
    first = np.maximum.accumulate(np.where(starts, np.arange(n_items), 0), axis=1)
    cell = (first + n_items * np.arange(n_rows)[:, None]).ravel()
    hits = np.take_along_axis(relevant, order, axis=1).ravel()
    items = np.bincount(cell, minlength=cell.size).reshape(first.shape)
    found = np.bincount(cell[hits], minlength=cell.size).reshape(first.shape)
    return TiedRanking(items, found)


def _check_floats(rows: ArrayLike, name: str) -> NDArray[np.float32]:
    array = np.asarray(rows, np.float32)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"{name} must have one row per item, (n, d): got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} contains NaN, infinity or a value too large for float32")
    return array

"""Scores by query, by class and by distance, and confusion of classes."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.codes import Codes, check_codes
from antipodal.evaluation.metrics import BLOCK_BYTES, check_labels
from antipodal.evaluation.ranking import (
    Counts,
    Floats,
    TiedRanking,
    blocks,
    count_by_distance,
    hamming_distances,
)


class QueryScores(NamedTuple):
    """Scores of each query (q,) in percent; NaN if the database has no relevant item."""

    average_precision: Floats
    worst: Floats
    best: Floats
    precision: Floats
    recall: Floats


class ClassScores(NamedTuple):
    """Means over the queries of one class or concept, in percent."""

    name: str
    queries: int
    map: float
    map_worst: float
    map_best: float
    precision: float
    recall: float


class Calibration(NamedTuple):
    """Number of pairs of query and item at each distance 0 … n_bits, and of relevant pairs."""

    pairs: Counts
    relevant: Counts


class Breakdown(NamedTuple):
    """Scores of each query, and relevance by distance over all queries."""

    queries: QueryScores
    calibration: Calibration


def break_down(
    query_codes: ArrayLike,
    database_codes: ArrayLike,
    query_labels: ArrayLike,
    database_labels: ArrayLike,
    *,
    n_bits: int,
    radius: int = 2,
) -> Breakdown:
    """Score each query: average precision, and precision and recall within a radius.

    Examples
    --------
    >>> from antipodal.codes import pack
    >>> database = pack([[0, 0, 0], [0, 0, 1], [1, 1, 1]])
    >>> found = break_down(pack([[0, 0, 0]]), database, ["a"], ["a", "b", "a"], n_bits=3, radius=1)
    >>> found.queries.precision, found.queries.recall
    (array([50.]), array([50.]))
    >>> found.calibration.pairs, found.calibration.relevant
    (array([1, 1, 0, 1]), array([1, 0, 0, 1]))
    """
    query = check_codes(query_codes, n_bits, "query_codes")
    database = check_codes(database_codes, n_bits, "database_codes")
    labels = check_labels(query_labels, database_labels, len(query), len(database))
    items, relevant = count_by_distance(query, database, *labels, n_bits, BLOCK_BYTES)
    scored: NDArray[np.bool_] = relevant.sum(axis=1) > 0
    scores = np.full((5, len(query)), np.nan)
    for part in blocks(len(query), BLOCK_BYTES // (128 * (n_bits + 1))):
        rows = np.flatnonzero(scored[part]) + part.start
        if not len(rows):
            continue
        ranking = TiedRanking(items[rows], relevant[rows])
        inside, hits = (counts[rows, : radius + 1].sum(axis=1) for counts in (items, relevant))
        shares = hits / np.maximum(inside, 1), hits / ranking.n_relevant
        scores[:, rows] = 100 * np.stack([*ranking.average_precision(), *shares])
    calibration = Calibration(items[scored].sum(axis=0), relevant[scored].sum(axis=0))
    return Breakdown(QueryScores(*scores), calibration)


def class_scores(scores: QueryScores, labels: NDArray[Any]) -> list[ClassScores]:
    """Return the mean scores of each class or concept, lowest mAP first."""
    found = []
    for name, rows in _classes(labels):
        values = np.stack(scores)[:, rows]
        values = values[:, ~np.isnan(values[0])]
        if values.shape[1]:
            found.append(ClassScores(name, values.shape[1], *values.mean(axis=1).tolist()))
    return sorted(found, key=lambda each: (each.map, each.name))


def _classes(labels: NDArray[Any]) -> list[tuple[str, NDArray[np.intp]]]:
    if labels.ndim == 2:
        return [(str(j), np.flatnonzero(labels[:, j])) for j in range(labels.shape[1])]
    return [(str(name), np.flatnonzero(labels == name)) for name in np.unique(labels)]


def confusion(
    query: Codes,
    database: Codes,
    query_labels: NDArray[Any],
    database_labels: NDArray[Any],
    radius: int,
) -> tuple[list[str], Counts]:
    """Count the items within a radius by class of the query (rows) and of the item (columns).

    Returns
    -------
    names : list of str
        Classes of queries and items, in order.
    counts : (n_classes, n_classes)
    """
    names, places = np.unique(np.concatenate([query_labels, database_labels]), return_inverse=True)
    mine, theirs = places[: len(query)], places[len(query) :]
    n = len(names)
    counts = np.zeros(n * n, np.int64)
    for part in blocks(len(query), 2**24 // max(1, len(database))):
        q, d = np.nonzero(hamming_distances(query[part], database) <= radius)
        counts += np.bincount(n * mine[part][q] + theirs[d], minlength=n * n)
    return [str(name) for name in names], counts.reshape(n, n)

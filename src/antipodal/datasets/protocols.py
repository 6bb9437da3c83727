"""The protocols that results are reported on: from labels and a seed to a split.

Everything is drawn from the raw output of PCG64, which NumPy promises never to change (the
methods of its Generator may), so that a split is the same on every machine and version.
"""

from typing import Any
from zlib import crc32

import numpy as np
from numpy.random import PCG64
from numpy.typing import NDArray

from antipodal.datasets.split import Rows, Split

Labels = NDArray[Any]


def paper(labels: Labels, seed: int, n_train: int, n_query: int) -> Split:
    """Draw training rows and queries from every class; search all rows but the queries.

    The queries do not depend on `n_train`, and a longer training set contains a shorter one.
    """
    source = _source("paper", seed)
    train, query = [], []
    for label in np.unique(labels):
        rows = _rows_of(labels, label, n_train + n_query, f"{n_train} to train, {n_query} queries")
        rows = _shuffle(rows, source)
        query.append(rows[:n_query])
        train.append(rows[n_query : n_query + n_train])
    queries = np.sort(np.concatenate(query))
    return Split(np.sort(np.concatenate(train)), queries, _without(np.arange(len(labels)), queries))


def unseen(labels: Labels, seed: int, n_train: int, n_query: int) -> Split:
    """Train on seven tenths of the classes, drawn by the seed; query and search the others.

    The database holds only the classes that training never saw. With the seen ones in it, a code
    that merely tells seen from unseen would already rank better than chance.
    """
    source = _source("unseen", seed)
    classes = np.unique(labels)
    if len(classes) < 3:
        raise ValueError(
            "the unseen protocol needs at least 3 classes, two to learn from and one to leave "
            f"out: got {len(classes)}"
        )
    classes = _shuffle(classes, source)
    n_seen = 7 * len(classes) // 10
    train, query = [], []
    for label in classes[:n_seen]:
        rows = _rows_of(labels, label, n_train, f"{n_train} to train")
        train.append(_shuffle(rows, source)[:n_train])
    for label in classes[n_seen:]:
        rows = _rows_of(labels, label, n_query + 1, f"{n_query} queries, 1 to find")
        query.append(_shuffle(rows, source)[:n_query])
    queries = np.sort(np.concatenate(query))
    searched = np.flatnonzero(np.isin(labels, classes[n_seen:]))
    return Split(np.sort(np.concatenate(train)), queries, _without(searched, queries))


def paper_multilabel(
    labels: Labels, seed: int, n_train: int | None, n_query: int, n_concepts: int, n_pairs: int
) -> Split:
    """Split a multi-label set the way the paper does NUS-WIDE.

    Only the most frequent concepts count (of equally frequent ones the first), and rows with none
    of them are in no part. Queries are drawn a concept at a time, the rarest first, no row twice;
    the other rows are the database. `train` is the database or `n_train` rows of it.
    """
    if n_concepts > labels.shape[1]:
        raise ValueError(
            f"the paper protocol takes the {n_concepts} most frequent concepts, and there are "
            f"{labels.shape[1]}: pass n_concepts"
        )
    source = _source("paper", seed)
    concepts = np.sort(np.argsort(-labels.sum(axis=0), kind="stable")[:n_concepts])
    counted = labels[:, concepts]
    kept = counted.any(axis=1)
    is_query = np.zeros(len(labels), bool)
    for column in np.argsort(counted.sum(axis=0), kind="stable"):
        rows = np.flatnonzero(counted[:, column] & ~is_query)
        if len(rows) <= n_query:
            raise ValueError(
                f"concept {concepts[column]} has too few rows: {len(rows)} are not queries of a "
                f"rarer concept, and {n_query + 1} are needed ({n_query} queries, 1 to find). "
                "Pass a smaller n_query or n_concepts"
            )
        is_query[_shuffle(rows, source)[:n_query]] = True
    database = np.flatnonzero(kept & ~is_query)
    train = database
    if n_train is not None:
        if n_train > len(database):
            raise ValueError(f"n_train is {n_train}, and the database has {len(database)} rows")
        train = np.sort(_shuffle(database, source)[:n_train])
    pairs = similar = None
    if n_pairs:
        pairs, similar = _draw_pairs(counted[train], n_pairs, source)
    return Split(train, np.flatnonzero(is_query), database, pairs, similar, concepts)


def _source(protocol: str, seed: int) -> PCG64:
    """Return a stream of its own for each protocol and seed."""
    return PCG64([seed, crc32(protocol.encode())])


def _below(limit: Any, size: Any, source: PCG64) -> Rows:
    """Draw integers from 0 to limit - 1; 64 bits a draw leave a bias that nobody can measure."""
    drawn: Rows = (source.random_raw(size) % np.asarray(limit, np.uint64)).astype(np.int64)
    return drawn


def _shuffle(rows: NDArray[Any], source: PCG64) -> NDArray[Any]:
    shuffled: NDArray[Any] = rows[np.argsort(source.random_raw(len(rows)), kind="stable")]
    return shuffled


def _rows_of(labels: Labels, label: Any, needed: int, purpose: str) -> Rows:
    rows = np.flatnonzero(labels == label)
    if len(rows) < needed:
        raise ValueError(
            f"class {label} has too few rows: {len(rows)}, and {needed} are needed ({purpose}). "
            "Pass a smaller n_train or n_query"
        )
    return rows


def _without(rows: Rows, queries: Rows) -> Rows:
    return np.setdiff1d(rows, queries, assume_unique=True)


def _draw_pairs(labels: Labels, n_pairs: int, source: PCG64) -> tuple[Rows, NDArray[np.bool_]]:
    """Draw pairs of rows, with replacement, the first half (rounded down) of them similar.

    A similar pair is a row, one of its concepts and another row with that concept; a dissimilar
    pair is any two rows that share no concept.
    """
    n_similar = n_pairs // 2
    pairs = np.concatenate(
        [_similar_pairs(labels, n_similar, source), _unlike(labels, n_pairs - n_similar, source)]
    )
    return pairs, np.arange(n_pairs) < n_similar


def _similar_pairs(labels: Labels, n_pairs: int, source: PCG64) -> Rows:
    concept, member = labels.T.nonzero()  # an entry for each concept of each row, by concept
    counts = np.bincount(concept, minlength=labels.shape[1])
    starts = np.cumsum(counts) - counts
    in_company = np.flatnonzero(counts[concept] > 1)
    if len(in_company) == 0:
        raise ValueError("no two training rows share a concept: there are no similar pairs")
    first = in_company[_below(len(in_company), n_pairs, source)]
    size, start = counts[concept[first]], starts[concept[first]]
    step = 1 + _below(size - 1, n_pairs, source)
    second = start + (first - start + step) % size  # any row with the concept but the first
    return np.stack([member[first], member[second]], axis=1)


def _unlike(labels: Labels, n_pairs: int, source: PCG64) -> Rows:
    kept: list[Rows] = []
    missing = n_pairs
    for _ in range(100):
        drawn = _below(len(labels), (max(2 * missing, 10_000), 2), source)
        share = (labels[drawn[:, 0]] & labels[drawn[:, 1]]).any(axis=1)
        kept.append(drawn[~share][:missing])  # every row has a concept, so shares with itself
        missing -= len(kept[-1])
        if missing == 0:
            return np.concatenate(kept)
    raise ValueError(
        "hardly any two training rows share no concept: there are too few dissimilar pairs. "
        "Leave out the concept that most rows have"
    )

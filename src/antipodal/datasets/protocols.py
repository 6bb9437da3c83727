"""Evaluation protocols: splits into training rows, queries and database."""

import os
from dataclasses import dataclass, fields
from typing import Any, Self
from zlib import crc32

import numpy as np
from numpy.random import PCG64
from numpy.typing import NDArray

from antipodal.errors import AntipodalError
from antipodal.io.atomic import replacing
from antipodal.io.numpy_files import open_npz

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Split:
    """Row numbers of a dataset for training, queries and database, ascending and unique.

    Parameters
    ----------
    train, query, database : int64 arrays
        Queries are in neither of the other two. Training rows may be in the database.
    pairs : int64 array (P, 2), optional
        Training pairs, as positions in `train`: ``fit(X[split.train])`` sees no query, and
        ``split.train[split.pairs]`` are rows of the dataset.
    similar : bool array (P,), optional
        Whether each pair is similar.
    concepts : int64 array, optional
        The columns of multi-hot labels that define relevance, ascending: items are relevant if
        they share one of ``labels[:, split.concepts]``.
    """

    train: Rows
    query: Rows
    database: Rows
    pairs: Rows | None = None
    similar: NDArray[np.bool_] | None = None
    concepts: Rows | None = None

    def __post_init__(self) -> None:
        for name in ("train", "query", "database", "concepts"):
            rows = getattr(self, name)
            if rows is not None:
                _check_ascending(name, rows)
        for name in ("train", "database"):
            shared = np.intersect1d(self.query, getattr(self, name), assume_unique=True)
            if len(shared):
                raise ValueError(
                    f"query and {name} must have no row in common: both have row {shared[0]}"
                )
        if (self.pairs is None) != (self.similar is None):
            raise ValueError("pairs and similar must be given together")
        if self.pairs is not None and self.similar is not None:
            _check_pairs(self.pairs, self.similar, len(self.train))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the split to one .npz file."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        with replacing(path) as file:
            np.savez(file, **{name: a for name, a in arrays.items() if a is not None})

    @classmethod
    def load(cls, path: str | os.PathLike[str], n_rows: int | None = None) -> Self:
        """Read a saved split; if `n_rows` is given, check the row numbers against it."""
        with open_npz(path) as file:
            arrays: dict[str, NDArray[Any]] = {name: file[name] for name in file.files}
        names = {field.name for field in fields(cls)}
        if not {"train", "query", "database"} <= arrays.keys() <= names:
            found = ", ".join(sorted(arrays)) or "nothing"
            raise AntipodalError(
                f"{path} is not a saved split: it must contain train, query and database, but "
                f"contains {found}"
            )
        try:
            split = cls(**{name: _as_int64(array) for name, array in arrays.items()})
            last = max(rows.max(initial=0) for rows in (split.train, split.query, split.database))
            if n_rows is not None and last >= n_rows:
                raise ValueError(f"it contains row {last}, but the dataset has {n_rows} rows")
        except ValueError as error:
            raise AntipodalError(f"{path} is not a valid split: {error}") from error
        return split


def _as_int64(array: NDArray[Any]) -> NDArray[Any]:
    """Convert integers of any width to int64; return other types unchanged."""
    return array.astype(np.int64) if array.dtype.kind == "i" else array


def _check_ascending(name: str, rows: NDArray[Any]) -> None:
    if rows.ndim != 1 or rows.dtype != np.int64:
        raise ValueError(f"{name} must be int64 (n,): got {rows.dtype} {rows.shape}")
    if len(rows) == 0:
        raise ValueError(f"{name} is empty")
    if rows[0] < 0:
        raise ValueError(f"{name} must be row numbers from 0: got {rows[0]}")
    if (rows[1:] <= rows[:-1]).any():
        raise ValueError(f"{name} must be ascending and unique")


def _check_pairs(pairs: NDArray[Any], similar: NDArray[Any], n_train: int) -> None:
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype != np.int64:
        raise ValueError(f"pairs must be int64 (P, 2): got {pairs.dtype} {pairs.shape}")
    if similar.shape != (len(pairs),) or similar.dtype != np.bool_:
        raise ValueError(
            f"similar must be bool ({len(pairs)},): got {similar.dtype} {similar.shape}"
        )
    if pairs.size and (pairs.min() < 0 or pairs.max() >= n_train):
        raise ValueError(
            f"pairs must be positions in train, 0 to {n_train - 1}: "
            f"got values from {pairs.min()} to {pairs.max()}"
        )
    if (pairs[:, 0] == pairs[:, 1]).any():
        raise ValueError("pairs must be of two different rows")


Labels = NDArray[Any]


def paper(labels: Labels, seed: int, n_train: int, n_query: int) -> Split:
    """Draw training rows and queries from every class; the database is all rows but the queries.

    The queries do not depend on `n_train`, and larger training sets contain smaller ones.
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
    """Train on a random seven tenths of the classes; query and search the other classes.

    The database contains unseen classes only. With seen classes in it, a code that only separates
    seen from unseen classes would already rank better than chance.
    """
    source = _source("unseen", seed)
    classes = np.unique(labels)
    if len(classes) < 3:
        raise ValueError(
            "the unseen protocol needs at least 3 classes, two for training and one for queries: "
            f"got {len(classes)}"
        )
    classes = _shuffle(classes, source)
    n_seen = 7 * len(classes) // 10
    train, query = [], []
    for label in classes[:n_seen]:
        rows = _rows_of(labels, label, n_train, f"{n_train} to train")
        train.append(_shuffle(rows, source)[:n_train])
    for label in classes[n_seen:]:
        rows = _rows_of(labels, label, n_query + 1, f"{n_query} queries, 1 for the database")
        query.append(_shuffle(rows, source)[:n_query])
    queries = np.sort(np.concatenate(query))
    searched = np.flatnonzero(np.isin(labels, classes[n_seen:]))
    return Split(np.sort(np.concatenate(train)), queries, _without(searched, queries))


def paper_multilabel(
    labels: Labels, seed: int, n_train: int | None, n_query: int, n_concepts: int, n_pairs: int
) -> Split:
    """Split a multi-label dataset as the paper splits NUS-WIDE.

    Only the most frequent concepts are used (ties are broken by column), and rows with none of
    them are omitted. Queries are drawn concept by concept, the rarest first, without repetition;
    the other rows are the database. `train` is the database or a sample of `n_train` rows.
    """
    if n_concepts > labels.shape[1]:
        raise ValueError(
            f"the paper protocol uses the {n_concepts} most frequent concepts, but there are only "
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
                f"rarer concept, {n_query + 1} are needed ({n_query} queries, 1 for the database). "
                "Pass a smaller n_query or n_concepts"
            )
        is_query[_shuffle(rows, source)[:n_query]] = True
    database = np.flatnonzero(kept & ~is_query)
    train = database
    if n_train is not None:
        if n_train > len(database):
            raise ValueError(f"n_train is {n_train}, but the database has {len(database)} rows")
        train = np.sort(_shuffle(database, source)[:n_train])
    pairs = similar = None
    if n_pairs:
        pairs, similar = _draw_pairs(counted[train], n_pairs, source)
    return Split(train, np.flatnonzero(is_query), database, pairs, similar, concepts)


def _source(protocol: str, seed: int) -> PCG64:
    """Return an independent random stream for each protocol and seed."""
    return PCG64([seed, crc32(protocol.encode())])


def _below(limit: Any, size: Any, source: PCG64) -> Rows:
    """Draw integers from 0 to limit - 1; with 64 bits the modulo bias is negligible."""
    drawn: Rows = (source.random_raw(size) % np.asarray(limit, np.uint64)).astype(np.int64)
    return drawn


def _shuffle(rows: NDArray[Any], source: PCG64) -> NDArray[Any]:
    shuffled: NDArray[Any] = rows[np.argsort(source.random_raw(len(rows)), kind="stable")]
    return shuffled


def _rows_of(labels: Labels, label: Any, needed: int, purpose: str) -> Rows:
    rows = np.flatnonzero(labels == label)
    if len(rows) < needed:
        raise ValueError(
            f"class {label} has too few rows: {len(rows)}, but {needed} are needed ({purpose}). "
            "Pass a smaller n_train or n_query"
        )
    return rows


def _without(rows: Rows, queries: Rows) -> Rows:
    return np.setdiff1d(rows, queries, assume_unique=True)


def _draw_pairs(labels: Labels, n_pairs: int, source: PCG64) -> tuple[Rows, NDArray[np.bool_]]:
    """Draw pairs of rows with replacement; the first half (rounded down) is similar.

    A similar pair is a row and another row with one of its concepts; a dissimilar pair is any two
    rows without a common concept.
    """
    n_similar = n_pairs // 2
    pairs = np.concatenate(
        [
            _similar_pairs(labels, n_similar, source),
            _dissimilar_pairs(labels, n_pairs - n_similar, source),
        ]
    )
    return pairs, np.arange(n_pairs) < n_similar


def _similar_pairs(labels: Labels, n_pairs: int, source: PCG64) -> Rows:
    concept, member = labels.T.nonzero()  # one entry per concept and row, sorted by concept
    counts = np.bincount(concept, minlength=labels.shape[1])
    starts = np.cumsum(counts) - counts
    shared = np.flatnonzero(counts[concept] > 1)
    if len(shared) == 0:
        raise ValueError("no two training rows share a concept: cannot draw similar pairs")
    first = shared[_below(len(shared), n_pairs, source)]
    size, start = counts[concept[first]], starts[concept[first]]
    step = 1 + _below(size - 1, n_pairs, source)
    second = start + (first - start + step) % size  # any other row with the concept
    return np.stack([member[first], member[second]], axis=1)


def _dissimilar_pairs(labels: Labels, n_pairs: int, source: PCG64) -> Rows:
    kept: list[Rows] = []
    missing = n_pairs
    for _ in range(100):
        drawn = _below(len(labels), (max(2 * missing, 10_000), 2), source)
        share = (labels[drawn[:, 0]] & labels[drawn[:, 1]]).any(axis=1)
        kept.append(drawn[~share][:missing])  # not a row with itself: every row has a concept
        missing -= len(kept[-1])
        if missing == 0:
            return np.concatenate(kept)
    raise ValueError(
        "too few pairs of training rows share no concept: cannot draw dissimilar pairs. Omit "
        "the most frequent concept"
    )

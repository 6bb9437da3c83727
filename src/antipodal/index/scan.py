"""Compare queries with every row: the kernels of Faiss, behind the order (distance, row).

All functions take padded codes (`items.to_rows`), C-contiguous, and answer with row numbers.
"""

import functools
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes
from antipodal.index.items import MAX_ITEMS, RowNumbers, as_words

Distances = NDArray[np.int32]

_HEAP_MAX_K = 1024  # past it, counting distances is faster than Faiss's heap
_WORTH_SHARING = 2**23  # bytes to compare: about a millisecond
QUERIES_AT_ONCE = 2**10  # `in_order` has 11 bits for the number of a query
_BALLS_AT_ONCE = 16  # each may hold every row
MAX_BITS = 2**20 - 1  # and 20 for a distance


class RowHits(NamedTuple):
    """Rows found for many queries: the i-th query's are at offsets[i] : offsets[i + 1]."""

    offsets: NDArray[np.int64]
    rows: RowNumbers
    distances: Distances


@functools.cache
def load_faiss() -> Any:
    """Import Faiss, with threads that sleep while they wait.

    OpenMP threads spin by default, and where other programs want the cores that makes a single
    query many times slower. The policy is read once, when the library is loaded; the user's own
    setting is left alone.
    """
    name = "OMP_WAIT_POLICY"
    unset = name not in os.environ
    if unset:
        os.environ[name] = "passive"
    try:
        return importlib.import_module("faiss")
    finally:
        if unset:
            del os.environ[name]


@contextmanager
def threads_for(n_queries: int, n_bytes: int) -> Iterator[None]:
    """Let Faiss use as many threads as there are queries, or one if the work is small.

    Its setting belongs to the calling thread and is put back.
    """
    faiss = load_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(min(before, n_queries) if n_bytes >= _WORTH_SHARING else 1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def nearest(queries: Codes, rows: Codes, k: int) -> tuple[RowNumbers, Distances]:
    """Find the k first rows in the order (distance, row) for each query: (n_queries, k).

    k is at most the number of rows.
    """
    found = np.empty((len(queries), k), dtype=np.int64)
    distances = np.empty((len(queries), k), dtype=np.int32)
    if k > _HEAP_MAX_K or not _heap_breaks_ties_by_row():
        for i, query in enumerate(queries):
            found[i], distances[i] = _nearest_by_counting(query, rows, k)
        return found, distances
    if k:
        with threads_for(len(queries), len(queries) * rows.nbytes):
            for start in range(0, len(queries), QUERIES_AT_ONCE):
                part = slice(start, start + QUERIES_AT_ONCE)
                distances[part], found[part] = load_faiss().knn_hamming(queries[part], rows, k)
    return found, distances


def within(queries: Codes, rows: Codes, radius: int) -> RowHits:
    """Find all rows at distance ≤ radius, in the order (distance, row) for each query."""
    if not len(queries) or not len(rows):
        return no_hits(len(queries))
    faiss = load_faiss()
    parts = []
    with threads_for(len(queries), len(queries) * rows.nbytes):
        for start in range(0, len(queries), _BALLS_AT_ONCE):
            part = queries[start : start + _BALLS_AT_ONCE]
            result = faiss.RangeSearchResult(len(part))
            faiss.hamming_range_search(
                faiss.swig_ptr(part),
                faiss.swig_ptr(rows),
                len(part),
                len(rows),
                radius + 1,  # Faiss excludes its radius
                rows.shape[1],
                result,
            )
            offsets = faiss.rev_swig_ptr(result.lims, len(part) + 1).astype(np.int64)
            n_hits = int(offsets[-1])
            found = faiss.rev_swig_ptr(result.labels, n_hits)
            distances = faiss.rev_swig_ptr(result.distances, n_hits)
            query = np.repeat(np.arange(len(part)), np.diff(offsets))
            parts.append(in_order(query, distances, found, len(part)))
    return joined(parts)


def in_order(
    query: NDArray[Any], distances: NDArray[Any], rows: NDArray[Any], n_queries: int
) -> RowHits:
    """Sort by (query, distance, row) and drop what is repeated.

    The three are packed into one number, which sorts several times faster than three keys do:
    11 bits of query, 20 of distance, 32 of row.
    """
    keys = distances.astype(np.int64)
    keys <<= 32
    keys |= rows
    keys |= query.astype(np.int64) << 52
    if len(keys) > 1:
        keys.sort()
        keys = keys[first_of_equals(keys)]
    offsets = np.searchsorted(keys, np.arange(n_queries + 1) << 52)
    distances = (keys >> 32 & MAX_BITS).astype(np.int32)
    return RowHits(offsets, keys & MAX_ITEMS, distances)


def of_one_in_order(distances: NDArray[Any], rows: NDArray[Any]) -> RowHits:
    """Do the same for the hits of one query, with fewer calls of NumPy."""
    keys = distances.astype(np.int64)
    keys <<= 32
    keys |= rows
    keys.sort()
    keys = keys[first_of_equals(keys)]
    return RowHits(np.array([0, len(keys)]), keys & MAX_ITEMS, (keys >> 32).astype(np.int32))


def joined(parts: list[RowHits]) -> RowHits:
    """Put the hits of one block of queries after those of another."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return no_hits(0)
    counts = np.concatenate([np.diff(part.offsets) for part in parts])
    return RowHits(
        offsets_of(counts),
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.distances for part in parts]),
    )


def first_of_equals(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark the first of each run of equal values."""
    first = np.ones(len(values), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return first


def no_hits(n_queries: int) -> RowHits:
    """Return nothing found, for so many queries."""
    return RowHits(
        np.zeros(n_queries + 1, dtype=np.int64),
        np.empty(0, dtype=np.int64),
        np.empty(0, dtype=np.int32),
    )


def offsets_of(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where the hits of each query begin, and where the last end."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _nearest_by_counting(query: Codes, rows: Codes, k: int) -> tuple[RowNumbers, Distances]:
    """Count the rows at each distance, keep those up to the k-th, sort only them.

    The sort is stable, which for small integers NumPy does in linear time.
    """
    words = as_words(rows)
    distances = np.bitwise_count(words[:, 0] ^ query.view(words.dtype)[0])
    distances = distances.astype(np.min_scalar_type(8 * rows.shape[1]), copy=False)
    for i in range(1, words.shape[1]):
        distances += np.bitwise_count(words[:, i] ^ query.view(words.dtype)[i])
    kth = np.searchsorted(np.cumsum(np.bincount(distances)), k)
    candidates = np.flatnonzero(distances <= kth)
    chosen = candidates[np.argsort(distances[candidates], kind="stable")[:k]]
    return chosen, distances[chosen].astype(np.int32)


@functools.cache
def _heap_breaks_ties_by_row() -> bool:
    """Whether Faiss's heap keeps and sorts by (distance, row), tried on 16 queries full of ties.

    It compares pairs of distance and row number, but does not promise it: should a version of
    Faiss change its mind, `nearest` counts instead.
    """
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 4, (2000, 8), dtype=np.uint8)
    queries = rng.integers(0, 4, (16, 8), dtype=np.uint8)
    distances, found = load_faiss().knn_hamming(queries, rows, 50)
    expected = [_nearest_by_counting(query, rows, 50) for query in queries]
    return all(
        np.array_equal(found[i], row_numbers) and np.array_equal(distances[i], exact)
        for i, (row_numbers, exact) in enumerate(expected)
    )

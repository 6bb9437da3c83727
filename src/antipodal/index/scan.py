"""Exhaustive search: Faiss kernels with results ordered by (distance, row).

All functions take padded codes (`segments.to_rows`), C-contiguous, and return row numbers.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes
from antipodal.index.results import Distances, SearchResult
from antipodal.index.segments import MAX_ITEMS, RowNumbers, as_words
from antipodal.io.faiss import load_faiss
from antipodal.threads import usable_cores

_HEAP_MAX_K = 1024  # beyond it, counting distances is faster than Faiss's heap
_MIN_PARALLEL_BYTES = 2**23  # scanning them takes about a millisecond
QUERIES_AT_ONCE = 2**10  # `sort_hits` has 11 bits for the number of a query
_RADIUS_QUERIES_AT_ONCE = 16  # each may match every row
MAX_BITS = 2**20 - 1  # `sort_hits` has 20 bits for a distance


@contextmanager
def threads_for(n_queries: int, n_bytes: int) -> Iterator[None]:
    """Limit Faiss to the usable cores, one thread per query, or one thread for little work.

    The setting belongs to the calling thread and is restored afterwards.
    """
    faiss = load_faiss()
    before = faiss.omp_get_max_threads()
    allowed = min(before, n_queries, usable_cores())
    faiss.omp_set_num_threads(allowed if n_bytes >= _MIN_PARALLEL_BYTES else 1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def nearest(queries: Codes, rows: Codes, k: int) -> tuple[RowNumbers, Distances]:
    """Return the k first rows of each query by (distance, row), and their distances.

    Both arrays have shape (n_queries, k); k is at most the number of rows.
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


def within(queries: Codes, rows: Codes, radius: int) -> SearchResult:
    """Return all rows at distance ≤ radius of each query, ordered by (distance, row)."""
    if not len(queries) or not len(rows):
        return SearchResult.empty(len(queries))
    faiss = load_faiss()
    parts = []
    with threads_for(len(queries), len(queries) * rows.nbytes):
        for start in range(0, len(queries), _RADIUS_QUERIES_AT_ONCE):
            part = queries[start : start + _RADIUS_QUERIES_AT_ONCE]
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
            parts.append(sort_hits(query, distances, found, len(part)))
    return SearchResult.concatenate(parts)


def sort_hits(
    query: NDArray[Any], distances: NDArray[Any], rows: NDArray[Any], n_queries: int
) -> SearchResult:
    """Sort hits by (query, distance, row) and drop duplicates.

    The three keys are packed into one integer, which sorts several times faster: 11 bits of
    query, 20 of distance, 32 of row.
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
    return SearchResult(keys & MAX_ITEMS, distances, offsets=offsets)


def sort_hits_of_one(distances: NDArray[Any], rows: NDArray[Any]) -> SearchResult:
    """Sort the hits of a single query as `sort_hits` does, with fewer NumPy calls."""
    keys = distances.astype(np.int64)
    keys <<= 32
    keys |= rows
    keys.sort()
    keys = keys[first_of_equals(keys)]
    found = (keys >> 32).astype(np.int32)
    return SearchResult(keys & MAX_ITEMS, found, offsets=np.array([0, len(keys)]))


def first_of_equals(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark the first of each run of equal values."""
    first = np.ones(len(values), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return first


def _nearest_by_counting(query: Codes, rows: Codes, k: int) -> tuple[RowNumbers, Distances]:
    """Count the rows at each distance and sort only those up to the k-th.

    The sort is stable; NumPy sorts small integers in linear time.
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
    """Return whether Faiss's heap orders by (distance, row), tested on 16 queries with many ties.

    Faiss compares pairs of distance and row number, but does not document it. If a version does
    not, `nearest` counts distances instead.
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

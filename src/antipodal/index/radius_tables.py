"""Radius search without a scan: multi-index hashing. [Norouzi2012]

Codes are divided into bands. Two codes at distance ≤ r agree in at least one of r + 1 bands. In
each band, rows are in buckets by its bits, and a query is compared only with the rows in its
buckets.
"""

import sys
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes
from antipodal.index.results import SearchResult
from antipodal.index.scan import QUERIES_AT_ONCE, sort_hits, sort_hits_of_one, within
from antipodal.index.segments import IndexedItems, as_words

Numbers = NDArray[np.int64]
Words = NDArray[np.uint64]

SCANNED_PER_CANDIDATE = 24  # rows that Faiss scans in the time NumPy compares one candidate
_LOW_BITS = 62  # fit into int64
_CANDIDATES_AT_ONCE = 2**18
_ROWS_AT_ONCE = 2**20
_FEW = 40  # candidates that plain Python compares faster than NumPy
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: spreads neighbouring keys
_WORD = 2**64 - 1


class _Layout(NamedTuple):
    """Position of each band in a code, and the mapping of its bits to a bucket number.

    The last 62 bits of a band are an integer; the bits before them, if any, are a second integer,
    which is mixed into the first. Long keys are hashed by a multiplication of which the highest
    bits are used. The buckets of a band are numbered after those of the previous band.
    """

    ends: Numbers
    n_low: Numbers
    n_high: Numbers
    multiplier: Words
    hash_shift: Words
    first_bucket: Numbers

    @classmethod
    def of(cls, n_rows: int, n_bits: int, n_bands: int) -> Self:
        cuts = np.array([n_bits * i // n_bands for i in range(n_bands + 1)])
        n_key_bits = np.diff(cuts)
        n_low = np.minimum(n_key_bits, _LOW_BITS)
        n_hash_bits = np.minimum(
            n_low, n_rows.bit_length()
        )  # at most one row per bucket on average
        hashed = n_hash_bits < n_key_bits
        return cls(
            cuts[1:],
            n_low,
            np.minimum(n_key_bits - n_low, _LOW_BITS),
            np.where(hashed, np.uint64(_GOLDEN), np.uint64(1)),
            np.where(hashed, 64 - n_hash_bits, 0).astype(np.uint64),
            np.concatenate([[0], np.cumsum(2**n_hash_bits)]),
        )


class BandTables:
    """The rows of every bucket of every band, for searches with a radius below n_bands.

    All bands share two arrays: the rows of bucket h are ``rows[starts[h] : starts[h + 1]]``.

    Parameters
    ----------
    codes : uint8 (n, row_width), n ≥ 1
        Padded codes.
    starts, rows : arrays, optional
        Existing tables, of the dtypes and lengths of `table_arrays`. By default they are built.
    """

    def __init__(
        self,
        codes: Codes,
        n_bits: int,
        n_bands: int,
        starts: NDArray[Any] | None = None,
        rows: NDArray[Any] | None = None,
    ) -> None:
        self.codes, self.n_bits, self.n_bands = codes, n_bits, n_bands
        self._words = as_words(codes)
        self._layout = layout = _Layout.of(len(codes), n_bits, n_bands)
        if starts is None or rows is None:
            starts, rows = (
                np.zeros(n, kind) for kind, n in table_arrays(len(codes), n_bits, n_bands)
            )
            for band in range(n_bands):
                self._fill(band, starts, rows)
            np.cumsum(starts, out=starts)
        self.starts, self.rows = starts, rows
        # The layout in Python integers, for `_within_of_one`, where a code is one integer.
        columns = (
            8 * codes.shape[1] - layout.ends,
            (1 << layout.n_low) - 1,
            (1 << layout.n_high) - 1,
            layout.multiplier,
            layout.hash_shift,
            layout.first_bucket[:-1],
        )
        bands = list(zip(*(column.tolist() for column in columns), strict=True))
        self._of_one = [bands[: radius + 1] for radius in range(n_bands)]
        self._flat = flat = self._words.reshape(-1)
        self._views = starts.data, rows.data, flat.data, flat.view(np.uint8).data

    def over(self, codes: Codes) -> "BandTables":
        """Return these tables for a copy of the codes."""
        return BandTables(codes, self.n_bits, self.n_bands, self.starts, self.rows)

    @property
    def arrays(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The arrays from which the tables can be restored."""
        return self.starts, self.rows

    @property
    def nbytes(self) -> int:
        """Bytes of the tables."""
        return self.starts.nbytes + self.rows.nbytes

    def within(self, queries: Codes, radius: int) -> SearchResult:
        """Return the result of `scan.within`.

        Queries with too many candidates, as in dense clusters, are answered by a scan.
        """
        if len(queries) == 1:
            return self._within_of_one(queries, radius)
        parts = []
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            part = queries[start : start + QUERIES_AT_ONCE]
            buckets = self._buckets(part, slice(radius + 1))
            begins = self.starts[buckets].astype(np.int64)
            counts = self.starts[buckets + 1] - begins
            crowded = counts.sum(axis=1) * SCANNED_PER_CANDIDATE > len(self.codes)
            if not crowded.any():
                parts.append(self._compared(part, begins, counts, radius))
                continue
            rest = ~crowded
            looked_up = self._compared(part[rest], begins[rest], counts[rest], radius)
            scanned = within(part[crowded], self.codes, radius)
            parts.append(_interleave(rest, looked_up, scanned))
        return SearchResult.concatenate(parts)

    def _fill(self, band: int, starts: NDArray[Any], rows: NDArray[Any]) -> None:
        """Sort the rows by their bucket in this band and count the rows of every bucket."""
        n_rows = len(self.codes)
        order = np.empty(n_rows, dtype=np.uint64)
        for start in range(0, n_rows, _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            buckets = self._buckets(self.codes[part], slice(band, band + 1))[:, 0]
            order[part] = buckets << 32 | np.arange(start, start + len(buckets))
        order.sort()  # bucket and row in one integer: much faster than an argsort by bucket
        for start in range(0, n_rows, _ROWS_AT_ONCE):
            block = order[start : start + _ROWS_AT_ONCE]
            buckets = (block >> np.uint64(32)).view(np.int64)
            first = int(buckets[0])
            counts = np.bincount(buckets - first)
            starts[first + 1 : first + 1 + len(counts)] += counts.astype(starts.dtype)
            position = band * n_rows + start
            rows[position : position + len(block)] = block  # the lower half of each integer

    def _buckets(self, codes: Codes, bands: slice) -> Numbers:
        """Return the bucket of each code in each of the bands: (n_codes, n_bands)."""
        words, layout = _big_endian_words(codes), self._layout
        ends, n_low, n_high = layout.ends[bands], layout.n_low[bands], layout.n_high[bands]
        key = _bits_before(words, ends, n_low)
        if n_high.any():
            key ^= _bits_before(words, ends - n_low, n_high) * np.uint64(_GOLDEN)
        key *= layout.multiplier[bands]
        key >>= layout.hash_shift[bands]
        buckets: Numbers = key.view(np.int64) + layout.first_bucket[:-1][bands]
        return buckets

    def _within_of_one(self, query: Codes, radius: int) -> SearchResult:
        """Return the result of a single query.

        For few candidates, Python integers read from a `memoryview` are faster than NumPy calls.
        """
        starts, rows, words, codes = self._views
        raw = query.tobytes()
        code, width = int.from_bytes(raw, "big"), len(raw)
        buckets, n_candidates = [], 0
        for to_end, low, high, multiplier, hash_shift, first_bucket in self._of_one[radius]:
            band = code >> to_end
            key = band & low
            if high:
                key ^= (band >> _LOW_BITS & high) * _GOLDEN
            bucket = first_bucket + ((key * multiplier & _WORD) >> hash_shift)
            begin, end = starts[bucket], starts[bucket + 1]
            n_candidates += end - begin
            buckets.append((begin, end))
        if n_candidates > _FEW:
            return self._within_many(query, buckets, n_candidates, radius)
        candidates = {rows[i] for begin, end in buckets for i in range(begin, end)}
        first = int.from_bytes(raw[: words.itemsize], sys.byteorder)
        n_words = width // words.itemsize
        found = []
        for row in candidates:
            distance = (words[row * n_words] ^ first).bit_count()
            if distance <= radius and n_words > 1:  # rare: the first word alone excludes most
                other = int.from_bytes(codes[row * width : row * width + width], "big")
                distance = (code ^ other).bit_count()
            if distance <= radius:
                found.append((distance, row))
        found.sort()
        numbers, distances = [0, len(found)], []
        for distance, row in found:
            numbers.append(row)
            distances.append(distance)
        array = np.array(numbers)
        return SearchResult(array[2:], np.array(distances, np.int32), offsets=array[:2])

    def _within_many(
        self, query: Codes, buckets: list[tuple[int, int]], n_candidates: int, radius: int
    ) -> SearchResult:
        """Compare a single query with the many rows of its buckets, or with all rows."""
        if n_candidates * SCANNED_PER_CANDIDATE > len(self.codes):
            return within(query, self.codes, radius)
        rows = np.concatenate([self.rows[begin:end] for begin, end in buckets])
        words = as_words(query)
        near, distances = self._near_in_first_word(rows, words[0, :1], radius)
        rows = rows[near]
        if words.shape[1] > 1:
            distances = _distances(self._words[rows], words)
            near = (distances <= radius).nonzero()[0]
            rows, distances = rows[near], distances[near]
        return sort_hits_of_one(distances, rows)

    def _near_in_first_word(
        self, rows: NDArray[Any], words: NDArray[Any], radius: int
    ) -> tuple[Numbers, NDArray[np.unsignedinteger]]:
        """Return the positions of candidates within the radius in their first word, and distances.

        Only these few need to be compared in their other words. `words` has the first word of each
        candidate's query, or that of the only query.
        """
        n_words = self._words.shape[1]
        differing = self._flat.take(rows if n_words == 1 else rows * np.int64(n_words))
        differing ^= words
        distances: NDArray[np.unsignedinteger] = np.bitwise_count(differing)
        near = (distances <= radius).nonzero()[0]
        return near, distances[near]

    def _compared(
        self, queries: Codes, begins: Numbers, counts: Numbers, radius: int
    ) -> SearchResult:
        """Compare each query with the rows of its buckets, in blocks of limited memory."""
        block = np.cumsum(counts.sum(axis=1)) // _CANDIDATES_AT_ONCE
        cuts = [0, *(np.flatnonzero(np.diff(block)) + 1), len(queries)]
        return SearchResult.concatenate(
            [
                self._compared_at_once(queries[i:j], begins[i:j], counts[i:j], radius)
                for i, j in pairwise(cuts)
            ]
        )

    def _compared_at_once(
        self, queries: Codes, begins: Numbers, counts: Numbers, radius: int
    ) -> SearchResult:
        flat = counts.ravel()
        ends = flat.cumsum()
        # Positions of the candidates: from the start of each bucket to its end.
        positions = np.repeat(begins.ravel() - ends + flat, flat)
        positions += np.arange(len(positions))
        rows = self.rows.take(positions)
        words, per_query = as_words(queries), counts.sum(axis=1)
        near, distances = self._near_in_first_word(rows, np.repeat(words[:, 0], per_query), radius)
        rows, query = rows[near], np.searchsorted(per_query.cumsum(), near, side="right")
        if words.shape[1] > 1:
            distances = _distances(self._words[rows], words[query])
            near = (distances <= radius).nonzero()[0]
            rows, distances, query = rows[near], distances[near], query[near]
        return sort_hits(query, distances, rows, len(queries))


def table_arrays(n_rows: int, n_bits: int, n_bands: int) -> list[tuple[Any, int]]:
    """Return the dtype and the length of the arrays `starts` and `rows`."""
    n_buckets = int(_Layout.of(n_rows, n_bits, n_bands).first_bucket[-1])
    n_entries = n_bands * n_rows
    return [(np.uint32 if n_entries < 2**32 else np.uint64, n_buckets + 1), (np.uint32, n_entries)]


def _big_endian_words(codes: Codes) -> Words:
    """Return codes as 64-bit integers whose most significant bit is the first bit."""
    if codes.shape[1] == 4:
        return codes.view(">u4").astype(np.uint64) << np.uint64(32)
    return codes.view(">u8").astype(np.uint64)


def _bits_before(words: Words, ends: Numbers, counts: Numbers) -> Words:
    """Return the given number of bits, at most 64, before each end: (n_codes, n_ends)."""
    begins = ends - counts
    first, offset = begins // 64, (begins % 64).astype(np.uint64)
    # Bits that cross a word boundary are the end of one word and the start of the next.
    following = words[:, np.minimum(first + 1, words.shape[1] - 1)] >> np.uint64(1)
    bits: Words = words[:, np.minimum(first, words.shape[1] - 1)] << offset
    bits |= following >> (np.uint64(63) - offset)
    bits >>= (64 - counts).astype(np.uint64)  # a shift by 64, for no bits, is 0 in NumPy
    return bits


def _distances(rows: NDArray[Any], queries: NDArray[Any]) -> NDArray[np.unsignedinteger]:
    """Return the number of differing bits of rows of several words, summed column by column."""
    counts: NDArray[np.unsignedinteger] = np.bitwise_count(rows ^ queries)
    distances = counts[:, 0].astype(np.uint32)
    for column in counts.T[1:]:
        distances += column
    return distances


def _interleave(first: NDArray[np.bool_], hits: SearchResult, others: SearchResult) -> SearchResult:
    """Combine the results of the queries marked in `first` with those of the others."""
    query = np.concatenate(
        [
            np.repeat(np.flatnonzero(mine), part.counts)
            for mine, part in ((first, hits), (~first, others))
        ]
    )
    order = np.argsort(query, kind="stable")
    offsets = np.searchsorted(query[order], np.arange(len(first) + 1))
    return SearchResult(
        np.concatenate([hits.ids, others.ids])[order],
        np.concatenate([hits.distances, others.distances])[order],
        offsets=offsets,
    )


_MIN_ROWS = 4096  # a scan of fewer rows takes microseconds
_MIN_BANDS = 3  # for radius 2, the most common; smaller radii use some of the bands
_SCANNED_PER_ENTRY = 512  # bytes that Faiss scans in the time one table entry is built
_OUTSIDE = 8  # a prepared index is rebuilt if more than 1/8 of its rows are not in the tables
_MAX_KEY_BITS = 57  # longer bands do not separate more codes


class TableCache:
    """The tables of an index that changes.

    Rows appended after the tables were built are scanned. The tables of a prepared index are
    rebuilt by a change that leaves too many rows outside them. Tables that a search builds for an
    older snapshot of the items are not cached.
    """

    def __init__(self, n_bits: int) -> None:
        self.n_bits = n_bits
        self._n_prepared = 0  # bands
        self._cached: tuple[object, BandTables] | None = None  # with the generation of their items
        self._generation: object = None  # of the current items

    @property
    def nbytes(self) -> int:
        """Bytes of the cached tables."""
        return self._cached[1].nbytes if self._cached else 0

    def prepare(self, items: IndexedItems, radius: int) -> None:
        """Build tables of these items now, and keep them up to date from now on."""
        n_bands = max(_MIN_BANDS, radius + 1)
        if not _are_selective(self.n_bits, n_bands):
            raise ValueError(
                f"codes of {self.n_bits} bits are too short for tables of radius {radius}: a scan "
                "is as fast without preparation"
            )
        self._n_prepared = n_bands
        if len(items) >= _MIN_ROWS and self.covering(items, n_bands) is None:
            self._build(items, n_bands)

    def update(self, items: IndexedItems) -> None:
        """Adapt the tables to changed items."""
        self._generation, n_tabled = items.generation, 0
        if self._cached is not None:
            generation, tables = self._cached
            if generation is not items.generation:
                self._cached = None
            else:
                n_tabled = len(tables.codes)
                if not np.may_share_memory(tables.codes, items.rows):  # reallocated to grow
                    self._cached = generation, tables.over(items.rows[:n_tabled])
        n_outside = len(items) - n_tabled
        if self._n_prepared and len(items) >= _MIN_ROWS and n_outside * _OUTSIDE > len(items):
            self._build(items, self._n_prepared)

    def set(self, items: IndexedItems, tables: BandTables) -> None:
        """Cache tables of all these items."""
        self._n_prepared, self._generation = tables.n_bands, items.generation
        self._cached = items.generation, tables

    def to_save(self, items: IndexedItems) -> BandTables | None:
        """Return tables of all these items if the index is prepared."""
        if not self._n_prepared or len(items) < _MIN_ROWS:
            return None
        tables = self.covering(items, self._n_prepared)
        return tables or BandTables(items.rows, self.n_bits, self._n_prepared)

    def within(self, queries: Codes, items: IndexedItems, radius: int) -> list[SearchResult]:
        """Return all rows at distance ≤ radius, in one or two parts with different rows."""
        tables = self.covering(items, radius + 1) or self._tables(items, radius, len(queries))
        if tables is None:
            return [within(queries, items.rows, radius)]
        hits, n_tabled = tables.within(queries, radius), len(tables.codes)
        if n_tabled == len(items.rows):
            return [hits]
        rest = within(queries, items.rows[n_tabled:], radius)
        return [hits, rest.with_ids(rest.ids + n_tabled)]

    def covering(self, items: IndexedItems, n_bands: int) -> BandTables | None:
        """Return cached tables of all these items with at least n_bands."""
        cached = self._cached  # read once: another thread may replace it
        if cached is None or cached[0] is not items.generation:
            return None
        tables = cached[1]
        is_all = len(tables.codes) == len(items.rows) and tables.n_bands >= n_bands
        return tables if is_all else None

    def _tables(self, items: IndexedItems, radius: int, n_queries: int) -> BandTables | None:
        """Return the tables to use, or None if a scan is faster.

        Tables are built only if that is faster, for the queries of this call alone, than scanning
        the rows outside them.
        """
        tables = self._fitting(items, radius + 1)
        n_outside = len(items.rows) - (0 if tables is None else len(tables.codes))
        if not n_outside:
            return tables
        n_bands = max(_MIN_BANDS, radius + 1)
        n_bytes = n_queries * n_outside * items.rows.shape[1]
        if n_bytes <= _SCANNED_PER_ENTRY * n_bands * len(items) or len(items) < _MIN_ROWS:
            return tables
        return self._build(items, n_bands) if _are_selective(self.n_bits, n_bands) else tables

    def _fitting(self, items: IndexedItems, n_bands: int) -> BandTables | None:
        """Return cached tables of these items or of the first of them."""
        cached = self._cached  # read once: another thread may replace it
        if cached is None or cached[0] is not items.generation or cached[1].n_bands < n_bands:
            return None
        return cached[1] if len(cached[1].codes) <= len(items.rows) else None

    def _build(self, items: IndexedItems, n_bands: int) -> BandTables:
        tables = BandTables(items.rows, self.n_bits, n_bands)
        if items.generation is self._generation:
            self._cached = items.generation, tables
        return tables


def _are_selective(n_bits: int, n_bands: int) -> bool:
    """Return whether queries of random codes have few candidates: n·n_bands / 2^width."""
    return 2 * SCANNED_PER_CANDIDATE * n_bands <= 1 << min(n_bits // n_bands, _MAX_KEY_BITS)

"""Radius search without a scan: multi-index hashing. [Norouzi2012]"""

import sys
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes
from antipodal.index.items import IndexedItems, as_words
from antipodal.index.scan import QUERIES_AT_ONCE, RowHits, in_order, joined, of_one_in_order, within

Numbers = NDArray[np.int64]
Words = NDArray[np.uint64]

SCANNED_PER_CANDIDATE = 24  # rows that Faiss scans while NumPy looks up and compares one
_LOW_BITS = 62  # they are a number of 64 bits with a sign
_CANDIDATES_AT_ONCE = 2**18
_ROWS_AT_ONCE = 2**20
_FEW = 40  # candidates that Python compares before NumPy is done being called
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: spreads neighbouring keys
_WORD = 2**64 - 1


class _Layout(NamedTuple):
    """Where each band lies in a code, and how its bits become the number of a bucket.

    The last 62 bits of a band are a number, and those before, if it is longer, another, which is
    mixed into the first. The key that results is hashed by a multiplication that keeps the
    highest bits, or not at all if it is short. The buckets of a band are numbered after those of
    the band before.
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
        n_hash_bits = np.minimum(n_low, n_rows.bit_length())  # a row or less a bucket
        hashed = n_hash_bits < n_key_bits
        return cls(
            cuts[1:],
            n_low,
            np.minimum(n_key_bits - n_low, _LOW_BITS),
            np.where(hashed, np.uint64(_GOLDEN), np.uint64(1)),
            np.where(hashed, 64 - n_hash_bits, 0).astype(np.uint64),
            np.concatenate([[0], np.cumsum(2**n_hash_bits)]),
        )


class Tables:
    """The rows of every bucket of every band, and the lookup of any radius below n_bands.

    All bands share two arrays: the rows of bucket h are rows[starts[h] : starts[h + 1]].

    Parameters
    ----------
    codes : uint8 (n, row_width), n ≥ 1
        Padded codes, which the tables are of.
    starts, rows : arrays, optional
        The tables, if they were made before: of the dtypes and lengths of `table_arrays`.
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
        # The same in numbers of Python, for `_within_of_one`: a code is one whole number there.
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

    def over(self, codes: Codes) -> "Tables":
        """Return the same tables for the same codes in another place."""
        return Tables(codes, self.n_bits, self.n_bands, self.starts, self.rows)

    @property
    def arrays(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The two that make tables of these codes again."""
        return self.starts, self.rows

    @property
    def nbytes(self) -> int:
        """Bytes of the tables."""
        return self.starts.nbytes + self.rows.nbytes

    def within(self, queries: Codes, radius: int) -> RowHits:
        """Find what `scan.within` finds.

        The tables say how many candidates a query has before any is looked at: a query with so
        many that a scan is faster, as where codes crowd together, is scanned.
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
            parts.append(_interleaved(rest, looked_up, scanned))
        return joined(parts)

    def _fill(self, band: int, starts: NDArray[Any], rows: NDArray[Any]) -> None:
        """Sort the rows by their bucket in this band, and count the rows of every bucket."""
        n_rows = len(self.codes)
        order = np.empty(n_rows, dtype=np.uint64)
        for start in range(0, n_rows, _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            buckets = self._buckets(self.codes[part], slice(band, band + 1))[:, 0]
            order[part] = buckets << 32 | np.arange(start, start + len(buckets))
        order.sort()  # bucket and row in one number: much faster than sorting rows by bucket
        for start in range(0, n_rows, _ROWS_AT_ONCE):
            block = order[start : start + _ROWS_AT_ONCE]
            buckets = (block >> np.uint64(32)).view(np.int64)
            first = int(buckets[0])
            counts = np.bincount(buckets - first)
            starts[first + 1 : first + 1 + len(counts)] += counts.astype(starts.dtype)
            place = band * n_rows + start
            rows[place : place + len(block)] = block  # the lower half of each number

    def _buckets(self, codes: Codes, bands: slice) -> Numbers:
        """Find the bucket of each code in each of the bands: (n_codes, n_bands)."""
        words, layout = _big_endian_words(codes), self._layout
        ends, n_low, n_high = layout.ends[bands], layout.n_low[bands], layout.n_high[bands]
        key = _bits_before(words, ends, n_low)
        if n_high.any():
            key ^= _bits_before(words, ends - n_low, n_high) * np.uint64(_GOLDEN)
        key *= layout.multiplier[bands]
        key >>= layout.hash_shift[bands]
        buckets: Numbers = key.view(np.int64) + layout.first_bucket[:-1][bands]
        return buckets

    def _within_of_one(self, query: Codes, radius: int) -> RowHits:
        """Do the same for a single query.

        NumPy takes longer to be called than Python takes for a few numbers, which it reads from
        a `memoryview`.
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
            return self._within_crowd(query, buckets, n_candidates, radius)
        candidates = {rows[place] for begin, end in buckets for place in range(begin, end)}
        first = int.from_bytes(raw[: words.itemsize], sys.byteorder)
        n_words = width // words.itemsize
        found = []
        for row in candidates:
            distance = (words[row * n_words] ^ first).bit_count()
            if distance <= radius and n_words > 1:  # few are so near in the first word
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
        return RowHits(array[:2], array[2:], np.array(distances, np.int32))

    def _within_crowd(
        self, query: Codes, buckets: list[tuple[int, int]], n_candidates: int, radius: int
    ) -> RowHits:
        """Compare a single query with the many rows of its buckets, or with all."""
        if n_candidates * SCANNED_PER_CANDIDATE > len(self.codes):
            return within(query, self.codes, radius)
        rows = np.concatenate([self.rows[begin:end] for begin, end in buckets])
        asked = as_words(query)
        near, distances = self._near_at_first(rows, asked[0, :1], radius)
        rows = rows[near]
        if asked.shape[1] > 1:
            distances = _distances(self._words[rows], asked)
            near = (distances <= radius).nonzero()[0]
            rows, distances = rows[near], distances[near]
        return of_one_in_order(distances, rows)

    def _near_at_first(
        self, rows: NDArray[Any], asked: NDArray[Any], radius: int
    ) -> tuple[Numbers, NDArray[np.unsignedinteger]]:
        """Find the candidates whose first word is near enough: their places, and how far it is.

        Few are, and only these are compared in their other words. `asked` is the first word of each
        candidate's query, or of the one that all have.
        """
        n_words = self._words.shape[1]
        differing = self._flat.take(rows if n_words == 1 else rows * np.int64(n_words))
        differing ^= asked
        distances: NDArray[np.unsignedinteger] = np.bitwise_count(differing)
        near = (distances <= radius).nonzero()[0]
        return near, distances[near]

    def _compared(self, queries: Codes, begins: Numbers, counts: Numbers, radius: int) -> RowHits:
        """Compare each query with the rows of its buckets, so many pairs at once."""
        # A query that is not crowded has fewer candidates than SCANNED_PER_CANDIDATE-th of rows.
        block = np.cumsum(counts.sum(axis=1)) // _CANDIDATES_AT_ONCE
        cuts = [0, *(np.flatnonzero(np.diff(block)) + 1), len(queries)]
        return joined(
            [
                self._compared_at_once(queries[i:j], begins[i:j], counts[i:j], radius)
                for i, j in pairwise(cuts)
            ]
        )

    def _compared_at_once(
        self, queries: Codes, begins: Numbers, counts: Numbers, radius: int
    ) -> RowHits:
        flat = counts.ravel()
        ends = flat.cumsum()
        # The places of candidates: where a bucket begins, and on from there to its end.
        places = np.repeat(begins.ravel() - ends + flat, flat)
        places += np.arange(len(places))
        rows = self.rows.take(places)
        asked, per_query = as_words(queries), counts.sum(axis=1)
        near, distances = self._near_at_first(rows, np.repeat(asked[:, 0], per_query), radius)
        rows, query = rows[near], np.searchsorted(per_query.cumsum(), near, side="right")
        if asked.shape[1] > 1:
            distances = _distances(self._words[rows], asked[query])
            near = (distances <= radius).nonzero()[0]
            rows, distances, query = rows[near], distances[near], query[near]
        return in_order(query, distances, rows, len(queries))


def table_arrays(n_rows: int, n_bits: int, n_bands: int) -> list[tuple[Any, int]]:
    """Return the dtype and the length of each of the two arrays of tables: starts, rows."""
    n_buckets = int(_Layout.of(n_rows, n_bits, n_bands).first_bucket[-1])
    n_entries = n_bands * n_rows
    return [(np.uint32 if n_entries < 2**32 else np.uint64, n_buckets + 1), (np.uint32, n_entries)]


def _big_endian_words(codes: Codes) -> Words:
    """Read codes as numbers of 64 bits in whose order bits follow each other."""
    if codes.shape[1] == 4:
        return codes.view(">u4").astype(np.uint64) << np.uint64(32)
    return codes.view(">u8").astype(np.uint64)


def _bits_before(words: Words, ends: Numbers, counts: Numbers) -> Words:
    """Read so many bits, at most 64, before each of the ends: (n_codes, n_ends)."""
    begins = ends - counts
    place, offset = begins // 64, (begins % 64).astype(np.uint64)
    # What crosses into the next word begins with the rest of this one.
    following = words[:, np.minimum(place + 1, words.shape[1] - 1)] >> np.uint64(1)
    bits: Words = words[:, np.minimum(place, words.shape[1] - 1)] << offset
    bits |= following >> (np.uint64(63) - offset)
    bits >>= (64 - counts).astype(np.uint64)  # by 64, where there are none, NumPy gives 0
    return bits


def _distances(rows: NDArray[Any], queries: NDArray[Any]) -> NDArray[np.unsignedinteger]:
    """Count the bits in which rows of words differ; column by column, since there are few."""
    counts: NDArray[np.unsignedinteger] = np.bitwise_count(rows ^ queries)
    if counts.shape[1] == 1:
        return counts[:, 0]
    distances = counts[:, 0].astype(np.uint32)
    for column in counts.T[1:]:
        distances += column
    return distances


def _interleaved(first: NDArray[np.bool_], hits: RowHits, others: RowHits) -> RowHits:
    """Put together the hits of the queries marked in `first` and those of all others."""
    query = np.concatenate(
        [
            np.repeat(np.flatnonzero(mine), np.diff(part.offsets))
            for mine, part in ((first, hits), (~first, others))
        ]
    )
    order = np.argsort(query, kind="stable")
    offsets = np.searchsorted(query[order], np.arange(len(first) + 1))
    return RowHits(
        offsets,
        np.concatenate([hits.rows, others.rows])[order],
        np.concatenate([hits.distances, others.distances])[order],
    )


_MIN_ROWS = 4096  # below, a scan takes microseconds
_MIN_BANDS = 3  # radius 2 is what most ask for; a smaller one needs only some of the bands
_SCANNED_PER_ENTRY = 512  # bytes that Faiss scans while one entry of a table is made
_OUTSIDE = 8  # of so many rows one may be outside the tables of a prepared index
_MAX_KEY_BITS = 57  # longer bands tell no more codes apart


class Bands:
    """The tables of an index that changes.

    Rows that were added at the end, behind those that are in the tables, are scanned. Tables that
    were prepared are made anew by a change that leaves too many rows outside. A search may still
    be of items as they were before a change: tables that it makes of these are not kept.
    """

    def __init__(self, n_bits: int) -> None:
        self.n_bits = n_bits
        self._n_prepared = 0  # bands
        self._made: tuple[object, Tables] | None = None  # and the era of their items
        self._era: object = None  # of the items there are now

    @property
    def nbytes(self) -> int:
        """Bytes of the tables there are."""
        return self._made[1].nbytes if self._made else 0

    def prepare(self, items: IndexedItems, radius: int) -> None:
        """Make tables of these items now, and keep them up from now on."""
        n_bands = max(_MIN_BANDS, radius + 1)
        if not _tell_apart(self.n_bits, n_bands):
            raise ValueError(
                f"codes of {self.n_bits} bits are too short for tables of radius {radius}: a scan "
                "is as fast, and needs no preparation"
            )
        self._n_prepared = n_bands
        if len(items) >= _MIN_ROWS and self.covering(items, n_bands) is None:
            self._make(items, n_bands)

    def follow(self, items: IndexedItems) -> None:
        """Keep up with a change."""
        self._era, n_tabled = items.era, 0
        if self._made is not None:
            era, tables = self._made
            if era is not items.era:
                self._made = None
            else:
                n_tabled = len(tables.codes)
                if not np.may_share_memory(tables.codes, items.rows):  # they moved in order to grow
                    self._made = era, tables.over(items.rows[:n_tabled])
        n_outside = len(items) - n_tabled
        if self._n_prepared and len(items) >= _MIN_ROWS and n_outside * _OUTSIDE > len(items):
            self._make(items, self._n_prepared)

    def keep(self, items: IndexedItems, tables: Tables) -> None:
        """Take over tables of all these items."""
        self._n_prepared, self._era = tables.n_bands, items.era
        self._made = items.era, tables

    def to_save(self, items: IndexedItems) -> Tables | None:
        """Return tables of all these items if they were prepared."""
        if not self._n_prepared or len(items) < _MIN_ROWS:
            return None
        tables = self.covering(items, self._n_prepared)
        return tables or Tables(items.rows, self.n_bits, self._n_prepared)

    def within(self, queries: Codes, items: IndexedItems, radius: int) -> list[RowHits]:
        """Find all rows at distance ≤ radius: in one part, or in two, each in its order."""
        tables = self.covering(items, radius + 1) or self._tables(items, radius, len(queries))
        if tables is None:
            return [within(queries, items.rows, radius)]
        hits, n_tabled = tables.within(queries, radius), len(tables.codes)
        if n_tabled == len(items.rows):
            return [hits]
        behind = within(queries, items.rows[n_tabled:], radius)
        return [hits, behind._replace(rows=behind.rows + n_tabled)]

    def covering(self, items: IndexedItems, n_bands: int) -> Tables | None:
        """Return tables of all these items, with so many bands or more."""
        made = self._made  # read once: another thread may put newer ones in their place
        if made is None or made[0] is not items.era:
            return None
        tables = made[1]
        is_all = len(tables.codes) == len(items.rows) and tables.n_bands >= n_bands
        return tables if is_all else None

    def _tables(self, items: IndexedItems, radius: int, n_queries: int) -> Tables | None:
        """Return the tables to use, or None where a scan is better.

        Tables are made here only if the queries of this one call would take longer to scan what
        is outside of them: no call waits for what later ones may need.
        """
        tables = self._fitting(items, radius + 1)
        n_outside = len(items.rows) - (0 if tables is None else len(tables.codes))
        if not n_outside:
            return tables
        n_bands = max(_MIN_BANDS, radius + 1)
        n_bytes = n_queries * n_outside * items.rows.shape[1]
        if n_bytes <= _SCANNED_PER_ENTRY * n_bands * len(items) or len(items) < _MIN_ROWS:
            return tables
        return self._make(items, n_bands) if _tell_apart(self.n_bits, n_bands) else tables

    def _fitting(self, items: IndexedItems, n_bands: int) -> Tables | None:
        """Return tables of these items, or of the first of them."""
        made = self._made  # read once: another thread may put newer ones in their place
        if made is None or made[0] is not items.era or made[1].n_bands < n_bands:
            return None
        return made[1] if len(made[1].codes) <= len(items.rows) else None

    def _make(self, items: IndexedItems, n_bands: int) -> Tables:
        tables = Tables(items.rows, self.n_bits, n_bands)
        if items.era is self._era:
            self._made = items.era, tables
        return tables


def _tell_apart(n_bits: int, n_bands: int) -> bool:
    """Whether codes without structure leave few enough candidates: n·n_bands / 2^width."""
    return 2 * SCANNED_PER_CANDIDATE * n_bands <= 1 << min(n_bits // n_bands, _MAX_KEY_BITS)

"""Small radii without a scan: multi-index hashing. [Norouzi2012]

Cut a code into more bands than r. Two codes that differ in at most r bits agree on a whole band,
because r differences cannot touch r + 1 bands (the pigeonhole principle). So the rows that share
one of r + 1 bands with the query hold every answer, and only they are compared with it. Which
rows share a band is read from a table, a hash of the band to its rows: a collision adds a
comparison and never loses an answer.
"""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes
from antipodal.index.items import IndexedItems, as_words
from antipodal.index.scan import QUERIES_AT_ONCE, RowHits, in_order, joined, within

Numbers = NDArray[np.int64]

_MIN_ROWS = 4096  # below, a scan takes microseconds
_MIN_BANDS = 3  # radius 2 is what most ask for; a smaller one needs only some of the bands
_MAX_KEY_BITS = 57  # a band that begins anywhere in a byte then lies in 8 bytes
_SCANNED_PER_CANDIDATE = 24  # rows that Faiss scans while NumPy looks up and compares one
_QUERIES_PER_BAND = 32  # scans that take as long as making the table of a band
_CANDIDATES_AT_ONCE = 2**18
_ROWS_AT_ONCE = 2**20
_FEW = 512
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: spreads neighbouring keys
_WORD = 2**64 - 1


class Bands:
    """Tables of the newest items, made when there have been enough queries to pay for them."""

    def __init__(self, n_bits: int) -> None:
        self.n_bits = n_bits
        self._tables: Tables | None = None
        self._scanned: tuple[IndexedItems | None, int] = (
            None,
            0,
        )  # items, and queries that scanned them

    @property
    def nbytes(self) -> int:
        """Bytes of the tables there are."""
        return self._tables.nbytes if self._tables else 0

    def tables(self, items: IndexedItems, radius: int, n_queries: int) -> "Tables | None":
        """Return tables of these items for this radius, or None where a scan is better.

        Tables cost as much as some number of scans. They are made once that many queries have
        come since the items changed, so that changes and queries in turn hardly cost more than
        twice what the better of the two ways would have cost.
        """
        n_bands = max(_MIN_BANDS, radius + 1)
        if len(items) < _MIN_ROWS or not _worth_a_look(self.n_bits, n_bands):
            return None
        tables = self._tables  # read once: another thread may put newer ones in their place
        if tables is not None and tables.codes is items.rows and tables.n_bands >= n_bands:
            return tables
        scanned, n_scanned = self._scanned
        n_scanned = n_queries + (n_scanned if scanned is items else 0)
        if n_scanned < _QUERIES_PER_BAND * n_bands:
            self._scanned = items, n_scanned
            return None
        self._tables = tables = Tables(items.rows, self.n_bits, n_bands)
        return tables


def _worth_a_look(n_bits: int, n_bands: int) -> bool:
    """Whether codes without structure leave few enough candidates: n·n_bands / 2^width."""
    return 2 * _SCANNED_PER_CANDIDATE * n_bands <= 1 << min(n_bits // n_bands, _MAX_KEY_BITS)


class Tables:
    """The rows of every bucket of every band, and the lookup of any radius below n_bands.

    All bands share two arrays: the rows of bucket h are rows[starts[h] : starts[h + 1]], and the
    buckets of a band are numbered after those of the band before.
    """

    def __init__(self, codes: Codes, n_bits: int, n_bands: int) -> None:
        self.codes = codes
        self._words = as_words(codes)
        self.n_bands = n_bands
        cuts = np.array([n_bits * i // n_bands for i in range(n_bands + 1)])
        n_key_bits = np.minimum(np.diff(cuts), _MAX_KEY_BITS)
        n_hash_bits = np.minimum(n_key_bits, len(codes).bit_length() - 1)  # 1 or 2 rows a bucket
        self._first_bucket = np.concatenate([[0], np.cumsum(2**n_hash_bits)])

        # The key of a band, its bits as a number, is cut from the 8 bytes that it begins in, and
        # hashed by a multiplication that keeps the highest bits, or not at all if it is short.
        self._window = np.minimum(cuts[:-1, None] // 8 + np.arange(8), codes.shape[1] - 1)
        self._shift_up = (cuts[:-1] % 8).astype(np.uint64)
        self._shift_down = (64 - n_key_bits).astype(np.uint64)
        hashed = n_hash_bits < n_key_bits
        self._multiplier = np.where(hashed, _GOLDEN, np.uint64(1))
        self._hash_shift = np.where(hashed, 64 - n_hash_bits, 0).astype(np.uint64)

        # The same for a code as one whole number.
        to_key = 8 * codes.shape[1] - cuts[:-1] - n_key_bits
        masks = (1 << n_key_bits) - 1
        numbers = to_key, masks, self._multiplier, self._hash_shift, self._first_bucket[:-1]
        self._of_one = list(zip(*(column.tolist() for column in numbers), strict=True))

        self._rows = np.empty(n_bands * len(codes), dtype=np.uint32)
        self._starts = np.zeros(
            self._first_bucket[-1] + 1, dtype=np.min_scalar_type(len(self._rows))
        )
        for band in range(n_bands):
            self._fill(band)
        np.cumsum(self._starts, out=self._starts)

    @property
    def nbytes(self) -> int:
        """Bytes of the tables."""
        return self._starts.nbytes + self._rows.nbytes

    def within(self, queries: Codes, radius: int) -> RowHits:
        """Find what `scan.within` finds.

        The tables say how many candidates a query has before any is looked at: a query with so
        many that a scan is faster, as where codes crowd together, is scanned.
        """
        if len(queries) == 1 and (hits := self._within_of_one(queries, radius)) is not None:
            return hits
        parts = []
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            part = queries[start : start + QUERIES_AT_ONCE]
            buckets = self._buckets(part, slice(radius + 1))
            begins = self._starts[buckets].astype(np.int64)
            counts = self._starts[buckets + 1] - begins
            n_candidates = counts.sum(axis=1)
            crowded = n_candidates * _SCANNED_PER_CANDIDATE > len(self.codes)
            if not crowded.any():
                parts.append(self._compared(part, begins, counts, n_candidates, radius))
                continue
            rest = ~crowded
            looked_up = self._compared(
                part[rest], begins[rest], counts[rest], n_candidates[rest], radius
            )
            scanned = within(part[crowded], self.codes, radius)
            parts.append(_interleaved(rest, looked_up, scanned))
        return joined(parts)

    def _fill(self, band: int) -> None:
        """Sort the rows by their bucket in this band, and count the rows of every bucket."""
        order = np.empty(len(self.codes), dtype=np.uint64)
        first, last = self._first_bucket[band : band + 2]
        for start in range(0, len(self.codes), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            buckets = self._buckets(self.codes[part], slice(band, band + 1))[:, 0]
            self._starts[first + 1 : last + 1] += np.bincount(
                buckets - first, minlength=last - first
            ).astype(self._starts.dtype)
            order[part] = buckets << 32 | np.arange(start, start + len(buckets))
        order.sort()  # bucket and row in one number: much faster than sorting rows by bucket
        self._rows[band * len(order) : (band + 1) * len(order)] = order.astype(np.uint32)

    def _buckets(self, codes: Codes, bands: slice) -> Numbers:
        """Find the bucket of each code in each of the bands: (n_codes, n_bands)."""
        key = codes.take(self._window[bands], axis=1).view(">u8")[:, :, 0].astype(np.uint64)
        key <<= self._shift_up[bands]
        key >>= self._shift_down[bands]
        key *= self._multiplier[bands]
        key >>= self._hash_shift[bands]
        buckets: Numbers = key.view(np.int64) + self._first_bucket[:-1][bands]
        return buckets

    def _within_of_one(self, query: Codes, radius: int) -> RowHits | None:
        """Do the same for a single query with few candidates, or return None if it has many.

        NumPy takes longer to be called than to work on a few numbers, so it is called little:
        a third of the time of the way for many.
        """
        code = int.from_bytes(query.data, "big")
        buckets = []
        for to_key, mask, multiplier, hash_shift, first_bucket in self._of_one[: radius + 1]:
            key = (code >> to_key) & mask
            bucket = first_bucket + ((key * multiplier & _WORD) >> hash_shift)
            begin, end = self._starts[bucket : bucket + 2].tolist()
            buckets.append(self._rows[begin:end])
        rows = np.concatenate(buckets)
        if len(rows) > _FEW:
            return None
        distances = _distances(self._words[rows], as_words(query))
        if len(rows) > 32:  # thin them out first
            near = distances <= radius
            distances, rows = distances[near], rows[near]
        pairs = set(zip(distances.tolist(), rows.tolist(), strict=True))
        found = sorted(pair for pair in pairs if pair[0] <= radius)
        return RowHits(
            np.array([0, len(found)]),
            np.array([row for _, row in found], dtype=np.int64),
            np.array([distance for distance, _ in found], dtype=np.int32),
        )

    def _compared(
        self, queries: Codes, begins: Numbers, counts: Numbers, n_candidates: Numbers, radius: int
    ) -> RowHits:
        """Compare each query with the rows of its buckets, so many pairs at once."""
        if n_candidates.sum() <= _CANDIDATES_AT_ONCE:
            return self._compared_at_once(queries, begins, counts, n_candidates, radius)
        # A query that is not crowded has fewer candidates than _SCANNED_PER_CANDIDATE-th of rows.
        block = np.cumsum(n_candidates) // _CANDIDATES_AT_ONCE
        cuts = [0, *(np.flatnonzero(np.diff(block)) + 1), len(queries)]
        return joined(
            [
                self._compared_at_once(
                    queries[i:j], begins[i:j], counts[i:j], n_candidates[i:j], radius
                )
                for i, j in pairwise(cuts)
            ]
        )

    def _compared_at_once(
        self, queries: Codes, begins: Numbers, counts: Numbers, n_candidates: Numbers, radius: int
    ) -> RowHits:
        flat = counts.ravel()
        ends = flat.cumsum()
        # The places of candidates: where a bucket begins, and on from there to its end.
        places = np.repeat(begins.ravel() - ends + flat, flat)
        places += np.arange(len(places))
        rows = self._rows[places]
        query = np.repeat(np.arange(len(queries)), n_candidates)
        distances = _distances(self._words[rows], as_words(queries)[query])
        hit = distances <= radius
        return in_order(query[hit], distances[hit], rows[hit], len(queries))


def _distances(rows: NDArray[Any], queries: NDArray[Any]) -> NDArray[np.unsignedinteger]:
    counts: NDArray[np.unsignedinteger] = np.bitwise_count(rows ^ queries)
    return counts[:, 0] if counts.shape[1] == 1 else counts.sum(axis=1)


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

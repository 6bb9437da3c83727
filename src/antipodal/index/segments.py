"""Index segments: sorted items, pending changes to them, and k-NN search over both.

A segment has one row per item, in the order of ids. Because of this order, ties at equal distance
are broken by row number, and a search does not need to read ids.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes, code_width
from antipodal.validation import Ids

RowNumbers = NDArray[np.int64]

MAX_ITEMS = 2**32 - 1  # `radius_tables` and `scan` pack row numbers into 32 bits


class Column(NamedTuple):
    """A growable array: its rows, and the larger buffer that starts with them."""

    rows: NDArray[Any]
    buffer: NDArray[Any]

    def extended(self, more: NDArray[Any]) -> "Column":
        """Return a longer column. Of columns that share a buffer, extend only the longest.

        The rows of this column are never overwritten, so running searches can continue to use it.
        """
        n_old, n_new = len(self.rows), len(self.rows) + len(more)
        buffer = self.buffer
        if n_new > len(buffer):
            # Spare capacity of one eighth: n single additions copy about 8·n rows in total.
            buffer = np.empty((n_new + n_old // 8, *buffer.shape[1:]), dtype=buffer.dtype)
            buffer[:n_old] = self.rows
        buffer[n_old:n_new] = more
        return Column(buffer[:n_new], buffer)

    @classmethod
    def of(cls, rows: NDArray[Any]) -> "Column":
        """Wrap an array without spare capacity; extending it copies it."""
        return cls(rows, rows)


@dataclass(frozen=True, eq=False)
class IndexedItems:
    """Immutable codes and ids; a change returns new `IndexedItems`.

    Attributes
    ----------
    code_column : Column of uint8 (n_items, row_width)
        Codes, padded with zero bytes to a width for which Faiss has fast kernels.
    id_column : range or Column of int64 (n_items,)
        Strictly increasing. Consecutive ids, or none, are a `range` and take no memory.
    generation : object
        Identity shared by items that differ only by appended rows.
    """

    code_column: Column
    id_column: range | Column
    generation: object = field(default_factory=object)

    @classmethod
    def none(cls, n_bits: int) -> Self:
        """Return items of n_bits without any rows."""
        return cls(Column.of(np.empty((0, row_width(n_bits)), dtype=np.uint8)), range(0))

    @classmethod
    def of(cls, rows: Codes, ids: range | Ids) -> Self:
        """Wrap arrays whose ids increase."""
        return cls(Column.of(rows), _column(ids))

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def rows(self) -> Codes:
        """Padded codes, in the order of ids."""
        return self.code_column.rows

    @property
    def ids(self) -> Ids:
        """All ids, increasing."""
        if isinstance(self.id_column, range):
            return np.arange(self.id_column.start, self.id_column.stop, dtype=np.int64)
        return self.id_column.rows

    @property
    def nbytes(self) -> int:
        """Bytes of codes and ids, without spare capacity."""
        return self.rows.nbytes + (
            0 if isinstance(self.id_column, range) else self.id_column.rows.nbytes
        )

    def id_of(self, row: int) -> int:
        """Return the id of one row; -1 is the last row."""
        ids = self.id_column
        return ids[row] if isinstance(ids, range) else int(ids.rows[row])

    def ids_of(self, rows: RowNumbers) -> Ids:
        """Return the ids of an array of rows of any shape."""
        if isinstance(self.id_column, range):
            return rows + self.id_column.start if self.id_column.start else rows
        ids: Ids = self.id_column.rows[rows]
        return ids

    def rows_of(self, ids: Ids) -> RowNumbers:
        """Return the row of each id, -1 for unknown ids."""
        if isinstance(self.id_column, range):
            rows = ids - self.id_column.start  # may wrap around, but never to an existing row
            return np.where((rows >= 0) & (rows < len(self)), rows, -1)
        rows = np.minimum(np.searchsorted(self.id_column.rows, ids), len(self) - 1)
        return np.where(self.id_column.rows[rows] == ids, rows, -1)

    def added(self, rows: Codes, ids: range | Ids) -> "IndexedItems":
        """Return these items with at least one new item; the new ids increase."""
        if not len(self):
            return IndexedItems(self.code_column.extended(rows), _column(ids))
        if ids[0] > self.id_of(-1):
            return replace(
                self,
                code_column=self.code_column.extended(rows),
                id_column=self._extended_ids(ids),
            )
        places = np.searchsorted(self.ids, np.asarray(ids))
        merged = np.insert(as_words(self.rows), places, as_words(rows), axis=0)
        return IndexedItems.of(merged.view(np.uint8), np.insert(self.ids, places, np.asarray(ids)))

    def removed(self, rows: RowNumbers) -> "IndexedItems":
        """Return the items without these rows."""
        is_kept = np.ones(len(self), dtype=np.bool_)
        is_kept[rows] = False
        kept = np.flatnonzero(is_kept)
        return IndexedItems.of(take_rows(self.rows, kept), self.ids_of(kept))

    def _extended_ids(self, ids: range | Ids) -> range | Column:
        more = as_range(ids)
        if isinstance(self.id_column, range):
            if isinstance(more, range) and more.start == self.id_column.stop:
                return range(self.id_column.start, more.stop)
            return Column.of(self.ids).extended(np.asarray(more))
        return self.id_column.extended(np.asarray(more))


def as_range(ids: range | Ids) -> range | Ids:
    """Return increasing ids as a range if they are consecutive."""
    if isinstance(ids, range):
        return ids
    if not len(ids):
        return range(0)
    first, last = int(ids[0]), int(ids[-1])
    return range(first, last + 1) if last - first == len(ids) - 1 else ids


def _column(ids: range | Ids) -> range | Column:
    compact = as_range(ids)
    return compact if isinstance(compact, range) else Column.of(compact)


def row_width(n_bits: int) -> int:
    """Return the bytes of a padded code: 4, 8, 16, 32 or a larger multiple of 8.

    Faiss compares codes of other widths byte by byte, up to five times slower.
    """
    width = code_width(n_bits)
    for wide in (4, 8, 16, 32):
        if width <= wide:
            return wide
    return -(-width // 8) * 8


def to_rows(codes: Codes, n_bits: int) -> Codes:
    """Pad codes with zero bytes to the row width, which changes no distance."""
    missing = row_width(n_bits) - codes.shape[1]
    return np.pad(codes, ((0, 0), (0, missing))) if missing else codes


def as_words(rows: Codes) -> NDArray[Any]:
    """View rows as words of eight bytes, or of four if rows are that short."""
    return rows.view(np.uint32 if rows.shape[1] == 4 else np.uint64)


def take_rows(rows: Codes, numbers: RowNumbers) -> Codes:
    """Copy some rows, as words: ten times faster than byte by byte."""
    return as_words(rows).take(numbers, axis=0).view(np.uint8)


# More pending changes are merged into the main segment. Copying this many items with each change
# takes less than a millisecond. Changes of smaller indexes are merged at once.
_MAX_PENDING = 2**16
_PENDING_SHARE = 2**8  # large indexes may have one pending change per 256 items

_NONE: RowNumbers = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Segments:
    """Immutable contents of an index; a change returns new `Segments`.

    Row numbers below ``len(main)`` are rows of the main segment, larger ones those of the delta
    segment. No id occurs twice among the items that are not removed.

    Attributes
    ----------
    main : IndexedItems
        Most items.
    removed_rows : int64, increasing
        Rows of the main segment whose items were removed.
    delta : IndexedItems
        Items added when the main segment had larger ids.
    """

    main: IndexedItems
    removed_rows: RowNumbers
    delta: IndexedItems

    @classmethod
    def of(cls, items: IndexedItems, n_bits: int) -> "Segments":
        """Return segments without pending changes."""
        return cls(items, _NONE, IndexedItems.none(n_bits))

    def __len__(self) -> int:
        return len(self.main) - len(self.removed_rows) + len(self.delta)

    @property
    def nbytes(self) -> int:
        """Bytes of codes and ids, without spare capacity."""
        return self.main.nbytes + self.removed_rows.nbytes + self.delta.nbytes

    @property
    def n_pending(self) -> int:
        """The number of changes that are not merged into the main segment."""
        return len(self.removed_rows) + len(self.delta)

    @cached_property
    def is_merged(self) -> bool:
        """Whether all items are in the main segment."""
        return self.n_pending == 0

    def next_id(self) -> int:
        """Return the id after the largest, 0 for an empty index."""
        # The i-th removed row r follows r - i kept rows. If these are all kept rows, r is one of
        # the removed rows at the end of the segment.
        n_kept_before = self.removed_rows - np.arange(len(self.removed_rows))
        n_kept = len(self.main) - len(self.removed_rows)
        n_at_end = int(np.count_nonzero(n_kept_before == n_kept))
        largest = [self.main.id_of(len(self.main) - n_at_end - 1)] if n_kept else []
        largest += [self.delta.id_of(-1)] if len(self.delta) else []
        return max(largest) + 1 if largest else 0

    @property
    def ids(self) -> Ids:
        """All ids, increasing."""
        kept = np.delete(self.main.ids, self.removed_rows) if self.n_pending else self.main.ids
        return np.sort(np.concatenate([kept, self.delta.ids])) if len(self.delta) else kept

    def rows_of(self, ids: Ids) -> RowNumbers:
        """Return the row of each id, -1 for ids that are not in the index."""
        rows = self.main.rows_of(ids)
        if len(self.removed_rows):
            rows[is_member(rows, self.removed_rows)] = -1
        if len(self.delta):
            delta_rows = self.delta.rows_of(ids)
            rows = np.where(delta_rows >= 0, delta_rows + len(self.main), rows)
        return rows

    def codes_of(self, rows: RowNumbers) -> Codes:
        """Return the padded codes of an array of rows of any shape."""
        if not len(self.delta):
            return self.main.rows[rows]
        in_delta = rows >= len(self.main)
        codes = self.main.rows[np.where(in_delta, 0, rows)]
        codes[in_delta] = self.delta.rows[rows[in_delta] - len(self.main)]
        return codes

    def by_segment(self, rows: RowNumbers) -> list[tuple[IndexedItems, RowNumbers]]:
        """Split increasing row numbers by segment; the delta segment only if it has any."""
        cut = int(np.searchsorted(rows, len(self.main)))
        parts = [(self.main, rows[:cut]), (self.delta, rows[cut:] - len(self.main))]
        return parts if cut < len(rows) else parts[:1]

    def added(self, codes: Codes, ids: range | Ids) -> "Segments":
        """Return the segments with new items, whose ids increase."""
        if not len(ids):
            return self
        if not len(self.main) or ids[0] > self.main.id_of(-1):
            return replace(self, main=self.main.added(codes, ids))
        if self._must_merge(self.n_pending + len(ids)):
            return self._with_main(self.merged().added(codes, ids))
        return replace(self, delta=self.delta.added(codes, ids))

    def removed(self, rows: RowNumbers) -> "Segments":
        """Return the segments without the items of these rows."""
        in_delta = rows >= len(self.main)
        delta = (
            self.delta.removed(rows[in_delta] - len(self.main)) if in_delta.any() else self.delta
        )
        removed = np.union1d(self.removed_rows, rows[~in_delta])
        left = replace(self, removed_rows=removed, delta=delta)
        return self._with_main(left.merged()) if self._must_merge(left.n_pending) else left

    def merged(self) -> IndexedItems:
        """Return all items in the order of their ids, copied if changes are pending."""
        kept = self.main.removed(self.removed_rows) if len(self.removed_rows) else self.main
        return kept.added(self.delta.rows, self.delta.ids) if len(self.delta) else kept

    def _must_merge(self, n_pending: int) -> bool:
        most = max(_MAX_PENDING, len(self.main) // _PENDING_SHARE)
        return len(self.main) <= _MAX_PENDING or n_pending > most

    def _with_main(self, main: IndexedItems) -> "Segments":
        return Segments(main, _NONE, IndexedItems(Column.of(self.delta.rows[:0]), range(0)))


def is_member(rows: RowNumbers, members: RowNumbers) -> NDArray[np.bool_]:
    """Return which rows are among the members, which are increasing and not empty."""
    positions = np.minimum(np.searchsorted(members, rows), len(members) - 1)
    found: NDArray[np.bool_] = members[positions] == rows
    return found


# A k-NN function of queries, codes and k, which returns rows and the values that order them,
# smallest first, both of shape (n_queries, k).
Search: TypeAlias = Callable[[Any, Codes, int], tuple[RowNumbers, Any]]

_SPARE = 32  # rows to find in addition to k, for removed ones
_SPARE_GROWTH = 8
_MAX_FOUND = 2**22  # rows found by one repeated search


def search_segments(
    search: Search,
    queries: NDArray[Any],
    k: int,
    segments: Segments,
    rows: RowNumbers | None = None,
    *,
    search_main: Search | None = None,
    search_among: Callable[[Any, RowNumbers, int], tuple[RowNumbers, Any]] | None = None,
) -> tuple[Ids, Any]:
    """Return the first min(k, n_items) items by (value, id), of all items or of some rows.

    `search_main`, if given, replaces `search` for the whole main segment, and `search_among` for
    some rows of it.
    """
    if rows is not None:
        parts = []
        for items, some in segments.by_segment(rows):
            n = min(k, len(some))
            if items is segments.main and search_among is not None:
                found, values = search_among(queries, some, n)
            else:
                found, values = search(queries, take_rows(items.rows, some), n)
                found = some[found]
            parts.append((items.ids_of(found), values))
        return _merge(parts, k)
    main, delta, removed = segments.main, segments.delta, segments.removed_rows
    in_main = search if search_main is None else search_main
    found, values = _search_kept(
        lambda part, n: in_main(part, main.rows, n),
        queries,
        min(k, len(main) - len(removed)),
        removed,
    )
    parts = [(main.ids_of(found), values)]
    if len(delta):
        found, values = search(queries, delta.rows, min(k, len(delta)))
        parts.append((delta.ids_of(found), values))
    return _merge(parts, k)


def _search_kept(
    search: Callable[[Any, int], tuple[RowNumbers, Any]],
    queries: NDArray[Any],
    k: int,
    removed: RowNumbers,
    spare: int = _SPARE,
) -> tuple[RowNumbers, Any]:
    """Return the first k rows that are not removed, of which at least k exist.

    The search requests a few rows more than k. Queries for which fewer than k of them are not
    removed are repeated with a larger number.
    """
    if not len(removed) or not k:
        return search(queries, k)
    rows, values = search(queries, k + min(spare, len(removed)))
    is_removed = is_member(rows, removed)
    kept_first = np.argsort(is_removed, axis=1, kind="stable")[:, :k]
    found = np.take_along_axis(rows, kept_first, axis=1)
    best = np.take_along_axis(values, kept_first, axis=1)
    short = np.flatnonzero((~is_removed).sum(axis=1) < k)
    at_once = max(1, _MAX_FOUND // (k + _SPARE_GROWTH * spare))
    for start in range(0, len(short), at_once):
        part = short[start : start + at_once]
        found[part], best[part] = _search_kept(
            search, queries[part], k, removed, _SPARE_GROWTH * spare
        )
    return found, best


def _merge(parts: Sequence[tuple[Ids, Any]], k: int) -> tuple[Ids, Any]:
    """Return the first k columns by (value, id) of tables of ids and values."""
    if len(parts) == 1:
        return parts[0]
    ids, values = (np.concatenate(tables, axis=1) for tables in zip(*parts, strict=True))
    order = np.lexsort((ids, values), axis=1)[:, :k]
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(values, order, axis=1)

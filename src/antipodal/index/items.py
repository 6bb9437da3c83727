"""Items of an index segment: one row per item, in the order of ids.

Because of this order, ties at equal distance are broken by row number, and a search does not need
to read ids.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

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
        Strictly increasing. Consecutive ids are a `range` and take no memory.
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
        if not len(self):
            return np.full(len(ids), -1, dtype=np.int64)
        rows = np.minimum(np.searchsorted(self.id_column.rows, ids), len(self) - 1)
        return np.where(self.id_column.rows[rows] == ids, rows, -1)

    def added(self, rows: Codes, ids: range | Ids) -> "IndexedItems":
        """Return these items with new ones, whose ids increase."""
        if not len(ids):
            return self
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

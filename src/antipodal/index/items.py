"""The items of an index: their codes, a row per item, in the order of their ids.

That order is what makes ties cheap: of two items at the same distance, the one with the smaller
id is the one in the earlier row, so no part of a search needs to look at ids.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes, code_width
from antipodal.validation import Ids

RowNumbers = NDArray[np.int64]

MAX_ITEMS = 2**32 - 1  # row numbers fit into 32 bits, which `bands` and `scan` make use of


class Column(NamedTuple):
    """An array that can grow at its end: the rows there are, and the buffer they begin."""

    rows: NDArray[Any]
    buffer: NDArray[Any]

    def extended(self, more: NDArray[Any]) -> "Column":
        """Return the longer column. Of columns on one buffer only the longest may be extended.

        Rows that can be seen through this column are never written again, so a search that
        began on it ends on it.
        """
        n_old, n_new = len(self.rows), len(self.rows) + len(more)
        buffer = self.buffer
        if n_new > len(buffer):
            # An eighth to spare: n single additions copy about 8·n rows in all.
            buffer = np.empty((n_new + n_old // 8, *buffer.shape[1:]), dtype=buffer.dtype)
            buffer[:n_old] = self.rows
        buffer[n_old:n_new] = more
        return Column(buffer[:n_new], buffer)

    @classmethod
    def of(cls, rows: NDArray[Any]) -> "Column":
        """Take an array as it is, with nothing to spare: growing will copy it."""
        return cls(rows, rows)


@dataclass(frozen=True, eq=False)
class IndexedItems:
    """Codes and ids at one moment; a change makes new `IndexedItems`.

    Attributes
    ----------
    code_column : Column of uint8 (n_items, row_width)
        Codes, padded with zero bytes to a width that Faiss has fast code for.
    id_column : range or Column of int64 (n_items,)
        Strictly increasing. Ids without gaps are a `range`, and take no memory.
    era : object
        Shared with the items this one grew from by adding rows at the end, and no others.
    """

    code_column: Column
    id_column: range | Column
    era: object = field(default_factory=object)

    @classmethod
    def none(cls, n_bits: int) -> Self:
        """Return no items, of n_bits."""
        return cls(Column.of(np.empty((0, row_width(n_bits)), dtype=np.uint8)), range(0))

    @classmethod
    def of(cls, rows: Codes, ids: range | Ids) -> Self:
        """Take over arrays whose ids increase."""
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
        """Bytes of codes and ids, without what is spared for growing."""
        return self.rows.nbytes + (
            0 if isinstance(self.id_column, range) else self.id_column.rows.nbytes
        )

    def id_of(self, row: int) -> int:
        """Return the id of one row; -1 is the last, as in a list."""
        ids = self.id_column
        return ids[row] if isinstance(ids, range) else int(ids.rows[row])

    def ids_of(self, rows: RowNumbers) -> Ids:
        """Return the ids of rows, whatever the shape of their array."""
        if isinstance(self.id_column, range):
            return rows + self.id_column.start if self.id_column.start else rows
        ids: Ids = self.id_column.rows[rows]
        return ids

    def rows_of(self, ids: Ids) -> RowNumbers:
        """Return the row of each id, -1 where there is none."""
        if isinstance(self.id_column, range):
            rows = ids - self.id_column.start  # may wrap around, but never into the rows there are
            return np.where((rows >= 0) & (rows < len(self)), rows, -1)
        if not len(self):
            return np.full(len(ids), -1, dtype=np.int64)
        rows = np.minimum(np.searchsorted(self.id_column.rows, ids), len(self) - 1)
        return np.where(self.id_column.rows[rows] == ids, rows, -1)

    def added(self, rows: Codes, ids: range | Ids) -> "IndexedItems":
        """Return these items and others, whose ids increase and are new."""
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
        """Return the items that are not in these rows."""
        is_kept = np.ones(len(self), dtype=np.bool_)
        is_kept[rows] = False
        kept = np.flatnonzero(is_kept)
        return IndexedItems.of(take_rows(self.rows, kept), self.ids_of(kept))

    def _extended_ids(self, ids: range | Ids) -> range | Column:
        more = without_gaps(ids)
        if isinstance(self.id_column, range):
            if isinstance(more, range) and more.start == self.id_column.stop:
                return range(self.id_column.start, more.stop)
            return Column.of(self.ids).extended(np.asarray(more))
        return self.id_column.extended(np.asarray(more))


def without_gaps(ids: range | Ids) -> range | Ids:
    """Return increasing ids as a range if they are one."""
    if isinstance(ids, range):
        return ids
    if not len(ids):
        return range(0)
    first, last = int(ids[0]), int(ids[-1])
    return range(first, last + 1) if last - first == len(ids) - 1 else ids


def _column(ids: range | Ids) -> range | Column:
    compact = without_gaps(ids)
    return compact if isinstance(compact, range) else Column.of(compact)


def row_width(n_bits: int) -> int:
    """Bytes that a code takes in the index: 4, 8, 16, 32, and from there whole 8.

    Faiss compares other widths byte by byte, up to five times slower.
    """
    width = code_width(n_bits)
    for wide in (4, 8, 16, 32):
        if width <= wide:
            return wide
    return -(-width // 8) * 8


def to_rows(codes: Codes, n_bits: int) -> Codes:
    """Pad codes with zero bytes to rows of the index, which changes no distance."""
    missing = row_width(n_bits) - codes.shape[1]
    return np.pad(codes, ((0, 0), (0, missing))) if missing else codes


def as_words(rows: Codes) -> NDArray[Any]:
    """View rows as whole words, of four bytes if there are no more, otherwise of eight."""
    return rows.view(np.uint32 if rows.shape[1] == 4 else np.uint64)


def take_rows(rows: Codes, numbers: RowNumbers) -> Codes:
    """Copy some rows: as words, ten times faster than byte by byte."""
    return as_words(rows).take(numbers, axis=0).view(np.uint8)

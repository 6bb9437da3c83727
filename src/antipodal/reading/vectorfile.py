"""Vectors in files: their number and length, and their rows in blocks, in order or drawn."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from antipodal.checks import check_ids, check_whole
from antipodal.errors import AntipodalError
from antipodal.reading.columns import check_column
from antipodal.reading.numpytables import NpyTable
from antipodal.reading.table import Table, VectorType
from antipodal.storage.scratch import mapped_rows

_BLOCK_ROWS = 4096
_BLOCK_BYTES = 2**24  # of a block: fewer rows where they are long


class VectorFile:
    """The vectors of a file or of several, a row per item: what `open_vectors` returns.

    It can stand where an array of rows is asked for: `np.asarray` of it is the mapped file, where
    it is one .npy file. Others are unpacked, once, into a temporary file, which is mapped.
    `BaseHasher.encode_blocks` needs no such file.

    Attributes
    ----------
    name : str
        As it was opened.
    n_features : int
        Numbers of a vector.
    dtype : numpy.dtype
        Of the numbers.
    vector_columns : tuple of str
        The column of vectors, or the columns of numbers that make them up.
    """

    ndim = 2

    def __init__(
        self, name: str, tables: Sequence[Table], columns: tuple[str, ...], rows: VectorType
    ) -> None:
        self.name = name
        self._tables = tables
        self.vector_columns = columns
        self._type = rows
        self.n_features, self.dtype = rows

    @property
    def n_rows(self) -> int:
        """The number of vectors; of CSV, JSON lines and Arrow streams it is counted once."""
        return sum(self._counts)

    @cached_property
    def _counts(self) -> list[int]:
        return [table.count(self.vector_columns) for table in self._tables]

    @property
    def shape(self) -> tuple[int, int]:
        """(n_rows, n_features)."""
        return self.n_rows, self.n_features

    def __len__(self) -> int:
        return self.n_rows

    def blocks(self, max_rows: int = _BLOCK_ROWS) -> Iterator[NDArray[Any]]:
        """Yield the vectors in order, (up to max_rows, n_features) at a time.

        Blocks have fewer rows where a file, a row group or 16 MB end. Do not write to them.
        """
        check_whole(max_rows, "max_rows", 1)
        size = max(1, min(max_rows, _BLOCK_BYTES // max(1, self._row_bytes)))
        for table, expected in zip(self._tables, self._counts, strict=True):
            n_rows = 0
            for block in table.matrices(self.vector_columns, self._type, size):
                n_rows += len(block)
                yield block
            if n_rows != expected:
                raise AntipodalError(
                    f"{table.file.path} changed while it was read: it had {expected:,} rows, and "
                    f"then {n_rows:,}"
                )

    @property
    def _row_bytes(self) -> int:
        return self.n_features * self.dtype.itemsize

    def take(self, rows: ArrayLike) -> NDArray[Any]:
        """Return the vectors in these rows, which must ascend: the file is read forwards, once."""
        numbers = check_ids(rows, "rows")
        if (np.diff(numbers) < 0).any():
            raise ValueError("rows must ascend: sort them first")
        if len(numbers) and not 0 <= numbers[0] <= numbers[-1] < self.n_rows:
            raise ValueError(
                f"rows must be from 0 to {self.n_rows - 1}: got {numbers[0]} to {numbers[-1]}"
            )
        if self._map is not None:
            return np.asarray(self._map[numbers])
        taken = np.empty((len(numbers), self.n_features), self.dtype)
        first = done = 0
        for block in self.blocks():
            if done == len(numbers):
                break
            here = numbers[done : np.searchsorted(numbers, first + len(block))] - first
            taken[done : done + len(here)] = block[here]
            first, done = first + len(block), done + len(here)
        return taken

    def column(self, name: str) -> NDArray[Any]:
        """Return another column in the order of the vectors, whole: labels or ids.

        It has numbers or words, (n_rows,), or rows of numbers, (n_rows, c).
        """
        values = read_values(self._tables, name)
        if len(values) != self.n_rows:
            raise AntipodalError(
                f"{self.name} must have one value of {name!r} per vector: it has {self.n_rows:,} "
                f"vectors and {len(values):,} values"
            )
        return values

    def records(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the values of other columns, row by row, as JSON has them: metadata."""
        for table in self._tables:
            for name in names:
                check_column(table.file.path, table.columns, name)
        for table in self._tables:
            yield from table.records(names)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        rows = self._unpacked if self._map is None else self._map
        return np.array(rows, dtype, copy=copy)

    @property
    def _map(self) -> NDArray[Any] | None:
        """The rows, where they are one array already."""
        [table, *others] = self._tables
        return table.array if isinstance(table, NpyTable) and not others else None

    @cached_property
    def _unpacked(self) -> NDArray[Any]:
        """The rows in a temporary file."""
        return mapped_rows(self.blocks(), self.shape, self.dtype, self.name)


def read_values(tables: Sequence[Table], name: str) -> NDArray[Any]:
    """Return a column of all tables, one after the other."""
    for table in tables:
        check_column(table.file.path, table.columns, name)
    parts = [table.values(name) for table in tables]
    for table, part in zip(tables, parts, strict=True):
        if part.shape[1:] != parts[0].shape[1:] or (part.dtype.kind == "U") != (
            parts[0].dtype.kind == "U"
        ):
            raise AntipodalError(
                f"the column {name!r} must be alike in all files: it is {parts[0].dtype} of shape "
                f"{parts[0].shape} in {tables[0].file.path}, {part.dtype} of shape {part.shape} "
                f"in {table.file.path}"
            )
    return parts[0] if len(parts) == 1 else np.concatenate(parts)

"""Vectors in files of any supported format, read in blocks of rows."""

import os
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from antipodal.errors import AntipodalError, missing_extra
from antipodal.io.columns import NoRowsError, Table, check_column, choose_columns
from antipodal.io.formats import (
    CSV,
    JSON_LINES,
    NPY,
    NPZ,
    PARQUET,
    DataFile,
    find_files,
    split_column,
)
from antipodal.io.jsonl import JsonTable
from antipodal.io.numpy_files import NpyTable, NpzTable, mapped_rows, read_array
from antipodal.validation import check_ids, check_whole

_BLOCK_ROWS = 4096
_BLOCK_BYTES = 2**24


class VectorFile:
    """The vectors of one or several files, a row per item. Returned by `open_vectors`.

    It can be used in place of an array: `np.asarray` returns the memory map of a single .npy file.
    Other files are unpacked once into a temporary file, which is memory-mapped.
    `BaseHasher.encode_blocks` needs no temporary file.

    Attributes
    ----------
    name : str
        The path as given to `open_vectors`.
    n_features : int
        Number of dimensions.
    dtype : numpy.dtype
        The dtype of the vectors.
    vector_columns : tuple of str
        The vector column, or the columns of numbers that form the vector.
    """

    ndim = 2

    def __init__(
        self, name: str, tables: Sequence[Table], columns: tuple[str, ...], first_row: NDArray[Any]
    ) -> None:
        self.name = name
        self._tables = tables
        self.vector_columns = columns
        self.n_features, self.dtype = first_row.shape[1], first_row.dtype

    @property
    def n_rows(self) -> int:
        """The number of vectors; CSV, JSON Lines and Arrow files are read once to count them."""
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

        Blocks are shorter at the end of a file or row group, and have at most 16 MB. They may be
        read-only.
        """
        check_whole(max_rows, "max_rows", 1)
        size = self._block_rows(max_rows)
        for table, expected in zip(self._tables, self._counts, strict=True):
            n_rows = 0
            for block in table.blocks(self.vector_columns, size, self.n_features):
                n_rows += len(block)
                yield block
            if n_rows != expected:
                raise AntipodalError(
                    f"{table.file.path} changed while it was read: it had {expected:,} rows when "
                    f"counted, {n_rows:,} when read"
                )

    def _block_rows(self, max_rows: int = _BLOCK_ROWS) -> int:
        row_bytes = max(1, self.n_features * self.dtype.itemsize)
        return max(1, min(max_rows, int(_BLOCK_BYTES // row_bytes)))

    def take(self, rows: ArrayLike) -> NDArray[Any]:
        """Return the vectors of these rows, in ascending order.

        Each file is read once, up to its last row; row groups of parquet files without any of the
        rows are skipped.
        """
        numbers = check_ids(rows, "rows")
        if (np.diff(numbers) < 0).any():
            raise ValueError("rows must be in ascending order")
        if len(numbers) and not 0 <= numbers[0] <= numbers[-1] < self.n_rows:
            raise ValueError(
                f"rows must be from 0 to {self.n_rows - 1}: got {numbers[0]} to {numbers[-1]}"
            )
        if self._map is not None:
            return np.asarray(self._map[numbers])
        taken = np.empty((len(numbers), self.n_features), self.dtype)
        first = done = 0
        for table, count in zip(self._tables, self._counts, strict=True):
            end = int(np.searchsorted(numbers, first + count))
            self._take(table, numbers[done:end] - first, taken[done:end])
            first, done = first + count, end
        return taken

    def _take(self, table: Table, rows: NDArray[np.int64], taken: NDArray[Any]) -> None:
        """Copy rows of one file into `taken`."""
        done = 0
        blocks = table.blocks_with(rows, self.vector_columns, self._block_rows(), self.n_features)
        while done < len(rows):
            first, block = next(blocks, (0, None))
            if block is None:
                raise AntipodalError(f"{table.file.path} changed while it was read")
            inside = rows[done : np.searchsorted(rows, first + len(block))] - first
            taken[done : done + len(inside)] = block[inside]
            done += len(inside)

    def column(self, name: str) -> NDArray[Any]:
        """Return another column, such as labels or ids, in the order of the vectors.

        It contains numbers or strings, (n_rows,), or lists of numbers, (n_rows, c).
        """
        values = _read_values(self._tables, name)
        if len(values) != self.n_rows:
            raise AntipodalError(
                f"{self.name} must have one value of {name!r} per vector: it has {self.n_rows:,} "
                f"vectors and {len(values):,} values"
            )
        return values

    def records(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the values of other columns, such as metadata, row by row, as JSON values."""
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
        """The memory map of a single .npy file."""
        [table, *others] = self._tables
        return table.array if isinstance(table, NpyTable) and not others else None

    @cached_property
    def _unpacked(self) -> NDArray[Any]:
        return mapped_rows(self.blocks(), self.shape, self.dtype, self.name)


def _read_values(tables: Sequence[Table], name: str) -> NDArray[Any]:
    """Return a column of all tables, concatenated."""
    for table in tables:
        check_column(table.file.path, table.columns, name)
    first, *others = parts = [table.values(name) for table in tables]
    for table, part in zip(tables[1:], others, strict=True):
        is_text = part.dtype.kind == "U"
        if part.shape[1:] != first.shape[1:] or is_text != (first.dtype.kind == "U"):
            raise AntipodalError(
                f"the column {name!r} must have one type in all files: it is {first.dtype} of "
                f"shape {first.shape} in {tables[0].file.path}, {part.dtype} of shape "
                f"{part.shape} in {table.file.path}"
            )
    return np.concatenate(parts) if others else first


def open_vectors(
    path: str | os.PathLike[str],
    column: str | Sequence[str] | None = None,
    *,
    leave_out: Collection[str] = (),
    text_dtype: DTypeLike = np.float64,
) -> VectorFile:
    """Open the vectors of a file, of a folder of files, or of the files that match a pattern.

    Formats are .npy, .npz, parquet, Arrow or Feather, CSV and JSON Lines. The files of a folder or
    pattern are read in the order of their names, and must have the same columns.

    Parameters
    ----------
    path : path
        A file, folder or glob pattern, optionally with the column: `FILE:COLUMN`.
    column : str or sequence of str, optional
        The vector column, or several columns of numbers that form the vector: names and patterns,
        such as `f*`, as a list or separated by commas. By default the only vector column or, if
        all columns are numbers, all of them.
    leave_out : collection of str
        Columns that are not part of the vector if `column` is None, such as labels.
    text_dtype : dtype
        The dtype of vectors in CSV and JSON Lines; uint8 for packed codes.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = Path(folder.name) / "one.jsonl"
    >>> _ = file.write_text('{"id": 7, "vector": [0.5, 1]}')
    >>> vectors = open_vectors(file)
    >>> vectors.shape, vectors.column("id")
    ((1, 2), array([7]))
    >>> for block in vectors.blocks():
    ...     print(block)
    [[0.5 1. ]]
    >>> folder.cleanup()
    """
    place = os.fspath(path)
    if column is None:
        place, column = split_column(place)
    tables: list[Table] = []
    for file in find_files(place):
        try:
            table = _open_table(file, np.dtype(text_dtype))
            if not tables:
                chosen = _choose(table, column, leave_out)
                first = row = table.first_row(chosen)
            else:
                _check_layout(tables[0], table)
                row = table.first_row(chosen)
        except NoRowsError as error:  # one of several files, without rows
            no_rows = error
            continue
        if (row.shape[1], row.dtype) != (first.shape[1], first.dtype):
            raise AntipodalError(
                f"the vectors of {place} must have one type: those of {tables[0].file.path} have "
                f"{first.shape[1]} dimensions, {first.dtype}, those of {file.path} have "
                f"{row.shape[1]}, {row.dtype}"
            )
        tables.append(table)
    if not tables:
        raise no_rows
    if len(first) and not first.size:
        columns = f" in the column {chosen[0]!r}" if chosen else ""
        raise AntipodalError(f"cannot read {place}: the first vector{columns} is empty")
    return VectorFile(place, tables, chosen, first)


def column_names(path: str) -> list[str]:
    """Return the column names of a file, or of the first of several; an .npy file has none."""
    return list(_open_table(find_files(path)[0]).columns)


def read_column(source: str) -> NDArray[Any]:
    """Read labels or ids: `FILE.npy`, or `FILE:COLUMN` of any other format.

    The name may be omitted if the file has a single column. Arrays may have any shape.
    """
    place, column = split_column(source)
    files = find_files(place)
    if files[0].format in (NPY, NPZ) and len(files) == 1:
        return read_array(source)
    tables = [_open_table(file) for file in files]
    if column is None:
        [column, *others] = tables[0].columns
        if others:
            raise AntipodalError(
                f"{place} has several columns ({', '.join(tables[0].columns)}): choose one, such "
                f"as {place}:{column}"
            )
    return _read_values(tables, column)


def _open_table(file: DataFile, text_dtype: DTypeLike = np.float64) -> Table:
    if file.format is NPY:
        return NpyTable(file)
    if file.format is NPZ:
        return NpzTable(file)
    if file.format is JSON_LINES:
        return JsonTable(file, np.dtype(text_dtype))
    try:
        from antipodal.io.tables import CsvTable, IpcTable, ParquetTable
    except ImportError as error:
        raise AntipodalError(missing_extra(f"reading {file.path}", "pyarrow", "arrow")) from error
    if file.format is CSV:
        return CsvTable(file, np.dtype(text_dtype))
    return ParquetTable(file) if file.format is PARQUET else IpcTable(file)


def _choose(
    table: Table, column: str | Sequence[str] | None, leave_out: Collection[str]
) -> tuple[str, ...]:
    if isinstance(table, NpyTable):
        if column is not None:
            raise AntipodalError(f"{table.file.path} is one array and has no column {column!r}")
        return ()
    return choose_columns(table.file.path, table.columns, column, leave_out)


def _check_layout(first: Table, other: Table) -> None:
    """Raise an error if the columns of a file differ from those of the first file."""
    for name in [*first.layout, *other.layout]:
        types = [table.layout.get(name, "missing") for table in (first, other)]
        if types[0] != types[1]:
            raise AntipodalError(
                f"files that are read together must have the same columns: {name!r} is {types[0]} "
                f"in {first.file.path} and {types[1]} in {other.file.path}"
            )

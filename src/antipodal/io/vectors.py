"""Vectors in files of any supported format, read in blocks of rows."""

import os
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from antipodal.errors import AntipodalError
from antipodal.io.arrays import mapped_rows, read_array
from antipodal.io.arrow import CsvTable, IpcTable, ParquetTable
from antipodal.io.columns import NoRowsError, Table, VectorType, check_column, choose_columns
from antipodal.io.file_kinds import (
    ARROW,
    CSV,
    NPY,
    NPZ,
    PARQUET,
    FoundFile,
    find_files,
    split_column,
)
from antipodal.io.jsonl import JsonTable
from antipodal.io.numpy_files import NpyTable, NpzTable
from antipodal.validation import check_ids, check_whole

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


def open_vectors(
    path: str | os.PathLike[str],
    column: str | Sequence[str] | None = None,
    *,
    leave_out: Collection[str] = (),
    text_dtype: DTypeLike = np.float64,
) -> VectorFile:
    """Open the vectors of a file, of a folder of files, or of those that a pattern names.

    Files are .npy, .npz, parquet, Arrow or Feather, CSV and JSON lines. Those of a folder or
    pattern are read in the order of their names, and must have the same columns.

    Parameters
    ----------
    path : path
        May end with the column: `FILE:COLUMN`.
    column : str or sequence of str, optional
        A column of vectors, or several of numbers that together are the vector: names and
        patterns, such as `f*`, in a list or with commas between. By default the only column of
        vectors or, where all columns are numbers, all of them.
    leave_out : collection of str
        Columns that are not part of the vector where none is named, such as labels.
    text_dtype : dtype
        That numbers in CSV and JSON lines are read as; uint8 for packed codes.

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
    chosen: tuple[str, ...] = ()
    types = []
    for file in _find(place):
        try:
            table = _open_table(file, np.dtype(text_dtype))
            if not tables:
                chosen = _choose(table, column, leave_out)
            else:
                _check_alike(tables[0], table)
            types.append(table.vector_type(chosen))
            tables.append(table)
        except NoRowsError as error:
            nothing = error
    if not tables:
        raise nothing
    for table, kind in zip(tables, types, strict=True):
        if kind != types[0]:
            raise AntipodalError(
                f"the vectors of {place} must be alike: those of {tables[0].file.path} have "
                f"{types[0].n_features} numbers, {types[0].dtype}, those of {table.file.path} "
                f"{kind.n_features}, {kind.dtype}"
            )
    return VectorFile(place, tables, chosen, types[0])


def column_names(path: str) -> list[str]:
    """Return the names of the columns of a file, of the first of several; an .npy has none."""
    return list(_open_table(_find(path)[0], np.dtype(np.float64)).columns)


def read_column(source: str) -> NDArray[Any]:
    """Read labels or ids, whole: `FILE.npy`, or `FILE:COLUMN` of any other kind.

    The name may be left out where there is a single column. Arrays may be of any shape.
    """
    place, column = split_column(source)
    files = _find(place)
    if files[0].kind in (NPY, NPZ) and len(files) == 1:
        return read_array(source)
    tables = [_open_table(file, np.dtype(np.float64)) for file in files]
    if column is None:
        [column, *others] = tables[0].columns
        if others:
            raise AntipodalError(
                f"{place} has several columns ({', '.join(tables[0].columns)}): name one, as "
                f"{place}:{column}"
            )
    return read_values(tables, column)


def _find(place: str) -> list[FoundFile]:
    return [FoundFile("-", NPY, "being a pipe")] if place == "-" else find_files(place)


def _open_table(file: FoundFile, text_dtype: np.dtype[Any]) -> Table:
    if file.kind is NPY:
        return NpyTable(file)
    if file.kind is NPZ:
        return NpzTable(file)
    if file.kind is PARQUET:
        return ParquetTable(file)
    if file.kind is ARROW:
        return IpcTable(file)
    return (CsvTable if file.kind is CSV else JsonTable)(file, text_dtype)


def _choose(
    table: Table, column: str | Sequence[str] | None, leave_out: Collection[str]
) -> tuple[str, ...]:
    if isinstance(table, NpyTable):
        if column is not None:
            raise AntipodalError(f"{table.file.path} is one array and has no column {column!r}")
        return ()
    return choose_columns(table.file.path, table.columns, column, leave_out)


def _check_alike(first: Table, other: Table) -> None:
    """Refuse a file with other columns than the first."""
    for name in [*first.form, *other.form]:
        here, there = (table.form.get(name, "missing") for table in (first, other))
        if here != there:
            raise AntipodalError(
                f"files that are read together must have the same columns: {name!r} is {here} in "
                f"{first.file.path} and {there} in {other.file.path}"
            )

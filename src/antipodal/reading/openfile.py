"""Open a file of any kind that is read, or several of one kind."""

import os
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from antipodal.errors import AntipodalError
from antipodal.reading.arrowtables import IpcTable, ParquetTable
from antipodal.reading.columns import choose_columns
from antipodal.reading.csvtables import CsvTable
from antipodal.reading.filekinds import (
    ARROW,
    CSV,
    NPY,
    NPZ,
    PARQUET,
    FoundFile,
    find_files,
    split_column,
)
from antipodal.reading.jsontables import JsonTable
from antipodal.reading.numpytables import NpyTable, NpzTable
from antipodal.reading.table import NoRowsError, Table
from antipodal.reading.vectorfile import VectorFile, read_values
from antipodal.storage.arrays import read_array


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

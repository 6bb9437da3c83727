"""Parquet, Arrow and CSV files, read in batches with pyarrow, which this module requires.

The readers of single formats are used rather than `pyarrow.dataset`, which reads whole row groups
of parquet files into memory and does not read Arrow streams.
"""

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date, time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray
from pyarrow import types

from antipodal.io.columns import Column, NoRowsError, Role, Table
from antipodal.io.formats import ARROW, DataFile

_BATCH_ROWS = 4096
_MAX_BATCH_ROWS = 65_536
_BUFFER_BYTES = 2**20
_CSV_BLOCK_BYTES = 2**23  # must be longer than any row
_BRACKETS = "[]() \t\r\n"  # around a vector in text
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_JSON_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_JSON_CONSTANTS = {None: None, "null": None, "true": True, "false": False}


def describe_columns(schema: pa.Schema) -> dict[str, Column]:
    """Return the types and roles of the columns of a schema."""
    _check_unique(schema.names)
    return {field.name: _describe(field.type) for field in schema}


def combine_columns(
    columns: Mapping[str, Any], first: int = 0, width: int | None = None
) -> NDArray[Any]:
    """Return the vectors in one Arrow array of lists, or in several arrays of numbers.

    Parameters
    ----------
    columns : mapping of str to pyarrow.Array
    first : int
        The number of the first row, for error messages.
    width : int or None
        The expected number of dimensions; None takes it from the first row.
    """
    if len(columns) > 1:
        return np.column_stack([_numbers(array, name, first) for name, array in columns.items()])
    [(name, lists)] = columns.items()
    return stack_vectors(lists, name, first, width)


def stack_vectors(values: Any, name: str, first: int, width: int | None) -> NDArray[Any]:
    """Stack an Arrow array of lists of numbers, or of bytes, into a matrix (n, width)."""
    if hasattr(values, "storage"):  # an extension type, such as a tensor
        values = values.storage
    _refuse_nulls(values, name, first)
    is_list = _is_list(values.type)
    lengths = (pc.list_value_length if is_list else pc.binary_length)(values)
    lengths = lengths.to_numpy(zero_copy_only=False)
    if width is None:
        width = int(lengths[0])
    unequal = np.flatnonzero(lengths != width)
    if len(unequal):
        raise ValueError(
            f"the vectors in the column {name!r} must have equal length: row 0 has {width} values, "
            f"row {first + unequal[0]} has {lengths[unequal[0]]}"
        )
    if is_list:
        flat = values.flatten()  # not copied
        _refuse_nulls(flat, name, first, width)
        numbers = flat.to_numpy(zero_copy_only=False)
    else:
        values = values.cast(pa.binary(width))
        start = values.offset * width
        numbers = np.frombuffer(values.buffers()[1], np.uint8)[start : start + len(values) * width]
    matrix: NDArray[Any] = numbers.reshape(len(values), width)
    return matrix


def _column_values(values: Any, name: str, first: int, width: int | None) -> NDArray[Any]:
    """Return an Arrow array of numbers or strings as (n,), of lists of numbers as (n, width)."""
    if _describe(values.type).role is Role.VECTOR:
        return stack_vectors(values, name, first, width)
    if types.is_nested(values.type):
        raise ValueError(
            f"the column {name!r} must contain numbers, strings or lists of numbers: it contains "
            f"{values.type}"
        )
    _refuse_nulls(values, name, first)
    if types.is_string(values.type) or types.is_large_string(values.type):
        values = values.dictionary_encode()
    if types.is_dictionary(values.type):
        strings = np.array(values.dictionary.to_pylist())
        column: NDArray[Any] = strings[values.indices.to_numpy(zero_copy_only=False)]
        return column
    return _numbers(values, name, first)


def _numbers(values: Any, name: str, first: int) -> NDArray[Any]:
    _refuse_nulls(values, name, first)
    numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return numbers


def _refuse_nulls(values: Any, name: str, first: int, width: int = 1) -> None:
    if values.null_count:
        place = int(values.is_null().to_numpy(zero_copy_only=False).argmax())
        raise ValueError(
            f"the column {name!r} must not contain nulls: a value is missing in row "
            f"{first + place // width}"
        )


def _check_unique(names: Sequence[str]) -> None:
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise ValueError(f"it has several columns {repeated!r}")


def _describe(kind: pa.DataType) -> Column:
    kind = getattr(kind, "storage_type", kind)
    role = Role.NUMBER if _is_number(kind) else Role.OTHER
    is_bytes = types.is_fixed_size_binary(kind) or types.is_binary(kind)
    if is_bytes or types.is_large_binary(kind) or (_is_list(kind) and _is_number(kind.value_type)):
        role = Role.VECTOR  # bytes are packed codes
    return Column("text" if types.is_string(kind) else str(kind), role)


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


class BatchTable(Table):
    """A file that pyarrow reads in batches of rows."""

    def __init__(self, file: DataFile) -> None:
        self.file = file
        with file.naming_errors():
            super().__init__(file, self._read_columns())

    @abstractmethod
    def _read_columns(self) -> Mapping[str, Column]: ...

    @abstractmethod
    def _batches(self, names: Sequence[str], max_rows: int) -> Iterator[Any]:
        """Yield record batches of these columns, of any number of rows."""

    def _vector_batches(self, names: Sequence[str], max_rows: int) -> Iterator[Any]:
        """Yield record batches of the columns that form the vector."""
        return self._batches(names, max_rows)

    def _column(self, batch: Any, name: str, first: int) -> Any:
        """Return a column of a batch, in which vectors are lists."""
        return batch.column(name)

    def count(self, names: Sequence[str]) -> int:
        """Count the rows of a column of numbers, which are read faster than vectors."""
        column = next((n for n, c in self.columns.items() if c.role is Role.NUMBER), names[0])
        with self.file.naming_errors():
            return sum(len(batch) for batch in self._batches([column], _BATCH_ROWS))

    def blocks(
        self, names: Sequence[str], max_rows: int, width: int | None = None
    ) -> Iterator[NDArray[Any]]:
        """Yield the vectors batch by batch, without a copy where the type allows it."""
        with self.file.naming_errors():
            for first, batch in _numbered(self._vector_batches(names, max_rows), max_rows):
                columns = {name: self._column(batch, name, first) for name in names}
                yield combine_columns(columns, first, width)

    def values(self, name: str) -> NDArray[Any]:
        """Return a whole column."""
        parts: list[NDArray[Any]] = []
        with self.file.naming_errors():
            for first, batch in _numbered(self._batches([name], _BATCH_ROWS), _BATCH_ROWS):
                width = parts[0].shape[1] if parts and parts[0].ndim == 2 else None
                column = self._column(batch, name, first)
                parts.append(_column_values(column, name, first, width))
        if not parts:
            raise NoRowsError(self.file.path)
        return np.concatenate(parts)

    def records(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the values row by row; dates and times become strings."""
        with self.file.naming_errors():
            for _, batch in _numbered(self._batches(names, _BATCH_ROWS), _BATCH_ROWS):
                for row in batch.to_pylist():
                    yield {name: self._json_value(row[name]) for name in names}

    def _json_value(self, value: Any) -> Any:
        return value.isoformat() if isinstance(value, (date, time)) else value


def _numbered(batches: Iterator[Any], max_rows: int) -> Iterator[tuple[int, Any]]:
    """Yield batches of at most max_rows rows, each with the number of its first row."""
    first = 0
    for batch in batches:
        for start in range(0, len(batch), max_rows):
            yield first + start, batch.slice(start, max_rows)
        first += len(batch)


class ParquetTable(BatchTable):
    """A parquet file. Large row groups are read in pieces."""

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        # pyarrow would interpret some file names as URLs, but not those of OSFile.
        with pa.OSFile(self.file.path) as source:
            # Without a buffer a row group is read at once, with pre_buffer the whole file.
            yield pyarrow.parquet.ParquetFile(
                source,
                pre_buffer=False,
                buffer_size=_BUFFER_BYTES,
                page_checksum_verification=True,
            )

    def schema(self) -> pa.Schema:
        """Return the Arrow schema of the file."""
        with self.file.naming_errors(), self._opened() as file:
            return file.schema_arrow

    def _read_columns(self) -> Mapping[str, Column]:
        return describe_columns(self.schema())

    def count(self, names: Sequence[str]) -> int:
        """Return the number of rows in the metadata of the file."""
        with self.file.naming_errors(), self._opened() as file:
            return int(file.metadata.num_rows)

    def _batches(self, names: Sequence[str], max_rows: int) -> Iterator[Any]:
        with self._opened() as file:
            for batch in file.iter_batches(max_rows, columns=list(names)):
                yield batch.select(list(names))  # "a" also reads a column named "a.b"

    def blocks_with(
        self, rows: NDArray[np.int64], names: Sequence[str], max_rows: int, width: int
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield the blocks of the row groups that contain these rows."""
        with self.file.naming_errors(), self._opened() as file:
            metadata = file.metadata
            sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
            ends = np.cumsum(sizes)
            for group in np.unique(np.searchsorted(ends, rows, side="right")).tolist():
                first = int(ends[group]) - sizes[group]
                for batch in file.iter_batches(max_rows, [group], columns=list(names)):
                    yield (
                        first,
                        combine_columns({name: batch.column(name) for name in names}, first, width),
                    )
                    first += len(batch)

    def record_batches(self, names: Sequence[str], max_bytes: int) -> Iterator[tuple[int, Any]]:
        """Yield batches of about max_bytes, each with the number of its first row."""
        with self.file.naming_errors():
            with self._opened() as file:
                n_rows, n_bytes = file.metadata.num_rows, _uncompressed_bytes(file, names)
            max_rows = max(1, min(_MAX_BATCH_ROWS, max_bytes * n_rows // max(1, n_bytes)))
            yield from _numbered(self._batches(names, max_rows), max_rows)


def _uncompressed_bytes(file: Any, names: Sequence[str]) -> int:
    """Return the size of these columns of a parquet file, uncompressed."""
    paths = [file.schema.column(leaf).path for leaf in range(len(file.schema))]
    prefixes = tuple(f"{name}." for name in names)
    leaves = [leaf for leaf, path in enumerate(paths) if f"{path}.".startswith(prefixes)]
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    return sum(group.column(leaf).total_uncompressed_size for group in groups for leaf in leaves)


class IpcTable(BatchTable):
    """An Arrow file or stream, or a Feather file; memory-mapped.

    Batches are validated: invalid offsets would lead out of the file.
    """

    @contextmanager
    def _opened(self, columns: Sequence[int] | None = None) -> Iterator[Any]:
        with pa.memory_map(self.file.path) as source:
            is_file = source.read(6) == ARROW.magic
            source.seek(0)
            options = pa.ipc.IpcReadOptions(included_fields=columns)
            yield (pa.ipc.open_file if is_file else pa.ipc.open_stream)(source, options=options)

    def _read_columns(self) -> Mapping[str, Column]:
        with self._opened() as reader:
            return describe_columns(reader.schema)

    def _batches(self, names: Sequence[str], max_rows: int) -> Iterator[Any]:
        with self._opened([list(self.columns).index(name) for name in names]) as reader:
            n_batches = getattr(reader, "num_record_batches", None)
            for batch in reader if n_batches is None else map(reader.get_batch, range(n_batches)):
                batch.validate(full=True)
                yield batch


class CsvTable(BatchTable):
    """A CSV file with a header, or with numbers only, in columns f0, f1, ….

    Parameters
    ----------
    file : DataFile
        Columns are separated by tabs if its name ends in .tsv, by commas otherwise.
    dtype : numpy.dtype
        The dtype of vectors.
    """

    def __init__(self, file: DataFile, dtype: np.dtype[Any]) -> None:
        self._type = pa.from_numpy_dtype(dtype)
        self._names: list[str] | None = None  # generated if there is no header
        super().__init__(file)

    @property
    def layout(self) -> Mapping[str, str]:
        """The names only: types are inferred from the first rows."""
        return dict.fromkeys(self.columns, "present")

    def _read_columns(self) -> Mapping[str, Column]:
        batch = self._first_batch()
        if all(map(_NUMBER.fullmatch, batch.schema.names)):
            self._names = [f"f{place}" for place in range(batch.num_columns)]
            batch = self._first_batch()
        _check_unique(batch.schema.names)
        return {name: _describe_csv(batch.column(name)) for name in batch.schema.names}

    def _first_batch(self) -> Any:
        for batch in self._read(None):
            return batch
        raise NoRowsError(self.file.path)

    def _batches(self, names: Sequence[str], max_rows: int) -> Iterator[Any]:
        return self._read(dict.fromkeys(names, pa.string()))

    def _vector_batches(self, names: Sequence[str], max_rows: int) -> Iterator[Any]:
        return self._read(dict.fromkeys(names, pa.string() if len(names) == 1 else self._type))

    def _read(self, column_types: Mapping[str, Any] | None) -> Iterator[Any]:
        """Read columns of these types, or all columns with inferred types."""
        is_tsv = self.file.path.lower().endswith((".tsv", ".tsv.gz"))
        with self.file.open() as stream:
            yield from pyarrow.csv.open_csv(
                stream,
                # With threads, errors would not name the row.
                pyarrow.csv.ReadOptions(
                    use_threads=False, block_size=_CSV_BLOCK_BYTES, column_names=self._names
                ),
                pyarrow.csv.ParseOptions(
                    delimiter="\t" if is_tsv else ",", newlines_in_values=True
                ),
                pyarrow.csv.ConvertOptions(
                    strings_can_be_null=True,
                    null_values=[""],
                    include_columns=None if column_types is None else list(column_types),
                    column_types=column_types,
                ),
            )

    def values(self, name: str) -> NDArray[Any]:
        """Return a whole column; integers as numbers, anything else as strings.

        In a column of numbers, nan in any case is a missing value, and the numbers are floats.
        """
        strings = super().values(name)
        if strings.dtype.kind != "U":
            return strings
        missing = np.char.lower(strings) == "nan"
        if missing.any() and not missing.all():
            with suppress(ValueError):  # in a column of text, nan is a text
                return strings.astype(np.float64)
        try:
            numbers = strings.astype(np.int64)
        except (ValueError, OverflowError):
            return strings
        # 007 is a string: as a number it would lose its zeros.
        return numbers if (numbers.astype(strings.dtype) == strings).all() else strings

    def _json_value(self, value: Any) -> Any:
        """Return JSON numbers, true, false and null as such, anything else as a string."""
        if value in _JSON_CONSTANTS:
            return _JSON_CONSTANTS[value]
        if not _JSON_NUMBER.fullmatch(value):
            return value
        return float(value) if set(value) & set(".eE") else int(value)

    def _column(self, batch: Any, name: str, first: int) -> Any:
        """Parse vectors in text: brackets around, commas, semicolons or spaces between."""
        texts = batch.column(name)
        if self.columns[name].role is not Role.VECTOR:
            return texts
        numbers = pc.split_pattern_regex(pc.utf8_trim(texts, _BRACKETS), r"[\s,;]+")
        try:
            return numbers.cast(pa.list_(self._type))
        except pa.ArrowInvalid as error:
            for place, row in enumerate(numbers):
                try:
                    row.cast(pa.list_(self._type))
                except pa.ArrowInvalid:
                    raise ValueError(
                        f"the column {name!r} must contain vectors, such as [0.1, 0.2]: row "
                        f"{first + place} is {str(texts[place])[:60]!r}"
                    ) from error
            raise


def _describe_csv(column: Any) -> Column:
    """Describe a CSV column by the inferred type of its first rows."""
    if types.is_integer(column.type) or types.is_floating(column.type):
        return Column("numbers", Role.NUMBER)
    first = column[0].as_py() if len(column) else None
    if isinstance(first, bytes):  # invalid UTF-8
        first = first.decode(errors="replace")
    if isinstance(first, str) and first.lstrip().startswith(("[", "(")):
        return Column("vectors", Role.VECTOR)
    return Column("text", Role.OTHER)

"""Parquet, Arrow and CSV files, read in batches with pyarrow."""

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, time
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.errors import AntipodalError, missing_extra
from antipodal.io.columns import NoRowsError, Role, Table, TableColumn, VectorType
from antipodal.io.file_kinds import ARROW, FoundFile


def arrow_module(name: str, path: str) -> Any:
    """Import pyarrow or a part of it, or say how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise AntipodalError(missing_extra(f"reading {path}", "pyarrow", "arrow")) from error


def describe_column(kind: Any) -> TableColumn:
    """Say what a column of this type of Arrow can be to a vector."""
    types = import_module("pyarrow.types")
    kind = _storage_type(kind)
    if _is_list(kind):
        role = Role.VECTOR if _is_number(kind.value_type) else Role.OTHER
    elif _is_bytes(kind):
        role = Role.VECTOR  # packed codes
    else:
        role = Role.NUMBER if _is_number(kind) else Role.OTHER
    return TableColumn("text" if types.is_string(kind) else str(kind), role)


def stack_vectors(values: Any, name: str, first: int, width: int | None) -> NDArray[Any]:
    """Stack lists of numbers, or bytes, of equal length into (n, width), if they can be.

    Parameters
    ----------
    values : pyarrow.Array
    name, first
        The column and the number of its first row, for messages.
    width : int or None
        Of the rows before, if there were any.
    """
    compute = import_module("pyarrow.compute")
    if hasattr(values, "storage"):  # a type from outside, such as a tensor
        values = values.storage
    _refuse_nulls(values, name, first)
    is_list = _is_list(values.type)
    lengths = (compute.list_value_length if is_list else compute.binary_length)(values)
    lengths = lengths.to_numpy(zero_copy_only=False)
    if width is None:
        width = int(lengths[0])
    odd = np.flatnonzero(lengths != width)
    if len(odd):
        raise ValueError(
            f"the column {name!r} must be of vectors of equal length: row 0 has {width} values, "
            f"row {first + odd[0]} has {lengths[odd[0]]}"
        )
    if not is_list:
        return _stack_bytes(values, width)
    flat = values.flatten()  # no copy: they lie one after the other
    _refuse_nulls(flat, name, first, width)
    matrix: NDArray[Any] = flat.to_numpy(zero_copy_only=False).reshape(len(values), width)
    return matrix


def batch_vectors(batch: Any, names: Sequence[str], first: int, width: int | None) -> NDArray[Any]:
    """Return the vectors in the column of this name, or in the columns of numbers, of a batch."""
    if len(names) > 1:
        return np.column_stack([as_numbers(batch.column(name), name, first) for name in names])
    return stack_vectors(batch.column(names[0]), names[0], first, width)


def as_numbers(values: Any, name: str, first: int) -> NDArray[Any]:
    """Return a column of numbers."""
    _refuse_nulls(values, name, first)
    numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return numbers


def as_values(values: Any, name: str, first: int, width: int | None) -> NDArray[Any]:
    """Return numbers or words (n,), or lists of numbers (n, width): labels or ids."""
    types = import_module("pyarrow.types")
    kind = values.type
    if describe_column(kind).role is Role.VECTOR:
        return stack_vectors(values, name, first, width)
    if types.is_nested(kind):
        raise ValueError(f"the column {name!r} must be of numbers, words or lists, not of {kind}")
    _refuse_nulls(values, name, first)
    if types.is_string(kind) or types.is_large_string(kind):
        values = values.dictionary_encode()
    if types.is_dictionary(values.type):
        words = np.array(values.dictionary.to_pylist())
        chosen: NDArray[Any] = words[values.indices.to_numpy(zero_copy_only=False)]
        return chosen
    return as_numbers(values, name, first)


def _stack_bytes(values: Any, width: int) -> NDArray[np.uint8]:
    arrow = import_module("pyarrow")
    values = values.cast(arrow.binary(width))
    data = np.frombuffer(values.buffers()[1], np.uint8)
    start = values.offset * width
    return data[start : start + len(values) * width].reshape(len(values), width)


def _refuse_nulls(values: Any, name: str, first: int, width: int = 1) -> None:
    if values.null_count:
        place = int(values.is_null().to_numpy(zero_copy_only=False).argmax())
        raise ValueError(
            f"the column {name!r} must have no gaps: a value is missing in row "
            f"{first + place // width}"
        )


def _storage_type(kind: Any) -> Any:
    return getattr(kind, "storage_type", kind)


def _is_list(kind: Any) -> bool:
    types = import_module("pyarrow.types")
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_bytes(kind: Any) -> bool:
    types = import_module("pyarrow.types")
    return bool(
        types.is_fixed_size_binary(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    )


def _is_number(kind: Any) -> bool:
    types = import_module("pyarrow.types")
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


_BATCH_ROWS = 4096
_MOST_ROWS = 65_536
_BUFFER_BYTES = 2**20


class BatchTable(Table):
    """A file that pyarrow reads in batches."""

    def __init__(self, file: FoundFile) -> None:
        self.file = file
        with file.naming():
            super().__init__(file, self._read_columns())

    @abstractmethod
    def _read_columns(self) -> Mapping[str, TableColumn]: ...

    @abstractmethod
    def _batches(self, names: Sequence[str], max_rows: int) -> Iterator[Any]:
        """Yield batches of the rows of these columns, perhaps of more rows."""

    def _vector_batches(self, names: Sequence[str], max_rows: int) -> Iterator[Any]:
        """Do the same for columns that are the vector."""
        return self._batches(names, max_rows)

    def count(self, names: Sequence[str]) -> int:
        """Count the rows, of a column that is read fast."""
        short = next((n for n, c in self.columns.items() if c.role is Role.NUMBER), names[0])
        with self.file.naming():
            return sum(len(batch) for batch in self._batches([short], _BATCH_ROWS))

    def vector_type(self, names: Sequence[str]) -> VectorType:
        """Return what the first vector is."""
        with self.file.naming():
            batch = next((batch for batch in self._vector_batches(names, 1) if len(batch)), None)
            if batch is None:
                raise NoRowsError(f"cannot read {self.file.path}: it has no rows")
            first = self._vectors(batch.slice(0, 1), names, 0, None)
            if not first.shape[1]:
                raise ValueError(f"the first vector in the column {names[0]!r} is empty")
        return VectorType(first.shape[1], first.dtype)

    def matrices(
        self, names: Sequence[str], rows: VectorType, max_rows: int
    ) -> Iterator[NDArray[Any]]:
        """Yield the vectors batch by batch; where they can, they stay in the memory of Arrow."""
        for first, batch in self._numbered(self._vector_batches(names, max_rows), max_rows):
            with self.file.naming():
                matrix = self._vectors(batch, names, first, rows.n_features)
            yield matrix

    def values(self, name: str) -> NDArray[Any]:
        """Return a whole column."""
        parts: list[NDArray[Any]] = []
        for first, batch in self._numbered(self._batches([name], _BATCH_ROWS)):
            width = parts[0].shape[1] if parts and parts[0].ndim == 2 else None
            with self.file.naming():
                parts.append(self._values(batch.column(0), name, first, width))
        if not parts:
            raise NoRowsError(f"cannot read {self.file.path}: it has no rows")
        return np.concatenate(parts)

    def records(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the values row by row; dates and times become text."""
        for _, batch in self._numbered(self._batches(names, _BATCH_ROWS)):
            for row in batch.to_pylist():
                yield {name: self._json_value(row[name]) for name in names}

    def _numbered(
        self, batches: Iterator[Any], max_rows: int = _BATCH_ROWS
    ) -> Iterator[tuple[int, Any]]:
        """Yield batches of at most max_rows rows, and the number of the first row of each."""
        first = 0
        with self.file.naming():
            for batch in batches:
                for start in range(0, len(batch), max_rows):
                    yield first + start, batch.slice(start, max_rows)
                first += len(batch)

    def _vectors(
        self, batch: Any, names: Sequence[str], first: int, width: int | None
    ) -> NDArray[Any]:
        return batch_vectors(batch, names, first, width)

    def _values(self, values: Any, name: str, first: int, width: int | None) -> NDArray[Any]:
        return as_values(values, name, first, width)

    def _json_value(self, value: Any) -> Any:
        return value.isoformat() if isinstance(value, (date, time)) else value


class ParquetTable(BatchTable):
    """A parquet file. A row group is read in pieces, if it is large."""

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        parquet = arrow_module("pyarrow.parquet", self.file.path)
        # A path that is handed to pyarrow may look like a URL to it.
        with arrow_module("pyarrow", self.file.path).OSFile(self.file.path) as source:
            # Without a buffer a row group is read at once, and with pre_buffer the whole file.
            yield parquet.ParquetFile(
                source,
                pre_buffer=False,
                buffer_size=_BUFFER_BYTES,
                page_checksum_verification=True,
            )

    def _read_columns(self) -> Mapping[str, TableColumn]:
        with self._opened() as file:
            return _described(file.schema_arrow)

    def count(self, names: Sequence[str]) -> int:
        """Return the number of rows, which the file says."""
        with self.file.naming(), self._opened() as file:
            return int(file.metadata.num_rows)

    def _batches(self, names: Sequence[str], max_rows: int) -> Iterator[Any]:
        with self._opened() as file:
            yield from file.iter_batches(max_rows, columns=list(names))

    def schema(self) -> Any:
        """Return the columns as Arrow has them."""
        with self.file.naming(), self._opened() as file:
            return file.schema_arrow

    def record_batches(self, names: Sequence[str], max_bytes: int) -> Iterator[tuple[int, Any]]:
        """Yield batches of Arrow of about so many bytes, and the number of the first row of each.

        Columns come in the order of the file.
        """
        with self.file.naming(), self._opened() as file:
            chosen = [place for place, name in enumerate(file.schema_arrow.names) if name in names]
            n_rows, n_bytes = _size(file, chosen)
        max_rows = max(1, min(_MOST_ROWS, max_bytes * n_rows // max(1, n_bytes)))
        yield from self._numbered(self._batches(names, max_rows), max_rows)


def _size(file: Any, columns: Sequence[int]) -> tuple[int, int]:
    """Return the rows of a parquet file, and the bytes that these columns take when unpacked."""
    roots = [file.schema.column(leaf).path.split(".")[0] for leaf in range(len(file.schema))]
    names = {file.schema_arrow.names[place] for place in columns}
    leaves = [leaf for leaf, root in enumerate(roots) if root in names]
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    n_bytes = sum(g.column(leaf).total_uncompressed_size for g in groups for leaf in leaves)
    return file.metadata.num_rows, n_bytes


class IpcTable(BatchTable):
    """A file or a stream of Arrow, which Feather is too; memory-mapped.

    What is in it is checked before it is used: a wrong offset would lead out of the file.
    """

    def _open(self, source: Any, names: Sequence[str] | None = None) -> Any:
        ipc = arrow_module("pyarrow.ipc", self.file.path)
        is_file = source.read(6) == ARROW.beginnings[0]
        source.seek(0)
        open_source = ipc.open_file if is_file else ipc.open_stream
        if names is None:
            return open_source(source)
        chosen = [list(self.columns).index(name) for name in names]
        return open_source(source, options=ipc.IpcReadOptions(included_fields=chosen))

    def _map(self) -> Any:
        return arrow_module("pyarrow", self.file.path).memory_map(self.file.path)

    def _read_columns(self) -> Mapping[str, TableColumn]:
        with self._map() as source:
            return _described(self._open(source).schema)

    def _batches(self, names: Sequence[str], max_rows: int) -> Iterator[Any]:
        with self._map() as source:
            reader = self._open(source, names)
            n_batches = getattr(reader, "num_record_batches", None)
            every = reader if n_batches is None else map(reader.get_batch, range(n_batches))
            for batch in every:
                batch.validate(full=True)
                yield batch


def _described(schema: Any) -> Mapping[str, TableColumn]:
    repeated = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if repeated is not None:
        raise AntipodalError(f"it has several columns {repeated!r}")
    return {field.name: describe_column(field.type) for field in schema}


_BLOCK_BYTES = 2**23  # more than any row has
_AROUND = "[]() \t\r\n"  # a vector that is written as text
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_JSON_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_CONSTANTS = {None: None, "null": None, "true": True, "false": False}


class CsvTable(BatchTable):
    """A CSV file with a line of names, or with numbers only, in columns f0, f1, ….

    Parameters
    ----------
    file : FoundFile
        Tabulators part its columns if its name says .tsv, commas otherwise.
    dtype : numpy.dtype
        That numbers of vectors are read as.
    """

    def __init__(self, file: FoundFile, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._names: list[str] | None = None  # where there is no line of names
        super().__init__(file)

    @property
    def form(self) -> Mapping[str, str]:
        """The names: types are a guess from the first rows."""
        return dict.fromkeys(self.columns, "there")

    def _read_columns(self) -> Mapping[str, TableColumn]:
        batch = self._first_batch()
        names = batch.schema.names
        if all(map(_NUMBER.fullmatch, names)):
            self._names = names = [f"f{place}" for place in range(len(names))]
            batch = self._first_batch()
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise ValueError(f"it has several columns {repeated!r}")
        return {name: _describe(batch.column(name)) for name in names}

    def _first_batch(self) -> Any:
        batch = next(self._read(None), None)
        if batch is None:
            raise NoRowsError(f"cannot read {self.file.path}: it has no rows")
        return batch

    def _batches(self, names: Sequence[str], max_rows: int) -> Iterator[Any]:
        text = import_module("pyarrow").string()
        return self._read(dict.fromkeys(names, text))

    def _vector_batches(self, names: Sequence[str], max_rows: int) -> Iterator[Any]:
        arrow = import_module("pyarrow")
        alone = len(names) == 1
        kind = arrow.string() if alone else arrow.from_numpy_dtype(self._dtype)
        return self._read(dict.fromkeys(names, kind))

    def _read(self, types: Mapping[str, Any] | None) -> Iterator[Any]:
        """Read these columns as these types, or all as what they seem to be at first."""
        csv = arrow_module("pyarrow.csv", self.file.path)
        tabs = self.file.path.lower().endswith((".tsv", ".tsv.gz"))
        with self.file.open() as stream:
            yield from csv.open_csv(
                stream,
                # with threads an error would not name the row
                csv.ReadOptions(
                    use_threads=False, block_size=_BLOCK_BYTES, column_names=self._names
                ),
                csv.ParseOptions(delimiter="\t" if tabs else ",", newlines_in_values=True),
                csv.ConvertOptions(
                    strings_can_be_null=True,
                    null_values=[""],
                    include_columns=None if types is None else list(types),
                    column_types=types,
                ),
            )

    def _vectors(
        self, batch: Any, names: Sequence[str], first: int, width: int | None
    ) -> NDArray[Any]:
        if len(names) > 1:
            return super()._vectors(batch, names, first, width)
        return self._parsed(batch.column(0), names[0], first, width)

    def _values(self, values: Any, name: str, first: int, width: int | None) -> NDArray[Any]:
        """Return lists as numbers, and words as they are: `values` makes numbers of them."""
        if self.columns[name].role is Role.VECTOR:
            return self._parsed(values, name, first, width)
        return as_values(values, name, first, width)

    def values(self, name: str) -> NDArray[Any]:
        """Return a whole column; one of whole numbers as numbers."""
        words = super().values(name)
        if words.dtype.kind != "U":
            return words
        try:
            numbers = words.astype(np.int64)
        except (ValueError, OverflowError):
            return words
        # 007 is a word
        return numbers if (numbers.astype(words.dtype) == words).all() else words

    def _json_value(self, value: Any) -> Any:
        """Return what is a number, true, false or null in JSON as that, the rest as text."""
        if value in _CONSTANTS:
            return _CONSTANTS[value]
        if not _JSON_NUMBER.fullmatch(value):
            return value
        return float(value) if set(value) & set(".eE") else int(value)

    def _parsed(self, texts: Any, name: str, first: int, width: int | None) -> NDArray[Any]:
        """Read vectors that are text: brackets around, commas or spaces between."""
        arrow, compute = import_module("pyarrow"), import_module("pyarrow.compute")
        numbers = compute.split_pattern_regex(compute.utf8_trim(texts, _AROUND), r"[\s,;]+")
        kind = arrow.list_(arrow.from_numpy_dtype(self._dtype))
        try:
            return stack_vectors(numbers.cast(kind), name, first, width)
        except arrow.ArrowInvalid as error:
            for place, row in enumerate(numbers):
                try:
                    row.cast(kind)
                except arrow.ArrowInvalid:
                    raise ValueError(
                        f"the column {name!r} must be of vectors, such as [0.1, 0.2]: row "
                        f"{first + place} is {str(texts[place])[:60]!r}"
                    ) from error
            raise


def _describe(column: Any) -> TableColumn:
    """Say what a column can be, by the type that its first rows seem to be of."""
    types = import_module("pyarrow.types")
    if types.is_integer(column.type) or types.is_floating(column.type):
        return TableColumn("numbers", Role.NUMBER)
    first = column[0].as_py() if len(column) else None
    if isinstance(first, bytes):  # some of it is not UTF-8
        first = first.decode(errors="replace")
    if isinstance(first, str) and first.lstrip().startswith(("[", "(")):
        return TableColumn("vectors", Role.VECTOR)
    return TableColumn("text", Role.OTHER)

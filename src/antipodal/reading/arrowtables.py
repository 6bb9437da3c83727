"""Parquet and Arrow files, by pyarrow: batches of rows, of the columns that are asked for."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.errors import AntipodalError
from antipodal.reading.arrowcolumns import (
    arrow_module,
    as_values,
    batch_vectors,
    describe_column,
)
from antipodal.reading.columns import Role, TableColumn
from antipodal.reading.filekinds import ARROW, FoundFile
from antipodal.reading.table import NoRowsError, Table, VectorType

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

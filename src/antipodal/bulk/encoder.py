"""Encoders of record batches and of single parquet files."""

import hashlib
import io
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from antipodal.codes import code_width
from antipodal.errors import AntipodalError
from antipodal.hashers.base import BaseHasher
from antipodal.hashers.registry import load_with_identity
from antipodal.io.atomic import replacing
from antipodal.io.columns import check_column, choose_columns
from antipodal.io.formats import find_format
from antipodal.io.tables import ParquetTable, combine_columns, describe_columns
from antipodal.threads import one_core

CODE = "code"  # the name of the added column


class BatchEncoder:
    r"""Function that adds the column `code`, fixed-size binary, to Arrow record batches.

    Use it with engines that map batches. The model is read once, by the constructor: in Ray, create
    the object in the actor; in Spark, in the function that receives the batches. It computes on
    one thread, since engines run many of them in parallel. The codes are those of
    `hasher.encode`, independent of the batch size.

    Parameters
    ----------
    model : path or BaseHasher
        A model file, or a fitted hasher.
    column : str or sequence of str, optional
        The vector column, or several columns of numbers that form the vector. By default chosen
        as by `antipodal.open_vectors`.
    columns : collection of str, optional
        Columns to keep with the codes, in the order of the batch. By default all.

    Examples
    --------
    >>> from antipodal import SignHash
    >>> hasher = SignHash(4, center=False, rotate=False).fit([[1.0, -2.0, 3.0, -4.0]])
    >>> encoder = BatchEncoder(hasher, columns=["id"])
    >>> batch = pa.table({"id": [7, 8], "vector": [[1.0, 1.0, 1.0, -1.0], [-1.0, 1.0, 1.0, 1.0]]})
    >>> encoder(batch).to_pylist()
    [{'id': 7, 'code': b'\xe0'}, {'id': 8, 'code': b'p'}]
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | BaseHasher,
        *,
        column: str | Sequence[str] | None = None,
        columns: Collection[str] | None = None,
    ) -> None:
        self.identity: str | None = None  # of the model file
        if isinstance(model, BaseHasher):
            self.hasher = model
        else:
            self.hasher, self.identity = load_with_identity(model)
        self.column = column
        self.columns = columns

    def __call__(self, batch: Any) -> Any:
        """Return a record batch or table with the codes of its rows."""
        if not isinstance(batch, pa.Table):
            return self._encoded(batch)
        # Not self(part): Ray replaces __call__ by a wrapper that would deadlock.
        parts = [self._encoded(part) for part in batch.to_batches()]
        return pa.Table.from_batches(parts, self.schema(batch.schema))

    def _encoded(self, batch: Any) -> Any:
        width = code_width(self.hasher.n_bits)
        codes = np.empty((0, width), np.uint8)
        if len(batch):
            names = self.vector_columns(batch.schema)
            rows = combine_columns({name: batch.column(name) for name in names})
            with one_core():
                codes = self.hasher.encode(rows)
        column = pa.Array.from_buffers(pa.binary(width), len(codes), [None, pa.py_buffer(codes)])
        schema = self.schema(batch.schema)
        arrays = [batch.column(name) for name in schema.names[:-1]]
        return pa.RecordBatch.from_arrays([*arrays, column], schema=schema)

    def schema(self, schema: pa.Schema, name: str = "the batch") -> pa.Schema:
        """Return the schema of encoded batches; `name` is the source in error messages."""
        for column in self.columns or ():
            check_column(name, describe_columns(schema), column)
        kept = [f for f in schema if self.columns is None or f.name in self.columns]
        if any(field.name == CODE for field in kept):
            raise AntipodalError(
                f"{name} already has a column {CODE!r}, the name of the column of codes: list the "
                "columns to keep, without it"
            )
        added = pa.field(CODE, pa.binary(code_width(self.hasher.n_bits)), nullable=False)
        return pa.schema([*kept, added], schema.metadata)

    def vector_columns(self, schema: pa.Schema, name: str = "the batch") -> tuple[str, ...]:
        """Return the names of the columns that contain the vectors."""
        return choose_columns(name, describe_columns(schema), self.column, ())

    def columns_read(self, schema: pa.Schema, name: str = "the batch") -> list[str]:
        """Return the names of the vector columns and of the columns to keep, in their order."""
        *kept, _ = self.schema(schema, name).names
        wanted = {*kept, *self.vector_columns(schema, name)}
        return [name for name in schema.names if name in wanted]


BATCH_BYTES = 2**24  # a few batches of each open file are in memory

Item = TypeVar("Item")
Result = TypeVar("Result")


class FileJob(NamedTuple):
    """A source file, its target file, and the name of both in the manifest."""

    name: str
    source: str
    target: str


class FileRecord(NamedTuple):
    """A complete file of codes, and the state of its source."""

    name: str
    rows: int
    bytes: int
    sha256: str
    source_bytes: int
    source_modified_ns: int


class StoppedError(Exception):
    """Encoding was stopped: another file failed, or the user interrupted it."""


def encode_file(
    encoder: BatchEncoder, job: FileJob, pool: Executor, n_ahead: int = 2, stop: Event | None = None
) -> FileRecord:
    """Write the file of codes of one parquet file atomically.

    Parameters
    ----------
    encoder : BatchEncoder
    job : FileJob
    pool : Executor
        The threads that encode.
    n_ahead : int
        Maximum number of batches that are read but not yet written.
    stop : Event, optional
        Set by the caller to abandon the file.
    """
    before = _size_and_time(job.source)
    table = ParquetTable(find_format(job.source))
    schema = table.schema()
    names = encoder.columns_read(schema, job.source)
    written = encoder.schema(schema, job.source)
    vectors = encoder.vector_columns(schema, job.source)
    plain = [name for name in written.names if name in vectors or name == CODE]
    n_rows = 0
    Path(job.target).parent.mkdir(parents=True, exist_ok=True)
    with replacing(job.target) as file, ThreadPoolExecutor(1) as reader:
        stream = _HashingWriter(file)
        batches = read_ahead(table.record_batches(names, BATCH_BYTES), reader)
        # For vectors and codes, parquet would build dictionaries only to discard them.
        others = [name for name in written.names if name not in plain]
        with pq.ParquetWriter(stream, written, use_dictionary=others) as writer:
            for batch in in_order(pool, partial(_encode, encoder, job.source), batches, n_ahead):
                if stop is not None and stop.is_set():
                    raise StoppedError
                writer.write_batch(batch)
                n_rows += len(batch)
    if _size_and_time(job.source) != before:
        os.unlink(job.target)
        raise AntipodalError(f"{job.source} changed while it was read: encode it again")
    return FileRecord(job.name, n_rows, stream.n_bytes, stream.digest.hexdigest(), *before)


def _size_and_time(source: str) -> tuple[int, int]:
    try:
        status = os.stat(source)
    except OSError as error:
        raise AntipodalError(f"cannot read {source}: {error.strerror or error}") from error
    return status.st_size, status.st_mtime_ns


def _encode(encoder: BatchEncoder, source: str, numbered: tuple[int, Any]) -> pa.RecordBatch:
    first, batch = numbered
    try:
        return encoder(batch)
    except (ValueError, TypeError) as error:
        raise AntipodalError(
            f"cannot encode {source}, in the {len(batch):,} rows from row {first:,}: {error}"
        ) from error


def read_ahead(items: Iterator[Item], pool: Executor) -> Iterator[Item]:
    """Yield the items; compute the next one in the background."""
    following = pool.submit(next, items, None)
    while (item := following.result()) is not None:
        following = pool.submit(next, items, None)
        yield item


def in_order(
    pool: Executor, function: Callable[[Item], Result], items: Iterable[Item], n_ahead: int
) -> Iterator[Result]:
    """Yield function(item) in order, computed in a pool, at most n_ahead items in advance."""
    waiting: deque[Future[Result]] = deque()
    for item in items:
        waiting.append(pool.submit(function, item))
        if len(waiting) > n_ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


class _HashingWriter(io.RawIOBase):
    """A file for writing that counts and hashes the bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest, self.n_bytes = file, hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self.n_bytes += len(data)
        return self.file.write(data)

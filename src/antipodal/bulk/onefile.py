"""One parquet file to one parquet file: read ahead, encode on several threads, write in order."""

import hashlib
import io
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from antipodal.bulk.batchencoder import CODE, BatchEncoder
from antipodal.errors import AntipodalError
from antipodal.reading.arrowtables import ParquetTable
from antipodal.reading.filekinds import find_kind
from antipodal.storage.files import replacing

BATCH_BYTES = 2**24  # of what is read at a time: a few batches of each open file are in memory

Item = TypeVar("Item")
Result = TypeVar("Result")


class FileJob(NamedTuple):
    """What is to be read, what is to be written, and the name of both in the manifest."""

    name: str
    source: str
    target: str


class FileRecord(NamedTuple):
    """A file that was written whole, and what it was made of."""

    name: str
    rows: int
    bytes: int
    sha256: str
    source_bytes: int
    source_modified_ns: int


class StoppedError(Exception):
    """Another file failed, or the user has had enough."""


def encode_file(
    encoder: BatchEncoder, job: FileJob, pool: Executor, n_ahead: int = 2, stop: Event | None = None
) -> FileRecord:
    """Write the codes of one file, whole or not at all.

    Parameters
    ----------
    pool : Executor
        Whose threads encode.
    n_ahead : int
        Batches that wait to be encoded or written, at most.
    stop : Event, optional
        Once it is set, the file is given up.
    """
    before = os.stat(job.source)
    table = ParquetTable(find_kind(job.source))
    schema = table.schema()
    names = encoder.columns_read(schema, job.source)
    written = encoder.schema(schema, job.source)
    vectors = encoder.vector_columns(schema, job.source)
    plain = [name for name in written.names if name in vectors or name == CODE]
    n_rows = 0
    Path(job.target).parent.mkdir(parents=True, exist_ok=True)
    with replacing(job.target) as file, ThreadPoolExecutor(1) as reader:
        stream = _Hashed(file)
        batches = read_ahead(table.record_batches(names, BATCH_BYTES), reader)
        # A dictionary of numbers that hardly repeat would be built, and thrown away.
        others = [name for name in written.names if name not in plain]
        with pq.ParquetWriter(stream, written, use_dictionary=others) as writer:
            for batch in in_order(pool, partial(_encode, encoder, job.source), batches, n_ahead):
                if stop is not None and stop.is_set():
                    raise StoppedError
                writer.write_batch(batch)
                n_rows += len(batch)
    after = os.stat(job.source)
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        os.unlink(job.target)
        raise AntipodalError(f"{job.source} changed while it was read: encode it again")
    return FileRecord(
        job.name, n_rows, stream.n_bytes, stream.digest.hexdigest(),
        after.st_size, after.st_mtime_ns,
    )  # fmt: skip


def _encode(encoder: BatchEncoder, source: str, numbered: tuple[int, Any]) -> pa.RecordBatch:
    first, batch = numbered
    try:
        return encoder(batch)
    except (ValueError, TypeError) as error:
        raise AntipodalError(
            f"cannot encode {source}, in the {len(batch):,} rows from row {first:,} on: {error}"
        ) from error


def read_ahead(items: Iterator[Item], pool: Executor) -> Iterator[Item]:
    """Yield the items, the next of which is made meanwhile."""
    coming = pool.submit(next, items, None)
    while (item := coming.result()) is not None:
        coming = pool.submit(next, items, None)
        yield item


def in_order(
    pool: Executor, function: Callable[[Item], Result], items: Iterable[Item], n_ahead: int
) -> Iterator[Result]:
    """Map the items on the threads of a pool, at most n_ahead of them at a time."""
    waiting: deque[Future[Result]] = deque()
    for item in items:
        waiting.append(pool.submit(function, item))
        if len(waiting) > n_ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


class _Hashed(io.RawIOBase):
    """A file to write to that knows the checksum and the number of the bytes it got."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest, self.n_bytes = file, hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self.n_bytes += len(data)
        return self.file.write(data)

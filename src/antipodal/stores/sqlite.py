"""SQLite store: a durable file, and an index of it in memory."""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from sqlite3 import Connection
from typing import Any, LiteralString

import numpy as np

from antipodal.codes import Codes, to_bytes
from antipodal.errors import StoreError
from antipodal.index import HammingIndex, SearchResult
from antipodal.index.asymmetric import Floats
from antipodal.stores.base import Store
from antipodal.stores.filters import Where, sqlite_condition
from antipodal.stores.index_cache import IndexCache
from antipodal.stores.items import IdType, Keys, as_keys, assign_numbers, parse_metadata, with_keys
from antipodal.stores.snapshot import ItemBatch, Snapshot, with_vectors
from antipodal.stores.sqlite_file import HAS_ID, OpenFile, SqliteFile, SqliteItems, damaged, id_list
from antipodal.stores.url import Address
from antipodal.validation import Ids

_CHECKPOINT_SECONDS = 2.0
_LARGEST_ID = "SELECT max(id) FROM items"


class _VersionedItems:
    """The items of a file, for `IndexCache`."""

    def __init__(
        self, file: SqliteFile, items: SqliteItems, begin: Callable[[Connection], None]
    ) -> None:
        self.n_bits = items.n_bits
        self._file, self._items, self._begin = file, items, begin

    def restart(self, connection: Connection) -> None:
        connection.execute("ROLLBACK")
        self._begin(connection)

    def version(self, connection: Connection) -> int:
        return self._file.tables.version(connection)

    def changed_since(self, connection: Connection, version: int) -> Ids | None:
        return self._file.tables.changed_since(connection, version)

    def all(self, connection: Connection) -> Iterator[tuple[Ids, Codes]]:
        self._file.check_pages(connection)
        return ((some.ids, some.codes) for some in self._items.all(connection))

    def among(self, connection: Connection, ids: Ids) -> Iterator[tuple[Ids, Codes]]:
        return ((some.ids, some.codes) for some in self._items.among(connection, ids))

    def matching(self, connection: Connection, where: Where, among: Ids | None = None) -> Ids:
        condition, values = sqlite_condition(where)
        select: LiteralString = "SELECT id FROM items WHERE "
        if among is None:
            cursor = connection.execute(f"{select}{condition} ORDER BY id", values)
        else:
            query: LiteralString = f"{select}{HAS_ID} AND {condition} ORDER BY id"
            cursor = connection.execute(query, [id_list(among), *values])
        return np.fromiter((row[0] for row in cursor), np.int64)


class SqliteStore(Store):
    """Store in a SQLite file, for concurrent readers and one writer, in threads or processes.

    A file without write permission is opened read-only.
    """

    def __init__(
        self,
        address: Address,
        *,
        n_bits: int | None,
        model: str | None,
        id_type: IdType | None = None,
    ) -> None:
        self.place = address.shown
        self._file = SqliteFile(address)
        self._closed = False
        self._readers: SimpleQueue[OpenFile] = SimpleQueue()
        self._writing = threading.Lock()
        self._writer, header = self._file.open(n_bits, model, id_type)
        self.n_bits, self.model, self._identity, self.antipodal, self.id_type = header
        self._tables, self._items = (
            self._file.tables,
            SqliteItems(self.place, self.n_bits, self.id_type),
        )
        self._cache = IndexCache(_VersionedItems(self._file, self._items, self._begin))

    def own_files(self) -> list[Path]:
        """Return the file, its write-ahead log, shared memory and journal."""
        return self._file.files()

    def close(self) -> None:
        """Close the file; the last process to close it checkpoints the log."""
        with self._writing:
            self._closed = True
            self._close_readers()
            if self._writer is not None:
                self._writer.close()

    # ----------------------------------------------------------------------------- writing

    def _put(
        self,
        ids: Ids,
        codes: Codes,
        metadata: list[str] | None,
        *,
        replace: bool,
        vectors: Sequence[bytes] | None = None,
    ) -> int:
        with self._write_transaction() as connection:
            known = _known_ids(connection, ids)
            if not replace:
                self._check_unused(known)
            texts = self._stored_texts(connection, ids, known) if metadata is None else metadata
            self._put_items(connection, ids, codes, texts, vectors)
        return len(known)

    def _put_keyed(
        self,
        keys: Keys,
        codes: Codes,
        metadata: list[str] | None,
        *,
        replace: bool,
        vectors: Sequence[bytes] | None = None,
    ) -> int:
        with self._write_transaction() as connection:
            known = self._items.numbers_of(connection, keys.tolist())
            if not replace:
                self._check_unused(as_keys(known))
            largest = connection.execute(_LARGEST_ID).fetchone()[0]
            ids = assign_numbers(keys, known, largest)
            texts = metadata
            if texts is None:
                stored = self._stored_texts(connection, ids, np.array([*known.values()], np.int64))
                new = with_keys(["{}"] * len(keys), keys)
                texts = [
                    stored[i] if key in known else new[i] for i, key in enumerate(keys.tolist())
                ]
            self._put_items(connection, ids, codes, texts, vectors)
        return len(known)

    def _put_items(
        self,
        connection: Connection,
        ids: Ids,
        codes: Codes,
        texts: list[str],
        vectors: Sequence[bytes] | None,
    ) -> None:
        self._items.put(connection, ids, to_bytes(codes, self.n_bits), texts)
        if vectors is not None:
            self._tables.create_newer_tables(connection)
        if vectors is not None or self._tables.has_newer_tables(connection):
            self._items.put_vectors(connection, ids, vectors)
        self._tables.record_change(connection, ids)

    def _stored_texts(self, connection: Connection, ids: Ids, known: Ids) -> list[str]:
        """Return the stored metadata of items, {} for new ones."""
        texts: dict[int, str] = {}
        for some in self._items.among(connection, known):
            texts |= zip(some.ids.tolist(), some.batch().texts, strict=True)
        return [texts.get(number, "{}") for number in ids.tolist()]

    def _delete(self, ids: Ids) -> int:
        with self._write_transaction() as connection:
            return self._delete_items(connection, ids)

    def _delete_keyed(self, keys: Keys) -> int:
        with self._write_transaction() as connection:  # the numbers may be assigned again later
            numbers = self._items.numbers_of(connection, keys.tolist())
            return self._delete_items(connection, np.array(sorted(numbers.values()), np.int64))

    def _delete_items(self, connection: Connection, ids: Ids) -> int:
        n_deleted = self._items.delete(connection, ids)
        if self._tables.has_newer_tables(connection):
            self._items.put_vectors(connection, ids, None)
        self._tables.record_change(connection, ids)
        return n_deleted

    @contextmanager
    def _write_transaction(self) -> Iterator[Connection]:
        """Run one write transaction."""
        with self._exclusive() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                if self._tables.header(connection).identity != self._identity:
                    raise StoreError(
                        f"{self.place} was replaced by another store after it was opened: nothing "
                        "was stored. Open it again"
                    )
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _exclusive(self) -> Iterator[Connection]:
        """Return the writing connection; other threads wait."""
        with self._writing, self._file.errors():
            self._check_open()
            if self._file.is_replaced():
                self._reopen()
                raise self._replaced("nothing was stored. Try again to write to the new file")
            if self._writer is None:
                raise StoreError(
                    f"{self.place} is read-only: no write permission for the file or its folder"
                )
            yield self._writer
            if self._file.is_replaced():
                raise self._replaced("the items were stored in the old file, not in the new one")

    def vacuum(self) -> tuple[int, int]:
        """Rewrite the file without unused space; return its bytes before and after.

        The disk needs space for a second copy. Other readers continue, writers wait.
        """
        with self._exclusive() as connection:
            before = _n_bytes(connection)
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # otherwise done on close
            return before, _n_bytes(connection)

    def copy_file(self, path: Path) -> None:
        """Write a snapshot to an empty file, which is unusable if that fails.

        Other readers and writers continue.
        """
        with self._read() as connection:
            target = sqlite3.connect(path, isolation_level=None)
            try:
                target.execute("PRAGMA journal_mode=OFF")
                connection.backup(target)
            finally:
                target.close()

    def read_attachment(self, name: str) -> bytes | None:
        """Return the bytes stored under a name, or None."""
        with self._read() as connection:
            return self._tables.attachment(connection, name)

    def _write_attachments(self, parts: Mapping[str, bytes], *, replace: bool) -> None:
        with self._write_transaction() as connection:
            if not replace:
                known = [name for name in parts if self._tables.attachment(connection, name)]
                self._check_names_unused(known)
            for name, data in parts.items():
                self._tables.attach(connection, name, data)

    def _replace_all(self, batches: Iterator[ItemBatch]) -> None:
        with self._write_transaction() as connection:
            connection.execute("DELETE FROM items")
            if self._tables.has_newer_tables(connection):
                connection.execute("DELETE FROM vectors")
                connection.execute("DELETE FROM keys")
            for batch in batches:
                codes = to_bytes(batch.codes, self.n_bits)
                self._items.put(connection, batch.ids, codes, batch.texts)
                if batch.vectors:
                    self._tables.create_newer_tables(connection)
                    self._items.put_vectors(connection, *batch.kept())
            self._tables.record_replacement(connection)

    def _drop(self) -> None:
        self.close()
        for file in self.own_files():
            file.unlink(missing_ok=True)

    # ----------------------------------------------------------------------------- reading

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Return a snapshot.

        Close it soon: until then, the write-ahead log grows with every write.
        """
        with self._read() as connection:
            index, version = self._cache.index(connection)
            snapshot = _SqliteSnapshot(self, connection, index, version)
            try:
                yield snapshot
            finally:
                snapshot.is_closed = True

    @contextmanager
    def item_batches(self, *, vectors: bool = False) -> Iterator[Callable[[], Iterator[ItemBatch]]]:
        """Return a function that iterates over all items by id, without building an index."""
        with self._read() as connection:
            self._file.check_pages(connection)
            if vectors and self._tables.has_newer_tables(connection):
                kept_vectors = partial(self._items.vectors, connection)
                yield lambda: with_vectors(self._batches(connection), kept_vectors)
            else:
                yield partial(self._batches, connection)

    def item_count(self) -> int:
        """Return the number of items in the file, without building an index."""
        with self._read() as connection:
            return int(connection.execute("SELECT count(*) FROM items").fetchone()[0])

    def _batches(self, connection: Connection) -> Iterator[ItemBatch]:
        return (some.batch() for some in self._items.all(connection))

    def _prepare(self, radius: int) -> None:
        with self._read() as connection:
            self._cache.prepare(connection, radius)

    def _get(self, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]:
        with self._read() as connection:
            return self._found(connection, ids)

    def _found(self, connection: Connection, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]:
        try:
            return {
                number: (code.tobytes(), parse_metadata(text))
                for some in self._items.among(connection, ids)
                for number, code, text in zip(
                    some.ids.tolist(), some.codes, some.texts, strict=True
                )
            }
        except (ValueError, RecursionError) as error:  # not written by antipodal
            raise damaged(self.place, f"invalid metadata of an item: {error}") from None

    def _known(self, ids: Ids) -> Ids:
        with self._read() as connection:
            return _known_ids(connection, ids)

    def _numbers_of(self, keys: Sequence[str]) -> dict[str, int]:
        with self._read() as connection:
            return self._items.numbers_of(connection, keys)

    def _largest_id(self) -> int | None:
        with self._read() as connection:
            largest: int | None = connection.execute(_LARGEST_ID).fetchone()[0]
            return largest

    # ------------------------------------------------------------------------- connections

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        """Return a connection in a read transaction, for use by one thread."""
        self._check_open()
        with self._file.errors():
            if self._file.is_replaced():
                with self._writing:
                    self._reopen()
            opened = self._reader()
            try:
                self._begin(opened.connection)
                yield opened.connection
                opened.connection.execute("COMMIT")
                self._file.check_unchanged(opened)
            except BaseException:
                opened.connection.close()
                raise
            self._readers.put(opened)
            if self._closed:
                self.close()

    def _begin(self, connection: Connection) -> None:
        """Begin a read transaction, and check that the file still has the same kind of codes."""
        connection.execute("BEGIN")
        self._tables.header(connection).check(self.place, self.n_bits, self.model)

    def _reader(self) -> OpenFile:
        """Return an idle connection to the current file, or a new one."""
        with suppress(Empty):
            while True:
                opened = self._readers.get_nowait()
                if self._file.is_unchanged(opened):
                    return opened
                opened.connection.close()
        return self._file.reader()

    def _reopen(self) -> None:
        """Close a file that has been replaced, and open the new file at its path."""
        if not self._file.is_replaced():
            return  # another thread has reopened it
        self._close_readers()
        if self._writer is not None:
            # Otherwise the new file would be read with the log of the old one.
            self._writer.execute(f"PRAGMA busy_timeout={1000 * _CHECKPOINT_SECONDS:.0f}")
            if self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                raise self._replaced("try again when no process has the old file open")
            self._writer.close()
            self._writer = None
        self._writer, _ = self._file.open(None, None, None)

    def _close_readers(self) -> None:
        with suppress(Empty):
            while True:
                self._readers.get_nowait().connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.place} is closed")

    def _replaced(self, effect: str) -> StoreError:
        return StoreError(f"{self.place} was replaced by another file: {effect}")


class _SqliteSnapshot(Snapshot):
    """Snapshot of a store: one transaction, and an index of the same version."""

    version: int

    def __init__(
        self,
        store: SqliteStore,
        connection: Connection,
        index: HammingIndex,
        version: int,
    ) -> None:
        self.place, self.n_bits, self.id_type = store.place, store.n_bits, store.id_type
        self._store, self._connection = store, connection
        self._index, self.version = index, version

    def batches(self) -> Iterator[ItemBatch]:
        """Yield all items in batches."""
        return self._store._batches(self._connection)

    def changes_since(self, version: int) -> tuple[int, Ids | None]:
        """Return the version of the items, and the ids changed since another version."""
        return self.version, self._store._tables.changed_since(self._connection, version)

    def all_codes(self) -> tuple[Ids, Codes]:
        """Return all ids, increasing, and their codes, from memory."""
        ids = self._index.ids
        return ids, self._index.codes(ids)

    def _get(self, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]:
        return self._store._found(self._connection, ids)

    def _numbers_of(self, keys: Sequence[str]) -> dict[str, int]:
        return self._store._items.numbers_of(self._connection, keys)

    def _keys_of(self, ids: Ids) -> dict[int, str]:
        return self._store._items.keys_of(self._connection, ids)

    def kept_vectors(self, ids: Ids) -> dict[int, bytes]:
        """Return the stored vectors of items by integer id, without items that have none."""
        if not self._store._tables.has_newer_tables(self._connection):
            return {}
        return self._store._items.vectors(self._connection, ids)

    def _search(self, codes: Codes, k: int, where: Where | None) -> SearchResult:
        return self._index.search(codes, k, allowed=self._allowed(where))

    def _asymmetric(self, values: Floats, k: int, where: Where | None) -> SearchResult:
        return self._index.search(vectors=values, k=k, allowed=self._allowed(where))

    def _radius(self, codes: Codes, r: int, where: Where | None) -> SearchResult:
        return self._index.radius(codes, r, allowed=self._allowed(where))

    def _count(self, where: Where | None) -> int:
        allowed = self._allowed(where)
        return len(self._index) if allowed is None else len(allowed)

    def _allowed(self, where: Where | None) -> Ids | None:
        if where is None:
            return None
        return self._store._cache.matching(self._connection, self.version, where)


def _known_ids(connection: Connection, ids: Ids) -> Ids:
    """Return the ids in use, without a lookup if all are larger than the largest."""
    largest = connection.execute(_LARGEST_ID).fetchone()[0]
    if largest is None or ids.min() > largest:
        return np.empty(0, np.int64)
    cursor = connection.execute(f"SELECT id FROM items WHERE {HAS_ID}", [id_list(ids)])
    return np.fromiter((row[0] for row in cursor), np.int64)


def _n_bytes(connection: Connection) -> int:
    pragmas = ("page_count", "page_size")
    pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas)
    return int(pages * size)

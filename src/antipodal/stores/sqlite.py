"""SQLite store: a durable file, searched through an index in memory."""

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, LiteralString

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes, to_bytes
from antipodal.errors import StoreError
from antipodal.index import Ball, HammingIndex, Neighbours
from antipodal.index.asymmetric import Floats
from antipodal.stores.base import Store
from antipodal.stores.filters import Where, sqlite_condition
from antipodal.stores.metadata import parse_metadata
from antipodal.stores.snapshot import ItemBatch, Snapshot
from antipodal.stores.sqlite_file import AMONG, OpenFile, SqliteFile, SqliteItems, damaged, id_list
from antipodal.stores.url import Address
from antipodal.validation import Ids


class SharedLock:
    """Readers together, a writer alone; a writer that waits goes before readers that come later."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._writing = False
        self._waiting = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock together with other readers."""
        with self._changed:
            self._changed.wait_for(lambda: not self._writing and not self._waiting)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock without anybody else."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._writing and not self._readers)
            finally:
                self._waiting -= 1
            self._writing = True
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._changed.notify_all()


_KEPT_FILTERS = 16


class IndexCache:
    """An index of the items of a file, and the ids that pass the last filters."""

    def __init__(self, file: SqliteFile, items: SqliteItems) -> None:
        self._file, self._items = file, items
        self._sharing = SharedLock()  # guards all of these
        self._index: HammingIndex | None = None
        self._version = -1
        self._radius: int | None = None  # that the index is prepared for
        self._filters: OrderedDict[str, tuple[Where, Ids]] = OrderedDict()
        self._filters_lock = threading.Lock()

    def index(
        self, connection: sqlite3.Connection, begin: Callable[[sqlite3.Connection], None]
    ) -> tuple[HammingIndex, int]:
        """Return an index of what the transaction of a connection sees, and its version.

        The index does not change when others bring theirs to newer versions. If it is not of this
        version, the transaction is begun anew, for it may have been overtaken.
        """
        version = self._file.tables.version(connection)
        with self._sharing.shared():
            if self._index is not None and self._version == version:
                return copy(self._index), version
        with self._sharing.alone():
            # Nobody else brings the index up now: it cannot be newer than what is seen from here.
            connection.execute("ROLLBACK")
            begin(connection)
            version = self._file.tables.version(connection)
            if self._index is None or self._version != version:
                self._index, self._version = self._refreshed(connection, version), version
            return copy(self._index), version

    def prepare(
        self,
        connection: sqlite3.Connection,
        begin: Callable[[sqlite3.Connection], None],
        radius: int,
    ) -> None:
        """Make tables for this radius, of this index and of those that take its place.

        They are shared with the copies that searches have: searches go on meanwhile.
        """
        HammingIndex(self._items.n_bits).prepare(radius)  # refuses what no index can
        self._radius = max(radius, self._radius or 0)
        self.index(connection, begin)[0].prepare(self._radius)

    def passing(self, connection: sqlite3.Connection, version: int, where: Where) -> Ids:
        """Return the ids that pass; those of the last filters are remembered and kept up."""
        name = repr(where)  # not the tree itself: true would equal 1
        with self._sharing.shared():
            if self._version != version:
                return _passing(connection, where)
            with self._filters_lock:
                if name in self._filters:
                    self._filters.move_to_end(name)
                    return self._filters[name][1]
            ids = _passing(connection, where)
            with self._filters_lock:
                self._filters[name] = where, ids
                while len(self._filters) > _KEPT_FILTERS:
                    self._filters.popitem(last=False)
            return ids

    def _refreshed(self, connection: sqlite3.Connection, version: int) -> HammingIndex:
        """Return the index at the version that the connection sees; bring the filters there."""
        changed = self._file.tables.changed_since(connection, self._version)
        index, self._index = self._index, None  # if anything fails, the next search starts anew
        filters, self._filters = self._filters, OrderedDict()
        if index is None or changed is None or 2 * len(changed) > len(index):
            self._file.check_pages(connection)
            index = HammingIndex(self._items.n_bits)
            for ids, codes, _ in self._items.all(connection):
                index.add(codes, ids)
            if self._radius is not None:
                index.prepare(self._radius)
        else:
            index.remove(changed[index.contains(changed)])
            for ids, codes, _ in self._items.among(connection, changed):
                index.add(codes, ids)
            for name, (where, before) in filters.items():
                places = _places(before, changed)
                others = np.delete(before, places[places >= 0])
                passing = _passing(connection, where, changed)
                now = np.insert(others, np.searchsorted(others, passing), passing)
                self._filters[name] = where, now
        return index


def _passing(connection: sqlite3.Connection, where: Where, among: Ids | None = None) -> Ids:
    """Return the ids of items that pass, increasing; of all items or of some."""
    condition, values = sqlite_condition(where)
    select: LiteralString = "SELECT id FROM items WHERE "
    if among is None:
        cursor = connection.execute(f"{select}{condition} ORDER BY id", values)
    else:
        query: LiteralString = f"{select}{AMONG} AND {condition} ORDER BY id"
        cursor = connection.execute(query, [id_list(among), *values])
    return np.fromiter((row[0] for row in cursor), np.int64)


def _places(ids: Ids, sought: Ids) -> NDArray[np.int64]:
    """Return the place of each sought id in the increasing ids, or -1."""
    places = np.searchsorted(ids, sought)
    found = places < len(ids)
    found[found] = ids[places[found]] == sought[found]
    return np.where(found, places, -1)


class SqliteStore(Store):
    """Items in a SQLite file; any number of reading threads and processes, one writer at a time.

    A file that cannot be written is only read.
    """

    def __init__(self, address: Address, *, n_bits: int | None, model: str | None) -> None:
        self.place = address.shown
        self._file = SqliteFile(address)
        self._closed = False
        self._readers: SimpleQueue[OpenFile] = SimpleQueue()
        self._writing = threading.Lock()
        self._writer, about = self._file.open(n_bits, model)
        self.n_bits, self.model, self._identity, self.antipodal = about
        self._tables, self._items = self._file.tables, SqliteItems(self.place, self.n_bits)
        self._cache = IndexCache(self._file, self._items)

    def own_files(self) -> list[Path]:
        """Return the file, its write-ahead log, shared memory and journal."""
        return self._file.files()

    def close(self) -> None:
        """Close the file; the last to close it folds its log into it."""
        with self._writing:
            self._closed = True
            self._close_readers()
            if self._writer is not None:
                self._writer.close()

    # ----------------------------------------------------------------------------- writing

    def _put(self, ids: Ids, codes: Codes, metadata: list[str] | None, *, replace: bool) -> int:
        rows = to_bytes(codes, self.n_bits)
        with self._write() as connection:
            known = self._items.known(connection, ids)
            if not replace:
                self._refuse(known)
            texts = self._kept(connection, ids, known) if metadata is None else metadata
            self._items.put(connection, ids, rows, texts)
            self._tables.note(connection, ids)
        return len(known)

    def _kept(self, connection: sqlite3.Connection, ids: Ids, known: Ids) -> list[str]:
        """Return the metadata that items have, {} for those that are new."""
        texts: dict[int, str] = {}
        for some in self._items.among(connection, known):
            texts |= zip(some.ids.tolist(), some.batch().texts, strict=True)
        return [texts.get(number, "{}") for number in ids.tolist()]

    def _delete(self, ids: Ids) -> int:
        with self._write() as connection:
            n_deleted = self._items.delete(connection, ids)
            self._tables.note(connection, ids)
            return n_deleted

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction in the store that was opened."""
        with self._alone() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                if self._tables.about(connection).identity != self._identity:
                    raise StoreError(
                        f"{self.place} is another store now than the one that was opened: nothing "
                        "was stored. Open it again"
                    )
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _alone(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection that writes; other threads wait, other processes are told."""
        with self._writing, self._file.errors():
            self._check_open()
            if self._file.is_replaced():
                self._follow()
                raise self._replaced("nothing was stored. Try again, to write into that file")
            if self._writer is None:
                raise StoreError(
                    f"{self.place} is read-only: the file, or its folder, cannot be written"
                )
            yield self._writer
            if self._file.is_replaced():
                raise self._replaced("what was stored is in the file before, not in that one")

    def vacuum(self) -> tuple[int, int]:
        """Write the file anew, for which the disk must have room; return its bytes before and now.

        Others read on, and wait to write.
        """
        with self._alone() as connection:
            before = _n_bytes(connection)
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # or the last to close does that
            return before, _n_bytes(connection)

    def copy_file(self, path: Path) -> None:
        """Copy the file as it is at one moment into an empty one, while others read and write."""
        with self._read() as connection:
            self._file.copy(connection, path)

    def _replace_all(self, batches: Iterator[ItemBatch]) -> None:
        with self._write() as connection:
            connection.execute("DELETE FROM items")
            for ids, codes, texts in batches:
                self._items.put(connection, ids, to_bytes(codes, self.n_bits), texts)
            self._tables.note(connection, np.empty(0, np.int64))
            self._tables.forget(connection)

    # ----------------------------------------------------------------------------- reading

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Give the store as it is now: whatever is written meanwhile is not seen in it.

        While it is there the log of the file grows with every write: keep it for a short time.
        """
        with self._read() as connection:
            index, version = self._cache.index(connection, self._begin)
            snapshot = _SqliteSnapshot(self, connection, index, version)
            try:
                yield snapshot
            finally:
                snapshot.is_over = True

    @contextmanager
    def item_batches(self) -> Iterator[Callable[[], Iterator[ItemBatch]]]:
        """Give what yields all items as they are now, by id; no index is made of them."""
        with self._read() as connection:
            self._file.check_pages(connection)
            yield partial(self._batches, connection)

    def item_count(self) -> int:
        """Count the items by a look at the file alone."""
        with self._read() as connection:
            return int(connection.execute("SELECT count(*) FROM items").fetchone()[0])

    def _batches(self, connection: sqlite3.Connection) -> Iterator[ItemBatch]:
        return (some.batch() for some in self._items.all(connection))

    def _prepare(self, radius: int) -> None:
        with self._read() as connection:
            self._cache.prepare(connection, self._begin, radius)

    def _get(self, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]:
        with self._read() as connection:
            return self._found(connection, ids)

    def _found(
        self, connection: sqlite3.Connection, ids: Ids
    ) -> dict[int, tuple[bytes, dict[str, Any]]]:
        try:
            return {
                number: (code.tobytes(), parse_metadata(text))
                for some in self._items.among(connection, ids)
                for number, code, text in zip(
                    some.ids.tolist(), some.codes, some.texts, strict=True
                )
            }
        except (ValueError, RecursionError) as error:  # with a checksum: not our writer
            reason = f"metadata of an item cannot be read: {error}"
            raise damaged(self.place, reason) from None

    def _known(self, ids: Ids) -> Ids:
        with self._read() as connection:
            return self._items.known(connection, ids)

    def _largest_id(self) -> int | None:
        with self._read() as connection:
            return self._items.largest(connection)

    # ------------------------------------------------------------------------- connections

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection, in a transaction that only reads, to one thread at a time."""
        self._check_open()
        with self._file.errors():
            if self._file.is_replaced():
                with self._writing:
                    self._follow()
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

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Begin to read; what is read must be of codes such as this store was opened for."""
        connection.execute("BEGIN")
        self._tables.about(connection).agree(self.place, self.n_bits, self.model)

    def _reader(self) -> OpenFile:
        """Return a connection that is free and sees the file as it is now, or a new one."""
        with suppress(Empty):
            while True:
                opened = self._readers.get_nowait()
                if self._file.is_unchanged(opened):
                    return opened
                opened.connection.close()
        return self._file.reader()

    def _follow(self) -> None:
        """Let go of a file that has been replaced, and open the one at its path."""
        if not self._file.is_replaced():
            return  # another thread was faster
        self._close_readers()
        if self._writer is not None:
            self._file.fold_log(self._writer)
            self._writer.close()
            self._writer = None
        self._writer, _ = self._file.open(None, None)

    def _close_readers(self) -> None:
        with suppress(Empty):
            while True:
                self._readers.get_nowait().connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.place} is closed")

    def _replaced(self, what: str) -> StoreError:
        return StoreError(f"another file was put in the place of {self.place}: {what}")


class _SqliteSnapshot(Snapshot):
    """A store as one transaction sees it: the index is of the same version as the items."""

    version: int

    def __init__(
        self,
        store: SqliteStore,
        connection: sqlite3.Connection,
        index: HammingIndex,
        version: int,
    ) -> None:
        self.place, self.n_bits = store.place, store.n_bits
        self._store, self._connection = store, connection
        self._index, self.version = index, version

    def batches(self) -> Iterator[ItemBatch]:
        """Yield all items, some at a time."""
        return self._store._batches(self._connection)

    def all_codes(self) -> tuple[Ids, Codes]:
        """Return all ids, increasing, and their codes: they are in memory."""
        ids = self._index.ids
        return ids, self._index.codes(ids)

    def _get(self, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]:
        return self._store._found(self._connection, ids)

    def _search(self, codes: Codes, k: int, where: Where | None) -> Neighbours:
        return self._index.search(codes, k, allowed=self._allowed(where))

    def _best(self, values: Floats, k: int, where: Where | None) -> Neighbours:
        return self._index.search(vectors=values, k=k, allowed=self._allowed(where))

    def _radius(self, codes: Codes, r: int, where: Where | None) -> Ball:
        return self._index.radius(codes, r, allowed=self._allowed(where))

    def _count(self, where: Where | None) -> int:
        allowed = self._allowed(where)
        return len(self._index) if allowed is None else len(allowed)

    def _allowed(self, where: Where | None) -> Ids | None:
        if where is None:
            return None
        return self._store._cache.passing(self._connection, self.version, where)


def _n_bytes(connection: sqlite3.Connection) -> int:
    pragmas = ("page_count", "page_size")
    pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas)
    return int(pages * size)

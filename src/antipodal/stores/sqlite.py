"""A store in one SQLite file. The file is the truth; an index in memory answers the searches.

Every write is one transaction, on the disk when it returns (WAL, synchronous=FULL). It also notes
which ids it changed under the next version number. The index in memory knows the version it was
made from: a search first brings it up to the version of the file, whoever wrote that, by reading
the changed items again, or all of them if too much has changed.
"""

import json
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, LiteralString

import numpy as np
from numpy.typing import NDArray

from antipodal.checks import Ids
from antipodal.codes import Codes, from_bytes, to_bytes
from antipodal.errors import StoreError
from antipodal.index import Ball, HammingIndex, Neighbours
from antipodal.index.asymmetric import Floats
from antipodal.stores.address import Address
from antipodal.stores.dialects import sqlite_condition
from antipodal.stores.locks import SharedLock
from antipodal.stores.metadata import parse_metadata
from antipodal.stores.sqlitefile import SqliteFile, Stamp, checksums
from antipodal.stores.store import Store
from antipodal.stores.where import Where

_KEPT_VERSIONS, _KEPT_IDS = 1_000, 1_000_000  # changes that are remembered for other processes
_KEPT_FILTERS = 16
_SELECT: LiteralString = "SELECT id, code, metadata, checksum FROM items"
_AMONG: LiteralString = "id IN (SELECT value FROM json_each(?))"


class SqliteStore(Store):
    """Items in a SQLite file; any number of reading threads and processes, one writer at a time.

    A file that cannot be written is only read.
    """

    def __init__(self, address: Address, *, n_bits: int | None, model: str | None) -> None:
        self.place = address.shown
        self._file = SqliteFile(address)
        self._closed = False
        self._readers: SimpleQueue[tuple[sqlite3.Connection, Stamp]] = SimpleQueue()
        self._writing = threading.Lock()
        self._sharing = SharedLock()  # guards the three below
        self._index: HammingIndex | None = None
        self._version = 0
        self._filters: OrderedDict[str, tuple[Where, Ids]] = OrderedDict()
        self._filters_lock = threading.Lock()
        connection, about = self._file.open(n_bits, model)
        self.n_bits, self.model = about
        self._writer: sqlite3.Connection | None = connection
        if self._file.is_read_only:
            self._writer = None
            connection.close()

    def close(self) -> None:
        """Close the file; the last to close it folds its log into it."""
        with self._writing:
            self._closed = True
            with suppress(Empty):
                while True:
                    self._readers.get_nowait()[0].close()
            if self._writer is not None:
                self._writer.close()

    # ----------------------------------------------------------------------------- writing

    def _put(self, ids: Ids, codes: Codes, metadata: list[str] | None, *, replace: bool) -> int:
        rows = to_bytes(codes, self.n_bits)
        with self._write(ids) as connection:
            known = _known(connection, ids)
            if not replace:
                self._refuse(known)
            texts = self._kept(connection, ids, known) if metadata is None else metadata
            sums = checksums(ids, rows, [text.encode() for text in texts])
            connection.executemany(
                "INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?)",
                zip(ids.tolist(), rows, texts, sums, strict=True),
            )
        return len(known)

    def _kept(self, connection: sqlite3.Connection, ids: Ids, known: Ids) -> list[str]:
        """Return the metadata that items have, {} for those that are new."""
        texts: dict[int, str] = {}
        for rows in _some_at_a_time(_rows_of(connection, known)):
            numbers, _, kept = self._file.checked(rows)
            texts |= zip(numbers, (text.decode() for text in kept), strict=True)
        return [texts.get(number, "{}") for number in ids.tolist()]

    def _delete(self, ids: Ids) -> int:
        with self._write(ids) as connection:
            cursor = connection.executemany(
                "DELETE FROM items WHERE id = ?", ((number,) for number in ids.tolist())
            )
            return cursor.rowcount

    @contextmanager
    def _write(self, ids: Ids) -> Iterator[sqlite3.Connection]:
        """Run one transaction that changes these ids; other writers wait, then are told."""
        with self._writing, self._file.errors():
            self._check_open()
            if self._writer is None:
                raise StoreError(
                    f"{self.place} is read-only: the file, or its folder, cannot be written"
                )
            connection = self._writer
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                self._note(connection, ids)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _note(self, connection: sqlite3.Connection, ids: Ids) -> None:
        """Write down what this version changed, and forget what is long past."""
        version, total = _version(connection)
        version, total = version + 1, total + len(ids)
        connection.execute("INSERT INTO changes VALUES (?, ?, ?)", (version, total, ids.tobytes()))
        connection.execute(
            "DELETE FROM changes WHERE version < ? AND (version <= ? OR total <= ?)",
            (version, version - _KEPT_VERSIONS, total - _KEPT_IDS),
        )

    # ----------------------------------------------------------------------------- reading

    def _get(self, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]:
        with self._read() as connection:
            return {
                number: (code, parse_metadata(text))
                for rows in _some_at_a_time(_rows_of(connection, ids))
                for number, code, text in zip(*self._file.checked(rows), strict=True)
            }

    def _known(self, ids: Ids) -> Ids:
        with self._read() as connection:
            return _known(connection, ids)

    def _largest_id(self) -> int | None:
        with self._read() as connection:
            return _largest(connection)

    def _search(self, codes: Codes, k: int, where: Where | None) -> Neighbours:
        with self._snapshot(where) as (index, allowed):
            return index.search(codes, k, allowed=allowed)

    def _best(self, values: Floats, k: int, where: Where | None) -> Neighbours:
        with self._snapshot(where) as (index, allowed):
            return index.search(vectors=values, k=k, allowed=allowed)

    def _radius(self, codes: Codes, r: int, where: Where | None) -> Ball:
        with self._snapshot(where) as (index, allowed):
            return index.radius(codes, r, allowed=allowed)

    def _count(self, where: Where | None) -> int:
        with self._snapshot(where) as (index, allowed):
            return len(index) if allowed is None else len(allowed)

    @contextmanager
    def _snapshot(self, where: Where | None) -> Iterator[tuple[HammingIndex, Ids | None]]:
        """Give the index at one version of the file, and the ids that pass at that version."""
        with self._read() as connection:
            while True:
                connection.execute("BEGIN")
                version, _ = _version(connection)  # what this connection sees from now on
                with self._sharing.shared():
                    if self._index is not None and self._version == version:
                        allowed = self._allowed(connection, where)
                        connection.execute("COMMIT")
                        yield self._index, allowed
                        return
                with self._sharing.alone():
                    if self._index is None or self._version < version:
                        self._refresh(connection, version)
                    if self._version == version:
                        allowed = self._allowed(connection, where)
                        connection.execute("COMMIT")
                        # Answered under this lock, lest a busy writer be ahead again.
                        yield self._index, allowed  # type: ignore[misc]
                        return
                connection.execute("ROLLBACK")  # another thread has gone on to a newer version

    def _allowed(self, connection: sqlite3.Connection, where: Where | None) -> Ids | None:
        """Return the ids that pass; those of the last filters are remembered and kept up."""
        if where is None:
            return None
        name = repr(where)  # not the tree itself: true would equal 1
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

    def _refresh(self, connection: sqlite3.Connection, version: int) -> None:
        """Bring the index and the remembered filters to the version that the connection sees."""
        changed = self._changed(connection, version)
        index, self._index = self._index, None  # if anything fails, the next search starts anew
        filters, self._filters = self._filters, OrderedDict()
        if index is None or changed is None or 2 * len(changed) > len(index):
            self._file.check_pages(connection)
            cursor = connection.execute(_SELECT + " ORDER BY id")
            index = HammingIndex(self.n_bits)
        else:
            cursor = _rows_of(connection, changed)
            index.remove(changed[index.contains(changed)])
            for name, (where, before) in filters.items():
                places = _places(before, changed)
                others = np.delete(before, places[places >= 0])
                passing = _passing(connection, where, changed)
                now = np.insert(others, np.searchsorted(others, passing), passing)
                self._filters[name] = where, now
        parts = [self._unpacked(rows) for rows in _some_at_a_time(cursor)]
        if parts:
            ids, codes = zip(*parts, strict=True)
            index.add(np.concatenate(codes), np.concatenate(ids))
        self._index, self._version = index, version

    def _changed(self, connection: sqlite3.Connection, version: int) -> Ids | None:
        """Return the ids that changed since the index was made, or None if that is forgotten."""
        rows = connection.execute(
            "SELECT ids FROM changes WHERE version > ?", (self._version,)
        ).fetchall()
        if len(rows) != version - self._version:
            return None
        if not all(isinstance(ids, bytes) and len(ids) % 8 == 0 for (ids,) in rows):
            raise self._file.damaged("a list of changed ids is no such list")
        return np.unique(np.frombuffer(b"".join(ids for (ids,) in rows), np.int64))

    def _unpacked(self, rows: list[tuple[Any, ...]]) -> tuple[Ids, Codes]:
        ids, codes, _ = self._file.checked(rows)
        try:
            return np.array(ids, np.int64), from_bytes(codes, self.n_bits)
        except ValueError as error:
            raise self._file.damaged(str(error)) from None

    # ------------------------------------------------------------------------- connections

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection to one thread at a time."""
        self._check_open()
        with self._file.errors():
            connection, stamp = self._reader()
            try:
                yield connection
                self._file.check_unchanged(stamp)
            except BaseException:
                connection.close()
                raise
            self._readers.put((connection, stamp))
            if self._closed:
                self.close()

    def _reader(self) -> tuple[sqlite3.Connection, Stamp]:
        """Return a connection that is free and sees the file as it is now, or a new one."""
        with suppress(Empty):
            while True:
                connection, stamp = self._readers.get_nowait()
                if self._file.is_unchanged(stamp):
                    return connection, stamp
                connection.close()
        return self._file.reader()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.place} is closed")


def _version(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the number of the last version, and how many ids were ever changed."""
    row = connection.execute("SELECT version, total FROM changes ORDER BY version DESC LIMIT 1")
    version, total = row.fetchone() or (None, None)
    if not isinstance(version, int) or not isinstance(total, int):
        raise sqlite3.DatabaseError("it does not know its version")
    return version, total


def _largest(connection: sqlite3.Connection) -> int | None:
    largest: int | None = connection.execute("SELECT max(id) FROM items").fetchone()[0]
    return largest


def _known(connection: sqlite3.Connection, ids: Ids) -> Ids:
    """Return those ids that are there; quickly if all are larger than any."""
    largest = _largest(connection)
    if largest is None or ids.min() > largest:
        return np.empty(0, np.int64)
    cursor = connection.execute(f"SELECT id FROM items WHERE {_AMONG}", [_list(ids)])
    return np.fromiter((row[0] for row in cursor), np.int64)


def _rows_of(connection: sqlite3.Connection, ids: Ids) -> sqlite3.Cursor:
    return connection.execute(f"{_SELECT} WHERE {_AMONG}", [_list(ids)])


def _some_at_a_time(cursor: sqlite3.Cursor) -> Iterator[list[tuple[Any, ...]]]:
    """Fetch rows such that the objects of a million are never in memory at once."""
    while rows := cursor.fetchmany(20_000):
        yield rows


def _places(ids: Ids, sought: Ids) -> NDArray[np.int64]:
    """Return the place of each sought id in the increasing ids, or -1."""
    places = np.searchsorted(ids, sought)
    found = places < len(ids)
    found[found] = ids[places[found]] == sought[found]
    return np.where(found, places, -1)


def _passing(connection: sqlite3.Connection, where: Where, among: Ids | None = None) -> Ids:
    """Return the ids of items that pass, increasing; of all items or of some."""
    condition, values = sqlite_condition(where)
    select: LiteralString = "SELECT id FROM items WHERE "
    if among is None:
        cursor = connection.execute(f"{select}{condition} ORDER BY id", values)
    else:
        query: LiteralString = f"{select}{_AMONG} AND {condition} ORDER BY id"
        cursor = connection.execute(query, [_list(among), *values])
    return np.fromiter((row[0] for row in cursor), np.int64)


def _list(ids: Ids) -> str:
    return json.dumps(ids.tolist())

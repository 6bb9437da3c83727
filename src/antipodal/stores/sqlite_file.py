"""SQLite file of a store: tables, checksummed items, connections and integrity checks."""

import hashlib
import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import Any, LiteralString, NamedTuple
from urllib.parse import quote
from zlib import crc32

import numpy as np

from antipodal.codes import Codes, check_codes, code_width, from_bytes
from antipodal.errors import StoreError
from antipodal.stores.base import MODEL, SETTINGS, StoreHeader
from antipodal.stores.filters import EXACT_REAL
from antipodal.stores.items import ID_FIELD, IdType
from antipodal.stores.snapshot import ItemBatch, with_vectors
from antipodal.stores.url import Address
from antipodal.validation import MAX_ID, Ids

_FORMAT = 1
APPLICATION_ID = 0x616E7470  # "antp", in the header of the file
_SCHEMA: dict[str, LiteralString] = {
    "about": "CREATE TABLE about (header TEXT NOT NULL, checksum INTEGER NOT NULL)",
    "items": "CREATE TABLE items (id INTEGER PRIMARY KEY, code BLOB NOT NULL, "
    "metadata TEXT NOT NULL, checksum INTEGER NOT NULL)",
    "changes": "CREATE TABLE changes (version INTEGER PRIMARY KEY, total INTEGER NOT NULL, "
    "ids BLOB NOT NULL)",
}
# Tables that stores of versions before 0.8 do not have.
_NEWER_TABLES: dict[str, LiteralString] = {
    "attachments": "CREATE TABLE attachments (name TEXT PRIMARY KEY, data BLOB NOT NULL, "
    "sha256 TEXT NOT NULL)",
    "vectors": "CREATE TABLE vectors (id INTEGER PRIMARY KEY, vector BLOB NOT NULL, "
    "checksum INTEGER NOT NULL)",
    "keys": "CREATE TABLE keys (key TEXT PRIMARY KEY, id INTEGER NOT NULL) WITHOUT ROWID",
}
_KEY: LiteralString = f"json_extract(metadata, '$.\"{ID_FIELD}\"')"
_LAST_VERSION = 2**62
_STEP = 2**20  # largest increment of the version, which allows 2⁴² writes
_KEPT_VERSIONS, _KEPT_IDS = 1_000, 1_000_000  # length of the change log for other processes


def damaged(place: str, reason: str) -> StoreError:
    """Return the error for an invalid file."""
    return StoreError(f"{place} is damaged, or not a store: {reason}")


class SqliteTables:
    """The header and the change log of a file."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._last_header: tuple[Any, StoreHeader] = None, StoreHeader(0, None)  # parsed last

    def exist(self, connection: Connection) -> bool:
        """Return True for a store and False for an empty file; raise StoreError for others."""
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        tables = {
            # NULL in a damaged file, or for an automatic index whose type was changed.
            (name or b"").decode(errors="replace"): (text or b"").decode(errors="replace")
            for name, text in connection.execute(
                # Including triggers and views, but not indexes, which change no result.
                "SELECT CAST(name AS TEXT), CAST(sql AS TEXT) FROM sqlite_master "
                "WHERE type IS NOT 'index'"
            )
        }
        if not tables and application == 0:
            return False
        if application != APPLICATION_ID:
            raise StoreError(f"{self.place} is a SQLite file, but was not created by antipodal")
        if not _SCHEMA.items() <= tables.items() <= (_SCHEMA | _NEWER_TABLES).items():
            raise damaged(self.place, "its tables differ from those of a store")
        return True

    def create(self, connection: Connection, header: StoreHeader) -> None:
        """Create the tables, unless another process has created them."""
        connection.execute("BEGIN IMMEDIATE")
        if not self.exist(connection):
            text = json.dumps({"format": _FORMAT, **header._asdict()})
            for statement in (_SCHEMA | _NEWER_TABLES).values():
                connection.execute(statement)
            connection.execute("INSERT INTO about VALUES (?, ?)", (text, crc32(text.encode())))
            first = secrets.randbelow(_LAST_VERSION // 4)
            connection.execute("INSERT INTO changes VALUES (?, 0, x'')", (first,))
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute("COMMIT")

    def header(self, connection: Connection) -> StoreHeader:
        """Return the header of the store."""
        rows = connection.execute("SELECT header, checksum FROM about LIMIT 2").fetchall()
        known, header = self._last_header
        if rows == known:
            return header
        if len(rows) != 1 or not isinstance(rows[0][0], bytes) or crc32(rows[0][0]) != rows[0][1]:
            raise damaged(self.place, "its header does not match its checksum")
        try:
            fields = json.loads(rows[0][0])
            header = StoreHeader.from_json(fields)
        except (ValueError, RecursionError) as error:  # not written by antipodal
            raise damaged(self.place, str(error)) from None
        if fields.get("format") != _FORMAT:
            raise StoreError(
                f"{self.place} has format {fields.get('format')!s:.20}, expected {_FORMAT}: "
                "upgrade antipodal"
            )
        self._last_header = rows, header
        return header

    def has_newer_tables(self, connection: Connection) -> bool:
        """Return whether the store has the tables that earlier versions do not have."""
        select = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'vectors'"
        return bool(connection.execute(select).fetchone()[0])

    def create_newer_tables(self, connection: Connection) -> None:
        """Create the tables that a store of an earlier version does not have."""
        for statement in _NEWER_TABLES.values():
            connection.execute(statement.replace("TABLE", "TABLE IF NOT EXISTS", 1))

    def attachment(self, connection: Connection, name: str) -> bytes | None:
        """Return the bytes stored under a name, or None."""
        if not self.has_newer_tables(connection):
            return None
        select = "SELECT data, sha256 FROM attachments WHERE name = ?"
        row = connection.execute(select, [name]).fetchone()
        if row is None:
            return None
        data, digest = row
        if not isinstance(data, bytes) or hashlib.sha256(data).hexdigest().encode() != digest:
            raise damaged(self.place, f"its attachment {name!r} does not match its checksum")
        return data

    def attach(self, connection: Connection, name: str, data: bytes) -> None:
        """Store bytes under a name."""
        self.create_newer_tables(connection)
        connection.execute(
            "INSERT OR REPLACE INTO attachments VALUES (?, ?, ?)",
            [name, data, hashlib.sha256(data).hexdigest()],
        )

    def version(self, connection: Connection) -> int:
        """Return the current version."""
        return self._last_change(connection)[0]

    def record_change(self, connection: Connection, ids: Ids) -> None:
        """Add a version with the ids that it changes, and drop old versions."""
        before, n_changed = self._last_change(connection)
        version, total = before + 1 + secrets.randbelow(_STEP), n_changed + len(ids)
        connection.execute("INSERT INTO changes VALUES (?, ?, ?)", (version, total, ids.tobytes()))
        connection.execute(
            "DELETE FROM changes WHERE version < ? AND (total <= ? OR version <= "
            "(SELECT version FROM changes ORDER BY version DESC LIMIT 1 OFFSET ?))",
            (version, total - _KEPT_IDS, _KEPT_VERSIONS),
        )

    def record_replacement(self, connection: Connection) -> None:
        """Add a version that changes all ids, and drop all others: readers reload all items."""
        self.record_change(connection, np.empty(0, np.int64))
        version = self.version(connection)
        connection.execute("DELETE FROM changes WHERE version < ?", (version,))

    def changed_since(self, connection: Connection, version: int) -> Ids | None:
        """Return the ids changed since a version, or None if the log does not reach back to it."""
        rows = connection.execute(
            "SELECT version, ids FROM changes WHERE version >= ? ORDER BY version", (version,)
        ).fetchall()
        if not rows or rows[0][0] != version:
            return None
        if not all(isinstance(ids, bytes) and len(ids) % 8 == 0 for _, ids in rows):
            raise damaged(self.place, "invalid list of changed ids")
        return np.unique(np.frombuffer(b"".join(ids for _, ids in rows[1:]), np.int64))

    def _last_change(self, connection: Connection) -> tuple[int, int]:
        """Return the current version, and the total number of changed ids up to it."""
        row = connection.execute("SELECT version, total FROM changes ORDER BY version DESC LIMIT 1")
        version, total = row.fetchone() or (-1, -1)
        for number in (version, total):
            if type(number) is not int or not 0 <= number <= _LAST_VERSION:
                raise damaged(self.place, "invalid version number")
        return version, total


HAS_ID: LiteralString = "id IN (SELECT value FROM json_each(?))"
_ROWS: LiteralString = "SELECT id, code, metadata, checksum FROM items WHERE "
_RANGE: LiteralString = "id BETWEEN ? AND ?"
# JSON texts contain no line feeds, since they escape them as \n.
_JOINED: LiteralString = (
    "SELECT group_concat(code, ''), group_concat(metadata, char(10)), group_concat(checksum) "
    f"FROM items WHERE {_RANGE}"
)
_BLOCK = 5_000  # rows read at once


class CheckedItems(NamedTuple):
    """Items that match their checksums, with metadata as encoded text."""

    ids: Ids
    codes: Codes
    texts: Sequence[bytes]

    def batch(self) -> ItemBatch:
        """Return the items with metadata as text."""
        return ItemBatch(self.ids, self.codes, [text.decode() for text in self.texts])


class SqliteItems:
    """The items of a file."""

    def __init__(self, place: str, n_bits: int, id_type: IdType) -> None:
        self.place, self.n_bits, self.id_type = place, n_bits, id_type

    def all(self, connection: Connection) -> Iterator[CheckedItems]:
        """Yield all items in the order of ids, in blocks."""
        for first, last, n_items in _blocks(connection):
            yield self._joined(connection, first, last, n_items) or self._checked(
                connection.execute(_ROWS + _RANGE + " ORDER BY id", (first, last)).fetchall()
            )

    def among(self, connection: Connection, ids: Ids) -> Iterator[CheckedItems]:
        """Yield the items with these ids, in any order."""
        cursor = connection.execute(_ROWS + HAS_ID, [id_list(ids)])
        while rows := cursor.fetchmany(_BLOCK):
            yield self._checked(rows)

    def put(
        self, connection: Connection, ids: Ids, codes: Sequence[bytes], texts: Sequence[str]
    ) -> None:
        """Write items, replacing those with the same ids."""
        sums = _checksums(ids, codes, [text.encode() for text in texts])
        connection.executemany(
            "INSERT INTO items VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
            "code = excluded.code, metadata = excluded.metadata, checksum = excluded.checksum",
            zip(ids.tolist(), codes, texts, sums, strict=True),
        )
        if self.id_type == "string":
            connection.execute(
                f"INSERT INTO keys SELECT {_KEY}, id FROM items WHERE {HAS_ID} "
                "ON CONFLICT (key) DO NOTHING",
                [id_list(ids)],
            )

    def delete(self, connection: Connection, ids: Ids) -> int:
        """Delete items, and return the number of deleted items."""
        if self.id_type == "string":
            keys = ((key,) for key in self.keys_of(connection, ids).values())
            connection.executemany("DELETE FROM keys WHERE key = ?", keys)
        numbers = ((number,) for number in ids.tolist())
        return connection.executemany("DELETE FROM items WHERE id = ?", numbers).rowcount

    def put_vectors(
        self, connection: Connection, ids: Ids, vectors: Sequence[bytes] | None
    ) -> None:
        """Write the vectors of items, or delete them."""
        if vectors is None:
            connection.execute(f"DELETE FROM vectors WHERE {HAS_ID}", [id_list(ids)])
            return
        sums = _checksums(ids, vectors)
        connection.executemany(
            "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)",
            zip(ids.tolist(), vectors, sums, strict=True),
        )

    def vectors(self, connection: Connection, ids: Ids) -> dict[int, bytes]:
        """Return the vectors of items by id."""
        select: LiteralString = f"SELECT id, vector, checksum FROM vectors WHERE {HAS_ID}"
        rows = connection.execute(select, [id_list(ids)]).fetchall()
        if not rows:
            return {}
        numbers, vectors, sums = zip(*rows, strict=True)
        try:
            is_valid = _checksums(np.array(numbers, np.int64), vectors) == list(sums)
        except (TypeError, ValueError, OverflowError):
            is_valid = False
        if not is_valid:
            raise damaged(self.place, "a vector does not match its checksum")
        return dict(zip(numbers, vectors, strict=True))

    def numbers_of(self, connection: Connection, keys: Sequence[str]) -> dict[str, int]:
        """Return the integer ids of the existing string ids."""
        select: LiteralString = (
            f"SELECT key, id, {_KEY} FROM keys LEFT JOIN items USING (id) "
            "WHERE key IN (SELECT value FROM json_each(?))"
        )
        rows = connection.execute(select, [json.dumps(list(keys), ensure_ascii=False)]).fetchall()
        if any(key != stored for key, _, stored in rows):
            raise damaged(self.place, "a string id refers to another item")
        return {key.decode(): number for key, number, _ in rows}

    def keys_of(self, connection: Connection, ids: Ids) -> dict[int, str]:
        """Return the string ids of items by integer id."""
        select: LiteralString = f"SELECT id, {_KEY} FROM items WHERE {HAS_ID}"
        rows = connection.execute(select, [id_list(ids)]).fetchall()
        if not all(isinstance(key, bytes) for _, key in rows):
            raise damaged(self.place, "an item has no string id")
        return {number: key.decode() for number, key in rows}

    def _joined(
        self, connection: Connection, first: int, last: int, n_items: int
    ) -> CheckedItems | None:
        """Read a block through concatenated columns, or return None if they cannot be split."""
        try:
            codes, texts, sums = connection.execute(_JOINED, (first, last)).fetchone()
        except sqlite3.DataError:  # longer than the maximum of SQLite
            return None
        if last - first + 1 == n_items:
            ids = first + np.arange(n_items)
        else:
            query: LiteralString = f"SELECT group_concat(id) FROM items WHERE {_RANGE}"
            numbers = connection.execute(query, (first, last)).fetchone()[0]
            ids = np.fromiter(map(int, numbers.split(b",")), np.int64)
        width = code_width(self.n_bits)
        if codes is None or texts is None or sums is None or len(codes) != width * n_items:
            return None
        packed = np.frombuffer(codes, np.uint8).reshape(n_items, width)
        lines = texts.split(b"\n")
        try:
            expected = list(map(int, sums.split(b",")))
            actual = _checksums(ids, packed.view(f"V{width}")[:, 0].tolist(), lines)
            if actual != expected or len(lines) != n_items:
                return None
            return CheckedItems(ids, check_codes(packed, self.n_bits), lines)
        except ValueError:
            return None

    def _checked(self, rows: Iterable[tuple[Any, ...]]) -> CheckedItems:
        """Return rows as items; raise StoreError if one does not match its checksum."""
        numbers, codes, texts, sums = zip(*rows, strict=True)
        try:
            ids = np.array(numbers, np.int64)
            is_valid = _checksums(ids, codes, texts) == list(sums)
        except (TypeError, ValueError, OverflowError):
            is_valid = False
        if not is_valid:
            raise damaged(self.place, "an item does not match its checksum")
        try:
            return CheckedItems(ids, from_bytes(codes, self.n_bits), texts)
        except ValueError as error:  # not written by antipodal
            raise damaged(self.place, str(error)) from None


def id_list(ids: Ids) -> str:
    """Return ids as the SQL parameter of `HAS_ID`."""
    return json.dumps(ids.tolist())


def _blocks(connection: Connection) -> Iterator[tuple[int, int, int]]:
    """Yield the first id, the last id and the number of items of consecutive blocks."""
    first: int | None = -(2**63)
    while first is not None and first <= MAX_ID:
        first, last, n_items = connection.execute(
            "SELECT min(id), max(id), count(*) FROM "
            "(SELECT id FROM items WHERE id >= ? ORDER BY id LIMIT ?)",
            (first, _BLOCK),
        ).fetchone()
        if first is not None:
            yield first, last, n_items
            first = last + 1


def _checksums(ids: Ids, *columns: Sequence[bytes]) -> list[int]:
    """Return the CRC-32 of each item's values in these columns, seeded with its id."""
    sums = ((ids ^ (ids >> 32)) & 0xFFFFFFFF).tolist()
    for values in columns:
        sums = map(crc32, values, sums)
    return list(sums)


_MIN_BYTES = 512  # the smallest page of a SQLite file


class OpenFile(NamedTuple):
    """A connection for reading, with the inode, size and mtime of the file when it was opened."""

    connection: Connection
    stamp: tuple[int, int, int]
    is_immutable: bool  # opened with immutable=1


class BackupContents(NamedTuple):
    """Contents of an open backup; the batches contain the kept vectors."""

    header: StoreHeader
    batches: Iterator[ItemBatch]
    attachments: dict[str, bytes]


class SqliteFile:
    """Path of a store, its connections and their errors."""

    def __init__(self, address: Address) -> None:
        if sqlite3.sqlite_version_info < (3, 38):
            raise StoreError(f"SQLite 3.38 or newer is required: got {sqlite3.sqlite_version}")
        self.place = address.shown
        self._path = Path(address.target)
        self._timeout = _timeout(address.options)
        self._inode = (0, 0)
        self._is_read_only = False
        self._may_write = not address.read_only
        self.tables = SqliteTables(self.place)

    def open(
        self, n_bits: int | None, model: str | None, id_type: IdType | None
    ) -> tuple[Connection | None, StoreHeader]:
        """Open the file, or create the store; return a writing connection and the header.

        The connection is None if the file cannot be written.
        """
        with self.errors():
            n_bytes = self._path.stat().st_size if self._path.exists() else 0
            if n_bytes == 0:
                StoreHeader.new(self.place, n_bits, model)
            elif n_bytes < _MIN_BYTES or (n_bytes % _MIN_BYTES and not self._has_log()):
                # SQLite would treat it as empty, or the missing part of the last page as zeros.
                raise damaged(self.place, "it is truncated")
            can_write = self._may_write and self._can_be_written()
            self._is_read_only = n_bytes > 0 and not can_write
            if self._is_read_only:
                connection = self.reader().connection
            else:
                connection = self._connect("mode=rw" if n_bits is None else "mode=rwc")
            try:
                header = self._read_or_create(connection, n_bits, model, id_type)
                header.check(self.place, n_bits, model, id_type)
                self._inode = self._inode_now()
            except BaseException:
                connection.close()
                raise
            if self._is_read_only:
                connection.close()
                return None, header
            return connection, header

    def reader(self) -> OpenFile:
        """Return a connection for reading.

        SQLite needs the side files -wal and -shm, and creates missing ones. In a read-only folder
        without a log, the file is opened with ``immutable=1``, which needs no side files. SQLite
        then does not notice writes, so the stamp of the file is compared before and after use.
        """
        stamp = self._stamp()
        if not self._is_read_only:
            return OpenFile(self._connect("mode=rw"), stamp, False)
        side_files = (self._side_file("-wal"), self._side_file("-shm"))
        if _access(self._path.parent) or all(path.exists() for path in side_files):
            return OpenFile(self._connect("mode=ro"), stamp, False)
        if self._has_log():
            raise StoreError(
                f"{self.place} is read-only and has a write-ahead log (-wal) that is not "
                "checkpointed: open it once with write permission"
            )
        return OpenFile(self._connect("mode=ro&immutable=1"), stamp, True)

    def is_unchanged(self, opened: OpenFile) -> bool:
        """Return whether a connection still reads the current file.

        SQLite does not notice changes made by other programs, and would read cached pages.
        """
        return opened.stamp == self._stamp() and not (opened.is_immutable and self._has_log())

    def check_unchanged(self, opened: OpenFile) -> None:
        """Raise StoreError if an immutable file was written while it was read."""
        if opened.is_immutable and not self.is_unchanged(opened):
            raise StoreError(f"{self.place} was written while it was read: try again")

    def is_replaced(self) -> bool:
        """Return whether the opened file was replaced by another at its path."""
        return self._inode != self._inode_now()

    @contextmanager
    def as_backup(self) -> Iterator[BackupContents]:
        """Open a backup."""
        with self.errors():
            if self._path.stat().st_size < _MIN_BYTES:
                raise damaged(self.place, "it is truncated or empty")
            if self._has_log():
                raise StoreError(
                    f"{self.place} has a write-ahead log (-wal): it is not a backup, but a store "
                    "in use or an incomplete copy of one"
                )
            connection = self._connect("mode=ro&immutable=1")
            try:
                self._is_read_only = True
                header = self._read_or_create(connection, None, None, None)
                self.check_pages(connection)
                items = SqliteItems(self.place, header.n_bits, header.id_type)
                batches: Iterator[ItemBatch] = map(CheckedItems.batch, items.all(connection))
                if self.tables.has_newer_tables(connection):
                    batches = with_vectors(batches, partial(items.vectors, connection))
                names = (MODEL, SETTINGS)
                parts = {name: self.tables.attachment(connection, name) for name in names}
                attached = {name: data for name, data in parts.items() if data is not None}
                yield BackupContents(header, batches, attached)
            finally:
                connection.close()

    def _stamp(self) -> tuple[int, int, int]:
        status = self._path.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _inode_now(self) -> tuple[int, int]:
        status = self._path.stat()
        return status.st_dev, status.st_ino

    def files(self) -> list[Path]:
        """Return the file and its side files, with links resolved."""
        real = os.path.realpath(self._path)
        return [Path(real + ending) for ending in ("", "-wal", "-shm", "-journal")]

    def _side_file(self, ending: str) -> Path:
        return self._path.with_name(self._path.name + ending)

    def _has_log(self) -> bool:
        log = self._side_file("-wal")
        return log.exists() and log.stat().st_size > 0

    def _can_be_written(self) -> bool:
        """Return whether SQLite may write the file and its log."""
        log = [self._side_file("-wal"), self._side_file("-shm")]
        return _access(self._path) and (_access(self._path.parent) or all(map(_access, log)))

    def _connect(self, options: str) -> Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(self._path.absolute()))}?{options}",
            uri=True,
            timeout=self._timeout,
            isolation_level=None,  # transactions are explicit
            check_same_thread=False,
        )
        connection.text_factory = bytes  # checksums are computed from bytes
        connection.create_function(EXACT_REAL, 1, float, deterministic=True)
        try:
            for pragma in ("synchronous=FULL", "trusted_schema=OFF", "cell_size_check=ON"):
                connection.execute(f"PRAGMA {pragma}")
        except BaseException:  # the file is damaged
            connection.close()
            raise
        return connection

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise errors of SQLite and of the file system as StoreError."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise StoreError(f"{self.place}: {error}") from error
            raise StoreError(
                f"{self.place} has been locked by another process for more than "
                f"{self._timeout:g} s: nothing was stored. "
                "Try again, or increase the limit with ?timeout=seconds"
            ) from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            # UnicodeDecodeError: a message quotes bytes of the file that are not UTF-8.
            raise damaged(self.place, str(error)) from error
        except (sqlite3.Error, OSError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StoreError(f"{self.place}: {reason}") from error

    def check_pages(self, connection: Connection) -> None:
        """Raise StoreError if SQLite finds missing or misplaced pages."""
        report = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if report != b"ok":
            raise damaged(self.place, report.decode(errors="replace").replace("\n", " "))

    def _read_or_create(
        self,
        connection: Connection,
        n_bits: int | None,
        model: str | None,
        id_type: IdType | None,
    ) -> StoreHeader:
        """Return the header of the store, after creating its tables if necessary."""
        connection.execute("BEGIN")  # another process may be creating the tables
        is_store = self.tables.exist(connection)
        connection.execute("COMMIT")
        if not is_store and self._is_read_only:
            raise damaged(self.place, "it has no tables and is read-only")
        if not is_store:
            new = StoreHeader.new(self.place, n_bits, model, id_type)
            self._use_log(connection)
            self.tables.create(connection, new)
        header = self.tables.header(connection)
        self.tables.version(connection)  # raises StoreError if it is invalid
        return header

    def _use_log(self, connection: Connection) -> None:
        """Switch to the write-ahead log; wait for other processes, since SQLite does not."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
                break
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        if mode != b"wal":
            raise StoreError(
                f"{self.place} cannot use a write-ahead log. Is it on a network drive?"
            )


def _access(path: Path) -> bool:
    """Return whether this process may write to an existing file or folder."""
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _is_busy(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _timeout(options: dict[str, str]) -> float:
    try:
        seconds = float(options.get("timeout", "10"))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86_400:
        raise ValueError(f"timeout must be 0 to 86400 seconds: got {options['timeout']!r}")
    return seconds

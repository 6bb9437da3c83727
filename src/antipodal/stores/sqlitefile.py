"""The SQLite file of a store: its tables, the connections to it, and what can be wrong with it.

Three things guard against damage. SQLite checks its pages (`quick_check`), which finds what is
missing or out of place. Every item has a checksum over its id, code and metadata, because a byte
that changes inside a value is none of SQLite's business. And the tables must be the very ones that
are made here. Together they mean that a file is read as it was written, or refused.
"""

import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString, NamedTuple, TypeAlias
from urllib.parse import quote
from zlib import crc32

import numpy as np

from antipodal.checks import Ids
from antipodal.codes import Codes, from_bytes
from antipodal.errors import StoreError
from antipodal.stores.about import About
from antipodal.stores.address import Address
from antipodal.stores.dialects import EXACT_REAL
from antipodal.stores.snapshot import ItemBatch

_FORMAT = 1
_APPLICATION_ID = 0x616E7470  # "antp", in the header of the file
_SCHEMA: dict[str, LiteralString] = {
    "about": "CREATE TABLE about (header TEXT NOT NULL, checksum INTEGER NOT NULL)",
    "items": "CREATE TABLE items (id INTEGER PRIMARY KEY, code BLOB NOT NULL, "
    "metadata TEXT NOT NULL, checksum INTEGER NOT NULL)",
    "changes": "CREATE TABLE changes (version INTEGER PRIMARY KEY, total INTEGER NOT NULL, "
    "ids BLOB NOT NULL)",
}
_LEAST_BYTES = 512  # of a SQLite file: one page of the smallest size
_LAST_VERSION = 2**62
_STEP = 2**20  # versions grow by up to this much: 2⁴² writes come before the last
_FOLDING_SECONDS = 2.0

SELECT: LiteralString = "SELECT id, code, metadata, checksum FROM items"
AMONG: LiteralString = "id IN (SELECT value FROM json_each(?))"

Stamp: TypeAlias = tuple[int, int, int]  # inode, size and time of the last change


class OpenFile(NamedTuple):
    """A connection for reading, and what the file looked like when it was made."""

    connection: sqlite3.Connection
    stamp: Stamp
    is_alone: bool  # SQLite was told that nobody writes the file


class SqliteFile:
    """One file, before and while it is open."""

    def __init__(self, address: Address) -> None:
        if sqlite3.sqlite_version_info < (3, 38):
            raise StoreError(
                f"SQLite stores need SQLite 3.38 or newer: this Python has {sqlite3.sqlite_version}"
            )
        self.place = address.shown
        self._path = Path(address.target)
        self._timeout = _timeout(address.options)
        self._inode = (0, 0)
        self._is_read_only = False
        self._header: tuple[Any, About] = None, About(0, None)  # the last that was read

    def open(
        self, n_bits: int | None, model: str | None
    ) -> tuple[sqlite3.Connection | None, About]:
        """Return a connection, and what the store says of its codes; make it if there is none.

        The connection is for writing: there is none if the file cannot be written.
        """
        with self.errors():
            n_bytes = self._path.stat().st_size if self._path.exists() else 0
            if n_bytes == 0:
                About.of_new(self.place, n_bits, model)
            elif n_bytes < _LEAST_BYTES:
                raise self.damaged("it is cut off")  # SQLite would take it for an empty file
            self._is_read_only = n_bytes > 0 and not self._can_be_written()
            if self._is_read_only:
                connection = self.reader().connection
            else:
                connection = self._connect("mode=rw" if n_bits is None else "mode=rwc")
            try:
                about = self._made(connection, n_bits, model)
                about.agree(self.place, n_bits, model)
                self._inode = self._inode_now()
            except BaseException:
                connection.close()
                raise
            if self._is_read_only:
                connection.close()
                return None, about
            return connection, about

    def reader(self) -> OpenFile:
        """Return a connection for reading.

        SQLite reads a file with a log by help of two files beside it, -wal and -shm, which it
        makes if there are none. Where it cannot, and there is no log, the file is all there is
        to read: `immutable` says so. It also says that nobody writes the file, so its stamp
        is looked at before and after each use.
        """
        stamp = self._stamp()
        if not self._is_read_only:
            return OpenFile(self._connect("mode=rw"), stamp, False)
        beside = (self._beside("-wal"), self._beside("-shm"))
        if _access(self._path.parent) or all(path.exists() for path in beside):
            return OpenFile(self._connect("mode=ro"), stamp, False)
        if self._has_log():
            raise StoreError(
                f"{self.place} is read-only, and has a log beside it, -wal, that was not folded "
                "into it: open it once where it can be written"
            )
        return OpenFile(self._connect("mode=ro&immutable=1"), stamp, True)

    def is_unchanged(self, opened: OpenFile) -> bool:
        """Say whether a connection still sees the file as it is.

        SQLite watches the file, but not for what others than SQLite do to it: it would answer
        from pages that it remembers.
        """
        return opened.stamp == self._stamp() and not (opened.is_alone and self._has_log())

    def check_unchanged(self, opened: OpenFile) -> None:
        """Refuse what was read while somebody else, who may, wrote a file that nobody writes."""
        if opened.is_alone and not self.is_unchanged(opened):
            raise StoreError(f"{self.place} was written while it was being read: try again")

    def is_replaced(self) -> bool:
        """Say whether another file is at the path than the one that was opened."""
        return self._inode != self._inode_now()

    def fold_log(self, connection: sqlite3.Connection) -> None:
        """Move what is in the log into the file that it belongs to, wherever that is by now.

        The file that took its place would otherwise be read with the log of another.
        """
        connection.execute(f"PRAGMA busy_timeout={1000 * _FOLDING_SECONDS:.0f}")
        if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            raise StoreError(
                f"another file was put in the place of {self.place} while that was in use: try "
                "again when nobody has the file before open"
            )

    def copy(self, connection: sqlite3.Connection, path: Path) -> None:
        """Copy what a connection sees into an empty file; if that fails, the file is useless."""
        target = sqlite3.connect(path, isolation_level=None)
        try:
            target.execute("PRAGMA journal_mode=OFF")
            connection.backup(target)
        finally:
            target.close()

    @contextmanager
    def as_backup(self) -> Iterator[tuple[About, Iterator[ItemBatch]]]:
        """Open a file that nobody writes: what it says of its codes, and all of its items."""
        with self.errors():
            if self._path.stat().st_size < _LEAST_BYTES:
                raise self.damaged("it is cut off, or empty")
            if self._has_log():
                raise StoreError(
                    f"{self.place} has a log beside it, -wal: it is no backup, but a store that "
                    "is open, or a part of one"
                )
            connection = self._connect("mode=ro&immutable=1")
            try:
                self._is_read_only = True
                about = self._made(connection, None, None)
                self.check_pages(connection)
                cursor = connection.execute(f"{SELECT} ORDER BY id")
                yield about, (self.batch(rows, about.n_bits) for rows in some_at_a_time(cursor))
            finally:
                connection.close()

    def _stamp(self) -> Stamp:
        status = self._path.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _inode_now(self) -> tuple[int, int]:
        status = self._path.stat()
        return status.st_dev, status.st_ino

    def _beside(self, ending: str) -> Path:
        return self._path.with_name(self._path.name + ending)

    def _has_log(self) -> bool:
        log = self._beside("-wal")
        return log.exists() and log.stat().st_size > 0

    def _can_be_written(self) -> bool:
        """Say whether SQLite may write the file, and its log beside it."""
        log = [self._beside("-wal"), self._beside("-shm")]
        return _access(self._path) and (_access(self._path.parent) or all(map(_access, log)))

    def _connect(self, options: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(self._path.absolute()))}?{options}",
            uri=True,
            timeout=self._timeout,
            isolation_level=None,  # transactions begin and end where the code says so
            check_same_thread=False,
        )
        connection.text_factory = bytes  # checksums are of bytes
        connection.create_function(EXACT_REAL, 1, float, deterministic=True)
        for pragma in ("synchronous=FULL", "trusted_schema=OFF", "cell_size_check=ON"):
            connection.execute(f"PRAGMA {pragma}")
        return connection

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn what SQLite says into a StoreError."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if _is_busy(error):
                raise self._busy() from error
            raise StoreError(f"{self.place}: {error}") from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            # The second where a message would quote bytes of the file that are no text.
            raise self.damaged(str(error)) from error
        except sqlite3.Error as error:
            raise StoreError(f"{self.place}: {error}") from error
        except OSError as error:
            raise StoreError(f"{self.place}: {error.strerror or error}") from error

    def _busy(self) -> StoreError:
        return StoreError(
            f"{self.place} is being written by another process, for longer than "
            f"{self._timeout:g} s: nothing of this call was stored. "
            "Try again, or wait longer with ?timeout=seconds"
        )

    def damaged(self, what: str) -> StoreError:
        """Return the error for a file that is not as it was written."""
        return StoreError(f"{self.place} is damaged, or not a store: {what}")

    def checked(
        self, rows: list[tuple[Any, ...]], n_bits: int
    ) -> tuple[Ids, Codes, Sequence[bytes]]:
        """Return the ids, codes and metadata of rows, each of which matches its checksum."""
        numbers, codes, texts, sums = zip(*rows, strict=True)
        try:
            ids = np.array(numbers, np.int64)
            good = checksums(ids, codes, texts) == list(sums)
        except (TypeError, ValueError, OverflowError):
            good = False
        if not good:
            raise self.damaged("an item does not match its checksum")
        try:
            return ids, from_bytes(codes, n_bits), texts
        except ValueError as error:  # with a checksum: not our writer
            raise self.damaged(str(error)) from None

    def batch(self, rows: list[tuple[Any, ...]], n_bits: int) -> ItemBatch:
        """Return the same with metadata as text."""
        ids, codes, texts = self.checked(rows, n_bits)
        return ItemBatch(ids, codes, [text.decode() for text in texts])

    def check_pages(self, connection: sqlite3.Connection) -> None:
        """Let SQLite look for pages that are missing or out of place."""
        report = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if report != b"ok":
            raise self.damaged(report.decode(errors="replace").replace("\n", " "))

    def about(self, connection: sqlite3.Connection) -> About:
        """Return what the store says of its codes, as a transaction sees it."""
        rows = connection.execute("SELECT header, checksum FROM about LIMIT 2").fetchall()
        known, about = self._header
        if rows == known:
            return about
        if len(rows) != 1 or not isinstance(rows[0][0], bytes) or crc32(rows[0][0]) != rows[0][1]:
            raise self.damaged("what it says of its codes does not match its checksum")
        try:
            header = json.loads(rows[0][0])
            about = About.of_header(header)
        except (ValueError, RecursionError) as error:  # with a checksum: not our writer
            raise self.damaged(str(error)) from None
        if header.get("format") != _FORMAT:
            raise StoreError(
                f"{self.place} has format {header.get('format')!s:.20}, this antipodal reads "
                f"{_FORMAT}: upgrade it"
            )
        self._header = rows, about
        return about

    def version(self, connection: sqlite3.Connection) -> int:
        """Return the number of the last version."""
        return self._last_change(connection)[0]

    def total(self, connection: sqlite3.Connection) -> int:
        """Return how many ids were ever changed."""
        return self._last_change(connection)[1]

    def _last_change(self, connection: sqlite3.Connection) -> tuple[int, int]:
        row = connection.execute("SELECT version, total FROM changes ORDER BY version DESC LIMIT 1")
        version, total = row.fetchone() or (-1, -1)
        for number in (version, total):
            if type(number) is not int or not 0 <= number <= _LAST_VERSION:
                raise self.damaged("it does not know its version")
        return version, total

    def _made(self, connection: sqlite3.Connection, n_bits: int | None, model: str | None) -> About:
        """Make the tables if there are none; return what the store says of its codes."""
        connection.execute("BEGIN")  # what is looked at is of one moment: others may be making it
        is_store = self._has_schema(connection)
        connection.execute("COMMIT")
        if not is_store and self._is_read_only:
            raise self.damaged("it has no tables, and is read-only")
        if not is_store:
            self._create(connection, About.of_new(self.place, n_bits, model))
        about = self.about(connection)
        self.version(connection)
        return about

    def _create(self, connection: sqlite3.Connection, about: About) -> None:
        self._use_log(connection)
        connection.execute("BEGIN IMMEDIATE")
        if not self._has_schema(connection):  # another process may have been faster
            header = json.dumps({"format": _FORMAT, **about._asdict()})
            for statement in _SCHEMA.values():
                connection.execute(statement)
            connection.execute("INSERT INTO about VALUES (?, ?)", (header, crc32(header.encode())))
            first = secrets.randbelow(_LAST_VERSION // 4)
            connection.execute("INSERT INTO changes VALUES (?, 0, x'')", (first,))
            connection.execute(f"PRAGMA application_id={_APPLICATION_ID}")
        connection.execute("COMMIT")

    def _use_log(self, connection: sqlite3.Connection) -> None:
        """Switch to the write-ahead log; SQLite itself would not wait for others that do so."""
        last_moment = time.monotonic() + self._timeout
        while True:
            try:
                mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
                break
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > last_moment:
                    raise
                time.sleep(0.01)
        if mode != b"wal":
            raise StoreError(
                f"{self.place} cannot have a write-ahead log. Is it on a network drive?"
            )

    def _has_schema(self, connection: sqlite3.Connection) -> bool:
        """Say whether the file is a store, or empty; refuse any other."""
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        tables = {
            name.decode(errors="replace"): text.decode(errors="replace")
            for name, text in connection.execute(
                "SELECT name, CAST(sql AS TEXT) FROM sqlite_master WHERE type = 'table'"
            )
        }
        if not tables and application == 0:
            return False
        if application != _APPLICATION_ID:
            raise StoreError(f"{self.place} is a SQLite file, but was not written by antipodal")
        if tables != _SCHEMA:
            raise self.damaged("its tables are not those of a store")
        return True


def checksums(ids: Ids, codes: Sequence[bytes], texts: Sequence[bytes]) -> list[int]:
    """CRC-32 of each code and metadata, begun from the id: a byte changed anywhere shows."""
    starts = ((ids ^ (ids >> 32)) & 0xFFFFFFFF).tolist()
    return list(map(crc32, texts, map(crc32, codes, starts)))


def next_version(version: int) -> int:
    """Draw the number of the version after this one: copies of a file go different ways."""
    return version + 1 + secrets.randbelow(_STEP)


def some_at_a_time(cursor: sqlite3.Cursor) -> Iterator[list[tuple[Any, ...]]]:
    """Fetch rows such that the objects of a million are never in memory at once."""
    while rows := cursor.fetchmany(20_000):
        yield rows


def id_list(ids: Ids) -> str:
    """Write ids as one parameter, for `AMONG`."""
    return json.dumps(ids.tolist())


def _access(path: Path) -> bool:
    """Say whether this process may write to a file or folder, which is there."""
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
        raise ValueError(f"timeout must be seconds, 0 to 86400: got {options['timeout']!r}")
    return seconds

"""The SQLite file of a store: the connections to it, and what can be wrong with it.

Three things guard against damage. SQLite checks its pages (`quick_check`), which finds what is
missing or out of place. The tables must be the very ones that `sqlitetables` makes. And every item
has a checksum, of which `sqliteitems` knows. Together they mean that a file is read as it was
written, or refused.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import quote

from antipodal.errors import StoreError
from antipodal.stores.about import About
from antipodal.stores.address import Address
from antipodal.stores.dialects import EXACT_REAL
from antipodal.stores.snapshot import ItemBatch
from antipodal.stores.sqliteitems import SqliteItems
from antipodal.stores.sqlitetables import SqliteTables, damaged

_LEAST_BYTES = 512  # of a SQLite file: one page of the smallest size
_FOLDING_SECONDS = 2.0

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
        self._may_write = not address.read_only
        self.tables = SqliteTables(self.place)

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
                raise damaged(self.place, "it is cut off")  # SQLite would take it for an empty file
            can_write = self._may_write and self._can_be_written()
            self._is_read_only = n_bytes > 0 and not can_write
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
                raise damaged(self.place, "it is cut off, or empty")
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
                items = SqliteItems(self.place, about.n_bits).all(connection)
                yield about, (some.batch() for some in items)
            finally:
                connection.close()

    def _stamp(self) -> Stamp:
        status = self._path.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _inode_now(self) -> tuple[int, int]:
        status = self._path.stat()
        return status.st_dev, status.st_ino

    def files(self) -> list[Path]:
        """Return the file and its side files, which are next to it after all links are resolved."""
        real = os.path.realpath(self._path)
        return [Path(real + ending) for ending in ("", "-wal", "-shm", "-journal")]

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
        try:
            for pragma in ("synchronous=FULL", "trusted_schema=OFF", "cell_size_check=ON"):
                connection.execute(f"PRAGMA {pragma}")
        except BaseException:  # the file is damaged
            connection.close()
            raise
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
            raise damaged(self.place, str(error)) from error
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

    def check_pages(self, connection: sqlite3.Connection) -> None:
        """Let SQLite look for pages that are missing or out of place."""
        report = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if report != b"ok":
            raise damaged(self.place, report.decode(errors="replace").replace("\n", " "))

    def _made(self, connection: sqlite3.Connection, n_bits: int | None, model: str | None) -> About:
        """Make the tables if there are none; return what the store says of its codes."""
        connection.execute("BEGIN")  # what is looked at is of one moment: others may be making it
        is_store = self.tables.are_there(connection)
        connection.execute("COMMIT")
        if not is_store and self._is_read_only:
            raise damaged(self.place, "it has no tables, and is read-only")
        if not is_store:
            new = About.of_new(self.place, n_bits, model)
            self._use_log(connection)
            self.tables.make(connection, new)
        about = self.tables.about(connection)
        self.tables.version(connection)
        return about

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

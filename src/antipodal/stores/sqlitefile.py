"""The SQLite file of a store: its tables, the connections to it, and what can be wrong with it.

Three things guard against damage. SQLite checks its pages (`quick_check`), which finds what is
missing or out of place. Every item has a checksum over its id, code and metadata, because a byte
that changes inside a value is none of SQLite's business. And the tables must be the very ones that
are made here. Together they mean that a file is read as it was written, or refused.
"""

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString, TypeAlias
from urllib.parse import quote
from zlib import crc32

import numpy as np

from antipodal.checks import Ids
from antipodal.errors import StoreError
from antipodal.stores.about import About
from antipodal.stores.address import Address
from antipodal.stores.dialects import EXACT_REAL

_APPLICATION_ID = 0x616E7470  # "antp", in the header of the file
_SCHEMA: dict[str, LiteralString] = {
    "about": "CREATE TABLE about (header TEXT NOT NULL, checksum INTEGER NOT NULL)",
    "items": "CREATE TABLE items (id INTEGER PRIMARY KEY, code BLOB NOT NULL, "
    "metadata TEXT NOT NULL, checksum INTEGER NOT NULL)",
    "changes": "CREATE TABLE changes (version INTEGER PRIMARY KEY, total INTEGER NOT NULL, "
    "ids BLOB NOT NULL)",
}
_LEAST_BYTES = 512  # of a SQLite file: one page of the smallest size


# Inode, size and time of the last change; None where SQLite itself watches the file.
Stamp: TypeAlias = tuple[int, int, int] | None


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

        self.is_read_only = False

    def open(self, n_bits: int | None, model: str | None) -> tuple[sqlite3.Connection, About]:
        """Return a connection, and what the store says of its codes; make it if there is none.

        The connection is for writing, unless the file cannot be written.
        """
        with self.errors():
            n_bytes = self._path.stat().st_size if self._path.exists() else 0
            if n_bytes == 0:
                About.of_new(self.place, n_bits, model)
            elif n_bytes < _LEAST_BYTES:
                raise self.damaged("it is cut off")  # SQLite would take it for an empty file
            self.is_read_only = n_bytes > 0 and not self._can_be_written()
            if self.is_read_only:
                connection, _ = self.reader()
            else:
                connection = self._connect("mode=rw" if n_bits is None else "mode=rwc")
            try:
                about = self._about(connection, n_bits, model)
                about.agree(self.place, n_bits, model)
            except BaseException:
                connection.close()
                raise
            return connection, about

    def reader(self) -> tuple[sqlite3.Connection, Stamp]:
        """Return a connection for reading, and the stamp of the file if it must not change.

        SQLite reads a file with a log by help of two files beside it, -wal and -shm, which it
        makes if there are none. Where it cannot, and there is no log, the file is all there is
        to read: `immutable` says so. It also says that nobody writes the file, so its stamp
        is looked at before and after each use.
        """
        if not self.is_read_only:
            return self._connect("mode=rw"), None
        beside = (self._beside("-wal"), self._beside("-shm"))
        if _access(self._path.parent) or all(path.exists() for path in beside):
            return self._connect("mode=ro"), None
        if self._has_log():
            raise StoreError(
                f"{self.place} is read-only, and has a log beside it, -wal, that was not folded "
                "into it: open it once where it can be written"
            )
        return self._connect("mode=ro&immutable=1"), self._stamp()

    def is_unchanged(self, stamp: Stamp) -> bool:
        """Say whether a connection with this stamp still sees the file as it is."""
        return stamp is None or (stamp == self._stamp() and not self._has_log())

    def check_unchanged(self, stamp: Stamp) -> None:
        """Refuse what was read while somebody else, who may, wrote the file."""
        if not self.is_unchanged(stamp):
            raise StoreError(f"{self.place} was written while it was being read: try again")

    def _stamp(self) -> Stamp:
        status = self._path.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns

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
                raise StoreError(
                    f"{self.place} is being written by another process, for longer than "
                    f"{self._timeout:g} s: nothing of this call was stored. "
                    "Try again, or wait longer with ?timeout=seconds"
                ) from error
            raise StoreError(f"{self.place}: {error}") from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            # The second where a message would quote bytes of the file that are no text.
            raise self.damaged(str(error)) from error
        except sqlite3.Error as error:
            raise StoreError(f"{self.place}: {error}") from error
        except OSError as error:
            raise StoreError(f"{self.place}: {error.strerror or error}") from error

    def damaged(self, what: str) -> StoreError:
        """Return the error for a file that is not as it was written."""
        return StoreError(f"{self.place} is damaged, or not a store: {what}")

    def checked(self, rows: list[tuple[Any, ...]]) -> tuple[Any, Any, Any]:
        """Return the ids, codes and metadata of rows, each of which matches its checksum."""
        ids, codes, texts, sums = zip(*rows, strict=True)
        try:
            good = checksums(np.array(ids, np.int64), codes, texts) == list(sums)
        except (TypeError, ValueError, OverflowError):
            good = False
        if not good:
            raise self.damaged("an item does not match its checksum")
        return ids, codes, texts

    def check_pages(self, connection: sqlite3.Connection) -> None:
        """Let SQLite look for pages that are missing or out of place."""
        report = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if report != b"ok":
            raise self.damaged(report.decode(errors="replace").replace("\n", " "))

    def _about(
        self, connection: sqlite3.Connection, n_bits: int | None, model: str | None
    ) -> About:
        connection.execute("BEGIN")  # what is looked at is of one moment: others may be making it
        is_store = self._has_schema(connection)
        connection.execute("COMMIT")
        if not is_store and self.is_read_only:
            raise self.damaged("it has no tables, and is read-only")
        if not is_store:
            self._create(connection, About.of_new(self.place, n_bits, model))
        rows = connection.execute("SELECT header, checksum FROM about").fetchall()
        if len(rows) != 1 or not isinstance(rows[0][0], bytes) or crc32(rows[0][0]) != rows[0][1]:
            raise self.damaged("what it says of its codes does not match its checksum")
        header = json.loads(rows[0][0])
        if header["format"] != 1:
            raise StoreError(
                f"{self.place} has format {header['format']}, this antipodal reads 1: upgrade it"
            )
        return About(header["n_bits"], header["model"])

    def _create(self, connection: sqlite3.Connection, about: About) -> None:
        self._use_log(connection)
        connection.execute("BEGIN IMMEDIATE")
        if not self._has_schema(connection):  # another process may have been faster
            header = json.dumps({"format": 1, **about._asdict()})
            for statement in _SCHEMA.values():
                connection.execute(statement)
            connection.execute("INSERT INTO about VALUES (?, ?)", (header, crc32(header.encode())))
            connection.execute("INSERT INTO changes VALUES (0, 0, x'')")
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

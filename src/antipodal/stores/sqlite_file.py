"""SQLite file of a store: tables, checksummed items, connections, integrity checks."""

import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString, NamedTuple, TypeAlias
from urllib.parse import quote
from zlib import crc32

import numpy as np

from antipodal.codes import Codes, check_codes, code_width, from_bytes
from antipodal.errors import StoreError
from antipodal.stores.base import About
from antipodal.stores.filters import EXACT_REAL
from antipodal.stores.snapshot import ItemBatch
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
_LAST_VERSION = 2**62
_STEP = 2**20  # versions grow by up to this much: 2⁴² writes come before the last
_KEPT_VERSIONS, _KEPT_IDS = 1_000, 1_000_000  # changes that are remembered for other processes


def damaged(place: str, what: str) -> StoreError:
    """Return the error for a file that is not as it was written."""
    return StoreError(f"{place} is damaged, or not a store: {what}")


class SqliteTables:
    """What a file keeps beside its items, as a transaction sees it."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._header: tuple[Any, About] = None, About(0, None)  # the last that was read

    def are_there(self, connection: sqlite3.Connection) -> bool:
        """Say whether the file is a store, or empty; refuse any other."""
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        tables = {
            name.decode(errors="replace"): text.decode(errors="replace")
            for name, text in connection.execute(
                # Triggers and views too; an index changes no answer.
                "SELECT name, CAST(sql AS TEXT) FROM sqlite_master WHERE type <> 'index'"
            )
        }
        if not tables and application == 0:
            return False
        if application != APPLICATION_ID:
            raise StoreError(f"{self.place} is a SQLite file, but was not written by antipodal")
        if tables != _SCHEMA:
            raise damaged(self.place, "its tables are not those of a store")
        return True

    def make(self, connection: sqlite3.Connection, about: About) -> None:
        """Make the tables, unless another process was faster."""
        connection.execute("BEGIN IMMEDIATE")
        if not self.are_there(connection):
            header = json.dumps({"format": _FORMAT, **about._asdict()})
            for statement in _SCHEMA.values():
                connection.execute(statement)
            connection.execute("INSERT INTO about VALUES (?, ?)", (header, crc32(header.encode())))
            first = secrets.randbelow(_LAST_VERSION // 4)
            connection.execute("INSERT INTO changes VALUES (?, 0, x'')", (first,))
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute("COMMIT")

    def about(self, connection: sqlite3.Connection) -> About:
        """Return what the store says of its codes."""
        rows = connection.execute("SELECT header, checksum FROM about LIMIT 2").fetchall()
        known, about = self._header
        if rows == known:
            return about
        if len(rows) != 1 or not isinstance(rows[0][0], bytes) or crc32(rows[0][0]) != rows[0][1]:
            raise damaged(self.place, "what it says of its codes does not match its checksum")
        try:
            header = json.loads(rows[0][0])
            about = About.of_header(header)
        except (ValueError, RecursionError) as error:  # with a checksum: not our writer
            raise damaged(self.place, str(error)) from None
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

    def note(self, connection: sqlite3.Connection, ids: Ids) -> None:
        """Write down what a new version changed, and forget what is long past."""
        before, n_changed = self._last_change(connection)
        version, total = before + 1 + secrets.randbelow(_STEP), n_changed + len(ids)
        connection.execute("INSERT INTO changes VALUES (?, ?, ?)", (version, total, ids.tobytes()))
        connection.execute(
            "DELETE FROM changes WHERE version < ? AND (total <= ? OR version <= "
            "(SELECT version FROM changes ORDER BY version DESC LIMIT 1 OFFSET ?))",
            (version, total - _KEPT_IDS, _KEPT_VERSIONS),
        )

    def forget(self, connection: sqlite3.Connection) -> None:
        """Forget all versions before the last: whoever knows one of them reads all again."""
        version = self.version(connection)
        connection.execute("DELETE FROM changes WHERE version < ?", (version,))

    def changed_since(self, connection: sqlite3.Connection, version: int) -> Ids | None:
        """Return the ids that changed since a version, or None if that is not known."""
        rows = connection.execute(
            "SELECT version, ids FROM changes WHERE version >= ? ORDER BY version", (version,)
        ).fetchall()
        if not rows or rows[0][0] != version:
            return None
        if not all(isinstance(ids, bytes) and len(ids) % 8 == 0 for _, ids in rows):
            raise damaged(self.place, "a list of changed ids is no such list")
        return np.unique(np.frombuffer(b"".join(ids for _, ids in rows[1:]), np.int64))

    def _last_change(self, connection: sqlite3.Connection) -> tuple[int, int]:
        """Return the number of the last version, and how many ids were ever changed."""
        row = connection.execute("SELECT version, total FROM changes ORDER BY version DESC LIMIT 1")
        version, total = row.fetchone() or (-1, -1)
        for number in (version, total):
            if type(number) is not int or not 0 <= number <= _LAST_VERSION:
                raise damaged(self.place, "it does not know its version")
        return version, total


AMONG: LiteralString = "id IN (SELECT value FROM json_each(?))"
_ROWS: LiteralString = "SELECT id, code, metadata, checksum FROM items WHERE "
_RANGE: LiteralString = "id BETWEEN ? AND ?"
# Texts of JSON have no line feeds, which are written as \n in them.
_JOINED: LiteralString = (
    "SELECT group_concat(code, ''), group_concat(metadata, char(10)), group_concat(checksum) "
    f"FROM items WHERE {_RANGE}"
)
_BLOCK = 5_000  # rows whose objects are in memory at once


class CheckedItems(NamedTuple):
    """Some items that match their checksums, with the bytes of their metadata."""

    ids: Ids
    codes: Codes
    texts: Sequence[bytes]

    def batch(self) -> ItemBatch:
        """Return the same with metadata as text."""
        return ItemBatch(self.ids, self.codes, [text.decode() for text in self.texts])


class SqliteItems:
    """The items of a file, as a transaction sees them."""

    def __init__(self, place: str, n_bits: int) -> None:
        self.place, self.n_bits = place, n_bits

    def all(self, connection: sqlite3.Connection) -> Iterator[CheckedItems]:
        """Read all items in the order of their ids, a block at a time."""
        for first, last, n_items in _blocks(connection):
            yield self._joined(connection, first, last, n_items) or self._checked(
                connection.execute(_ROWS + _RANGE + " ORDER BY id", (first, last)).fetchall()
            )

    def among(self, connection: sqlite3.Connection, ids: Ids) -> Iterator[CheckedItems]:
        """Read the items that have these ids, in any order."""
        cursor = connection.execute(_ROWS + AMONG, [id_list(ids)])
        while rows := cursor.fetchmany(_BLOCK):
            yield self._checked(rows)

    def put(
        self,
        connection: sqlite3.Connection,
        ids: Ids,
        codes: Sequence[bytes],
        texts: Sequence[str],
    ) -> None:
        """Write items, in the place of those with the same ids."""
        sums = _checksums(ids, codes, [text.encode() for text in texts])
        connection.executemany(
            "INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?)",
            zip(ids.tolist(), codes, texts, sums, strict=True),
        )

    def delete(self, connection: sqlite3.Connection, ids: Ids) -> int:
        """Remove items, and return how many there were."""
        numbers = ((number,) for number in ids.tolist())
        return connection.executemany("DELETE FROM items WHERE id = ?", numbers).rowcount

    def largest(self, connection: sqlite3.Connection) -> int | None:
        """Return the largest id."""
        largest: int | None = connection.execute("SELECT max(id) FROM items").fetchone()[0]
        return largest

    def known(self, connection: sqlite3.Connection, ids: Ids) -> Ids:
        """Return those ids that are there; quickly if all are larger than any."""
        largest = self.largest(connection)
        if largest is None or ids.min() > largest:
            return np.empty(0, np.int64)
        cursor = connection.execute(f"SELECT id FROM items WHERE {AMONG}", [id_list(ids)])
        return np.fromiter((row[0] for row in cursor), np.int64)

    def _joined(
        self, connection: sqlite3.Connection, first: int, last: int, n_items: int
    ) -> CheckedItems | None:
        """Read a block as joined texts, or None if they do not fall apart into such items."""
        try:
            codes, texts, sums = connection.execute(_JOINED, (first, last)).fetchone()
        except sqlite3.DataError:  # longer than SQLite lets a text be
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
            mine = _checksums(ids, packed.view(f"V{width}")[:, 0].tolist(), lines)
            if mine != expected or len(lines) != n_items:
                return None
            return CheckedItems(ids, check_codes(packed, self.n_bits), lines)
        except ValueError:
            return None

    def _checked(self, rows: Iterable[tuple[Any, ...]]) -> CheckedItems:
        """Return rows as items, each of which matches its checksum."""
        numbers, codes, texts, sums = zip(*rows, strict=True)
        try:
            ids = np.array(numbers, np.int64)
            good = _checksums(ids, codes, texts) == list(sums)
        except (TypeError, ValueError, OverflowError):
            good = False
        if not good:
            raise damaged(self.place, "an item does not match its checksum")
        try:
            return CheckedItems(ids, from_bytes(codes, self.n_bits), texts)
        except ValueError as error:  # with a checksum: not our writer
            raise damaged(self.place, str(error)) from None


def id_list(ids: Ids) -> str:
    """Write ids as one parameter, for `AMONG`."""
    return json.dumps(ids.tolist())


def _blocks(connection: sqlite3.Connection) -> Iterator[tuple[int, int, int]]:
    """Cut all ids into ranges of so many items: the first and the last id, and their number."""
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


def _checksums(ids: Ids, codes: Sequence[bytes], texts: Sequence[bytes]) -> list[int]:
    """CRC-32 of each code and metadata, begun from the id: a byte changed anywhere shows."""
    starts = ((ids ^ (ids >> 32)) & 0xFFFFFFFF).tolist()
    return list(map(crc32, texts, map(crc32, codes, starts)))


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

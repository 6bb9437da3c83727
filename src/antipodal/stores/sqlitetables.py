"""The tables of a SQLite store: what it says of its codes, and which ids each version changed.

Every write draws a new version number and notes the ids that it changed. So another process can
tell what to read again, and a file with another past is told apart: versions begin at random and
grow by random steps, so that no two states of any store share one. `sqliteitems` has the items.
"""

import json
import secrets
import sqlite3
from typing import Any, LiteralString
from zlib import crc32

import numpy as np

from antipodal.checks import Ids
from antipodal.errors import StoreError
from antipodal.stores.about import About

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

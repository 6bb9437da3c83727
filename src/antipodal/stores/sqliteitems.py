"""The items in a SQLite file, each with a checksum that is checked whenever it is read.

A byte that changes inside a value is none of SQLite's business. So every item has a CRC-32 of its
id, code and metadata.

All items are read in blocks. Python takes a microsecond and more for a row of four values, ten
times as long as SQLite needs to find it, so SQLite joins what a block holds into a few long texts.
Nothing is assumed of these: a block counts if every item that they fall apart into matches its
checksum, and is read row by row if not, which says what is wrong with it.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, LiteralString, NamedTuple
from zlib import crc32

import numpy as np

from antipodal.checks import MAX_ID, Ids
from antipodal.codes import Codes, check_codes, code_width, from_bytes
from antipodal.stores.snapshot import ItemBatch
from antipodal.stores.sqlitetables import damaged

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

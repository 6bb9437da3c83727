"""A store in PostgreSQL with pgvector: the distance and the order are computed by the server.

A search is one statement, whatever the number of queries, so it sees one state of the table.
It is exact: an approximate index that someone made on the table is not used, because it is the
cast of the distance that is sorted by, which no index knows.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString

import numpy as np
import psycopg
from psycopg import sql

from antipodal.checks import Ids
from antipodal.codes import Codes, from_bit_strings, to_bit_strings
from antipodal.errors import StoreError
from antipodal.index import Ball, Neighbours
from antipodal.stores.about import About
from antipodal.stores.address import Address
from antipodal.stores.dialects import postgres_condition
from antipodal.stores.hits import ItemHits, nearest, within
from antipodal.stores.metadata import parse_metadata
from antipodal.stores.store import Store
from antipodal.stores.where import And, Where

_CREATE: LiteralString = """
CREATE TABLE {items} (
    id bigint PRIMARY KEY, code bit({n_bits}) NOT NULL, metadata jsonb NOT NULL)
"""
_CREATE_ABOUT: LiteralString = "CREATE TABLE {about} (n_bits integer NOT NULL, model text)"
_INCOMING: LiteralString = """
CREATE TEMPORARY TABLE IF NOT EXISTS antipodal_{n_bits} (
    id bigint, code bit({n_bits}), metadata jsonb) ON COMMIT DELETE ROWS
"""
# By id, so that two writers lock common rows in the same order and cannot wait for each other.
_INSERT: LiteralString = """
INSERT INTO {items} SELECT id, code, metadata FROM pg_temp.antipodal_{n_bits} ORDER BY id
ON CONFLICT (id) DO """
# xmax is 0 in a row that is new, and names this transaction in one that was locked to be replaced.
_UPSERT: LiteralString = (
    "WITH written AS ("
    + _INSERT
    + """
UPDATE SET {changes} RETURNING xmax <> 0 AS is_replaced)
SELECT count(*) FILTER (WHERE is_replaced) FROM written
"""
)
_ALL: LiteralString = "code = EXCLUDED.code, metadata = EXCLUDED.metadata"
_ALL_BUT_METADATA: LiteralString = "code = EXCLUDED.code"
# MATERIALIZED: a query becomes bits once, and an item is filtered once, not for every pair of them.
_QUERIES: LiteralString = """
WITH query AS MATERIALIZED (
    SELECT place, bits::bit({n_bits}) AS bits
    FROM unnest(%s::text[]) WITH ORDINALITY AS given (bits, place))
"""
_PASSING: LiteralString = """,
passing AS MATERIALIZED (SELECT id, code FROM {items} WHERE {condition})
"""
_SEARCH: LiteralString = """
SELECT place, id, distance FROM query CROSS JOIN LATERAL (
    SELECT id, (code <~> bits)::integer AS distance FROM {source}
    ORDER BY distance, id LIMIT %s) AS hit
ORDER BY place, distance, id
"""
_RADIUS: LiteralString = """
SELECT place, id, distance FROM query CROSS JOIN LATERAL (
    SELECT id, (code <~> bits)::integer AS distance FROM {source}) AS item
WHERE distance <= %s ORDER BY place, distance, id
"""
_MAX_NAME = 63 - len("_about")  # PostgreSQL would cut a longer one without a word


class PostgresStore(Store):
    """Items in a table of PostgreSQL; threads take turns on one connection."""

    def __init__(self, address: Address, *, n_bits: int | None, model: str | None) -> None:
        self.place = address.shown
        self._address = address
        self._lock = threading.RLock()
        self._closed = False
        self._connection = self._connect()
        try:
            with self._transaction() as cursor:
                schema, table = self._names(cursor, address.options)
                self._items = sql.Identifier(schema, table)
                self._about = sql.Identifier(schema, f"{table}_about")
                self.place = f"{address.shown}, table {schema}.{table}"
                about = self._open(cursor, n_bits, model)
            about.agree(self.place, n_bits, model)
        except BaseException:
            self.close()
            raise
        self.n_bits, self.model = about

    def close(self) -> None:
        """Close the connection."""
        self._closed = True
        self._connection.close()

    def _put(self, ids: Ids, codes: Codes, metadata: list[str] | None, *, replace: bool) -> int:
        texts = ["{}"] * len(ids) if metadata is None else metadata
        rows = zip(ids.tolist(), to_bit_strings(codes, self.n_bits), texts, strict=True)
        copy_in: LiteralString = "COPY pg_temp.antipodal_{n_bits} FROM STDIN"
        with self._transaction() as cursor:
            cursor.execute(self._sql(_INCOMING))
            with cursor.copy(self._sql(copy_in)) as copy:
                for row in rows:
                    copy.write_row(row)
            if replace:
                changes = _ALL_BUT_METADATA if metadata is None else _ALL
                written = cursor.execute(self._sql(_UPSERT.replace("{changes}", changes)))
                return int((written.fetchone() or (0,))[0])
            cursor.execute(self._sql(_INSERT + "NOTHING"))
            if cursor.rowcount == len(ids):
                return 0
            raise psycopg.Rollback  # ends the block: nothing is kept
        self._refuse(self._known(ids))
        raise StoreError(f"{self.place}: items were deleted while these were added: try again")

    def _known(self, ids: Ids) -> Ids:
        select: LiteralString = "SELECT id FROM {items} WHERE id = ANY (%s::bigint[])"
        rows = self._rows(self._sql(select), [ids.tolist()])
        return np.array([number for (number,) in rows], np.int64)

    def _largest_id(self) -> int | None:
        largest = self._rows(self._sql("SELECT max(id) FROM {items}"), [])[0][0]
        return None if largest is None else int(largest)

    def _delete(self, ids: Ids) -> int:
        with self._transaction() as cursor:
            cursor.execute(
                self._sql("DELETE FROM {items} WHERE id = ANY (%s::bigint[])"), [ids.tolist()]
            )
            return cursor.rowcount

    def _get(self, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]:
        select: LiteralString = (
            "SELECT id, code::text, metadata::text FROM {items} WHERE id = ANY (%s::bigint[])"
        )
        rows = self._rows(self._sql(select), [ids.tolist()])
        codes = from_bit_strings([row[1] for row in rows], self.n_bits)
        return {
            number: (code.tobytes(), parse_metadata(text))
            for (number, _, text), code in zip(rows, codes, strict=True)
        }

    def _search(self, codes: Codes, k: int, where: Where | None) -> Neighbours:
        return nearest(self._hits(_SEARCH, codes, min(k, 2**62), where))

    def _radius(self, codes: Codes, r: int, where: Where | None) -> Ball:
        return within(self._hits(_RADIUS, codes, r, where))

    def _count(self, where: Where | None) -> int:
        condition, values = postgres_condition(where or And(()))
        query = self._sql("SELECT count(*) FROM {items} WHERE {condition}", condition)
        return int(self._rows(query, values)[0][0])

    def _hits(self, query: LiteralString, codes: Codes, last: int, where: Where | None) -> ItemHits:
        texts = to_bit_strings(codes, self.n_bits)
        if where is None:
            rows = self._rows(self._sql(_QUERIES + query), [texts, last])
        else:
            condition, values = postgres_condition(where)
            statement = self._sql(_QUERIES + _PASSING + query, condition)
            rows = self._rows(statement, [texts, *values, last])
        table = np.array(rows, np.int64).reshape(-1, 3)
        ends = np.searchsorted(table[:, 0], np.arange(1, len(codes) + 1), side="right")
        parts = np.split(table, ends[:-1]) if len(codes) else []
        return [(part[:, 1], part[:, 2].astype(np.int32)) for part in parts]

    # ------------------------------------------------------------------ opening and asking

    def _names(self, cursor: psycopg.Cursor[Any], options: dict[str, str]) -> tuple[str, str]:
        schema, table = options.get("schema"), options.get("table", "codes")
        if schema is None:
            row = cursor.execute("SELECT current_schema()").fetchone()
            schema = row[0] if row else None
        if not schema:
            raise StoreError(f"{self.place} has no schema to keep a table in: add ?schema=name")
        for name in (schema, table):
            # psycopg quotes a name, but would take a % in it for the place of a parameter.
            if not 0 < len(name.encode()) <= _MAX_NAME or "\0" in name or "%" in name:
                raise ValueError(
                    f"names of schemas and tables must have 1 to {_MAX_NAME} bytes, "
                    f"and no %: got {name!r}"
                )
        return schema, table

    def _open(self, cursor: psycopg.Cursor[Any], n_bits: int | None, model: str | None) -> About:
        """Read what the store says of itself, or make it."""
        # One at a time, since two that find no table would both make it.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('antipodal'))")
        exists = [
            cursor.execute("SELECT to_regclass(%s)", [name.as_string(cursor)]).fetchone()
            for name in (self._items, self._about)
        ]
        there = [row is not None and row[0] is not None for row in exists]
        if not any(there):
            about = About.of_new(self.place, n_bits, model)
            self.n_bits = about.n_bits
            cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
            cursor.execute(self._sql(_CREATE))
            cursor.execute(self._sql(_CREATE_ABOUT))
            insert: LiteralString = "INSERT INTO {about} VALUES (%s, %s)"
            cursor.execute(self._sql(insert), about)
        elif not all(there):
            raise StoreError(f"{self.place} is there, but was not made by antipodal")
        row = cursor.execute(
            sql.SQL("SELECT n_bits, model FROM {about}").format(about=self._about)
        ).fetchone()
        if row is None:
            raise StoreError(f"{self.place} does not say what codes it keeps: its about is empty")
        return About(*row)

    def _sql(self, text: LiteralString, condition: LiteralString = "") -> sql.Composed:
        return sql.SQL(text).format(
            items=self._items,
            about=self._about,
            n_bits=sql.SQL(str(int(self.n_bits))),  # digits only
            condition=sql.SQL(condition),
            source=sql.Identifier("passing") if condition else self._items,
        )

    def _rows(self, query: sql.Composed, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._transaction() as cursor:
            return cursor.execute(query, values).fetchall()

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        try:
            return psycopg.connect(
                self._address.target, autocommit=True, application_name="antipodal"
            )
        except (psycopg.Error, ValueError) as error:
            # Not "from error": what the driver says may quote a password.
            message = self._address.without_secrets(_first_line(error))
            raise StoreError(f"cannot connect to {self.place}: {message}") from None

    @contextmanager
    def _transaction(self) -> Iterator[psycopg.Cursor[tuple[Any, ...]]]:
        """Give a cursor to one thread; after a lost connection, of a new one."""
        with self._lock:
            if self._closed:
                raise StoreError(f"{self.place} is closed")
            if self._connection.closed:
                self._connection = self._connect()
            try:
                with (
                    self._connection.transaction(),
                    self._connection.cursor(binary=True) as cursor,
                ):
                    yield cursor
            except psycopg.Error as error:
                raise StoreError(f"{self.place}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

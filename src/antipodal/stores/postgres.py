"""A store in PostgreSQL with pgvector: the distance and the order are computed by the server.

A search is one statement, whatever the number of queries, so it sees one state of the table; a
snapshot is one transaction, all statements of which see the same one (REPEATABLE READ). A search
is exact: an approximate index that someone made on the table is not used, because it is the
cast of the distance that is sorted by, which no index knows.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, LiteralString, TypeAlias

import numpy as np
import psycopg
from psycopg import IsolationLevel, sql

from antipodal.checks import Ids
from antipodal.codes import Codes, from_bit_strings, to_bit_strings
from antipodal.errors import StoreError
from antipodal.index import Ball, Neighbours
from antipodal.stores.about import About
from antipodal.stores.address import Address
from antipodal.stores.dialects import postgres_condition
from antipodal.stores.hits import ItemHits, nearest, within
from antipodal.stores.metadata import metadata_text, parse_metadata
from antipodal.stores.snapshot import ItemBatch, Snapshot
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
_ROWS_AT_ONCE = 20_000
_MAX_NAME = 63 - len("_about")  # PostgreSQL would cut a longer one without a word


_ITEMS: LiteralString = "SELECT id, code::text, metadata::text FROM {items} "

Cursor: TypeAlias = psycopg.Cursor[tuple[Any, ...]]


class PostgresStore(Store):
    """Items in a table of PostgreSQL; each call takes a connection that is free, or makes one."""

    def __init__(self, address: Address, *, n_bits: int | None, model: str | None) -> None:
        self.place = address.shown
        self._address = address
        self._closed = False
        self._idle: SimpleQueue[psycopg.Connection[tuple[Any, ...]]] = SimpleQueue()
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
        self.n_bits, self.model = about.n_bits, about.model

    def close(self) -> None:
        """Close the connections; those in use are closed after that."""
        self._closed = True
        with suppress(Empty):
            while True:
                self._idle.get_nowait().close()

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Give the store as it is now: whatever is written meanwhile is not seen in it.

        It takes a connection for as long as it lasts.
        """
        with self._transaction(IsolationLevel.REPEATABLE_READ) as cursor:
            snapshot = _PostgresSnapshot(self, cursor)
            try:
                yield snapshot
            finally:
                snapshot.is_over = True

    def _put(self, ids: Ids, codes: Codes, metadata: list[str] | None, *, replace: bool) -> int:
        batch = ItemBatch(ids, codes, ["{}"] * len(ids) if metadata is None else metadata)
        copy_in: LiteralString = "COPY pg_temp.antipodal_{n_bits} FROM STDIN"
        with self._transaction() as cursor:
            cursor.execute(self._sql(_INCOMING))
            with cursor.copy(self._sql(copy_in)) as copy:
                self._write_rows(copy, batch)
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

    def _replace_all(self, batches: Iterator[ItemBatch]) -> None:
        with self._transaction() as cursor:
            # Nobody else writes until the end; who reads sees the items as they were.
            cursor.execute(self._sql("LOCK TABLE {items} IN EXCLUSIVE MODE"))
            cursor.execute(self._sql("DELETE FROM {items}"))
            with cursor.copy(self._sql("COPY {items} FROM STDIN")) as copy:
                for batch in batches:
                    self._write_rows(copy, batch)

    def vacuum(self) -> tuple[int, int]:
        """Make room within the table for items to come; return its bytes before and now.

        Others read and write meanwhile (VACUUM ANALYZE).
        """
        before = self._n_bytes()
        with self._connected() as connection:  # in no transaction: VACUUM has its own
            connection.execute(self._sql("VACUUM ANALYZE {items}"))
        return before, self._n_bytes()

    def _n_bytes(self) -> int:
        with self._transaction() as cursor:
            size: LiteralString = "SELECT pg_total_relation_size(%s)"
            row = cursor.execute(size, [self._items.as_string(cursor)]).fetchone()
        return int((row or (0,))[0])

    def _write_rows(self, copy: psycopg.Copy, batch: ItemBatch) -> None:
        bits = to_bit_strings(batch.codes, self.n_bits)
        for row in zip(batch.ids.tolist(), bits, batch.texts, strict=True):
            copy.write_row(row)

    def _known(self, ids: Ids) -> Ids:
        select: LiteralString = "SELECT id FROM {items} WHERE id = ANY (%s::bigint[])"
        with self._transaction() as cursor:
            rows = cursor.execute(self._sql(select), [ids.tolist()]).fetchall()
        return np.array([number for (number,) in rows], np.int64)

    def _largest_id(self) -> int | None:
        with self._transaction() as cursor:
            row = cursor.execute(self._sql("SELECT max(id) FROM {items}")).fetchone()
        return None if row is None or row[0] is None else int(row[0])

    def _delete(self, ids: Ids) -> int:
        with self._transaction() as cursor:
            cursor.execute(
                self._sql("DELETE FROM {items} WHERE id = ANY (%s::bigint[])"), [ids.tolist()]
            )
            return cursor.rowcount

    def _get(self, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]:
        with self._transaction() as cursor:
            return self._items_of(cursor, ids)

    def _items_of(self, cursor: Cursor, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]:
        select = self._sql(_ITEMS + "WHERE id = ANY (%s::bigint[])")
        rows = cursor.execute(select, [ids.tolist()]).fetchall()
        codes = from_bit_strings([row[1] for row in rows], self.n_bits)
        return {
            number: (code.tobytes(), parse_metadata(text))
            for (number, _, text), code in zip(rows, codes, strict=True)
        }

    # ------------------------------------------------------------------ opening and asking

    def _names(self, cursor: Cursor, options: dict[str, str]) -> tuple[str, str]:
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

    def _open(self, cursor: Cursor, n_bits: int | None, model: str | None) -> About:
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
            cursor.execute(self._sql(insert), [about.n_bits, about.model])
        elif not all(there):
            raise StoreError(f"{self.place} is there, but was not made by antipodal")
        row = cursor.execute(
            sql.SQL("SELECT n_bits, model FROM {about}").format(about=self._about)
        ).fetchone()
        if row is None:
            raise StoreError(f"{self.place} does not say what codes it keeps: its about is empty")
        try:
            return About.of_header({"n_bits": row[0], "model": row[1]})
        except ValueError as error:
            raise StoreError(f"{self.place}: {error}") from None

    def _sql(
        self, text: LiteralString, condition: LiteralString = "TRUE", source: str | None = None
    ) -> sql.Composed:
        return sql.SQL(text).format(
            items=self._items,
            about=self._about,
            n_bits=sql.SQL(str(int(self.n_bits))),  # digits only
            condition=sql.SQL(condition),
            source=self._items if source is None else sql.Identifier(source),
        )

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
    def _transaction(self, level: IsolationLevel | None = None) -> Iterator[Cursor]:
        """Lend a cursor to one thread; after a lost connection, of a new one."""
        with self._connected() as connection:
            connection.isolation_level = level  # of the transaction that begins
            with connection.transaction(), connection.cursor(binary=True) as cursor:
                yield cursor

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """Lend a connection to one thread."""
        self._check_open()
        connection = self._free_connection()
        try:
            yield connection
        except psycopg.Error as error:
            raise StoreError(f"{self.place}: {_first_line(error)}") from error
        finally:
            self._idle.put(connection)
            if self._closed:
                self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.place} is closed")

    def _free_connection(self) -> psycopg.Connection[tuple[Any, ...]]:
        with suppress(Empty):
            while True:
                connection = self._idle.get_nowait()
                if not connection.closed:
                    return connection
        return self._connect()


class _PostgresSnapshot(Snapshot):
    """A store as one transaction sees it."""

    def __init__(self, store: PostgresStore, cursor: Cursor) -> None:
        self.place, self.n_bits = store.place, store.n_bits
        self._store, self._cursor = store, cursor

    def batches(self) -> Iterator[ItemBatch]:
        """Yield all items, some at a time."""
        select = self._store._sql(_ITEMS + "ORDER BY id")
        with self._cursor.connection.cursor("batches", binary=True) as cursor:
            cursor.execute(select)
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                ids, bits, texts = zip(*rows, strict=True)
                codes = from_bit_strings(bits, self.n_bits)
                yield ItemBatch(np.array(ids, np.int64), codes, list(map(_as_kept, texts)))

    def _get(self, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]:
        return self._store._items_of(self._cursor, ids)

    def _search(self, codes: Codes, k: int, where: Where | None) -> Neighbours:
        return nearest(self._hits(_SEARCH, codes, min(k, 2**62), where))

    def _radius(self, codes: Codes, r: int, where: Where | None) -> Ball:
        return within(self._hits(_RADIUS, codes, r, where))

    def _count(self, where: Where | None) -> int:
        condition, values = postgres_condition(where or And(()))
        query = self._store._sql("SELECT count(*) FROM {items} WHERE {condition}", condition)
        row = self._cursor.execute(query, values).fetchone()
        return int((row or (0,))[0])

    def _hits(self, query: LiteralString, codes: Codes, last: int, where: Where | None) -> ItemHits:
        texts = to_bit_strings(codes, self.n_bits)
        if where is None:
            statement, values = self._store._sql(_QUERIES + query), [texts, last]
        else:
            condition, parameters = postgres_condition(where)
            statement = self._store._sql(_QUERIES + _PASSING + query, condition, "passing")
            values = [texts, *parameters, last]
        rows = self._cursor.execute(statement, values).fetchall()
        table = np.array(rows, np.int64).reshape(-1, 3)
        ends = np.searchsorted(table[:, 0], np.arange(1, len(codes) + 1), side="right")
        parts = np.split(table, ends[:-1]) if len(codes) else []
        return [(part[:, 1], part[:, 2].astype(np.int32)) for part in parts]


def _as_kept(text: str) -> str:
    """Return metadata as `metadata_texts` writes them: jsonb writes large doubles in full."""
    return metadata_text(parse_metadata(text))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

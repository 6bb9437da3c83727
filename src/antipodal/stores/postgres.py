"""A store in PostgreSQL with pgvector: opening it, and writing. `postgressnapshot` searches.

A snapshot is one transaction, all statements of which see the same state (REPEATABLE READ).
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, LiteralString

import numpy as np
import psycopg
from psycopg import IsolationLevel, sql

from antipodal.checks import Ids, check_whole
from antipodal.codes import Codes, to_bit_strings
from antipodal.errors import StoreError
from antipodal.stores.about import About
from antipodal.stores.address import Address
from antipodal.stores.postgressnapshot import Cursor, PostgresSnapshot, StoreTables
from antipodal.stores.snapshot import ItemBatch, Snapshot
from antipodal.stores.store import Store

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
_MAX_NAME = 63 - len("_about")  # PostgreSQL would cut a longer one without a word


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
                self._tables = StoreTables(
                    sql.Identifier(schema, table), sql.Identifier(schema, f"{table}_about")
                )
                self.place = f"{address.shown}, table {schema}.{table}"
                about = self._open(cursor, n_bits, model)
            about.agree(self.place, n_bits, model)
        except BaseException:
            self.close()
            raise
        self.n_bits, self.model = about.n_bits, about.model
        self._tables = self._tables._replace(n_bits=about.n_bits)

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
            snapshot = PostgresSnapshot(self.place, self._tables, cursor)
            try:
                yield snapshot
            finally:
                snapshot.is_over = True

    def prepare_approximate(self, *, memory_mb: int | None = None) -> None:
        """Make an index of HNSW over the codes: see `Store.prepare_approximate`."""
        if memory_mb is not None:
            check_whole(memory_mb, "memory_mb", 1)
        lock: LiteralString = "LOCK TABLE {items} IN SHARE UPDATE EXCLUSIVE MODE"
        create: LiteralString = "CREATE INDEX ON {items} USING hnsw (code bit_hamming_ops)"
        with self._transaction() as cursor:
            cursor.execute(self._tables.sql(lock))  # of two that make it, one waits
            if self._tables.has_hnsw(cursor):
                return
            if memory_mb is not None:
                memory = f"{memory_mb}MB"
                cursor.execute("SELECT set_config('maintenance_work_mem', %s, true)", [memory])
            cursor.execute(self._tables.sql(create))

    def _put(self, ids: Ids, codes: Codes, metadata: list[str] | None, *, replace: bool) -> int:
        batch = ItemBatch(ids, codes, ["{}"] * len(ids) if metadata is None else metadata)
        copy_in: LiteralString = "COPY pg_temp.antipodal_{n_bits} FROM STDIN"
        with self._transaction() as cursor:
            cursor.execute(self._tables.sql(_INCOMING))
            with cursor.copy(self._tables.sql(copy_in)) as copy:
                self._write_rows(copy, batch)
            if replace:
                changes = _ALL_BUT_METADATA if metadata is None else _ALL
                written = cursor.execute(self._tables.sql(_UPSERT.replace("{changes}", changes)))
                return int((written.fetchone() or (0,))[0])
            cursor.execute(self._tables.sql(_INSERT + "NOTHING"))
            if cursor.rowcount == len(ids):
                return 0
            raise psycopg.Rollback  # ends the block: nothing is kept
        self._refuse(self._known(ids))
        raise StoreError(f"{self.place}: items were deleted while these were added: try again")

    def _replace_all(self, batches: Iterator[ItemBatch]) -> None:
        with self._transaction() as cursor:
            # Nobody else writes until the end; who reads sees the items as they were.
            cursor.execute(self._tables.sql("LOCK TABLE {items} IN EXCLUSIVE MODE"))
            cursor.execute(self._tables.sql("DELETE FROM {items}"))
            with cursor.copy(self._tables.sql("COPY {items} FROM STDIN")) as copy:
                for batch in batches:
                    self._write_rows(copy, batch)

    def vacuum(self) -> tuple[int, int]:
        """Make room within the table for items to come; return its bytes before and now.

        Others read and write meanwhile (VACUUM ANALYZE).
        """
        before = self._n_bytes()
        with self._connected() as connection:  # in no transaction: VACUUM has its own
            connection.execute(self._tables.sql("VACUUM ANALYZE {items}"))
        return before, self._n_bytes()

    def _n_bytes(self) -> int:
        with self._transaction() as cursor:
            size: LiteralString = "SELECT pg_total_relation_size(%s)"
            row = cursor.execute(size, [self._tables.items.as_string(cursor)]).fetchone()
        return int((row or (0,))[0])

    def _write_rows(self, copy: psycopg.Copy, batch: ItemBatch) -> None:
        bits = to_bit_strings(batch.codes, self.n_bits)
        for row in zip(batch.ids.tolist(), bits, batch.texts, strict=True):
            copy.write_row(row)

    def _known(self, ids: Ids) -> Ids:
        select: LiteralString = "SELECT id FROM {items} WHERE id = ANY (%s::bigint[])"
        with self._transaction() as cursor:
            rows = cursor.execute(self._tables.sql(select), [ids.tolist()]).fetchall()
        return np.array([number for (number,) in rows], np.int64)

    def _largest_id(self) -> int | None:
        with self._transaction() as cursor:
            row = cursor.execute(self._tables.sql("SELECT max(id) FROM {items}")).fetchone()
        return None if row is None or row[0] is None else int(row[0])

    def _delete(self, ids: Ids) -> int:
        with self._transaction() as cursor:
            cursor.execute(
                self._tables.sql("DELETE FROM {items} WHERE id = ANY (%s::bigint[])"),
                [ids.tolist()],
            )
            return cursor.rowcount

    def _get(self, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]:
        with self._transaction() as cursor:
            return self._tables.items_of(cursor, ids)

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
            for name in (self._tables.items, self._tables.about)
        ]
        there = [row is not None and row[0] is not None for row in exists]
        if not any(there):
            about = About.of_new(self.place, n_bits, model)
            self._tables = self._tables._replace(n_bits=about.n_bits)
            cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
            cursor.execute(self._tables.sql(_CREATE))
            cursor.execute(self._tables.sql(_CREATE_ABOUT))
            insert: LiteralString = "INSERT INTO {about} VALUES (%s, %s)"
            cursor.execute(self._tables.sql(insert), [about.n_bits, about.model])
        elif not all(there):
            raise StoreError(f"{self.place} is there, but was not made by antipodal")
        row = cursor.execute(self._tables.sql("SELECT n_bits, model FROM {about}")).fetchone()
        if row is None:
            raise StoreError(f"{self.place} does not say what codes it keeps: its about is empty")
        try:
            return About.of_header({"n_bits": row[0], "model": row[1]})
        except ValueError as error:
            raise StoreError(f"{self.place}: {error}") from None

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        try:
            connection = psycopg.connect(
                self._address.target, autocommit=True, application_name="antipodal"
            )
            connection.read_only = self._address.read_only or None
            return connection
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


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

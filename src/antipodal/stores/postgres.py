"""PostgreSQL store with pgvector."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, LiteralString

import numpy as np
import psycopg
from psycopg import IsolationLevel

from antipodal.codes import Codes, from_bit_strings, to_bit_strings
from antipodal.errors import StoreError
from antipodal.index import HammingIndex, SearchResult
from antipodal.index.asymmetric import Floats
from antipodal.stores.base import Store, StoreHeader
from antipodal.stores.filters import And, Where, postgres_condition
from antipodal.stores.index_cache import IndexCache
from antipodal.stores.items import (
    IdType,
    Keys,
    as_keys,
    assign_numbers,
    metadata_text,
    parse_metadata,
    with_keys,
)
from antipodal.stores.postgres_items import (
    HAS_ID,
    HAS_KEY,
    ITEMS,
    KEY,
    MAX_NAME,
    Cursor,
    PostgresItems,
    StoreTables,
    create_newer_tables,
    drop_newer_tables,
)
from antipodal.stores.snapshot import ItemBatch, Snapshot
from antipodal.stores.url import Address
from antipodal.validation import Ids, check_whole

# "bit" in quotes is a bit string of any length; without quotes it has one bit.
_SEARCH: LiteralString = """
SELECT id, (code <~> %s::"bit")::integer AS distance FROM {items} WHERE {condition}
ORDER BY distance, id LIMIT %s
"""
_RADIUS: LiteralString = """
SELECT id, distance FROM (
    SELECT id, (code <~> %s::"bit")::integer AS distance FROM {items} WHERE {condition}) AS item
WHERE distance <= %s ORDER BY distance, id
"""
_APPROXIMATE: LiteralString = """
SELECT id, distance::integer FROM (
    SELECT id, code <~> %s::"bit" AS distance FROM {items} WHERE {condition}
    ORDER BY distance LIMIT %s) AS hit
"""
# MATERIALIZED: convert each query and filter each item once, not for every pair.
_BATCH: LiteralString = """
WITH query AS MATERIALIZED (
    SELECT number, bits::bit({n_bits}) AS bits
    FROM unnest(%s::text[]) WITH ORDINALITY AS given (bits, number)),
matching AS MATERIALIZED (SELECT id, code FROM {items} WHERE {condition})
"""
_SEARCH_BATCH: LiteralString = (
    _BATCH
    + """
SELECT number, id, distance FROM query CROSS JOIN LATERAL (
    SELECT id, (code <~> bits)::integer AS distance FROM matching
    ORDER BY distance, id LIMIT %s) AS hit
ORDER BY number, distance, id
"""
)
_RADIUS_BATCH: LiteralString = (
    _BATCH
    + """
SELECT number, id, distance FROM query CROSS JOIN LATERAL (
    SELECT id, (code <~> bits)::integer AS distance FROM matching) AS item
WHERE distance <= %s ORDER BY number, distance, id
"""
)
_ROWS_AT_ONCE = 20_000
_LOCK_MILLISECONDS = 5_000  # to add triggers to a table in use
_MAX_EFFORT = 1000  # limit of pgvector


class PostgresSnapshot(Snapshot):
    """Snapshot of a store: one transaction."""

    def __init__(self, store: "PostgresStore", cursor: Cursor) -> None:
        self.place, self.n_bits, self.id_type = store.place, store.n_bits, store.id_type
        self._tables, self._cache, self._cursor = store._tables, store._cache, cursor
        self._indexed: tuple[HammingIndex, int] | None = None
        if self._cache.is_loaded:
            # Take the index now: a later search could not use a newer one.
            self._indexed = self._cache.index(cursor)
        else:
            cursor.execute("SELECT")  # the first statement takes the snapshot

    def batches(self) -> Iterator[ItemBatch]:
        """Yield all items in batches."""
        select = self._tables.sql(ITEMS + "ORDER BY id")
        with self._cursor.connection.cursor("batches", binary=True) as cursor:
            cursor.execute(select)
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                ids, bits, texts = zip(*rows, strict=True)
                codes = from_bit_strings(bits, self.n_bits)
                yield ItemBatch(np.array(ids, np.int64), codes, list(map(_normalized, texts)))

    def changes_since(self, version: int) -> tuple[int, Ids | None] | None:
        """Return the version of the items, and the ids changed since another version."""
        log = PostgresItems(self.place, self._tables)
        with suppress(StoreError), self._cursor.connection.transaction():  # it may have no log
            return log.version(self._cursor), log.changed_since(self._cursor, version)
        return None

    def _get(self, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]:
        return self._tables.items_of(self._cursor, ids)

    def _numbers_of(self, keys: Sequence[str]) -> dict[str, int]:
        return self._tables.numbers_of(self._cursor, keys)

    def _keys_of(self, ids: Ids) -> dict[int, str]:
        return self._tables.keys_of(self._cursor, ids)

    def kept_vectors(self, ids: Ids) -> dict[int, bytes]:
        """Return the stored vectors of items by integer id, without items that have none."""
        if not self._tables.has(self._cursor, "vectors"):
            return {}
        return self._tables.kept_vectors(self._cursor, ids)

    def _search(self, codes: Codes, k: int, where: Where | None) -> SearchResult:
        limit = min(k, 2**62)
        if where is not None and len(codes) > 1:
            return SearchResult.stack(self._query_batch(_SEARCH_BATCH, codes, limit, where))
        return SearchResult.stack(self._query_each(_SEARCH, codes, limit, where))

    def _search_approximate(self, codes: Codes, k: int, where: Where | None) -> SearchResult:
        """Search the HNSW graph; queries for which it returns fewer than k items are scanned."""
        if not self._tables.has_hnsw(self._cursor):
            raise StoreError(f"{self.place} has no approximate index: call prepare_approximate()")
        # For this transaction only: continue the scan if a filter removes too many items.
        self._cursor.execute("SET LOCAL hnsw.iterative_scan = relaxed_order")
        effort = str(min(max(128, 2 * k), _MAX_EFFORT))
        self._cursor.execute("SELECT set_config('hnsw.ef_search', %s, true)", [effort])
        results = self._query_each(_APPROXIMATE, codes, min(k, 2**62), where)
        short = [i for i, result in enumerate(results) if len(result.ids) < k]
        if short:
            exact = self._search(codes[short], k, where).by_query()
            for i, result in zip(short, exact, strict=True):
                results[i] = result
        return SearchResult.stack([result.sorted() for result in results])

    def _asymmetric(self, values: Floats, k: int, where: Where | None) -> SearchResult:
        """Search the index in memory, since PostgreSQL cannot compute scores."""
        if self._indexed is None:
            self._indexed = self._cache.index(self._cursor, may_restart=False)
        index, version = self._indexed
        allowed = None if where is None else self._cache.matching(self._cursor, version, where)
        return index.search(vectors=values, k=k, allowed=allowed)

    def _radius(self, codes: Codes, r: int, where: Where | None) -> SearchResult:
        if where is not None and len(codes) > 1:
            return SearchResult.concatenate(self._query_batch(_RADIUS_BATCH, codes, r, where))
        return SearchResult.concatenate(self._query_each(_RADIUS, codes, r, where))

    def _count(self, where: Where | None) -> int:
        condition, values = postgres_condition(where or And(()))
        query = self._tables.sql("SELECT count(*) FROM {items} WHERE {condition}", condition)
        row = self._cursor.execute(query, values).fetchone()
        return int((row or (0,))[0])

    def _query_each(
        self, query: LiteralString, codes: Codes, limit: int, where: Where | None
    ) -> list[SearchResult]:
        """Execute a statement for each query code."""
        if not len(codes):
            return []
        condition, parameters = postgres_condition(where or And(()))
        bits = to_bit_strings(codes, self.n_bits)
        values = [[text, *parameters, limit] for text in bits]
        self._cursor.executemany(self._tables.sql(query, condition), values, returning=True)
        results: list[SearchResult] = []
        while len(results) < len(codes):
            table = np.array(self._cursor.fetchall(), np.int64).reshape(-1, 2)
            results.append(SearchResult(table[:, 0], table[:, 1].astype(np.int32)))
            self._cursor.nextset()
        return results

    def _query_batch(
        self, query: LiteralString, codes: Codes, limit: int, where: Where
    ) -> list[SearchResult]:
        """Execute one statement for all query codes, which filters items only once."""
        condition, parameters = postgres_condition(where)
        values = [to_bit_strings(codes, self.n_bits), *parameters, limit]
        rows = self._cursor.execute(self._tables.sql(query, condition), values).fetchall()
        table = np.array(rows, np.int64).reshape(-1, 3)
        ends = np.searchsorted(table[:, 0], np.arange(1, len(codes) + 1), side="right")
        parts = np.split(table, ends[:-1])
        return [SearchResult(part[:, 1], part[:, 2].astype(np.int32)) for part in parts]


def _normalized(text: str) -> str:
    """Return metadata in the form of `metadata_texts`: jsonb writes large doubles in full."""
    return metadata_text(parse_metadata(text))


_CREATE: LiteralString = """
CREATE TABLE {items} (
    id bigint PRIMARY KEY, code bit({n_bits}) NOT NULL, metadata jsonb NOT NULL)
"""
_CREATE_ABOUT: LiteralString = (
    "CREATE TABLE {about} (n_bits integer NOT NULL, model text, id_type text NOT NULL)"
)
_CREATE_KEYS: tuple[LiteralString, ...] = (
    "ALTER TABLE {items} ADD CHECK (" + KEY + " IS NOT NULL)",
    "CREATE UNIQUE INDEX ON {items} (" + KEY + ")",
)
_INCOMING: LiteralString = """
CREATE TEMPORARY TABLE IF NOT EXISTS antipodal_{n_bits} (
    id bigint, code bit({n_bits}), metadata jsonb) ON COMMIT DELETE ROWS
"""
# Ordered by id, so that two writers lock common rows in the same order and cannot deadlock.
_INSERT: LiteralString = """
INSERT INTO {items} SELECT id, code, metadata FROM pg_temp.antipodal_{n_bits} ORDER BY id
ON CONFLICT (id) DO """
# xmax is 0 in a new row, and the id of this transaction in a row that it replaces.
_UPSERT: LiteralString = (
    "WITH written AS ("
    + _INSERT
    + """
UPDATE SET {assignments} RETURNING xmax <> 0 AS is_replaced)
SELECT count(*) FILTER (WHERE is_replaced) FROM written
"""
)
_ATTACH: LiteralString = """
INSERT INTO {attachments} VALUES (%s, %s, %s)
ON CONFLICT (name) DO UPDATE SET data = EXCLUDED.data, sha256 = EXCLUDED.sha256
"""
_ALL: LiteralString = "code = EXCLUDED.code, metadata = EXCLUDED.metadata"
_ALL_BUT_METADATA: LiteralString = "code = EXCLUDED.code"


class PostgresStore(Store):
    """Store in a table of PostgreSQL; each call uses an idle connection or opens one."""

    def __init__(
        self,
        address: Address,
        *,
        n_bits: int | None,
        model: str | None,
        id_type: IdType | None = None,
    ) -> None:
        self.place = address.shown
        self._address = address
        self._closed = False
        self._idle: SimpleQueue[psycopg.Connection[tuple[Any, ...]]] = SimpleQueue()
        try:
            with self._transaction() as cursor:
                schema, table = self._names(cursor, address.options)
                self._tables = StoreTables(schema, table)
                self.place = f"{address.shown}, table {schema}.{table}"
                header = self._open(cursor, n_bits, model, id_type)
            header.check(self.place, n_bits, model, id_type)
        except BaseException:
            self.close()
            raise
        self.n_bits, self.model, self.id_type = header.n_bits, header.model, header.id_type
        self._tables = self._tables._replace(n_bits=header.n_bits)
        self._cache = IndexCache(PostgresItems(self.place, self._tables))

    def close(self) -> None:
        """Close all connections, those in use when they are returned."""
        self._closed = True
        with suppress(Empty):
            while True:
                self._idle.get_nowait().close()

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Return a snapshot, which occupies a connection until it is closed."""
        with self._transaction(IsolationLevel.REPEATABLE_READ) as cursor:
            snapshot = PostgresSnapshot(self, cursor)
            try:
                yield snapshot
            finally:
                snapshot.is_closed = True

    def prepare_approximate(self, *, memory_mb: int | None = None) -> None:
        """Build an HNSW index over the codes: see `Store.prepare_approximate`."""
        if memory_mb is not None:
            check_whole(memory_mb, "memory_mb", 1)
        lock: LiteralString = "LOCK TABLE {items} IN SHARE UPDATE EXCLUSIVE MODE"
        create: LiteralString = "CREATE INDEX ON {items} USING hnsw (code bit_hamming_ops)"
        with self._transaction() as cursor:
            cursor.execute(self._tables.sql(lock))  # concurrent builds wait for each other
            if self._tables.has_hnsw(cursor):
                return
            if memory_mb is not None:
                memory = f"{memory_mb}MB"
                cursor.execute("SELECT set_config('maintenance_work_mem', %s, true)", [memory])
            cursor.execute(self._tables.sql(create))

    def _put(
        self,
        ids: Ids,
        codes: Codes,
        metadata: list[str] | None,
        *,
        replace: bool,
        vectors: Sequence[bytes] | None = None,
    ) -> int:
        texts = ["{}"] * len(ids) if metadata is None else metadata
        with self._transaction() as cursor:
            self._copy_in(cursor, ItemBatch(ids, codes, texts))
            if replace:
                n_replaced = self._upsert(cursor, keep_metadata=metadata is None)
            else:
                cursor.execute(self._tables.sql(_INSERT + "NOTHING"))
                if cursor.rowcount < len(ids):
                    raise psycopg.Rollback  # ends the block, nothing is stored
                n_replaced = 0
            self._put_vectors(cursor, ids, vectors)
            return n_replaced
        self._check_unused(self._known(ids))
        raise StoreError(f"{self.place}: items were deleted during the insertion. Try again")

    def _put_keyed(
        self,
        keys: Keys,
        codes: Codes,
        metadata: list[str] | None,
        *,
        replace: bool,
        vectors: Sequence[bytes] | None = None,
    ) -> int:
        texts = with_keys(["{}"] * len(keys), keys) if metadata is None else metadata
        with self._transaction() as cursor:
            self._tables.lock(cursor)
            known = self._tables.numbers_of(cursor, keys.tolist())
            if not replace:
                self._check_unused(as_keys(known))
            ids = assign_numbers(keys, known, self._tables.largest_id(cursor))
            self._copy_in(cursor, ItemBatch(ids, codes, texts))
            self._upsert(cursor, keep_metadata=metadata is None)
            self._put_vectors(cursor, ids, vectors)
        return len(known)

    def _copy_in(self, cursor: Cursor, batch: ItemBatch) -> None:
        """Copy items to a temporary table."""
        cursor.execute(self._tables.sql(_INCOMING))
        copy_in: LiteralString = "COPY pg_temp.antipodal_{n_bits} FROM STDIN"
        with cursor.copy(self._tables.sql(copy_in)) as copy:
            self._write_rows(copy, batch)

    def _upsert(self, cursor: Cursor, *, keep_metadata: bool) -> int:
        """Store the items of the temporary table, and return the number of replaced items."""
        assignments = _ALL_BUT_METADATA if keep_metadata else _ALL
        upsert = self._tables.sql(_UPSERT.replace("{assignments}", assignments))
        return int((cursor.execute(upsert).fetchone() or (0,))[0])

    def _put_vectors(self, cursor: Cursor, ids: Ids, vectors: Sequence[bytes] | None) -> None:
        """Write the vectors of stored items; a trigger has deleted those of replaced items."""
        if vectors is not None:
            self._check_newer_table(cursor, "vectors")
            self._tables.put_vectors(cursor, ids, vectors)

    def _check_newer_table(self, cursor: Cursor, suffix: str) -> None:
        if not self._tables.has(cursor, suffix):
            raise StoreError(
                f"{self.place} has no table of {suffix}: it was created by version 0.7 or older. "
                "Open it once as a user who may create tables and triggers"
            )

    def read_attachment(self, name: str) -> bytes | None:
        """Return the bytes stored under a name, or None."""
        select: LiteralString = "SELECT data, sha256 FROM {attachments} WHERE name = %s"
        with self._transaction() as cursor:
            if not self._tables.has(cursor, "attachments"):
                return None
            row = cursor.execute(self._tables.sql(select), [name]).fetchone()
        if row is None:
            return None
        if hashlib.sha256(row[0]).hexdigest() != row[1]:
            raise StoreError(f"{self.place}: its attachment {name!r} does not match its checksum")
        return bytes(row[0])

    def _write_attachments(self, parts: Mapping[str, bytes], *, replace: bool) -> None:
        select: LiteralString = "SELECT name FROM {attachments} WHERE name = ANY (%s::text[])"
        with self._transaction() as cursor:
            self._check_newer_table(cursor, "attachments")
            self._tables.lock(cursor)
            if not replace:
                rows = cursor.execute(self._tables.sql(select), [[*parts]]).fetchall()
                self._check_names_unused([name for (name,) in rows])
            for name, data in parts.items():
                values = [name, data, hashlib.sha256(data).hexdigest()]
                cursor.execute(self._tables.sql(_ATTACH), values)

    def _replace_all(self, batches: Iterator[ItemBatch]) -> None:
        with self._transaction() as cursor:
            # Other writers wait; readers continue to see the old items.
            cursor.execute(self._tables.sql("LOCK TABLE {items} IN EXCLUSIVE MODE"))
            cursor.execute(self._tables.sql("DELETE FROM {items}"))
            for batch in batches:
                with cursor.copy(self._tables.sql("COPY {items} FROM STDIN")) as copy:
                    self._write_rows(copy, batch)
                if batch.vectors:
                    self._put_vectors(cursor, *batch.kept())

    def _drop(self) -> None:
        with self._transaction() as cursor:
            cursor.execute(self._tables.sql("DROP TABLE {items}, {about}"))
            drop_newer_tables(self._tables, cursor)

    def vacuum(self) -> tuple[int, int]:
        """Make the space of deleted items reusable; return the bytes of the table before and after.

        It runs VACUUM ANALYZE, during which other clients can read and write.
        """
        before = self._n_bytes()
        with self._connected() as connection:  # VACUUM cannot run in a transaction
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
        select: LiteralString = "SELECT id FROM {items} WHERE " + HAS_ID
        with self._transaction() as cursor:
            rows = cursor.execute(self._tables.sql(select), [ids.tolist()]).fetchall()
        return np.array([number for (number,) in rows], np.int64)

    def _largest_id(self) -> int | None:
        with self._transaction() as cursor:
            return self._tables.largest_id(cursor)

    def _numbers_of(self, keys: Sequence[str]) -> dict[str, int]:
        with self._transaction() as cursor:
            return self._tables.numbers_of(cursor, keys)

    def _delete(self, ids: Ids) -> int:
        return self._delete_where(HAS_ID, ids.tolist())

    def _delete_keyed(self, keys: Keys) -> int:
        return self._delete_where(HAS_KEY, keys.tolist())

    def _delete_where(self, condition: LiteralString, values: list[Any]) -> int:
        delete = self._tables.sql("DELETE FROM {items} WHERE {condition}", condition)
        with self._transaction() as cursor:
            return cursor.execute(delete, [values]).rowcount

    def _get(self, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]:
        with self._transaction() as cursor:
            return self._tables.items_of(cursor, ids)

    # ------------------------------------------------------------------------- connections

    def _names(self, cursor: Cursor, options: dict[str, str]) -> tuple[str, str]:
        schema, table = options.get("schema"), options.get("table", "codes")
        if schema is None:
            row = cursor.execute("SELECT current_schema()").fetchone()
            schema = row[0] if row else None
        if not schema:
            raise StoreError(f"{self.place} has no default schema: add ?schema=name")
        for name in (schema, table):
            # psycopg quotes names, but interprets % as a placeholder.
            if not 0 < len(name.encode()) <= MAX_NAME or "\0" in name or "%" in name:
                raise ValueError(
                    f"names of schemas and tables must have 1 to {MAX_NAME} bytes "
                    f"and no %: got {name!r}"
                )
        return schema, table

    def _open(
        self, cursor: Cursor, n_bits: int | None, model: str | None, id_type: IdType | None
    ) -> StoreHeader:
        """Read the header of the store, or create the store."""
        # Locked, since two clients that find no table would both create it.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('antipodal'))")
        exists = [
            cursor.execute("SELECT to_regclass(%s)", [name.as_string(cursor)]).fetchone()
            for name in (self._tables.items, self._tables.named("about"))
        ]
        found = [row is not None and row[0] is not None for row in exists]
        if not any(found):
            header = StoreHeader.new(self.place, n_bits, model, id_type)
            self._tables = self._tables._replace(n_bits=header.n_bits)
            cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
            cursor.execute(self._tables.sql(_CREATE))
            cursor.execute(self._tables.sql(_CREATE_ABOUT))
            insert: LiteralString = "INSERT INTO {about} VALUES (%s, %s, %s)"
            values = [header.n_bits, header.model, header.id_type]
            cursor.execute(self._tables.sql(insert), values)
            if header.id_type == "string":
                for statement in _CREATE_KEYS:
                    cursor.execute(self._tables.sql(statement))
            create_newer_tables(self._tables, cursor)
        elif not all(found):
            raise StoreError(f"{self.place} exists, but was not created by antipodal")
        else:
            self._add_newer_tables(cursor)
        select: LiteralString = "SELECT to_jsonb(header) FROM {about} AS header"  # any columns
        row = cursor.execute(self._tables.sql(select)).fetchone()
        if row is None:
            raise StoreError(f"{self.place} has no header: its table of properties is empty")
        try:
            return StoreHeader.from_json(row[0])
        except ValueError as error:
            raise StoreError(f"{self.place}: {error}") from None

    def _add_newer_tables(self, cursor: Cursor) -> None:
        """Add the tables and triggers that stores of version 0.7 lack, if permitted."""
        not_now = (
            psycopg.errors.ReadOnlySqlTransaction,
            psycopg.errors.LockNotAvailable,
            psycopg.ProgrammingError,  # no permission, or a foreign table of that name
        )
        with suppress(*not_now), cursor.connection.transaction():
            cursor.execute(f"SET LOCAL lock_timeout = {_LOCK_MILLISECONDS}")
            create_newer_tables(self._tables, cursor)

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        try:
            connection = psycopg.connect(
                self._address.target, autocommit=True, application_name="antipodal"
            )
            connection.read_only = self._address.read_only or None
            return connection
        except (psycopg.Error, ValueError) as error:
            # Not "from error": the original message may contain a password.
            message = self._address.without_secrets(_first_line(error))
            raise StoreError(f"cannot connect to {self.place}: {message}") from None

    @contextmanager
    def _transaction(self, level: IsolationLevel | None = None) -> Iterator[Cursor]:
        """Return a cursor in a transaction, on a new connection if the last one was lost."""
        with self._connected() as connection:
            connection.isolation_level = level
            with connection.transaction(), connection.cursor(binary=True) as cursor:
                yield cursor

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """Return a connection for use by one thread."""
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

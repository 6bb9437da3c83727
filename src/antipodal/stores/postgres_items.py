"""Tables of a PostgreSQL store: items, kept vectors, attachments and the log of changes.

Triggers record the ids that each statement changes, so that the in-memory index of every process
follows all writers, psql included. A writer holds an advisory lock from its first statement until
it commits. Versions are therefore in the order of commits, and a snapshot that contains a version
contains all earlier ones.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, LiteralString, NamedTuple, TypeAlias

import numpy as np
import psycopg
from psycopg import sql

from antipodal.codes import Codes, code_width, from_bit_strings, from_bytes
from antipodal.errors import StoreError
from antipodal.stores.filters import Where, postgres_condition
from antipodal.stores.items import ID_FIELD, parse_metadata
from antipodal.validation import Ids

Cursor: TypeAlias = psycopg.Cursor[tuple[Any, ...]]

_LONGEST_NAME = 63  # PostgreSQL silently truncates longer names
MAX_NAME = _LONGEST_NAME - len("_about")

ITEMS: LiteralString = "SELECT id, code::text, metadata::text FROM {items} "
KEY: LiteralString = f"(metadata ->> '{ID_FIELD}')"
HAS_KEY: LiteralString = KEY + " = ANY (%s::text[])"
HAS_ID: LiteralString = "id = ANY (%s::bigint[])"
_HAS_HNSW: LiteralString = """
SELECT EXISTS (
    SELECT FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam
    WHERE indrelid = to_regclass(%s) AND amname = 'hnsw' AND indisvalid)
"""


class StoreTables(NamedTuple):
    """Names of the tables of a store, for SQL statements."""

    schema: str
    table: str
    n_bits: int = 0  # not yet known

    @property
    def items(self) -> sql.Identifier:
        """The table of the items."""
        return sql.Identifier(self.schema, self.table)

    def named(self, suffix: str, *column: str) -> sql.Identifier:
        """Return the name of another object of the store, which is hashed if it is too long."""
        name = f"{self.table}_{suffix}"
        if len(name.encode()) > _LONGEST_NAME:
            name = f"antipodal_{blake2b(self.table.encode(), digest_size=12).hexdigest()}_{suffix}"
        return sql.Identifier(self.schema, name, *column)

    def sql(self, text: LiteralString, condition: LiteralString = "TRUE") -> sql.Composed:
        """Return a statement with its {names} filled in."""
        return sql.SQL(text).format(
            items=self.items,
            about=self.named("about"),
            changes=self.named("changes"),
            vectors=self.named("vectors"),
            attachments=self.named("attachments"),
            n_bits=sql.SQL(str(int(self.n_bits))),  # digits only
            condition=sql.SQL(condition),
        )

    def has_hnsw(self, cursor: Cursor) -> bool:
        """Return whether the items have an approximate index."""
        row = cursor.execute(_HAS_HNSW, [self.items.as_string(cursor)]).fetchone()
        return bool(row and row[0])

    def items_of(self, cursor: Cursor, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]:
        """Return the code and metadata of each known id."""
        rows = cursor.execute(self.sql(ITEMS + "WHERE " + HAS_ID), [ids.tolist()]).fetchall()
        codes = from_bit_strings([row[1] for row in rows], self.n_bits)
        return {
            number: (code.tobytes(), parse_metadata(text))
            for (number, _, text), code in zip(rows, codes, strict=True)
        }

    def lock(self, cursor: Cursor) -> None:
        """Wait for other writers, as the triggers do, until the end of the transaction."""
        cursor.execute(self.sql("LOCK TABLE {items} IN ROW EXCLUSIVE MODE"))  # as a write does
        lock: LiteralString = (
            "SELECT pg_advisory_xact_lock(hashtext('antipodal'), to_regclass(%s)::oid::integer)"
        )
        cursor.execute(lock, [self.items.as_string(cursor)])

    def numbers_of(self, cursor: Cursor, keys: Sequence[str]) -> dict[str, int]:
        """Return the integer ids of the existing string ids."""
        select = self.sql(
            "SELECT " + KEY + ", id FROM {items} WHERE " + KEY + " = ANY (%s::text[])"
        )
        return dict(cursor.execute(select, [list(keys)]).fetchall())

    def keys_of(self, cursor: Cursor, ids: Ids) -> dict[int, str]:
        """Return the string ids of items by integer id."""
        select = self.sql("SELECT id, " + KEY + " FROM {items} WHERE " + HAS_ID)
        return dict(cursor.execute(select, [ids.tolist()]).fetchall())

    def largest_id(self, cursor: Cursor) -> int | None:
        """Return the largest integer id."""
        row = cursor.execute(self.sql("SELECT max(id) FROM {items}")).fetchone()
        return None if row is None or row[0] is None else int(row[0])

    def has(self, cursor: Cursor, suffix: str) -> bool:
        """Return whether the store has a table that was added after version 0.7."""
        name = self.named(suffix).as_string(cursor)
        row = cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [name]).fetchone()
        return bool(row and row[0])

    def put_vectors(self, cursor: Cursor, ids: Ids, vectors: Sequence[bytes]) -> None:
        """Write the vectors of items."""
        cursor.execute(self.sql("DELETE FROM {vectors} WHERE " + HAS_ID), [ids.tolist()])
        with cursor.copy(self.sql("COPY {vectors} FROM STDIN (FORMAT BINARY)")) as copy:
            copy.set_types(["int8", "bytea"])
            for row in zip(ids.tolist(), vectors, strict=True):
                copy.write_row(row)

    def kept_vectors(self, cursor: Cursor, ids: Ids) -> dict[int, bytes]:
        """Return the vectors of items by id."""
        select = self.sql("SELECT id, vector FROM {vectors} WHERE " + HAS_ID)
        return dict(cursor.execute(select, [ids.tolist()]).fetchall())


_CREATE_NEWER_TABLES: tuple[LiteralString, ...] = (
    "CREATE TABLE IF NOT EXISTS {vectors} (id bigint PRIMARY KEY, vector bytea NOT NULL)",
    "CREATE TABLE IF NOT EXISTS {attachments} "
    "(name text PRIMARY KEY, data bytea NOT NULL, sha256 text NOT NULL)",
)
_CREATE_LOG: LiteralString = """
CREATE TABLE IF NOT EXISTS {changes} (
    version bigint PRIMARY KEY, total bigint NOT NULL, ids bigint[] NOT NULL)
"""
_CREATE_VERSIONS: LiteralString = "CREATE SEQUENCE IF NOT EXISTS {versions} OWNED BY {column}"
# Random low bits, so that another store, or a restored one, does not repeat a version.
_NEW_VERSION: LiteralString = "(nextval({versions_name}) << 20) + floor(random() * 1048576)::bigint"
_START_LOG: LiteralString = (
    "WITH old AS (DELETE FROM {changes}) INSERT INTO {changes} "
    "SELECT " + _NEW_VERSION + ", 0, ARRAY[]::bigint[]"
)
# The lock is taken before a statement locks rows, so that writers cannot deadlock. Under REPEATABLE
# READ the snapshot may be outdated: versions therefore come from a sequence, and old versions are
# then not deleted.
_RECORD: LiteralString = (
    """
DECLARE
    n_changed bigint;
    changed_ids bigint[];
    new_version bigint;
    new_total bigint;
BEGIN
    IF TG_WHEN = 'BEFORE' THEN
        PERFORM pg_advisory_xact_lock(hashtext('antipodal'), TG_RELID::integer);
        RETURN NULL;
    END IF;
    IF TG_OP <> 'TRUNCATE' THEN
        SELECT count(*) INTO n_changed FROM changed;
    END IF;
    IF n_changed = 0 THEN
        RETURN NULL;
    ELSIF TG_OP = 'TRUNCATE' THEN
        DELETE FROM {vectors};
    ELSIF TG_OP <> 'INSERT' THEN
        DELETE FROM {vectors} WHERE id IN (SELECT id FROM changed);
    END IF;
    IF TG_OP = 'TRUNCATE' OR n_changed > {kept_ids} THEN
        """
    + _START_LOG
    + """;
        RETURN NULL;
    ELSIF TG_OP = 'UPDATE' THEN
        SELECT array_agg(id) INTO changed_ids FROM (
            SELECT id FROM changed UNION SELECT id FROM changed_to) AS item;
    ELSE
        SELECT array_agg(id) INTO changed_ids FROM changed;
    END IF;
    new_version := """
    + _NEW_VERSION
    + """;
    SELECT total + cardinality(changed_ids) INTO new_total
    FROM {changes} ORDER BY version DESC LIMIT 1;
    INSERT INTO {changes} VALUES (new_version, coalesce(new_total, 0), changed_ids);
    IF current_setting('transaction_isolation') = 'read committed' THEN
        DELETE FROM {changes} WHERE version < new_version AND (
            total <= new_total - {kept_ids} OR version <= (SELECT version FROM {changes}
                ORDER BY version DESC LIMIT 1 OFFSET {kept_versions}));
    END IF;
    RETURN NULL;
END
"""
)
_CREATE_RECORD: LiteralString = """
CREATE OR REPLACE FUNCTION {record}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS {body}
"""
_TRIGGERS: tuple[LiteralString, ...] = (
    "antipodal_lock BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {items}",
    "antipodal_insert AFTER INSERT ON {items} REFERENCING NEW TABLE AS changed",
    "antipodal_update AFTER UPDATE ON {items} "
    "REFERENCING OLD TABLE AS changed NEW TABLE AS changed_to",
    "antipodal_delete AFTER DELETE ON {items} REFERENCING OLD TABLE AS changed",
    "antipodal_truncate AFTER TRUNCATE ON {items}",
)
_HAS_TRIGGERS: LiteralString = """
SELECT FROM pg_trigger WHERE tgrelid = to_regclass(%s) AND tgname = 'antipodal_truncate'
"""
_KEPT_VERSIONS, _KEPT_IDS = 1_000, 1_000_000  # length of the log


def create_newer_tables(tables: StoreTables, cursor: Cursor) -> None:
    """Create the tables that stores of version 0.7 or older do not have, and the triggers."""
    if cursor.execute(_HAS_TRIGGERS, [tables.items.as_string(cursor)]).fetchone() is not None:
        return
    versions = tables.named("versions")
    names = {
        "items": tables.items,
        "vectors": tables.named("vectors"),
        "attachments": tables.named("attachments"),
        "changes": tables.named("changes"),
        "column": tables.named("changes", "version"),
        "versions": versions,
        "versions_name": sql.Literal(versions.as_string(cursor)),
        "record": tables.named("record"),
        "kept_ids": sql.Literal(_KEPT_IDS),
        "kept_versions": sql.Literal(_KEPT_VERSIONS),
    }
    body = sql.Literal(sql.SQL(_RECORD).format(**names).as_string(cursor))
    statements = (*_CREATE_NEWER_TABLES, _CREATE_LOG, _CREATE_VERSIONS, _START_LOG, _CREATE_RECORD)
    for statement in statements:
        cursor.execute(sql.SQL(statement).format(**names, body=body))
    for trigger in _TRIGGERS:
        text: LiteralString = (
            "CREATE TRIGGER " + trigger + " FOR EACH STATEMENT EXECUTE FUNCTION {record}()"
        )
        cursor.execute(sql.SQL(text).format(**names))


def drop_newer_tables(tables: StoreTables, cursor: Cursor) -> None:
    """Drop the objects of `create_newer_tables`; the triggers are dropped with the items."""
    names = (tables.named(suffix) for suffix in ("changes", "vectors", "attachments"))
    drop: LiteralString = "DROP TABLE IF EXISTS {names}"
    cursor.execute(sql.SQL(drop).format(names=sql.SQL(", ").join(names)))
    function: LiteralString = "DROP FUNCTION IF EXISTS {record}"
    cursor.execute(sql.SQL(function).format(record=tables.named("record")))


_COPY_HEADER = 19  # bytes before the first row
_BYTES_AT_ONCE = 2**22


class PostgresItems:
    """The items of a store and their versions, for `IndexCache`."""

    def __init__(self, place: str, tables: StoreTables) -> None:
        self.n_bits = tables.n_bits
        self._place, self._tables = place, tables
        # A row of COPY … (FORMAT BINARY): the number of columns, and the length of each.
        self._row = np.dtype(
            [
                ("n_columns", ">i2"),
                ("id_length", ">i4"),
                ("id", ">i8"),
                ("code_length", ">i4"),
                ("n_bits", ">i4"),
                ("code", "u1", (code_width(self.n_bits),)),
            ]
        )

    def restart(self, cursor: Cursor) -> None:
        """End the transaction and begin a new one of the same isolation level."""
        cursor.execute("ROLLBACK AND CHAIN")

    def version(self, cursor: Cursor) -> int:
        """Return the last version in the log, or raise StoreError if it cannot be read."""
        try:
            select: LiteralString = "SELECT max(version) FROM {changes}"
            row = cursor.execute(self._tables.sql(select)).fetchone()
        except psycopg.errors.InsufficientPrivilege:
            raise StoreError(
                f"{self._place}: asymmetric search needs the log of changes, which this user may "
                f"not read. Grant SELECT on {self._log_name(cursor)}"
            ) from None
        except psycopg.ProgrammingError:
            row = None
        if row is None or row[0] is None:
            raise StoreError(
                f"{self._place}: asymmetric search needs the log of changes "
                f"{self._log_name(cursor)}, which does not exist. Open the store once as a user "
                "who may create tables and triggers"
            )
        return int(row[0])

    def _log_name(self, cursor: Cursor) -> str:
        return self._tables.named("changes").as_string(cursor)

    def changed_since(self, cursor: Cursor, version: int) -> Ids | None:
        """Return the ids changed since a version, or None if the log does not reach back to it."""
        select: LiteralString = (
            "SELECT version, ids FROM {changes} WHERE version >= %s ORDER BY version"
        )
        rows = cursor.execute(self._tables.sql(select), [version]).fetchall()
        if not rows or rows[0][0] != version:
            return None
        return np.unique(np.array([number for _, ids in rows[1:] for number in ids], np.int64))

    def all(self, cursor: Cursor) -> Iterator[tuple[Ids, Codes]]:
        """Yield all ids and codes in blocks."""
        copy_out: LiteralString = "COPY (SELECT id, code FROM {items}) TO STDOUT (FORMAT BINARY)"
        with cursor.copy(self._tables.sql(copy_out)) as copy:
            data = bytearray()
            is_first = True
            for part in copy:
                data += part
                if is_first and len(data) >= _COPY_HEADER:
                    del data[:_COPY_HEADER]
                    is_first = False
                if len(data) >= _BYTES_AT_ONCE:
                    yield self._rows(data)
            yield self._rows(data)

    def _rows(self, data: bytearray) -> tuple[Ids, Codes]:
        """Remove complete rows from the data of COPY, and return their ids and codes."""
        n_rows = len(data) // self._row.itemsize
        rows = np.frombuffer(bytes(data), self._row, n_rows)
        del data[: rows.nbytes]
        return rows["id"].astype(np.int64), np.ascontiguousarray(rows["code"])

    def among(self, cursor: Cursor, ids: Ids) -> Iterator[tuple[Ids, Codes]]:
        """Yield those of the given ids that exist, and their codes."""
        select: LiteralString = (
            "SELECT id, substring(bit_send(code) FROM 5) FROM {items} WHERE " + HAS_ID
        )
        rows = cursor.execute(self._tables.sql(select), [ids.tolist()]).fetchall()
        if rows:
            numbers, codes = zip(*rows, strict=True)
            yield np.array(numbers, np.int64), from_bytes(codes, self.n_bits)

    def matching(self, cursor: Cursor, where: Where, among: Ids | None = None) -> Ids:
        """Return the ids that match a filter, increasing, among all items or among some."""
        condition, values = postgres_condition(where)
        if among is not None:
            condition, values = f"({condition}) AND {HAS_ID}", [*values, among.tolist()]
        select = self._tables.sql("SELECT id FROM {items} WHERE {condition} ORDER BY id", condition)
        return np.array([number for (number,) in cursor.execute(select, values)], np.int64)

"""What a store in PostgreSQL answers, as one transaction sees it.

Each query is a statement of its own, which the server may scan the table for with several
processes at once; they go out together. Only where several queries share a filter are they one
statement, in which every item is filtered once.

A search is exact: an approximate index on the table is not used, because it is the cast of the
distance that is sorted by, which no index knows. It is asked with ``exact=False`` alone.
"""

from collections.abc import Iterator
from typing import Any, LiteralString, NamedTuple, TypeAlias

import numpy as np
import psycopg
from psycopg import sql

from antipodal.checks import Ids
from antipodal.codes import Codes, from_bit_strings, to_bit_strings
from antipodal.errors import StoreError
from antipodal.index import Ball, Neighbours
from antipodal.stores.dialects import postgres_condition
from antipodal.stores.hits import ItemHits, by_distance_and_id, nearest, within
from antipodal.stores.metadata import metadata_text, parse_metadata
from antipodal.stores.snapshot import ItemBatch, Snapshot
from antipodal.stores.where import And, Where

# "bit" in quotes is a bit string of any length, without them one of a single bit.
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
# MATERIALIZED: a query becomes bits once, and an item is filtered once, not for every pair of them.
_TOGETHER: LiteralString = """
WITH query AS MATERIALIZED (
    SELECT place, bits::bit({n_bits}) AS bits
    FROM unnest(%s::text[]) WITH ORDINALITY AS given (bits, place)),
passing AS MATERIALIZED (SELECT id, code FROM {items} WHERE {condition})
"""
_SEARCH_TOGETHER: LiteralString = (
    _TOGETHER
    + """
SELECT place, id, distance FROM query CROSS JOIN LATERAL (
    SELECT id, (code <~> bits)::integer AS distance FROM passing
    ORDER BY distance, id LIMIT %s) AS hit
ORDER BY place, distance, id
"""
)
_RADIUS_TOGETHER: LiteralString = (
    _TOGETHER
    + """
SELECT place, id, distance FROM query CROSS JOIN LATERAL (
    SELECT id, (code <~> bits)::integer AS distance FROM passing) AS item
WHERE distance <= %s ORDER BY place, distance, id
"""
)
_ITEMS: LiteralString = "SELECT id, code::text, metadata::text FROM {items} "
_HAS_HNSW: LiteralString = """
SELECT EXISTS (
    SELECT FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam
    WHERE indrelid = to_regclass(%s) AND amname = 'hnsw' AND indisvalid)
"""
_ROWS_AT_ONCE = 20_000
_MAX_EFFORT = 1000  # that pgvector takes

Cursor: TypeAlias = psycopg.Cursor[tuple[Any, ...]]


class StoreTables(NamedTuple):
    """The two tables of a store, to be named in statements."""

    items: sql.Identifier
    about: sql.Identifier
    n_bits: int = 0  # not known yet

    def sql(self, text: LiteralString, condition: LiteralString = "TRUE") -> sql.Composed:
        """Return a statement with its {names}."""
        return sql.SQL(text).format(
            items=self.items,
            about=self.about,
            n_bits=sql.SQL(str(int(self.n_bits))),  # digits only
            condition=sql.SQL(condition),
        )

    def has_hnsw(self, cursor: Cursor) -> bool:
        """Return whether there is an approximate index on the items."""
        row = cursor.execute(_HAS_HNSW, [self.items.as_string(cursor)]).fetchone()
        return bool(row and row[0])

    def items_of(self, cursor: Cursor, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]:
        """Return code and metadata of each id that is there."""
        select = self.sql(_ITEMS + "WHERE id = ANY (%s::bigint[])")
        rows = cursor.execute(select, [ids.tolist()]).fetchall()
        codes = from_bit_strings([row[1] for row in rows], self.n_bits)
        return {
            number: (code.tobytes(), parse_metadata(text))
            for (number, _, text), code in zip(rows, codes, strict=True)
        }


class PostgresSnapshot(Snapshot):
    """A store as one transaction sees it."""

    def __init__(self, place: str, tables: StoreTables, cursor: Cursor) -> None:
        self.place, self.n_bits = place, tables.n_bits
        self._tables, self._cursor = tables, cursor

    def batches(self) -> Iterator[ItemBatch]:
        """Yield all items, some at a time."""
        select = self._tables.sql(_ITEMS + "ORDER BY id")
        with self._cursor.connection.cursor("batches", binary=True) as cursor:
            cursor.execute(select)
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                ids, bits, texts = zip(*rows, strict=True)
                codes = from_bit_strings(bits, self.n_bits)
                yield ItemBatch(np.array(ids, np.int64), codes, list(map(_as_kept, texts)))

    def _get(self, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]:
        return self._tables.items_of(self._cursor, ids)

    def _search(self, codes: Codes, k: int, where: Where | None) -> Neighbours:
        limit = min(k, 2**62)
        if where is not None and len(codes) > 1:
            return nearest(self._hits_together(_SEARCH_TOGETHER, codes, limit, where))
        return nearest(self._hits(_SEARCH, codes, limit, where))

    def _search_approximately(self, codes: Codes, k: int, where: Where | None) -> Neighbours:
        """Follow the graph; where it leads to fewer than k items, look at all of them."""
        if not self._tables.has_hnsw(self._cursor):
            raise StoreError(
                f"{self.place} has no approximate index: make it by prepare_approximate()"
            )
        # Of these transactions alone: look on while a filter lets too few through.
        self._cursor.execute("SET LOCAL hnsw.iterative_scan = relaxed_order")
        effort = str(min(max(128, 2 * k), _MAX_EFFORT))
        self._cursor.execute("SELECT set_config('hnsw.ef_search', %s, true)", [effort])
        hits = self._hits(_APPROXIMATE, codes, min(k, 2**62), where)
        short = [place for place, (ids, _) in enumerate(hits) if len(ids) < k]
        if short:
            exact = self._search(codes[short], k, where)
            for place, ids, distances in zip(short, exact.ids, exact.distances, strict=True):
                hits[place] = ids, distances
        return nearest([by_distance_and_id(*hit) for hit in hits])

    def _radius(self, codes: Codes, r: int, where: Where | None) -> Ball:
        if where is not None and len(codes) > 1:
            return within(self._hits_together(_RADIUS_TOGETHER, codes, r, where))
        return within(self._hits(_RADIUS, codes, r, where))

    def _count(self, where: Where | None) -> int:
        condition, values = postgres_condition(where or And(()))
        query = self._tables.sql("SELECT count(*) FROM {items} WHERE {condition}", condition)
        row = self._cursor.execute(query, values).fetchone()
        return int((row or (0,))[0])

    def _hits(self, query: LiteralString, codes: Codes, last: int, where: Where | None) -> ItemHits:
        """Ask for each query by itself."""
        if not len(codes):
            return []
        condition, parameters = postgres_condition(where or And(()))
        bits = to_bit_strings(codes, self.n_bits)
        values = [[text, *parameters, last] for text in bits]
        self._cursor.executemany(self._tables.sql(query, condition), values, returning=True)
        hits: ItemHits = []
        while len(hits) < len(codes):
            table = np.array(self._cursor.fetchall(), np.int64).reshape(-1, 2)
            hits.append((table[:, 0], table[:, 1].astype(np.int32)))
            self._cursor.nextset()
        return hits

    def _hits_together(
        self, query: LiteralString, codes: Codes, last: int, where: Where
    ) -> ItemHits:
        """Ask for all queries at once among the items that pass."""
        condition, parameters = postgres_condition(where)
        values = [to_bit_strings(codes, self.n_bits), *parameters, last]
        rows = self._cursor.execute(self._tables.sql(query, condition), values).fetchall()
        table = np.array(rows, np.int64).reshape(-1, 3)
        ends = np.searchsorted(table[:, 0], np.arange(1, len(codes) + 1), side="right")
        parts = np.split(table, ends[:-1])
        return [(part[:, 1], part[:, 2].astype(np.int32)) for part in parts]


def _as_kept(text: str) -> str:
    """Return metadata as `metadata_texts` writes them: jsonb writes large doubles in full."""
    return metadata_text(parse_metadata(text))

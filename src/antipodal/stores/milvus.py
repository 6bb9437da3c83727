"""A store in Milvus, embedded (Milvus Lite) or on a server: BIN_FLAT, which is exact.

Milvus cuts ties at the k-th place as it likes, gives at most 16,384 hits a query, and has no
filter that treats missing fields and types as `where` does. So the store asks again: for all items
at the distance of the cut, for halves of what was too much, and for the metadata of what a filter
may let through. Each is a call of its own: a write between two calls may be seen by the second.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pymilvus import DataType, MilvusClient
from pymilvus.exceptions import MilvusException

from antipodal.codes import Codes, code_width, from_bytes, to_bytes
from antipodal.errors import StoreError
from antipodal.index import Ball, Neighbours
from antipodal.index.scan import Distances
from antipodal.stores.base import About, Store
from antipodal.stores.filters import Where, matches, milvus_narrowing
from antipodal.stores.loading import batches
from antipodal.stores.metadata import clean, metadata_text
from antipodal.stores.results import ItemHits, by_distance_and_id, nearest, within
from antipodal.stores.snapshot import ItemBatch, Snapshot
from antipodal.stores.url import Address
from antipodal.validation import MAX_ID, Ids

MAX_HITS = 16_384  # a query may have, in every version of Milvus
_MAX_ANSWERS = 500_000  # hits of all queries of a call: answers beyond 64 MB are refused
_BATCH = 5_000  # rows in one message to the server
_MAX_IDS = 8_000  # ids written into one expression
_LEAST = -(2**63)
_IS_LEAST = f"id < {_LEAST + 1}"  # Milvus reads the sign last, and cannot read 2^63 before it
# The client asks every 10 s whether the server is still there. Milvus Lite takes that for an attack
# and hangs up after some idle seconds; a call at that moment fails.
_NO_PINGS = {"grpc.keepalive_time_ms": 2**31 - 1}


class MilvusStore(Store, Snapshot):
    """Items in a collection of Milvus, which has no snapshots: each call sees what is there."""

    def __init__(self, address: Address, *, n_bits: int | None, model: str | None) -> None:
        self._collection = address.options.get("collection", "codes")
        self.place = f"{address.shown}, collection {self._collection}"
        self._is_server = address.scheme != "milvus"
        if not self._is_server and not address.target.endswith(".db"):
            raise ValueError(f"the file of Milvus Lite must end in .db: got {address.target!r}")
        if not self._is_server and not Path(address.target).exists():
            About.of_new(self.place, n_bits, model)  # before the client makes the file
        self._address = address
        self._client: MilvusClient | None = None
        with self._errors():
            self._client = connect(address)
        try:
            about = self._open(n_bits, model)
            about.agree(self.place, n_bits, model)
        except BaseException:
            self.close()
            raise
        self.n_bits, self.model = about.n_bits, about.model

    def own_files(self) -> list[Path]:
        """Return the file of Milvus Lite."""
        return [] if self._is_server else [Path(self._address.target)]

    def close(self) -> None:
        """Close the connection; the embedded server ends with the program."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _put(self, ids: Ids, codes: Codes, metadata: list[str] | None, *, replace: bool) -> int:
        if self._is_server and MAX_ID in ids:
            raise ValueError(
                f"ids in Milvus must be less than {MAX_ID}: servers of version 2.3 do not find "
                "this one again"
            )
        kept = self._get(ids) if metadata is None else {}
        known = np.array(list(kept), np.int64) if metadata is None else self._known(ids)
        if not replace:
            self._refuse(known)
        numbers = ids.tolist()
        if metadata is None:
            fields = [kept[number][1] if number in kept else {} for number in numbers]
        else:
            fields = list(map(json.loads, metadata))
        rows = [
            {"id": number, "code": code, "metadata": of_item}
            for number, code, of_item in zip(
                numbers, to_bytes(codes, self.n_bits), fields, strict=True
            )
        ]
        for part in batches(len(rows), _BATCH):
            with self._errors() as client:
                client.upsert(self._collection, rows[part])
        return len(known)

    def _replace_all(self, batches: Iterator[ItemBatch]) -> None:
        before = {row["id"] for rows in self._pages("", ["id"]) for row in rows}
        for batch in batches:
            self._put(batch.ids, batch.codes, batch.texts, replace=True)
            before.difference_update(batch.ids.tolist())
        self._delete(np.array(sorted(before), np.int64))

    def _known(self, ids: Ids) -> Ids:
        return np.array([row["id"] for row in self._items(ids, ["id"])], np.int64)

    def _largest_id(self) -> int | None:
        """Halve the range of ids that may be there: Milvus knows no maximum."""
        found = self._any_id("")
        if found is None:
            return None
        low, high = found, MAX_ID
        while low < high:
            middle = (low + high + 1) // 2
            found = self._any_id(f"id >= {middle}")
            low, high = (low, middle - 1) if found is None else (found, high)
        return low

    def _any_id(self, expression: str) -> int | None:
        with self._errors() as client:
            rows = client.query(
                self._collection,
                filter=expression,
                output_fields=["id"],
                limit=1,
                consistency_level="Strong",
            )
        return int(rows[0]["id"]) if rows else None

    def _delete(self, ids: Ids) -> int:
        present = self._known(ids).tolist()  # a server counts what was asked for
        for part in batches(len(present), _BATCH):
            with self._errors() as client:
                client.delete(self._collection, ids=present[part])
        return len(present)

    def _get(self, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]:
        return {
            row["id"]: (bytes(row["code"][0]), clean(row["metadata"]))
            for row in self._items(ids, ["id", "code", "metadata"])
        }

    def _items(self, ids: Ids, fields: list[str]) -> Iterator[dict[str, Any]]:
        for part in batches(len(ids), _BATCH):
            with self._errors() as client:
                rows = client.query(
                    self._collection,
                    filter=_among(ids[part]),
                    output_fields=fields,
                    consistency_level="Strong",
                )
            yield from rows

    def batches(self) -> Iterator[ItemBatch]:
        """Yield all items, some at a time."""
        for rows in self._pages("", ["id", "code", "metadata"]):
            codes = from_bytes([bytes(row["code"][0]) for row in rows], self.n_bits)
            ids = np.array([row["id"] for row in rows], np.int64)
            yield ItemBatch(ids, codes, [metadata_text(row["metadata"]) for row in rows])

    def _search(self, codes: Codes, k: int, where: Where | None) -> Neighbours:
        parts = [self._nearest(codes, k, expression) for expression in self._expressions(where)]
        return nearest([_joined([part[n] for part in parts], k) for n in range(len(codes))])

    def _radius(self, codes: Codes, r: int, where: Where | None) -> Ball:
        expressions = self._expressions(where)
        return within(
            [
                _joined([self._ball(query, 0, r, expression) for expression in expressions])
                for query in to_bytes(codes, self.n_bits)
            ]
        )

    def _count(self, where: Where | None) -> int:
        if where is not None:
            return len(self._passing(where))
        with self._errors() as client:
            rows = client.query(
                self._collection,
                filter="",
                output_fields=["count(*)"],
                consistency_level="Strong",
            )
        return int(rows[0]["count(*)"])

    # ------------------------------------------------------------------------------ asking

    def _nearest(self, codes: Codes, k: int, expression: str) -> ItemHits:
        """Return the k nearest of each query, ties cut by id."""
        queries = to_bytes(codes, self.n_bits)
        if k > MAX_HITS:
            return [
                _joined([self._ball(query, 0, self.n_bits, expression)], k) for query in queries
            ]
        step = max(1, _MAX_ANSWERS // k)
        hits: ItemHits = []
        for start in range(0, len(queries), step):
            part = queries[start : start + step]
            answers = self._ask(part, k, expression, {})
            hits += [
                self._cut_by_id(query, k, expression, *answer)
                for query, answer in zip(part, answers, strict=True)
            ]
        return hits

    def _cut_by_id(
        self, query: bytes, k: int, expression: str, ids: Ids, distances: Distances
    ) -> tuple[Ids, Distances]:
        """Replace the hits at the last distance, which Milvus chose, by those of least id."""
        if len(ids) < k:
            return by_distance_and_id(ids, distances)
        last = int(distances.max())
        nearer = distances < last
        tied = self._ball(query, last, last, expression)
        return _joined([(ids[nearer], distances[nearer]), tied], k)

    def _ball(self, query: bytes, low: int, high: int, expression: str) -> tuple[Ids, Distances]:
        """Return all items at distances low to high, both included, in no order."""
        # Milvus: range_filter ≤ distance < radius.
        bounds = {"radius": high + 1, "range_filter": low}
        ids, distances = self._ask([query], MAX_HITS, expression, bounds)[0]
        if len(ids) < MAX_HITS:
            return ids, distances
        middle = int(np.median(ids))
        halves = [
            self._ball(query, low, high, f"{expression} and {half}" if expression else half)
            for half in (f"id <= {middle}", f"id > {middle}")
        ]
        return _joined(halves)

    def _ask(
        self, queries: list[bytes], limit: int, expression: str, bounds: dict[str, int]
    ) -> ItemHits:
        if not queries:
            return []
        with self._errors() as client:
            answers = client.search(
                self._collection,
                data=queries,
                limit=limit,
                filter=expression,
                anns_field="code",
                search_params={"metric_type": "HAMMING", "params": bounds},
                consistency_level="Strong",
            )
        return [
            (
                np.array([hit["id"] for hit in answer], np.int64),
                np.array([hit["distance"] for hit in answer], np.int32),
            )
            for answer in answers
        ]

    def _expressions(self, where: Where | None) -> list[str]:
        """Return expressions that together name the items that pass."""
        if where is None:
            return [""]
        passing = self._passing(where)
        starts = range(0, len(passing), _MAX_IDS)
        return [_among(passing[start : start + _MAX_IDS]) for start in starts]

    def _passing(self, where: Where) -> Ids:
        """Return the ids of the items that pass: Milvus narrows them down, `matches` decides."""
        ids = [
            row["id"]
            for rows in self._pages(milvus_narrowing(where), ["id", "metadata"])
            for row in rows
            if matches(where, clean(row["metadata"]))
        ]
        return np.array(ids, np.int64)

    def _pages(self, expression: str, fields: list[str]) -> Iterator[list[dict[str, Any]]]:
        """Yield the items that an expression holds for, some at a time.

        An iterator of the client leaves out the largest id if it has no expression, and goes on
        behind the least with one that a server cannot read: it gets one, without the least.
        """
        narrowed = f"({expression}) and " if expression else ""
        options = {"output_fields": fields, "consistency_level": "Strong"}
        with self._errors() as client:
            if least := client.query(self._collection, f"{narrowed}{_IS_LEAST}", **options):
                yield least
            others = f"{narrowed}id >= {_LEAST + 1}"
            pages = client.query_iterator(
                self._collection, batch_size=_BATCH, filter=others, **options
            )
            while page := pages.next():
                yield page
            pages.close()

    # ----------------------------------------------------------------------------- opening

    def _open(self, n_bits: int | None, model: str | None) -> About:
        with self._errors() as client:
            if not client.has_collection(self._collection):
                self._create(client, About.of_new(self.place, n_bits, model))
            description = client.describe_collection(self._collection)["description"]
            client.load_collection(self._collection)
        try:
            return About.of_header(json.loads(description))
        except (ValueError, RecursionError):
            raise StoreError(f"{self.place} is there, but was not made by antipodal") from None

    def _create(self, client: MilvusClient, about: About) -> None:
        schema = client.create_schema(
            auto_id=False,
            enable_dynamic_field=False,
            description=json.dumps({"format": "antipodal", **about._asdict()}),
        )
        schema.add_field("id", DataType.INT64, is_primary=True)
        # Whole bytes: the zeros behind the last bit add nothing to a distance.
        schema.add_field("code", DataType.BINARY_VECTOR, dim=8 * code_width(about.n_bits))
        schema.add_field("metadata", DataType.JSON)
        index = client.prepare_index_params()
        index.add_index("code", index_type="BIN_FLAT", metric_type="HAMMING")
        client.create_collection(
            self._collection, schema=schema, index_params=index, consistency_level="Strong"
        )

    def _check_open(self) -> None:
        if self._client is None and hasattr(self, "n_bits"):
            raise StoreError(f"{self.place} is closed")

    @contextmanager
    def _errors(self) -> Iterator[MilvusClient]:
        """Give the client, and turn what goes wrong with it into a StoreError."""
        self._check_open()
        try:
            yield self._client
        except MilvusException as error:
            # Not "from error": what the client says may quote a token.
            message = self._address.without_secrets(str(error.message))
            raise StoreError(f"{self.place}: {message}") from None


def connect(address: Address) -> MilvusClient:
    """Return a client; of Milvus Lite it makes the file if there is none."""
    return MilvusClient(
        address.target,
        token=address.options.get("token", ""),
        grpc_options=_NO_PINGS if address.scheme == "milvus" else {},
    )


def _among(ids: Ids) -> str:
    numbers = ids.tolist()
    if _LEAST not in numbers:
        return f"id in {numbers}"
    numbers.remove(_LEAST)
    return f"({_IS_LEAST} or id in {numbers})" if numbers else _IS_LEAST


def _joined(parts: ItemHits, k: int | None = None) -> tuple[Ids, Distances]:
    """Put the hits of one query together, in order, and cut them at k."""
    ids, distances = by_distance_and_id(
        np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in parts)]),
        np.concatenate([np.empty(0, np.int32), *(distances for _, distances in parts)]),
    )
    return ids[:k], distances[:k]

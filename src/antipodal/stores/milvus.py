"""Milvus store, embedded (Milvus Lite) or on a server, with the exact index BIN_FLAT.

Milvus breaks ties at the k-th place arbitrarily, returns at most 16,384 hits per query, and its
filters treat missing fields and types differently from `where`. The store therefore sends further
requests: for all items at the distance of the k-th, and for the metadata of items that may match a
filter. An id range with too many hits is divided. Milvus has no snapshots, so writes between two
requests may be visible. It cannot score float queries: asymmetric search scores the items nearest
to the signs of a query, and may miss others.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pymilvus import DataType, MilvusClient
from pymilvus.client.types import Status
from pymilvus.exceptions import MilvusException

from antipodal.codes import Codes, code_width, from_bytes, pack, to_bytes
from antipodal.errors import StoreError
from antipodal.index import SearchResult
from antipodal.index.asymmetric import Floats, sign_scores
from antipodal.index.rerank import best_first
from antipodal.stores.base import Store, StoreHeader
from antipodal.stores.filters import Where, matches, milvus_narrowing
from antipodal.stores.items import (
    ID_FIELD,
    IdType,
    Keys,
    as_keys,
    batches,
    clean,
    metadata_text,
    take_key,
    with_keys,
)
from antipodal.stores.milvus_attachments import load_indexed, read_attachment, write_attachments
from antipodal.stores.snapshot import ItemBatch, Snapshot
from antipodal.stores.url import Address
from antipodal.validation import MAX_ID, Ids

MAX_HITS = 16_384  # per query, in every version of Milvus
_MAX_ANSWERS = 500_000  # hits of all queries of a request: responses are limited to 64 MB
# An asymmetric search for k items scores 400 + 16 k candidates. More candidates hardly change the
# results, and fetching their codes takes most of the time: see benchmarks/asymmetric_stores.py.
_CANDIDATES, _CANDIDATES_PER_RESULT = 400, 16
_BATCH = 5_000  # rows per request
_MAX_IDS = 8_000  # ids in one expression
_MIN_ID = -(2**63)
_IS_MIN_ID = f"id < {_MIN_ID + 1}"  # Milvus cannot parse the literal -2^63
_START_SECONDS = 20  # to wait for Milvus Lite to start
# The client sends keepalive pings every 10 s. Milvus Lite treats them as an attack and closes the
# connection after some idle seconds, which makes a concurrent call fail.
_NO_PINGS = {"grpc.keepalive_time_ms": 2**31 - 1}


class MilvusStore(Store, Snapshot):
    """Store in a collection of Milvus; without snapshots, each call sees the current items."""

    keeps_vectors = False

    def __init__(
        self,
        address: Address,
        *,
        n_bits: int | None,
        model: str | None,
        id_type: IdType | None = None,
    ) -> None:
        self._collection = address.options.get("collection", "codes")
        self._attachments = f"{self._collection}_attachments"
        self.place = f"{address.shown}, collection {self._collection}"
        self._is_server = address.scheme != "milvus"
        if not self._is_server and not address.target.endswith(".db"):
            raise ValueError(f"a file of Milvus Lite must end in .db: got {address.target!r}")
        if not self._is_server and not Path(address.target).exists():
            # Raises an error before the client creates the file.
            StoreHeader.new(self.place, n_bits, model, id_type)
        self._address = address
        self._client: MilvusClient | None = None
        with self._errors():
            self._client = connect(address)
        try:
            header = self._open(n_bits, model, id_type)
            header.check(self.place, n_bits, model, id_type)
        except BaseException:
            self.close()
            raise
        self.n_bits, self.model, self.id_type = header.n_bits, header.model, header.id_type

    def own_files(self) -> list[Path]:
        """Return the file of Milvus Lite."""
        return [] if self._is_server else [Path(self._address.target)]

    def close(self) -> None:
        """Close the connection; the embedded server stops with the process."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _put(
        self,
        ids: Ids,
        codes: Codes,
        metadata: list[str] | None,
        *,
        replace: bool,
        vectors: Sequence[bytes] | None = None,
    ) -> int:
        self._check_no_vectors(vectors)
        if self._is_server and MAX_ID in ids:
            raise ValueError(
                f"ids in Milvus must be less than {MAX_ID}: servers of version 2.3 cannot query "
                "this id"
            )
        stored = self._get(ids) if metadata is None else {}
        known = np.array(list(stored), np.int64) if metadata is None else self._known(ids)
        if not replace:
            self._check_unused(known)
        if metadata is None:
            fields = [stored[number][1] if number in stored else {} for number in ids.tolist()]
        else:
            fields = list(map(json.loads, metadata))
        self._upsert(ids, codes, fields)
        return len(known)

    def _put_keyed(
        self,
        keys: Keys,
        codes: Codes,
        metadata: list[str] | None,
        *,
        replace: bool,
        vectors: Sequence[bytes] | None = None,
    ) -> int:
        """Store items under hashes of their string ids, so that a repeated call is idempotent."""
        self._check_no_vectors(vectors)
        ids = _hashed(keys.tolist())
        stored = {number: item for number, (_, item) in self._get(ids).items()}
        known = [
            key
            for number, key in zip(ids.tolist(), keys.tolist(), strict=True)
            if number in stored and self._has_key(stored[number], key)
        ]
        if not replace:
            self._check_unused(as_keys(known))
        if metadata is None:
            texts = with_keys(["{}"] * len(keys), keys)
            fields = [
                stored.get(number) or json.loads(text)
                for number, text in zip(ids.tolist(), texts, strict=True)
            ]
        else:
            fields = list(map(json.loads, metadata))
        self._upsert(ids, codes, fields)
        return len(known)

    def _has_key(self, metadata: dict[str, Any], key: str) -> bool:
        """Return True, or raise StoreError if a stored item has another string id of this hash."""
        other = metadata.get(ID_FIELD)
        if other != key:
            raise StoreError(
                f"{self.place} cannot store the id {key!r}, which has the same hash as the stored "
                f"id {other!r}: rename one of them"
            )
        return True

    def _upsert(self, ids: Ids, codes: Codes, fields: list[dict[str, Any]]) -> None:
        rows = [
            {"id": number, "code": code, "metadata": item_fields}
            for number, code, item_fields in zip(
                ids.tolist(), to_bytes(codes, self.n_bits), fields, strict=True
            )
        ]
        for part in batches(len(rows), _BATCH):
            with self._errors() as client:
                client.upsert(self._collection, rows[part])

    def _check_no_vectors(self, vectors: object) -> None:
        if vectors is not None:
            raise StoreError(f"{self.place} cannot keep vectors: use SQLite or PostgreSQL")

    def read_attachment(self, name: str) -> bytes | None:
        """Return the bytes stored under a name, or None."""
        with self._errors() as client:
            return read_attachment(client, self._attachments, name)

    def _write_attachments(self, parts: Mapping[str, bytes], *, replace: bool) -> None:
        if not replace:
            known = [name for name in parts if self.read_attachment(name) is not None]
            self._check_names_unused(known)
        with self._errors() as client:
            write_attachments(client, self._attachments, parts)

    def _replace_all(self, batches: Iterator[ItemBatch]) -> None:
        before = {row["id"] for rows in self._pages("", ["id"]) for row in rows}
        for batch in batches:
            self._check_no_vectors(batch.vectors or None)
            ids = batch.ids
            if self.id_type == "string":
                keys = as_keys(take_key(json.loads(text)) for text in batch.texts)
                ids = _hashed(keys.tolist())
                self._put_keyed(keys, batch.codes, batch.texts, replace=True)
            else:
                self._put(ids, batch.codes, batch.texts, replace=True)
            before.difference_update(ids.tolist())
        self._delete(np.array(sorted(before), np.int64))

    def _drop(self) -> None:
        with self._errors() as client:
            client.drop_collection(self._attachments)
            client.drop_collection(self._collection)

    def _known(self, ids: Ids) -> Ids:
        return np.array([row["id"] for row in self._items(ids, ["id"])], np.int64)

    def _largest_id(self) -> int | None:
        """Return the largest id by bisection, since Milvus has no maximum."""
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
        present = self._known(ids).tolist()  # a server counts unknown ids as well
        for part in batches(len(present), _BATCH):
            with self._errors() as client:
                client.delete(self._collection, ids=present[part])
        return len(present)

    def _delete_keyed(self, keys: Keys) -> int:
        return self._delete(np.array(list(self._numbers_of(keys.tolist()).values()), np.int64))

    def _get(self, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]:
        return {
            row["id"]: (bytes(row["code"][0]), clean(row["metadata"]))
            for row in self._items(ids, ["id", "code", "metadata"])
        }

    def _numbers_of(self, keys: Sequence[str]) -> dict[str, int]:
        numbers = dict(zip(keys, _hashed(keys).tolist(), strict=True))
        stored = self._keys_of(np.array(sorted(numbers.values()), np.int64))
        return {key: number for key, number in numbers.items() if stored.get(number) == key}

    def _keys_of(self, ids: Ids) -> dict[int, str]:
        rows = self._items(ids, ["id", "metadata"])
        return {row["id"]: take_key(clean(row["metadata"])) for row in rows}

    def _items(self, ids: Ids, fields: list[str]) -> Iterator[dict[str, Any]]:
        for part in batches(len(ids), _BATCH):
            with self._errors() as client:
                rows = client.query(
                    self._collection,
                    filter=_has_id(ids[part]),
                    output_fields=fields,
                    consistency_level="Strong",
                )
            yield from rows

    def batches(self) -> Iterator[ItemBatch]:
        """Yield all items in batches."""
        for rows in self._pages("", ["id", "code", "metadata"]):
            codes = from_bytes([bytes(row["code"][0]) for row in rows], self.n_bits)
            ids = np.array([row["id"] for row in rows], np.int64)
            yield ItemBatch(ids, codes, [metadata_text(row["metadata"]) for row in rows])

    def _search(self, codes: Codes, k: int, where: Where | None) -> SearchResult:
        parts = [self._nearest(codes, k, expression) for expression in self._expressions(where)]
        return SearchResult.stack(
            [_join([part[n] for part in parts], k) for n in range(len(codes))]
        )

    def _asymmetric(self, values: Floats, k: int, where: Where | None) -> SearchResult:
        """Score the items nearest to the signs of each query, since Milvus cannot score all."""
        if k > MAX_HITS:
            raise ValueError(
                f"an asymmetric search in Milvus returns at most {MAX_HITS:,} items: got k = {k:,}"
            )
        n_candidates = min(MAX_HITS, _CANDIDATES + _CANDIDATES_PER_RESULT * k)
        signs = to_bytes(pack(values > 0), self.n_bits)
        expressions = self._expressions(where)
        results: list[SearchResult] = []
        for part in batches(len(values), max(1, _MAX_ANSWERS // n_candidates)):
            found = [
                self._request(signs[part], n_candidates, expression, {})
                for expression in expressions
            ]
            z = values[part]
            near = [_join([some[i] for some in found], n_candidates) for i in range(len(z))]
            results += self._scored(z, near, k)
        n_found = min((len(result.ids) for result in results), default=0)
        return SearchResult.stack([result.first(n_found) for result in results])

    def _scored(self, values: Floats, candidates: list[SearchResult], k: int) -> list[SearchResult]:
        """Return the first k candidates of each query by (score, id)."""
        ids = np.unique(np.concatenate([near.ids for near in candidates]))
        rows = list(self._items(ids, ["id", "code"]))
        stored = np.array([row["id"] for row in rows], np.int64)
        order = np.argsort(stored)
        stored = stored[order]
        codes = from_bytes([bytes(rows[i]["code"][0]) for i in order], self.n_bits)
        results = []
        for z, near in zip(values[:, None], candidates, strict=True):
            is_stored = np.isin(near.ids, stored)  # others were deleted since the search
            ids, distances = near.ids[is_stored], near.distances[is_stored]
            scores = sign_scores(z, codes[None, np.searchsorted(stored, ids)])
            (best,) = best_first(scores, ids[None], k)
            results.append(SearchResult(ids[best], distances[best], scores[0, best]))
        return results

    def _radius(self, codes: Codes, r: int, where: Where | None) -> SearchResult:
        expressions = self._expressions(where)
        return SearchResult.concatenate(
            [
                _join([self._within(query, 0, r, expression) for expression in expressions])
                for query in to_bytes(codes, self.n_bits)
            ]
        )

    def _count(self, where: Where | None) -> int:
        if where is not None:
            return len(self._matching(where))
        with self._errors() as client:
            rows = client.query(
                self._collection,
                filter="",
                output_fields=["count(*)"],
                consistency_level="Strong",
            )
        return int(rows[0]["count(*)"])

    # ---------------------------------------------------------------------------- requests

    def _nearest(self, codes: Codes, k: int, expression: str) -> list[SearchResult]:
        """Return the k nearest items of each query, with ties broken by id."""
        queries = to_bytes(codes, self.n_bits)
        if k > MAX_HITS:
            return [self._within(query, 0, self.n_bits, expression).sorted(k) for query in queries]
        size = max(1, _MAX_ANSWERS // k)
        results: list[SearchResult] = []
        for start in range(0, len(queries), size):
            part = queries[start : start + size]
            found = self._request(part, k, expression, {})
            results += [
                self._break_ties(query, k, expression, result)
                for query, result in zip(part, found, strict=True)
            ]
        return results

    def _break_ties(
        self, query: bytes, k: int, expression: str, result: SearchResult
    ) -> SearchResult:
        """Replace the hits at the largest distance, chosen by Milvus, by those of smallest id."""
        if len(result.ids) < k:
            return result.sorted()
        last = int(result.distances.max())
        nearer = result.distances < last
        tied = self._within(query, last, last, expression)
        return _join([SearchResult(result.ids[nearer], result.distances[nearer]), tied], k)

    def _within(self, query: bytes, low: int, high: int, expression: str) -> SearchResult:
        """Return all items at distances low to high, both inclusive, in any order."""
        # Milvus: range_filter ≤ distance < radius.
        bounds = {"radius": high + 1, "range_filter": low}
        (result,) = self._request([query], MAX_HITS, expression, bounds)
        if len(result.ids) < MAX_HITS:
            return result
        middle = int(np.median(result.ids))
        return _join(
            [
                self._within(query, low, high, f"{expression} and {half}" if expression else half)
                for half in (f"id <= {middle}", f"id > {middle}")
            ]
        )

    def _request(
        self, queries: list[bytes], limit: int, expression: str, bounds: dict[str, int]
    ) -> list[SearchResult]:
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
            SearchResult(
                np.array([hit["id"] for hit in answer], np.int64),
                np.array([hit["distance"] for hit in answer], np.int32),
            )
            for answer in answers
        ]

    def _expressions(self, where: Where | None) -> list[str]:
        """Return expressions that together select the items that match a filter."""
        if where is None:
            return [""]
        matching = self._matching(where)
        starts = range(0, len(matching), _MAX_IDS)
        return [_has_id(matching[start : start + _MAX_IDS]) for start in starts]

    def _matching(self, where: Where) -> Ids:
        """Return the ids of matching items: those that Milvus preselects and `matches` confirms."""
        ids = [
            row["id"]
            for rows in self._pages(milvus_narrowing(where), ["id", "metadata"])
            for row in rows
            if matches(where, clean(row["metadata"]))
        ]
        return np.array(ids, np.int64)

    def _pages(self, expression: str, fields: list[str]) -> Iterator[list[dict[str, Any]]]:
        """Yield the items selected by an expression in pages.

        The iterator of the client omits the largest id without an expression, and fails to
        continue after the smallest int64. Hence it always gets an expression, and the smallest
        int64 is queried separately.
        """
        prefix = f"({expression}) and " if expression else ""
        options = {"output_fields": fields, "consistency_level": "Strong"}
        with self._errors() as client:
            if smallest := client.query(self._collection, f"{prefix}{_IS_MIN_ID}", **options):
                yield smallest
            others = f"{prefix}id >= {_MIN_ID + 1}"
            pages = client.query_iterator(
                self._collection, batch_size=_BATCH, filter=others, **options
            )
            while page := pages.next():
                yield page
            pages.close()

    # ----------------------------------------------------------------------------- opening

    def _open(self, n_bits: int | None, model: str | None, id_type: IdType | None) -> StoreHeader:
        with self._errors() as client:
            if not client.has_collection(self._collection):
                self._create(client, StoreHeader.new(self.place, n_bits, model, id_type))
            description = client.describe_collection(self._collection)["description"]
            try:
                header = StoreHeader.from_json(json.loads(description))
            except (ValueError, RecursionError):
                raise StoreError(f"{self.place} exists, but was not created by antipodal") from None
            load_indexed(client, self._collection, "code")
        return header

    def _create(self, client: MilvusClient, header: StoreHeader) -> None:
        schema = client.create_schema(
            auto_id=False,
            enable_dynamic_field=False,
            description=json.dumps({"format": "antipodal", **header._asdict()}),
        )
        schema.add_field("id", DataType.INT64, is_primary=True)
        # Whole bytes: zero padding does not change distances.
        schema.add_field("code", DataType.BINARY_VECTOR, dim=8 * code_width(header.n_bits))
        schema.add_field("metadata", DataType.JSON)
        client.drop_collection(self._attachments)  # left by a store that was dropped
        client.create_collection(self._collection, schema=schema, consistency_level="Strong")

    def _check_open(self) -> None:
        if self._client is None and hasattr(self, "n_bits"):
            raise StoreError(f"{self.place} is closed")

    @contextmanager
    def _errors(self) -> Iterator[MilvusClient]:
        """Return the client, and raise its errors as StoreError."""
        self._check_open()
        try:
            yield self._client
        except MilvusException as error:
            # Not "from error": the original message may contain a token.
            message = self._address.without_secrets(str(error.message))
            raise StoreError(f"{self.place}: {message}") from None


def connect(address: Address) -> MilvusClient:
    """Return a client; with Milvus Lite it creates a missing file and starts the server.

    pymilvus waits half a second for that server, which takes longer to start on a busy machine.
    """
    is_lite = address.scheme == "milvus"
    deadline = time.monotonic() + (_START_SECONDS if is_lite else 0)
    while True:
        try:
            return MilvusClient(
                address.target,
                token=address.options.get("token", ""),
                grpc_options=_NO_PINGS if is_lite else {},
            )
        except MilvusException as error:
            if error.code != Status.CONNECT_FAILED or time.monotonic() >= deadline:
                raise
            time.sleep(0.2)


def _hashed(keys: Sequence[str]) -> Ids:
    """Return the integer ids of string ids; raise StoreError if two are equal."""
    numbers: dict[int, str] = {}
    for key in keys:
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        other = numbers.setdefault(int.from_bytes(digest) % MAX_ID, key)
        if other != key:
            raise StoreError(
                f"the ids {other!r} and {key!r} have the same hash: rename one of them"
            )
    return np.fromiter(numbers, np.int64, len(keys))


def _has_id(ids: Ids) -> str:
    numbers = ids.tolist()
    if _MIN_ID not in numbers:
        return f"id in {numbers}"
    numbers.remove(_MIN_ID)
    return f"({_IS_MIN_ID} or id in {numbers})" if numbers else _IS_MIN_ID


def _join(parts: list[SearchResult], k: int | None = None) -> SearchResult:
    """Return the first k hits of one query by (distance, id), from several parts."""
    ids = np.concatenate([np.empty(0, np.int64), *(part.ids for part in parts)])
    distances = np.concatenate([np.empty(0, np.int32), *(part.distances for part in parts)])
    return SearchResult(ids, distances).sorted(k)

"""Attachments of a Milvus store: bytes under names, in a side collection.

Milvus has neither binary fields nor transactions. Bytes are stored as parts of base64 text, under
keys that contain their checksum. Finally, a row under the name itself is replaced, which has the
checksum and the number of parts: a reader gets the old bytes or the new ones.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pymilvus import DataType, MilvusClient

from antipodal.errors import StoreError

_PART = 45_000  # bytes, which are 60,000 characters of base64: strings have at most 65,535
_PARTS_AT_ONCE = 100
_NO_VECTOR = b"\0"  # every collection must have a vector


def load_indexed(client: MilvusClient, collection: str, field: str) -> None:
    """Load a collection; create the index of its vectors if the creation was interrupted."""
    if not client.list_indexes(collection, field):
        index = client.prepare_index_params()
        index.add_index(field, index_type="BIN_FLAT", metric_type="HAMMING")
        client.create_index(collection, index)
    client.load_collection(collection)


def read_attachment(client: MilvusClient, collection: str, name: str) -> bytes | None:
    """Return the bytes stored under a name, or None; raise StoreError if they are damaged."""
    if not client.has_collection(collection):
        return None
    load_indexed(client, collection, "vector")
    rows = _get(client, collection, [name])
    if not rows:
        return None
    try:
        head = json.loads(rows[name])
        keys = _part_keys(name, head)
        texts = _get(client, collection, keys)
        data = b"".join(base64.b64decode(texts[key], validate=True) for key in keys)
        is_valid = hashlib.sha256(data).hexdigest() == head["sha256"]
    except (KeyError, TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise StoreError(f"{collection}: attachment {name!r} does not match its checksum")
    return data


def write_attachments(client: MilvusClient, collection: str, parts: Mapping[str, bytes]) -> None:
    """Store bytes under names, one name after the other."""
    if not client.has_collection(collection):
        _create(client, collection)
    load_indexed(client, collection, "vector")
    for name, data in parts.items():
        before = _get(client, collection, [name])
        digest = hashlib.sha256(data).hexdigest()
        pieces = [data[start : start + _PART] for start in range(0, len(data), _PART)]
        head = {"sha256": digest, "n_parts": len(pieces)}
        keys = _part_keys(name, head)
        texts = [base64.b64encode(piece).decode() for piece in pieces]
        _put(client, collection, keys, texts)
        _put(client, collection, [name], [json.dumps(head)])
        if before and json.loads(before[name]) != head:
            client.delete(collection, ids=_part_keys(name, json.loads(before[name])))


def _part_keys(name: str, head: dict[str, Any]) -> list[str]:
    return [f"{name}/{head['sha256']}/{number}" for number in range(head["n_parts"])]


def _put(client: MilvusClient, collection: str, keys: list[str], texts: list[str]) -> None:
    for start in range(0, len(keys), _PARTS_AT_ONCE):
        part = slice(start, start + _PARTS_AT_ONCE)
        rows = [
            {"key": key, "data": text, "vector": _NO_VECTOR}
            for key, text in zip(keys[part], texts[part], strict=True)
        ]
        client.upsert(collection, rows)


def _get(client: MilvusClient, collection: str, keys: list[str]) -> dict[str, str]:
    rows: list[dict[str, Any]] = []
    for start in range(0, len(keys), _PARTS_AT_ONCE):
        rows += client.query(
            collection,
            filter=f"key in {json.dumps(keys[start : start + _PARTS_AT_ONCE])}",
            output_fields=["key", "data"],
            consistency_level="Strong",
        )
    return {row["key"]: row["data"] for row in rows}


def _create(client: MilvusClient, collection: str) -> None:
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("key", DataType.VARCHAR, is_primary=True, max_length=1_024)
    schema.add_field("data", DataType.VARCHAR, max_length=65_535)
    schema.add_field("vector", DataType.BINARY_VECTOR, dim=8)
    client.create_collection(collection, schema=schema, consistency_level="Strong")

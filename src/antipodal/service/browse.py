"""Browsing a store: the fields of its metadata, and items by words."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from antipodal.service.engine import Engine
from antipodal.service.schemas import FindRequest
from antipodal.service.search import named_items
from antipodal.stores.filters import kind

_SAMPLE = 1_000  # items from which the fields are inferred
_MAX_FIELDS = 100
_MAX_VALUES = 30  # values listed per field, most frequent first
_MAX_VALUE_LENGTH = 80  # characters of a listed value
_PICTURE = "data:image/"


def sample_fields(engine: Engine) -> dict[str, Any]:
    """Describe the metadata fields of a sample of the items."""
    metadata = engine.draw(_SAMPLE, 0).metadata
    return {"sample": len(metadata), "fields": describe_fields(metadata)}


def find_items(engine: Engine, request: FindRequest) -> dict[str, Any]:
    """Return the most relevant items whose metadata contain all words of a text."""
    found = engine.words.find(request.text, request.limit)
    items = named_items(found.items, engine.store.id_type)
    return {
        "items": engine.described(items),
        "looked_at": found.n_searched,
        "total": found.n_items,
    }


def describe_fields(metadata: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Describe the fields of metadata, most frequent first.

    A field of a nested object is named as in a filter, "outer.inner". Its `kind` is that of its
    values: number, string, boolean, null, container or picture, or "mixed" if they differ.
    """
    found: dict[str, list[Any]] = {}
    for fields in metadata:
        for name, value in _leaves(fields):
            found.setdefault(name, []).append(value)
    frequent = sorted(found, key=lambda name: -len(found[name]))[:_MAX_FIELDS]
    return [_described(name, found[name]) for name in frequent]


def _leaves(fields: Mapping[str, Any], outer: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{outer}{name}.")
        else:
            yield f"{outer}{name}", value


def _described(name: str, values: list[Any]) -> dict[str, Any]:
    kinds = {_kind(value) for value in values} - {"null"} or {"null"}
    texts = [value for value in values if isinstance(value, str)]
    numbers = [value for value in values if kind(value) == "number"]
    short = Counter(
        (kind(value), value)
        for value in values
        if _kind(value) in ("string", "number", "boolean") and len(str(value)) <= _MAX_VALUE_LENGTH
    )
    return {
        "name": name,
        "kind": kinds.pop() if len(kinds) == 1 else "mixed",
        "items": len(values),
        "distinct": len(short),
        "values": [
            {"value": value, "items": n} for (_, value), n in short.most_common(_MAX_VALUES)
        ],
        "least": min(numbers, default=None),
        "most": max(numbers, default=None),
        "length": sum(map(len, texts)) / len(texts) if texts else None,
    }


def _kind(value: Any) -> str:
    return "picture" if isinstance(value, str) and value.startswith(_PICTURE) else kind(value)

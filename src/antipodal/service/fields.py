"""Which fields the metadata of items have, and what is in them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from antipodal.stores.filters import kind

_MOST_FIELDS = 100
_MOST_VALUES = 30  # of a field, the most frequent first
_LONGEST = 80  # characters of a value that can be picked from a list
_PICTURE = "data:image/"


def seen_fields(metadata: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Describe the fields of some items, those that most of them have first.

    A field of an object is named as a filter names it, "outer.inner". Its `kind` is that of its
    values: number, string, boolean, null, container, picture, or "mixed" if there are several.
    """
    found: dict[str, list[Any]] = {}
    for fields in metadata:
        for name, value in _leaves(fields):
            found.setdefault(name, []).append(value)
    often = sorted(found, key=lambda name: -len(found[name]))[:_MOST_FIELDS]
    return [_described(name, found[name]) for name in often]


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
        if _kind(value) in ("string", "number", "boolean") and len(str(value)) <= _LONGEST
    )
    return {
        "name": name,
        "kind": kinds.pop() if len(kinds) == 1 else "mixed",
        "items": len(values),
        "distinct": len(short),
        "values": [
            {"value": value, "items": n} for (_, value), n in short.most_common(_MOST_VALUES)
        ],
        "least": min(numbers, default=None),
        "most": max(numbers, default=None),
        "length": sum(map(len, texts)) / len(texts) if texts else None,
    }


def _kind(value: Any) -> str:
    return "picture" if isinstance(value, str) and value.startswith(_PICTURE) else kind(value)

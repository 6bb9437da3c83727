"""Item metadata: allowed values and canonical JSON text."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

MAX_DEPTH = 50
INT64 = range(-(2**63), 2**63)
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_encode_sorted = json.JSONEncoder(sort_keys=True).encode


class MetadataText(str):
    """The JSON text of one item's metadata, as returned by `metadata_text`."""

    __slots__ = ()


Metadata: TypeAlias = Iterable[Mapping[str, Any] | MetadataText | None]  # one per item


def metadata_text(fields: Mapping[str, Any]) -> MetadataText:
    """Return the JSON text of one item's metadata, or raise TypeError or ValueError."""
    return MetadataText(_encode(clean(fields)))


def metadata_texts(metadata: Iterable[Any] | None, n: int) -> list[str]:
    """Return the JSON texts of the metadata of n items, `{}` for missing ones."""
    if metadata is None:
        return ["{}"] * n
    if isinstance(metadata, (str, bytes, Mapping)):
        raise TypeError(
            "metadata must be a sequence of JSON objects, one per item: got one "
            f"{type(metadata).__name__}. Are the brackets of a list missing?"
        )
    texts = [_text(value, position) for position, value in enumerate(metadata)]
    if len(texts) != n:
        raise ValueError(f"metadata must have one object per item: got {len(texts)} for {n} items")
    return texts


def parse_metadata(text: str | bytes) -> dict[str, Any]:
    """Return the metadata in a JSON text; raise ValueError if it is not an object."""
    value = _decode(text if isinstance(text, str) else text.decode())
    if not isinstance(value, dict):
        raise ValueError(f"metadata must be a JSON object: got {text!r}")
    return value


def same_metadata(text: str, fields: dict[str, Any]) -> bool:
    """Return whether a text of `metadata_texts` has these fields, in any order."""
    # Compared as texts, since True == 1 in Python.
    return _encode_sorted(_decode(text)) == _encode_sorted(fields)


def clean(value: Any, depth: int = 0) -> Any:
    """Return a JSON value in the form that all engines store, or raise TypeError or ValueError."""
    if type(value) is str:  # the most frequent type first
        return _clean_string(value)
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _clean_string(str(value))
    if isinstance(value, int):
        if value not in INT64:
            raise ValueError(f"integers must fit into 64 bits: got {value}. Store it as a string?")
        return int(value)
    if isinstance(value, float):
        return _clean_float(value)
    if depth >= MAX_DEPTH:
        raise ValueError(f"values must be nested at most {MAX_DEPTH} levels deep")
    if isinstance(value, (dict, Mapping)):  # checking dict first is faster
        return {_clean_key(key): clean(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item, depth + 1) for item in value]
    raise TypeError(
        "values must be JSON values (strings, numbers, booleans, None, lists, objects): "
        f"got {type(value).__name__}"
    )


def _text(value: Any, position: int) -> str:
    if value is None:
        return "{}"
    if isinstance(value, MetadataText):
        return str(value)
    if not isinstance(value, (dict, Mapping)):
        raise TypeError(
            f"metadata[{position}] must be a JSON object or None: got {type(value).__name__}"
        )
    try:
        return _encode(clean(value))
    except (TypeError, ValueError) as error:
        raise type(error)(f"metadata[{position}]: {error}") from None


def _clean_string(value: str) -> str:
    # PostgreSQL cannot store the zero character, and no engine stores lone surrogates.
    if "\0" in value:
        raise ValueError(f"strings must not contain the character U+0000: got {value!r}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"strings must not contain lone surrogates: got {value!r}") from None
    return value


def _clean_key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"field names must be strings: got {key!r}")
    return _clean_string(key)


def _clean_float(value: float) -> int | float:
    if not math.isfinite(value):
        raise ValueError(f"numbers must be finite: got {value}. Use None for missing values")
    whole = value.is_integer() and -(2.0**63) <= value < 2.0**63
    return int(value) if whole else float(value)


def _parse_int(digits: str) -> int | float:
    """Parse an integer; jsonb writes large doubles as integers of more than 64 bits."""
    number = int(digits)
    return number if number in INT64 else float(number)


_decode = json.JSONDecoder(parse_int=_parse_int).decode

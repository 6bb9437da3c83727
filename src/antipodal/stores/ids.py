"""Ids of items: 64-bit integers, or strings over integers that the store assigns.

A store of string ids keeps each string in the metadata of its item, in the reserved field ``$id``.
So filters, backups and exports contain it in every engine, while indexes and tables use integers.
"""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.validation import Ids, check_ids

IdType: TypeAlias = Literal["int64", "string"]
Keys: TypeAlias = NDArray[np.object_]  # string ids

ID_FIELD = "$id"
MAX_ID_BYTES = 512
_encode = json.JSONEncoder(ensure_ascii=False).encode


def check_id_type(value: object) -> IdType:
    """Return a valid type of ids, or raise ValueError."""
    if value not in get_args(IdType):
        raise ValueError(f"ids must be int64 or string: got {value!r}")
    return value  # type: ignore[return-value]


def id_type_of(ids: ArrayLike) -> IdType:
    """Return the type of given ids by the first of them; "int64" for an empty list."""
    array = ids if isinstance(ids, np.ndarray) else np.asarray(ids, dtype=object)
    if array.dtype.kind in "UT" or (
        array.dtype.kind == "O" and array.size and isinstance(array.flat[0], str)
    ):
        return "string"
    return "int64"


def check_unique_ids(ids: ArrayLike, id_type: IdType) -> NDArray[Any]:
    """Return unique ids of this type as an array of one dimension."""
    return _check_keys(ids) if id_type == "string" else _check_numbers(ids)


def _check_numbers(ids: ArrayLike) -> Ids:
    if id_type_of(ids) == "string":
        raise TypeError("ids must be integers, as the other ids of this store: got strings")
    numbers = check_ids(ids)
    if (numbers[1:] > numbers[:-1]).all():
        return numbers
    ordered = np.sort(numbers)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        raise ValueError(f"ids must be unique: got {repeated[0]} more than once")
    return numbers


def _check_keys(ids: ArrayLike) -> Keys:
    keys = np.asarray(ids, dtype=object)
    if keys.ndim != 1:
        raise ValueError(f"ids must be a list of strings: got shape {keys.shape}")
    texts = keys.tolist()
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(
                "ids must be strings, as the other ids of this store: got "
                f"{type(text).__name__} at position {position}"
            )
    if len(set(texts)) < len(texts):
        known: set[str] = set()
        repeated = next(text for text in texts if text in known or known.add(text))  # type: ignore[func-returns-value]
        raise ValueError(f"ids must be unique: got {repeated!r} more than once")
    for position, text in enumerate(texts):
        try:
            n_bytes = len(text.encode())
        except UnicodeEncodeError:
            raise ValueError(
                f"ids must be valid Unicode: got a lone surrogate at position {position}"
            ) from None
        if not 0 < n_bytes <= MAX_ID_BYTES or "\0" in text:
            raise ValueError(
                f"string ids must have 1 to {MAX_ID_BYTES} bytes in UTF-8 and no NUL character: "
                f"got {n_bytes} bytes at position {position}"
            )
    return keys


def as_keys(texts: Iterable[str]) -> Keys:
    """Return strings as an array of objects."""
    return np.array([*texts, None], dtype=object)[:-1]


def with_keys(texts: Sequence[str], keys: Keys) -> list[str]:
    """Return metadata texts with the field ``$id``; raise ValueError if one has it already."""
    for text in texts:
        if f'"{ID_FIELD}"' in text and ID_FIELD in json.loads(text):
            raise ValueError(
                f"metadata must not have the field {ID_FIELD!r}, which holds the string id"
            )
    return [
        f'{{"{ID_FIELD}":{_encode(key)}{"}" if text == "{}" else "," + text[1:]}'
        for text, key in zip(texts, keys.tolist(), strict=True)
    ]


def take_key(metadata: dict[str, Any]) -> str:
    """Remove and return the string id of an item's metadata."""
    key = metadata.pop(ID_FIELD, None)
    if not isinstance(key, str):
        raise ValueError(f"an item has no string id in {ID_FIELD!r}")
    return key


def assign_numbers(keys: Keys, known: Mapping[str, int], largest: int | None) -> Ids:
    """Return the integer ids of string ids; new ones get the next integers."""
    unused = itertools.count(0 if largest is None else largest + 1)
    numbers = (known[key] if key in known else next(unused) for key in keys.tolist())
    return np.fromiter(numbers, np.int64, len(keys))

"""Items of a store: validation of ids, metadata and codes, and batches of items.

Ids are 64-bit integers or strings. A store of string ids assigns an integer to each, and keeps the
string in the metadata of its item, in the reserved field ``$id``. So filters, backups and exports
contain it in every engine, while indexes and tables use integers.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import count, islice
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.codes import check_codes
from antipodal.validation import Ids, check_ids

IdType: TypeAlias = Literal["int64", "string"]
Keys: TypeAlias = NDArray[np.object_]  # string ids

ID_FIELD = "$id"
MAX_ID_BYTES = 512
MAX_DEPTH = 50  # levels of nested metadata
BATCH_SIZE = 50_000  # items in one transaction
INT64 = range(-(2**63), 2**63)
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_encode_sorted = json.JSONEncoder(sort_keys=True).encode


def check_id_type(value: object) -> IdType:
    """Return a valid type of ids, or raise ValueError."""
    if value not in get_args(IdType):
        raise ValueError(f"ids must be int64 or string: got {value!r}")
    return value  # type: ignore[return-value]


def id_type_of(ids: ArrayLike) -> IdType:
    """Return the type of the first id, which all ids should have; "int64" for an empty list."""
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
        raise TypeError("ids must be integers, like the other ids of this store: got strings")
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
                "ids must be strings, like the other ids of this store: got "
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
    unused = count(0 if largest is None else largest + 1)
    numbers = (known[key] if key in known else next(unused) for key in keys.tolist())
    return np.fromiter(numbers, np.int64, len(keys))


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


class Loaded(NamedTuple):
    """Result of `Store.load`.

    Attributes
    ----------
    ids : int64 or strings (n,)
        Ids of all items given.
    added, replaced : int
        Number of new items, and of items that replaced others.
    unchanged : int
        Number of items that were already stored with the same contents.
    """

    ids: NDArray[Any]
    added: int
    replaced: int
    unchanged: int


def check_items(
    ids: ArrayLike | None, codes: ArrayLike, n_bits: int, id_type: IdType
) -> tuple[NDArray[Any] | None, NDArray[Any]]:
    """Return valid ids and codes as arrays; codes may be memory-mapped."""
    packed = np.asanyarray(codes)
    check_codes(packed[:0] if packed.ndim == 2 else packed, n_bits)
    for part in batches(len(packed), BATCH_SIZE):
        check_codes(packed[part], n_bits)
    if ids is None:
        if id_type == "string":
            raise ValueError("ids are required: this store has string ids, and got none")
        return None, packed
    given = check_unique_ids(ids, id_type)
    if len(given) != len(packed):
        raise ValueError(
            f"ids and codes must have equal length: got {len(given)} ids for {len(packed)} codes"
        )
    return given, packed


def batches(n: int, size: int) -> Iterator[slice]:
    """Yield slices of at most `size` that cover n items."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def check_length(metadata: Metadata | None, n: int) -> None:
    """Raise ValueError if metadata of known length do not have one object per item."""
    if isinstance(metadata, Sized) and not isinstance(metadata, (str, bytes, Mapping)):
        n_objects = len(metadata)
        if n_objects != n:
            raise ValueError(
                f"metadata must have one object per item: got {n_objects} for {n} items"
            )


def batches_of_texts(
    metadata: Metadata | None, n: int, size: int
) -> Iterator[tuple[slice, list[str] | None]]:
    """Yield slices that cover n items, each with the JSON texts of its metadata, if any."""
    if isinstance(metadata, (str, bytes, Mapping)):
        metadata_texts(metadata, n)  # raises TypeError
    rest = None if metadata is None else iter(metadata)
    for part in batches(n, size):
        n_items = part.stop - part.start
        yield part, None if rest is None else metadata_texts(islice(rest, n_items), n_items)

"""`where`: which items a search may return, by their metadata.

A filter is a JSON object. Every entry must hold:

    {"label": 3}                            the field is 3
    {"label": {"in": [1, 2]}}               it is one of these
    {"year": {"gte": 2000, "lt": 2010}}     it lies between, also: lte, gt
    {"caption": {"exists": true}}           it is there, null or not
    {"camera.maker": "x"}                   a field of the object `camera`
    {"or": [{…}, {…}]}  {"and": [{…}, {…}]}  {"not": {…}}

`parse_where` turns it into a tree of the classes below, once; `matches` says what the tree means,
and every engine is tested against it. A comparison holds only between two numbers or two strings,
and never with a field that is not there; `not` holds whenever what it negates does not. Numbers
compare by value, whole or not; true is not 1; strings compare by code points, "3" is not 3.
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

from antipodal.stores.metadata import MAX_DEPTH, clean

Scalar: TypeAlias = str | int | float | bool | None
Path: TypeAlias = tuple[str, ...]
Relation: TypeAlias = Literal["lt", "lte", "gt", "gte"]

RELATIONS: dict[Relation, Callable[[Any, Any], bool]] = {
    "lt": operator.lt,
    "lte": operator.le,
    "gt": operator.gt,
    "gte": operator.ge,
}
MAX_CONDITIONS = 500  # SQLite nests an expression at most 1,000 deep
_UNQUOTABLE = re.compile(r'["\\\x00-\x1f\x7f-\x9f\ud800-\udfff]')
_NAMES_OF_OPERATORS = "in, lt, lte, gt, gte, exists"


@dataclass(frozen=True)
class OneOf:
    """The field is one of these values."""

    path: Path
    values: tuple[Scalar, ...]

    @cached_property
    def known(self) -> frozenset[tuple[str, Scalar]]:
        """The values with their kinds, which tell True from 1."""
        return frozenset((kind(value), value) for value in self.values)


@dataclass(frozen=True)
class Compare:
    """The field is less, or more, than a number or a string, and of its kind."""

    path: Path
    relation: Relation
    value: str | int | float


@dataclass(frozen=True)
class Exists:
    """The field is there, be it null."""

    path: Path


@dataclass(frozen=True)
class And:
    """All parts hold; without parts, always."""

    parts: tuple["Where", ...]


@dataclass(frozen=True)
class Or:
    """At least one part holds."""

    parts: tuple["Where", ...]


@dataclass(frozen=True)
class Not:
    """The part does not hold."""

    part: "Where"


Where: TypeAlias = OneOf | Compare | Exists | And | Or | Not


def parse_where(where: Mapping[str, Any]) -> Where:
    """Parse a filter, or raise ValueError or TypeError naming the entry that is wrong.

    Examples
    --------
    >>> parse_where({"label": 3})
    OneOf(path=('label',), values=(3,))
    """
    tree = _parse(where, 0)
    if _size(tree) > MAX_CONDITIONS:
        raise ValueError(
            f"where must have at most {MAX_CONDITIONS} conditions: got {_size(tree)}. "
            'Would {"field": {"in": […]}} say it?'
        )
    return tree


def matches(where: Where, metadata: Mapping[str, Any]) -> bool:
    """Say whether an item with these metadata passes the filter."""
    match where:
        case And(parts):
            return all(matches(part, metadata) for part in parts)
        case Or(parts):
            return any(matches(part, metadata) for part in parts)
        case Not(part):
            return not matches(part, metadata)
    found, value = _field(metadata, where.path)
    if not found or isinstance(where, Exists):
        return found
    if isinstance(where, OneOf):
        return kind(value) != "container" and (kind(value), value) in where.known
    return kind(value) == kind(where.value) and RELATIONS[where.relation](value, where.value)


def kind(value: Any) -> str:
    """Name the kind of a JSON value; only values of one kind can be equal or ordered."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    return "string" if isinstance(value, str) else "container"


def _field(metadata: Any, path: Path) -> tuple[bool, Any]:
    value = metadata
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return False, None
        value = value[name]
    return True, value


def _parse(where: Any, depth: int) -> Where:
    if not isinstance(where, Mapping):
        raise TypeError(f'where must be an object such as {{"label": 3}}: got {where!r}')
    if depth >= MAX_DEPTH:
        raise ValueError(f"where must be nested at most {MAX_DEPTH} deep")
    parts = [_entry(name, value, depth) for name, value in where.items()]
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def _entry(name: Any, value: Any, depth: int) -> Where:
    if name == "not":
        return Not(_parse(value, depth + 1))
    if name in ("and", "or"):
        if not isinstance(value, (list, tuple)) or not value:
            raise TypeError(f'"{name}" takes a list of filters, at least one: got {value!r}')
        parts = tuple(_parse(part, depth + 1) for part in value)
        return And(parts) if name == "and" else Or(parts)
    path = _path(name)
    if not isinstance(value, Mapping):
        return OneOf(path, (_scalar(name, value),))
    if not value:
        raise ValueError(f'"{name}" has no operator: one of {_NAMES_OF_OPERATORS}')
    conditions = [_condition(name, path, *item) for item in value.items()]
    return conditions[0] if len(conditions) == 1 else And(tuple(conditions))


def _condition(name: str, path: Path, relation: Any, value: Any) -> Where:
    if relation == "in":
        if not isinstance(value, (list, tuple)):
            raise TypeError(f'"in" of "{name}" takes a list of values: got {value!r}')
        return OneOf(path, tuple(_scalar(name, one) for one in value))
    if relation == "exists":
        if not isinstance(value, bool):
            raise TypeError(f'"exists" of "{name}" takes true or false: got {value!r}')
        return Exists(path) if value else Not(Exists(path))
    if relation in RELATIONS:
        bound = _scalar(name, value)
        if bound is None or isinstance(bound, bool):
            raise TypeError(f'"{relation}" of "{name}" takes a number or a string: got {bound!r}')
        return Compare(path, relation, bound)
    raise ValueError(
        f'"{name}" has the unknown operator {relation!r}: expected one of {_NAMES_OF_OPERATORS}. '
        'A field of a field is named "outer.inner"'
    )


def _path(name: Any) -> Path:
    """Split a name at its dots.

    Quotes, backslashes and control characters stay out because the JSON paths of SQLite have no
    way to write them.
    """
    if not isinstance(name, str):
        raise TypeError(f"names of fields must be strings: got {name!r}")
    if _UNQUOTABLE.search(name):
        raise ValueError(
            f"names of fields in where must not hold quotes, backslashes or controls: got {name!r}"
        )
    path = tuple(name.split("."))
    if not all(path) or len(path) > MAX_DEPTH:
        raise ValueError(f'names of fields are one or more words with dots between: got "{name}"')
    return path


def _scalar(name: str, value: Any) -> Scalar:
    if isinstance(value, (list, tuple, Mapping)):
        raise TypeError(f'"{name}" is compared with single values, not {value!r}. Is it "in"?')
    try:
        scalar: Scalar = clean(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f'where, "{name}": {error}') from None
    return scalar


def _size(where: Where) -> int:
    match where:
        case And(parts) | Or(parts):
            return 1 + sum(map(_size, parts))
        case Not(part):
            return 1 + _size(part)
        case _:
            return 1

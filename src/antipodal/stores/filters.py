"""Metadata filters: parsing, evaluation, and translation to each engine."""

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, LiteralString, TypeAlias

from antipodal.stores.items import MAX_DEPTH, clean

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
_OPERATOR_NAMES = "in, lt, lte, gt, gte, exists"


@dataclass(frozen=True)
class OneOf:
    """The field is one of these values."""

    path: Path
    values: tuple[Scalar, ...]

    @cached_property
    def known(self) -> frozenset[tuple[str, Scalar]]:
        """The values with their kinds, which distinguish True from 1."""
        return frozenset((kind(value), value) for value in self.values)


@dataclass(frozen=True)
class Compare:
    """The field is less or greater than a number or string, and of the same kind."""

    path: Path
    relation: Relation
    value: str | int | float


@dataclass(frozen=True)
class Exists:
    """The field exists; it may be null."""

    path: Path


@dataclass(frozen=True)
class And:
    """All parts are true; always true without parts."""

    parts: tuple["Where", ...]


@dataclass(frozen=True)
class Or:
    """At least one part is true."""

    parts: tuple["Where", ...]


@dataclass(frozen=True)
class Not:
    """The part is false."""

    part: "Where"


Where: TypeAlias = OneOf | Compare | Exists | And | Or | Not


def parse_where(where: Mapping[str, Any]) -> Where:
    """Parse a filter, or raise ValueError or TypeError that names the invalid entry.

    Examples
    --------
    >>> parse_where({"label": 3})
    OneOf(path=('label',), values=(3,))
    """
    tree = _parse(where, 0)
    if _size(tree) > MAX_CONDITIONS:
        raise ValueError(
            f"where must have at most {MAX_CONDITIONS} conditions: got {_size(tree)}. "
            'Would {"field": {"in": […]}} be equivalent?'
        )
    return tree


def matches(where: Where, metadata: Mapping[str, Any]) -> bool:
    """Return whether an item with these metadata matches the filter."""
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
    """Return the kind of a JSON value; only values of the same kind can be equal or ordered."""
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
        raise ValueError(f"where must be nested at most {MAX_DEPTH} levels deep")
    parts = [_entry(name, value, depth) for name, value in where.items()]
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def _entry(name: Any, value: Any, depth: int) -> Where:
    if name == "not":
        return Not(_parse(value, depth + 1))
    if name in ("and", "or"):
        if not isinstance(value, (list, tuple)) or not value:
            raise TypeError(f'"{name}" takes a list of at least one filter: got {value!r}')
        parts = tuple(_parse(part, depth + 1) for part in value)
        return And(parts) if name == "and" else Or(parts)
    path = _path(name)
    if not isinstance(value, Mapping):
        return OneOf(path, (_scalar(name, value),))
    if not value:
        raise ValueError(f'"{name}" must have an operator: expected one of {_OPERATOR_NAMES}')
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
        f'"{name}" has the unknown operator {relation!r}: expected one of {_OPERATOR_NAMES}. '
        'A nested field is written as "outer.inner"'
    )


def _path(name: Any) -> Path:
    """Split a name at its dots.

    JSON paths of SQLite cannot contain quotes, backslashes or control characters.
    """
    if not isinstance(name, str):
        raise TypeError(f"field names must be strings: got {name!r}")
    if _UNQUOTABLE.search(name):
        raise ValueError(
            "field names in where must not contain quotes, backslashes or control characters: "
            f"got {name!r}"
        )
    path = tuple(name.split("."))
    if not all(path) or len(path) > MAX_DEPTH:
        raise ValueError(f'field names must be words separated by dots: got "{name}"')
    return path


def _scalar(name: str, value: Any) -> Scalar:
    if isinstance(value, (list, tuple, Mapping)):
        raise TypeError(
            f'"{name}" must be compared with a single value: got {value!r}. Did you mean "in"?'
        )
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


_SYMBOLS: dict[Relation, LiteralString] = {"lt": "<", "lte": "<=", "gt": ">", "gte": ">="}

Condition = tuple[LiteralString, list[Any]]


def _tree(where: Where, leaf: Callable[[Any], Condition]) -> Condition:
    """Combine the conditions of the leaves, each of which is true or false, never NULL."""
    match where:
        case And(()):
            return "TRUE", []
        case And(parts) | Or(parts):
            texts, lists = zip(*(_tree(part, leaf) for part in parts), strict=True)
            word: LiteralString = " AND " if isinstance(where, And) else " OR "
            return "(" + word.join(texts) + ")", [value for values in lists for value in values]
        case Not(part):
            text, values = _tree(part, leaf)
            return "NOT " + text, values
        case _:
            return leaf(where)


# --------------------------------------------------------------------------------- SQLite

_TYPE: LiteralString = "json_type(metadata, ?)"
_VALUE: LiteralString = "json_extract(metadata, ?)"
_AMONG: LiteralString = " IN (SELECT value FROM json_each(?))"
# Before 3.43, on platforms where long double is double, SQLite may round a decimal to a double that
# is not the nearest. Texts are exact, and Python writes equal doubles as equal texts.
_TEXT: LiteralString = "metadata -> ?"
EXACT_REAL = "exact_real"  # the SQL function that a connection must define as Python's float
_REAL: LiteralString = "exact_real(metadata -> ?)"


def sqlite_condition(where: Where) -> Condition:
    """Return a condition on the column `metadata`, and its parameters in order."""
    return _tree(where, _sqlite_leaf)


def _sqlite_leaf(where: OneOf | Compare | Exists) -> Condition:
    path = "$" + "".join(f'."{name}"' for name in where.path)
    match where:
        case Exists():
            return f"({_TYPE} IS NOT NULL)", [path]
        case Compare(_, relation, str(value)):
            symbol = _SYMBOLS[relation]
            return f"({_TYPE} = 'text' AND {_VALUE} {symbol} ?) IS TRUE", [path, path, value]
        case Compare(_, relation, value):
            symbol = _SYMBOLS[relation]
            return (
                f"(CASE {_TYPE} WHEN 'integer' THEN {_VALUE} {symbol} ? "
                f"WHEN 'real' THEN {_REAL} {symbol} ? END) IS TRUE",
                [path, path, value, path, value],
            )
    groups: list[tuple[LiteralString, LiteralString, Sequence[Any]]] = [
        ("text", _VALUE, [v for v in where.values if isinstance(v, str)]),
        ("integer", _VALUE, [v for v in where.values if type(v) is int]),
        ("real", _TEXT, [json.dumps(v) for v in where.values if isinstance(v, float)]),
    ]
    words = [json.dumps(v) for v in where.values if v is None or isinstance(v, bool)]
    texts: list[LiteralString] = [f"{_TYPE}{_AMONG}"] if words or not where.values else []
    values: list[Any] = [path, json.dumps(words)] if texts else []
    for name, value, members in groups:
        if members:
            texts.append(f"{value}{_AMONG} AND {_TYPE} = '{name}'")
            values += [path, json.dumps(members, ensure_ascii=False), path]
    return "(" + " OR ".join(texts) + ") IS TRUE", values


# ----------------------------------------------------------------------------- PostgreSQL


def postgres_condition(where: Where) -> Condition:
    """Return a condition on the column `metadata`, and its parameters in order."""
    return _tree(where, _postgres_leaf)


def _postgres_leaf(where: OneOf | Compare | Exists) -> Condition:
    # -> with a text reads only fields of objects; #> would also read elements of arrays.
    field: LiteralString = "(metadata" + " -> %s::text" * len(where.path) + ")"
    path = list(where.path)
    match where:
        case Exists():
            return f"({field} IS NOT NULL)", path
        case OneOf(_, values):
            texts = [json.dumps(value, ensure_ascii=False) for value in values]
            return f"({field} = ANY (%s::jsonb[])) IS TRUE", [*path, texts]
    # CASE, since SQL does not define the order within AND, and casting a non-number fails.
    symbol = _SYMBOLS[where.relation]
    if isinstance(where.value, str):
        return (
            f"(CASE jsonb_typeof({field}) WHEN 'string' "
            f"THEN ({field} #>> '{{}}') COLLATE \"C\" {symbol} %s::text ELSE FALSE END)",
            [*path, *path, where.value],
        )
    return (
        f"(CASE jsonb_typeof({field}) WHEN 'number' "
        f"THEN {field}::numeric {symbol} %s::numeric ELSE FALSE END)",
        [*path, *path, json.dumps(where.value)],
    )


# --------------------------------------------------------------------------------- Milvus

_PLAIN = re.compile(r"[A-Za-z0-9_ .:/+-]*", re.ASCII)
_MAX_COMPARISONS = 50  # Milvus parses at most 100 nested messages


def milvus_narrowing(where: Where) -> str:
    """Return a Milvus expression that selects all matching items, and possibly others.

    Milvus expressions differ from `matches`, so the caller must check the selected items with
    `matches`. The expression "" selects all items. It stands for parts with `not`, `exists` or
    null, and for names and strings other than plain ASCII words, which are never sent to Milvus.
    """
    expression = _narrowing(where)
    return expression if expression.count("metadata") <= _MAX_COMPARISONS else ""


def _narrowing(where: Where) -> str:
    match where:
        case And(parts):
            return " and ".join(text for text in map(_narrowing, parts) if text)
        case Or(parts):
            texts = [_narrowing(part) for part in parts]
            return "(" + " or ".join(f"({text})" for text in texts) + ")" if all(texts) else ""
        case Not() | Exists():
            return ""
    if not all(map(_PLAIN.fullmatch, where.path)):
        return ""
    field = "metadata" + "".join(f'["{name}"]' for name in where.path)
    if isinstance(where, OneOf):
        literals = [_literal(value) for value in where.values[: _MAX_COMPARISONS + 1]]
        if not literals or not all(literals):
            return ""
        return "(" + " or ".join(f"{field} == {literal}" for literal in literals) + ")"
    literal = _literal(where.value)
    # Never < or >: rounding may make different values equal.
    symbol = "<=" if where.relation in ("lt", "lte") else ">="
    return f"{field} {symbol} {literal}" if literal else ""


def _literal(value: object) -> str:
    """Return a literal that Milvus parses as exactly this value, or "" if that is not certain."""
    if isinstance(value, str):
        return f'"{value}"' if _PLAIN.fullmatch(value) else ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) < 2**53:
        return str(value)
    if isinstance(value, float) and 1e-4 <= abs(value) < 1e15:
        return repr(value)
    return ""

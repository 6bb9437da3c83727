"""A filter in the languages of the engines: SQL of SQLite, SQL of PostgreSQL, Milvus.

In SQL, values and names of fields are parameters; the text is made of the constants below alone.
Milvus has no parameters, so only what cannot be mistaken is written into its expressions.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, LiteralString

from antipodal.stores.where import And, Compare, Exists, Not, OneOf, Or, Relation, Where

_SYMBOLS: dict[Relation, LiteralString] = {"lt": "<", "lte": "<=", "gt": ">", "gte": ">="}

Condition = tuple[LiteralString, list[Any]]


def _tree(where: Where, leaf: Callable[[Any], Condition]) -> Condition:
    """Join the conditions of the leaves; every one is true or false, never NULL."""
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
# Before 3.43, where long double is no longer than double, SQLite may read a decimal as a double
# that is not the nearest. Its text is exact, and Python writes equal doubles as equal texts.
_TEXT: LiteralString = "metadata -> ?"
EXACT_REAL = "exact_real"  # the name under which a connection must have Python's float
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
    # -> with a text reads fields of objects only, where #> would read places of arrays as well.
    field: LiteralString = "(metadata" + " -> %s::text" * len(where.path) + ")"
    path = list(where.path)
    match where:
        case Exists():
            return f"({field} IS NOT NULL)", path
        case OneOf(_, values):
            texts = [json.dumps(value, ensure_ascii=False) for value in values]
            return f"({field} = ANY (%s::jsonb[])) IS TRUE", [*path, texts]
    # CASE, for SQL promises no order within AND, and a cast of what is no number fails.
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
_MAX_COMPARISONS = 50  # it reads nested messages, at most 100 deep


def milvus_narrowing(where: Where) -> str:
    """Return an expression that holds for every item that passes, and maybe for others.

    Milvus does not promise the meaning of `matches`, so the caller asks `matches` about what this
    lets through. "" lets everything through: it stands for parts with `not`, `exists`, null, and
    for names and strings other than plain ASCII words, which therefore never reach an expression.
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
    # Never < or >: rounding may make equal what is not.
    symbol = "<=" if where.relation in ("lt", "lte") else ">="
    return f"{field} {symbol} {literal}" if literal else ""


def _literal(value: object) -> str:
    """Write a value so that it can only be read as that value, or "" where that is not certain."""
    if isinstance(value, str):
        return f'"{value}"' if _PLAIN.fullmatch(value) else ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) < 2**53:
        return str(value)
    if isinstance(value, float) and 1e-4 <= abs(value) < 1e15:
        return repr(value)
    return ""

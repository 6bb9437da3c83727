"""Metadata filters: semantics, invalid filters, and equal results of all engines."""

import json
import operator
import re
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antipodal.stores import open_store
from antipodal.stores.filters import (
    And,
    Compare,
    Exists,
    Not,
    OneOf,
    Or,
    matches,
    milvus_narrowing,
    parse_where,
    postgres_condition,
    sqlite_condition,
)
from antipodal.stores.items import clean, metadata_texts, parse_metadata
from effort import fresh_examples
from engines import ENGINES, engines  # noqa: F401

ITEM = {
    "label": 3,
    "half": 0.5,
    "big": 2**53 + 1,
    "name": "ä",
    "digit": "3",
    "yes": True,
    "none": None,
    "list": [1],
    "camera": {"maker": "x", "0": 7},
}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({}, True),
        ({"label": 3}, True),
        ({"label": 3.0}, True),
        ({"label": "3"}, False),
        ({"digit": 3}, False),
        ({"label": 3, "half": 0.25}, False),
        ({"label": {"in": [1, 3]}}, True),
        ({"label": {"in": []}}, False),
        ({"big": 2**53}, False),
        ({"big": {"gt": 2.0**53}}, True),
        ({"half": {"gt": 0, "lt": 1}}, True),
        ({"half": {"gte": 0.5, "lte": 0.5}}, True),
        ({"half": {"gt": 0.5}}, False),
        ({"half": {"gt": "0"}}, False),
        ({"yes": True}, True),
        ({"yes": 1}, False),
        ({"yes": {"gt": 0}}, False),
        ({"label": True}, False),
        ({"none": None}, True),
        ({"missing": None}, False),
        ({"none": {"exists": True}}, True),
        ({"missing": {"exists": True}}, False),
        ({"missing": {"exists": False}}, True),
        ({"missing": {"lt": 3}}, False),
        ({"not": {"missing": 3}}, True),
        ({"not": {"missing": {"lt": 3}}}, True),
        ({"not": {"label": 3}}, False),
        ({"list": {"gt": 0}}, False),
        ({"list": {"exists": True}}, True),
        ({"name": {"gt": "z"}}, True),  # by code point, not by locale
        ({"name": {"lt": "𝄞"}}, True),
        ({"camera.maker": "x"}, True),
        ({"camera.0": 7}, True),
        ({"list.0": 1}, False),
        ({"label.maker": "x"}, False),
        ({"or": [{"label": 4}, {"digit": "3"}]}, True),
        ({"and": [{"label": 3}, {"digit": "4"}]}, False),
        ({"not": {"or": [{"label": 4}, {"digit": "4"}]}}, True),
    ],
    ids=str,
)
def test_filters_match_as_expected(where, expected):
    assert matches(parse_where(where), ITEM) is expected


def test_parsing_returns_a_typed_tree():
    tree = parse_where({"a.b": 1, "or": [{"c": {"lt": "x"}}, {"not": {"d": {"exists": True}}}]})
    assert tree == And(
        (OneOf(("a", "b"), (1,)), Or((Compare(("c",), "lt", "x"), Not(Exists(("d",))))))
    )


@pytest.mark.parametrize(
    ("where", "error", "message"),
    [
        ([], TypeError, r"\bwhere\b.*\[\]"),
        ({"or": []}, TypeError, r"\bor\b"),
        ({"or": {"a": 1}}, TypeError, r"\bor\b.*\{'a': 1\}"),
        ({"not": [{"a": 1}]}, TypeError, r"\bwhere\b.*\[\{'a': 1\}\]"),
        ({"a": [1]}, TypeError, '"in"'),
        ({"a": {}}, ValueError, "operator"),
        ({"a": {"b": 1}}, ValueError, "'b'.*\"outer.inner\""),
        ({"a": {"in": 1}}, TypeError, r"\bin\b.*\b1\b"),
        ({"a": {"in": [[1]]}}, TypeError, r"\ba\b.*\[1\]"),
        ({"a": {"lt": None}}, TypeError, r"\blt\b.*\bNone"),
        ({"a": {"lt": True}}, TypeError, r"\blt\b.*\b(bool|True)\b"),
        ({"a": {"exists": 1}}, TypeError, r"\bexists\b"),
        ({"a": float("nan")}, ValueError, "finite"),
        ({"a": 2**63}, ValueError, "64 bits"),
        ({"a": {1, 2}}, TypeError, r"\bset\b"),
        ({"a": "\0"}, ValueError, r"U\+0000"),
        ({"": 1}, ValueError, r"''|\"\""),
        ({"a..b": 1}, ValueError, r"a\.\.b"),
        ({'a"b': 1}, ValueError, "quotes"),
        ({"a\\b": 1}, ValueError, "backslashes"),
        ({3: 1}, TypeError, r"\b3\b|\bint\b"),
        ({"or": [{"a": 1}] * 1000}, ValueError, r"\b500\b"),
    ],
    ids=str,
)
def test_invalid_filters_raise(where, error, message):
    with pytest.raises(error, match=message):
        parse_where(where)


def test_a_deeply_nested_filter_raises_value_error():
    where = {"a": 1}
    for _ in range(5000):
        where = {"not": where}
    with pytest.raises(ValueError, match=r"\b50\b"):
        parse_where(where)


# ------------------------------------------------------------------------------ metadata

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | texts
objects = st.dictionaries(
    texts, st.recursive(scalars, lambda x: st.lists(x) | st.dictionaries(texts, x), max_leaves=8)
)


@fresh_examples(60)
@given(objects)
def test_metadata_round_trip_to_a_canonical_text(fields):
    (text,) = metadata_texts([fields], 1)
    again = parse_metadata(text)
    assert again == fields
    assert metadata_texts([again], 1) == [text]
    assert json.loads(text) == fields


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_integral_doubles_become_integers(x):
    cleaned = clean(x)
    assert cleaned == x
    assert isinstance(cleaned, int) == (x == round(x) and -(2**63) <= x < 2**63)


def test_numpy_scalars_are_accepted():
    assert clean({"a": np.int64(3), "b": np.float32(0.5), "c": np.bool_(True)}) == {
        "a": 3,
        "b": 0.5,
        "c": True,
    }


# --------------------------------------------------------------- equality of all engines

POOL = [
    None, True, False, 0, 1, -1, 3, 3.5, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 1 - 2**63,
    0.1, 0.30000000000000004, 0.3, 1e300, -1e300, 5e-324, 9007199254740993.0, 1e19, 2.0**63,
    123456.78901234567, 1.7976931348623157e308, 2.2250738585072014e-308,
    "", "3", "true", "null", "é", "e\u0301", "𝄞", "\uffff", "Z", "a", "a'b", 'a"b', "a\\", "%s",
    "' OR 1=1 --", '"] == 1 or metadata["a', "{x}", "a\nb", "$.a",
]  # fmt: skip
NAMES = ["a", "b", "a.b", "b.c", "0", "x y", "é", "$", "a[0]", "%s", "it's", "{x}", "#", "-"]


def documents():
    """Return items with fields of many kinds, and equal and nearly equal values."""
    rng = np.random.default_rng(0)
    floats = (rng.standard_normal(40) * 10.0 ** rng.integers(-20, 25, 40)).tolist()
    values = [*POOL, *floats, *(np.nextafter(x, np.inf).item() for x in floats)]

    def one():
        return values[rng.integers(len(values))]

    items = [{"a": value} for value in values]
    items += [{"a": [value], "b": {"c": value}} for value in values]
    items += [{name.split(".")[0]: one() for name in NAMES} for _ in range(60)]
    items += [{"a": {"b": one()}, "b": {"c": {}}, "a.b": one()} for _ in range(30)]
    return [clean(item) for item in [*items, {}]], values


DOCUMENTS, VALUES = documents()
names = st.sampled_from(NAMES)
values = st.sampled_from(VALUES) | scalars
ordered = st.sampled_from([v for v in VALUES if not (v is None or isinstance(v, bool))])
leaves = (
    st.builds(lambda n, v: {n: v}, names, values)
    | st.builds(lambda n, v: {n: {"in": v}}, names, st.lists(values, max_size=4))
    | st.builds(lambda n, v: {n: {"exists": v}}, names, st.booleans())
    | st.builds(
        lambda n, o, v: {n: {o: v}}, names, st.sampled_from(["lt", "lte", "gt", "gte"]), ordered
    )
)
filters = st.recursive(
    leaves,
    lambda inner: (
        st.builds(lambda f: {"not": f}, inner)
        | st.builds(lambda f: {"and": f}, st.lists(inner, min_size=1, max_size=3))
        | st.builds(lambda f: {"or": f}, st.lists(inner, min_size=1, max_size=3))
    ),
    max_leaves=5,
)


@pytest.fixture(scope="module", params=ENGINES)
def store(request, engines):  # noqa: F811
    with open_store(engines.url(request.param, "filtered"), n_bits=8) as opened:
        opened.upsert(np.arange(len(DOCUMENTS)), np.zeros((len(DOCUMENTS), 1), np.uint8), DOCUMENTS)
        yield opened


def assert_engine_agrees(store, where):
    tree = parse_where(where)
    expected = [number for number, fields in enumerate(DOCUMENTS) if matches(tree, fields)]
    assert store.radius(np.zeros((1, 1), np.uint8), 0, where=where).ids.tolist() == expected


@fresh_examples(60)
@given(where=filters)
def test_engines_match_the_reference(store, where):
    assert_engine_agrees(store, where)


@pytest.mark.parametrize("relation", ["eq", "lt", "lte", "gt", "gte"])
def test_engines_compare_every_value_like_the_reference(store, relation):
    pool = POOL if relation == "eq" else [v for v in POOL if kind_is_ordered(v)]
    for value in pool:
        assert_engine_agrees(store, {"a": value if relation == "eq" else {relation: value}})


def kind_is_ordered(value):
    return not (value is None or isinstance(value, bool))


def test_cached_filters_distinguish_true_from_1(store):
    for value in (1, True, 1, True):
        assert_engine_agrees(store, {"a": value})


def test_a_filter_may_have_many_values(store):
    assert_engine_agrees(store, {"a": {"in": [*range(50_000), *VALUES]}})


def test_remembered_filters_use_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("antipodal.stores.index_cache._FILTER_BYTES", 1_000_000)
    code = np.zeros((1, 1), np.uint8)
    with open_store(f"sqlite:///{tmp_path}/items.db", n_bits=8) as opened:
        opened.upsert([0], code, [{"a": 1}])
        opened.search(code, 1)
        tracemalloc.start()
        try:
            for first in range(16):
                values = [first, *range(100_000 * first + 1000, 100_000 * first + 8_500)]
                found = opened.search(code, 1, where={"a": {"in": values}})
                assert found.ids.size == (first == 1)
            del values, found
            used, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert used < 1_500_000
        small = {"a": {"in": [1, 2]}}
        assert opened.search(code, 1, where=small).ids.tolist() == [[0]]
        assert opened._cache._filters  # small filters are remembered


def test_filters_may_have_the_maximum_number_and_depth_of_conditions(store):
    assert_engine_agrees(store, {"or": [{"a": float(x) + 0.5} for x in range(480)]})
    deep = {"a": 1}
    for _ in range(24):
        deep = {"not": {"and": [deep]}}
    assert_engine_agrees(store, deep)


# ----------------------------------------------------------------------------- injection


@given(where=filters)
def test_sql_consists_of_constants_and_parameters(where):
    words = (
        r"[()?]|%s|::(text|jsonb|numeric)(\[\])?|->|#>>|'(\{\}|text|integer|real|number|string)'|"
        r"\"C\"|<=?|>=?|=|,|\b(TRUE|FALSE|AND|OR|NOT|IS|NULL|IN|SELECT|FROM|ANY|CASE|WHEN|THEN|ELSE|"
        r"END|COLLATE|metadata|value|json_type|json_extract|json_each|exact_real|jsonb_typeof)\b|\s"
    )
    for condition, mark in ((sqlite_condition, "?"), (postgres_condition, "%s")):
        text, parameters = condition(parse_where(where))
        assert re.sub(words, "", text) == ""
        assert text.count(mark) == len(parameters)


@given(name=st.text(), value=st.text() | numbers | st.booleans())
def test_milvus_expressions_are_unambiguous(name, value):
    string = r'"[A-Za-z0-9_ .:/+-]*"'
    literal = rf"({string}|-?[0-9]+(\.[0-9]+)?|true|false)"
    grammar = rf"(\()?metadata(\[{string}\])+ (==|<=|>=) {literal}(\))?"
    for tree in (OneOf((name,), (value,)), Compare((name,), "lt", value)):
        expression = milvus_narrowing(tree)
        assert expression == "" or re.fullmatch(grammar, expression)


@given(where=filters)
def test_milvus_expressions_select_all_matching_items(where):
    expression = milvus_narrowing(parse_where(where))
    tree = parse_where(where)
    if expression:
        python = re.sub(r"\bmetadata((?:\[\"[^\"]*\"\])+)", r"_Field(item)\1", expression)
        names = {"_Field": _Field, "true": True, "false": False}
        for item in DOCUMENTS:
            if matches(tree, item):
                assert eval(python, {**names, "item": item})  # the grammar of the test above


class _Field:
    """Comparison as in Milvus: values of the same kind only, never missing ones."""

    def __init__(self, value):
        self.value = value

    def __getitem__(self, name):
        return _Field(self.value.get(name) if isinstance(self.value, dict) else None)

    def _compare(self, relation, other):
        kinds = [(bool,), (int, float), (str,)]
        for kind in kinds:
            if isinstance(self.value, kind) and isinstance(other, kind):
                return isinstance(self.value, bool) == isinstance(other, bool) and relation(
                    self.value, other
                )
        return False

    def __eq__(self, other):
        return self._compare(operator.eq, other)

    def __le__(self, other):
        return self._compare(operator.le, other)

    def __ge__(self, other):
        return self._compare(operator.ge, other)

    __hash__ = None

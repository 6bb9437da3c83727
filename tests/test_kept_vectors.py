"""Kept vectors as bytes, and string ids: properties of both."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from antipodal.stores.items import check_unique_ids, id_type_of, parse_metadata, take_key, with_keys
from antipodal.stores.vectors import pack_vectors, unpack_vectors, vector_bytes

_shapes = hnp.array_shapes(min_dims=2, max_dims=2, max_side=20)
_values = st.floats(-60_000, 60_000, width=32).filter(lambda x: x == 0 or abs(x) > 1e-4)
_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


@given(rows=hnp.arrays(np.float32, _shapes, elements=_values))
def test_packed_vectors_are_unpacked_within_the_precision_of_their_type(rows):
    largest = np.abs(rows).max(axis=1, keepdims=True)
    for kind in ("float32", "float16", "int8"):
        packed = pack_vectors(rows, kind)
        assert {len(row) for row in packed} == {vector_bytes(rows.shape[1], kind)}
        unpacked = unpack_vectors(packed, rows.shape[1], kind)
        error = {"float32": 0 * rows, "float16": np.abs(rows) * 2**-10, "int8": largest / 253}
        assert (np.abs(unpacked - rows) <= error[kind]).all()
        again = unpack_vectors(pack_vectors(unpacked, kind), rows.shape[1], kind)
        np.testing.assert_allclose(again, unpacked, rtol=1e-6)  # a second conversion loses nothing


@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
@pytest.mark.parametrize("value", [1e39, 1e-46])
def test_vectors_outside_the_range_of_a_type_raise(kind, value):
    with pytest.raises(ValueError, match=kind):
        pack_vectors(np.array([[1.0, 0.5], [0.0, value]]), kind)


def test_vectors_of_another_size_raise():
    with pytest.raises(ValueError, match="bytes"):
        unpack_vectors([bytes(16)], 3, "float32")


@given(ids=st.lists(_texts.filter(lambda text: len(text.encode()) <= 512), unique=True))
def test_string_ids_survive_in_metadata(ids):
    if not ids:
        return
    assert id_type_of(ids) == "string"
    keys = check_unique_ids(ids, "string")
    for fields in ("{}", '{"a":1}'):
        objects = [parse_metadata(text) for text in with_keys([fields] * len(ids), keys)]
        assert [take_key(one) for one in objects] == ids
        assert objects == [parse_metadata(fields)] * len(ids)


@given(ids=st.lists(_texts, min_size=1))
def test_long_or_repeated_string_ids_raise(ids):
    is_valid = len(set(ids)) == len(ids) and all(len(text.encode()) <= 512 for text in ids)
    if is_valid:
        assert check_unique_ids(ids, "string").tolist() == ids
    else:
        with pytest.raises(ValueError, match="ids"):
            check_unique_ids(ids, "string")


@given(ids=st.lists(st.one_of(_texts, st.integers(-(2**63), 2**63 - 1)), min_size=2))
def test_mixed_ids_raise(ids):
    if len({type(i) for i in ids}) == 2:
        with pytest.raises((TypeError, ValueError)):
            check_unique_ids(ids, id_type_of(ids))

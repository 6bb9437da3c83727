"""Packing of bits: most significant bit first, zero padding, checked input."""

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from antipodal import pack, unpack

bits = st.tuples(st.integers(0, 9), st.integers(1, 70)).flatmap(
    lambda shape: arrays(np.uint8, shape, elements=st.integers(0, 1))
)


@given(bits)
def test_unpack_is_the_inverse_of_pack(b):
    codes = pack(b)
    assert codes.dtype == np.uint8
    assert codes.shape == (len(b), -(-b.shape[1] // 8))
    np.testing.assert_array_equal(unpack(codes, b.shape[1]), b)


@given(bits)
def test_bit_i_is_bit_7_minus_i_mod_8_of_byte_i_div_8_and_the_rest_is_zero(b):
    codes = pack(b)
    for row, code in zip(b, codes, strict=True):
        number = int.from_bytes(code.tobytes(), "big")
        text = format(number, f"0{8 * len(code)}b")
        assert text == "".join(map(str, row)).ljust(8 * len(code), "0")


@given(bits.filter(lambda b: len(b) > 1))
def test_faiss_counts_the_same_differing_bits(b):
    codes = pack(b)
    index = faiss.IndexBinaryFlat(8 * codes.shape[1])
    index.add(codes)
    distances, ids = index.search(codes[:1], len(codes))
    np.testing.assert_array_equal(distances[0], (b[0] != b[ids[0]]).sum(axis=1))


def test_booleans_are_accepted_as_bits():
    np.testing.assert_array_equal(pack(np.array([[True, False]])), [[128]])


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ([[0.5, -0.5]], TypeError, r"\bfloat64\b"),
        ([[1, -1]], ValueError, "±1"),
        ([[129]], ValueError, r"\bpacked\b"),
        ([1, 0], ValueError, r"\(2,\)"),
        (np.zeros((3, 0), np.uint8), ValueError, r"\(3, 0\)"),
    ],
)
def test_invalid_bits_are_named(value, error, message):
    with pytest.raises(error, match=message):
        pack(value)


@pytest.mark.parametrize(
    ("codes", "n_bits", "error", "message"),
    [
        (np.zeros((2, 2), np.uint8), 17, ValueError, r"\b17 bits\b.*\b3 bytes\b.*\(2, 2\)"),
        (np.zeros((2, 2), np.uint8), 0, ValueError, r"\bn_bits\b.*\b1\b.*\b0\b"),
        (np.zeros((2, 2), np.int64), 16, TypeError, r"\buint8\b.*\bint64\b"),
        (np.full((2, 2), 255, np.uint8), 15, ValueError, r"\b15 bits\b.*\bn_bits\b"),
    ],
)
def test_invalid_codes_are_named(codes, n_bits, error, message):
    with pytest.raises(error, match=message):
        unpack(codes, n_bits)

"""Conversion of codes to the formats of other engines and back."""

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from usearch.index import Index, MetricKind, ScalarKind

from antipodal import codes as forms
from antipodal import pack

bits = st.tuples(st.integers(0, 9), st.integers(1, 70)).flatmap(
    lambda shape: arrays(np.uint8, shape, elements=st.integers(0, 1))
)
PAIRS = {
    name: (getattr(forms, f"to_{name}"), getattr(forms, f"from_{name}"))
    for name in ("bytes", "hex", "bit_strings", "int8")
}


@pytest.mark.parametrize("name", PAIRS)
@given(b=bits)
def test_from_is_the_inverse_of_to(name, b):
    to, back = PAIRS[name]
    codes, n_bits = pack(b), b.shape[1]
    again = back(to(codes, n_bits), n_bits)
    np.testing.assert_array_equal(again, codes)
    assert again.dtype == np.uint8
    assert again.shape == codes.shape
    assert again.flags.writeable


@given(b=bits)
def test_each_format_has_the_same_value_as_the_bits(b):
    codes, n_bits = pack(b), b.shape[1]
    padded = 8 * codes.shape[1] - n_bits
    numbers = [int("".join(map(str, row)), 2) << padded for row in b]
    assert [int(row, 16) for row in forms.to_hex(codes, n_bits)] == numbers
    assert [int(row, 2) << padded for row in forms.to_bit_strings(codes, n_bits)] == numbers
    assert [int.from_bytes(row, "big") for row in forms.to_bytes(codes, n_bits)] == numbers
    signed = forms.to_int8(codes, n_bits).tolist()
    assert [int.from_bytes(bytes(x % 256 for x in row), "big") for row in signed] == numbers


def test_zero_bytes_at_the_end_of_a_row_are_kept():
    codes = np.zeros((2, 3), np.uint8)
    assert forms.to_bytes(codes, 24) == [b"\0\0\0"] * 2
    assert forms.to_hex(codes, 24) == ["000000"] * 2
    assert forms.to_bit_strings(codes, 24) == ["0" * 24] * 2


@pytest.mark.parametrize("n_bits", [8, 13, 64, 100])
def test_faiss_and_usearch_accept_codes_and_return_the_same_distances(n_bits):
    rng = np.random.default_rng(n_bits)
    b = rng.integers(0, 2, (300, n_bits), dtype=np.uint8)
    codes = pack(b)
    expected = np.sort((b[:5, None] != b[None]).sum(axis=2), axis=1)[:, :20]

    flat = faiss.IndexBinaryFlat(8 * codes.shape[1])
    flat.add(codes)
    np.testing.assert_array_equal(flat.search(codes[:5], 20)[0], expected)

    index = Index(ndim=8 * codes.shape[1], metric=MetricKind.Hamming, dtype=ScalarKind.B1)
    index.add(np.arange(300), codes)
    matches = index.search(codes[:5], 20, exact=True)
    np.testing.assert_array_equal(matches.distances, expected)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: forms.from_bytes([b"ab", b"a"], 16), ValueError, r"\brow 1\b.*\b1\b"),
        (lambda: forms.from_bytes([b"\xff"], 7), ValueError, r"\b7 bits\b.*\bn_bits\b"),
        (lambda: forms.from_hex(["zz"], 8), ValueError, r"\bhexadecimal\b.*\b8 bits\b"),
        (lambda: forms.from_hex(["abc"], 8), ValueError, r"\bhexadecimal\b.*\b8 bits\b"),
        (lambda: forms.from_bit_strings(["01", "0"], 2), ValueError, r"\brow 1\b.*'0'"),
        (lambda: forms.from_bit_strings(["0²"], 2), ValueError, r"\b0 and 1\b"),
        (lambda: forms.from_int8([[128]], 8), ValueError, r"\b128\b"),
        (lambda: forms.from_int8([[0.5]], 8), TypeError, "float64"),
        (lambda: forms.to_hex(np.zeros((1, 2), np.uint8), 8), ValueError, r"\b8 bits\b.*\b1 byte"),
    ],
)
def test_invalid_codes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()

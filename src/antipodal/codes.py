"""Bits, packed codes, and conversions to the formats of other engines.

Bits are uint8 arrays of 0 and 1, one row per sample. Codes are their packed form: eight bits per
byte, most significant bit first, each row padded with zero bits to whole bytes.

Faiss and usearch (`b1`) accept codes unchanged, with 8 · `code_width` dimensions. The functions
`to_…` and `from_…` convert to and from the formats of other engines:

    bytes          one bytes object per item       Milvus, SQLite BLOB, Redis
    hex            two digits per byte             Vespa, JSON, log files
    bit strings    "0101…", n_bits characters      pgvector, PostgreSQL bit(n)
    int8           the same bytes with a sign      Vespa tensor<int8>
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Bits = NDArray[np.uint8]
Codes = NDArray[np.uint8]


def pack(bits: ArrayLike) -> Codes:
    """Pack 0/1 bits (n, n_bits) into codes (n, ⌈n_bits / 8⌉).

    Parameters
    ----------
    bits : (n, n_bits)
        Integers 0 and 1, or booleans.

    Returns
    -------
    uint8 array (n, ⌈n_bits / 8⌉)
        Most significant bit first, padded with zero bits to whole bytes.

    Examples
    --------
    >>> pack([[1, 0, 0, 0, 0, 0, 0, 1, 1]])
    array([[129, 128]], dtype=uint8)
    """
    array = np.asarray(bits)
    if array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(
            "bits must have the shape (samples, bits), with at least one bit: got shape "
            f"{array.shape}"
        )
    if array.dtype != np.bool_:
        if not np.issubdtype(array.dtype, np.integer):
            raise TypeError(
                f"bits must be integers 0 and 1 or booleans: got {array.dtype}. "
                "Compare float values with zero first: pack(values > 0)"
            )
        if array.size and (array.min() < 0 or array.max() > 1):
            raise ValueError(
                f"bits must be 0 or 1: got values from {array.min()} to {array.max()}. "
                "Are they already packed, or signs ±1?"
            )
    return np.packbits(array.astype(np.bool_, copy=False), axis=1)


def unpack(codes: ArrayLike, n_bits: int) -> Bits:
    """Unpack codes (n, ⌈n_bits / 8⌉) into 0/1 bits (n, n_bits), the inverse of `pack`.

    Parameters
    ----------
    codes : uint8 (n, ⌈n_bits / 8⌉)
        Packed codes.
    n_bits : int
        Code length, without the padding.

    Examples
    --------
    >>> unpack(pack([[1, 0, 0, 0, 0, 0, 0, 1, 1]]), 9)
    array([[1, 0, 0, 0, 0, 0, 0, 1, 1]], dtype=uint8)
    """
    return np.unpackbits(check_codes(codes, n_bits), axis=1, count=n_bits)


def check_codes(codes: ArrayLike, n_bits: int, name: str = "codes") -> Codes:
    """Return `codes` as a contiguous uint8 array after checking that they have n_bits bits."""
    array = np.asarray(codes)
    if n_bits < 1:
        raise ValueError(f"n_bits must be at least 1: got {n_bits}")
    if array.dtype != np.uint8:
        raise TypeError(
            f"{name} must be packed bytes, uint8: got {array.dtype}. Are they vectors? "
            "Encode them first"
        )
    width = code_width(n_bits)
    if array.ndim != 2 or array.shape[1] != width:
        raise ValueError(
            f"{name} of {n_bits} bits must have {width} bytes per row: got shape {array.shape}. "
            "Were they made by `pack` with this n_bits?"
        )
    padding = (1 << (8 * width - n_bits)) - 1
    if padding and np.any(array[:, -1] & padding):
        raise ValueError(
            f"the last {8 * width - n_bits} padding bits of each row of {name} of {n_bits} bits "
            "must be 0: some are 1. Is n_bits too small?"
        )
    return np.ascontiguousarray(array)


def code_width(n_bits: int) -> int:
    """Return the number of bytes of n_bits packed bits."""
    return -(-n_bits // 8)


def to_bytes(codes: ArrayLike, n_bits: int) -> list[bytes]:
    """Convert each row of codes to bytes.

    Examples
    --------
    >>> to_bytes(pack([[0, 1, 0, 0, 0, 0, 0, 1, 0, 1]]), 10)
    [b'A@']
    """
    packed = check_codes(codes, n_bits)
    rows: list[bytes] = packed.view(f"V{packed.shape[1]}")[:, 0].tolist()
    return rows


def from_bytes(rows: Iterable[bytes], n_bits: int) -> Codes:
    """Convert bytes to codes, the inverse of `to_bytes`."""
    rows = list(rows)
    width = code_width(n_bits)
    for i, row in enumerate(rows):
        if len(row) != width:
            raise ValueError(
                f"each row of {n_bits} bits must have {width} bytes: row {i} has {len(row)}"
            )
    packed = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), width)
    return check_codes(packed, n_bits).copy()


def to_hex(codes: ArrayLike, n_bits: int) -> list[str]:
    """Convert each row of codes to hexadecimal digits, two per byte.

    Examples
    --------
    >>> to_hex(pack([[0, 1, 0, 0, 0, 0, 0, 1, 1]]), 9)
    ['4180']
    """
    return [row.hex() for row in to_bytes(codes, n_bits)]


def from_hex(rows: Iterable[str], n_bits: int) -> Codes:
    """Convert hexadecimal digits, in upper or lower case, to codes, the inverse of `to_hex`."""
    try:
        return from_bytes([bytes.fromhex(row) for row in rows], n_bits)
    except (TypeError, ValueError) as error:
        raise ValueError(f"rows must be hexadecimal codes of {n_bits} bits: {error}") from None


def to_bit_strings(codes: ArrayLike, n_bits: int) -> list[str]:
    """Convert each row of codes to a string of n_bits characters 0 and 1.

    Examples
    --------
    >>> to_bit_strings(pack([[0, 1, 0, 0, 0, 0, 0, 1, 1]]), 9)
    ['010000011']
    """
    characters = unpack(codes, n_bits) + np.uint8(ord("0"))
    rows: list[str] = characters.view(f"S{n_bits}")[:, 0].astype(f"U{n_bits}").tolist()
    return rows


def from_bit_strings(rows: Iterable[str], n_bits: int) -> Codes:
    """Convert strings of 0 and 1 to codes, the inverse of `to_bit_strings`."""
    rows = list(rows)
    for i, row in enumerate(rows):
        if len(row) != n_bits or row.strip("01"):
            raise ValueError(
                f"each row must be {n_bits} characters 0 and 1: row {i} is {row[:80]!r}"
            )
    characters = np.frombuffer("".join(rows).encode("ascii"), np.uint8)
    return pack((characters == ord("1")).reshape(len(rows), n_bits))


def to_int8(codes: ArrayLike, n_bits: int) -> NDArray[np.int8]:
    """Convert codes to int8: each byte is read as an integer from −128 to 127.

    Examples
    --------
    >>> to_int8(pack([[0, 1, 0, 0, 0, 0, 0, 1, 1]]), 9)
    array([[  65, -128]], dtype=int8)
    """
    return check_codes(codes, n_bits).view(np.int8).copy()


def from_int8(rows: ArrayLike, n_bits: int) -> Codes:
    """Convert int8 arrays or lists of integers to codes, the inverse of `to_int8`."""
    array = np.asarray(rows)
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"rows must be integers from -128 to 127: got {array.dtype}")
    if array.size and (array.min() < -128 or array.max() > 127):
        raise ValueError(
            f"rows must be integers from -128 to 127: got {array.min()} to {array.max()}"
        )
    return check_codes(np.ascontiguousarray(array, np.int8).view(np.uint8), n_bits).copy()

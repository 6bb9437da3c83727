"""Bits and the bytes they are packed into: one contract for every part of the library.

Bits are uint8 arrays of 0 and 1, a row a sample. Codes are their packed form: eight bits a
byte, most significant bit first, each row padded with zero bits to whole bytes.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Bits = NDArray[np.uint8]
Codes = NDArray[np.uint8]


def pack(bits: ArrayLike) -> Codes:
    """Pack 0/1 bits (n, n_bits) into codes (n, ⌈n_bits / 8⌉).

    Examples
    --------
    >>> pack([[1, 0, 0, 0, 0, 0, 0, 1, 1]])
    array([[129, 128]], dtype=uint8)
    """
    array = np.asarray(bits)
    if array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(
            f"bits must be a table, a row a sample, at least one bit wide: got shape {array.shape}"
        )
    if array.dtype != np.bool_:
        if not np.issubdtype(array.dtype, np.integer):
            raise TypeError(
                f"bits must be integers 0 and 1 or booleans: got {array.dtype}. "
                "Real values become bits by comparing them with zero: pack(values > 0)"
            )
        if array.size and (array.min() < 0 or array.max() > 1):
            raise ValueError(
                f"bits must be 0 or 1: got values from {array.min()} to {array.max()}. "
                "Are they packed already, or signs ±1?"
            )
    return np.packbits(array.astype(np.bool_, copy=False), axis=1)


def unpack(codes: ArrayLike, n_bits: int) -> Bits:
    """Undo `pack`: codes (n, ⌈n_bits / 8⌉) back to 0/1 bits (n, n_bits).

    Examples
    --------
    >>> unpack(pack([[1, 0, 0, 0, 0, 0, 0, 1, 1]]), 9)
    array([[1, 0, 0, 0, 0, 0, 0, 1, 1]], dtype=uint8)
    """
    return np.unpackbits(check_codes(codes, n_bits), axis=1, count=n_bits)


def check_codes(codes: ArrayLike, n_bits: int, name: str = "codes") -> Codes:
    """Return `codes` as a contiguous uint8 table, or say why they cannot be codes of n_bits."""
    array = np.asarray(codes)
    if n_bits < 1:
        raise ValueError(f"n_bits must be at least 1: got {n_bits}")
    if array.dtype != np.uint8:
        raise TypeError(f"{name} must be packed bytes, uint8: got {array.dtype}")
    width = code_width(n_bits)
    if array.ndim != 2 or array.shape[1] != width:
        raise ValueError(
            f"{name} of {n_bits} bits must have {width} bytes a row: got shape {array.shape}. "
            "Were they packed by `pack`, with this n_bits?"
        )
    padding = (1 << (8 * width - n_bits)) - 1
    if padding and np.any(array[:, -1] & padding):
        raise ValueError(
            f"{name} of {n_bits} bits must have zeros in the last {8 * width - n_bits} bits of "
            "each row: some are set. Is n_bits too small?"
        )
    return np.ascontiguousarray(array)


def code_width(n_bits: int) -> int:
    """Bytes that n_bits take when packed."""
    return -(-n_bits // 8)

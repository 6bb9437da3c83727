"""`TabuSearch` compiled by Numba, an optional package (extra `fast`); the bits are the same."""

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

_MIN_ROWS = 30_000  # after so many rows the faster search has made up for its compilation

_n_rows = 0  # for which a search has been asked for in this process


def compiled_search(n_rows: int) -> Callable[..., None] | None:
    """Return the search for the next n_rows rows, None before it pays or without Numba."""
    global _n_rows
    _n_rows += n_rows
    return _compile() if _n_rows > _MIN_ROWS else None


@functools.cache
def _compile() -> Callable[..., None] | None:
    if importlib.util.find_spec("numba") is None:
        return None
    search: Callable[..., None] = importlib.import_module("numba").njit(nogil=True)(_search)
    return search


def _search(
    b: Any, change: Any, steps: Any, penalty: Any, n_steps: int, tenure: int, min_gain: float
) -> None:
    """Do what `TabuSearch` does, one row after another.

    The smallest change is found among integers, which have the order of the float32 values: this
    loop is vectorised, and one over floats is not.
    """
    n_bits = np.int32(b.shape[1])
    keys = np.empty(n_bits, np.int32)
    flipped = np.empty(n_steps, np.int32)
    for row in range(len(b)):
        signs, values, bits = b[row], change[row], change[row].view(np.int32)
        total, lowest, n_kept = 0.0, 0.0, 0
        for t in range(n_steps):
            least = np.int32(2**31 - 1)
            for i in range(n_bits):
                keys[i] = bits[i] ^ ((bits[i] >> 31) & 0x7FFFFFFF)
                least = min(least, keys[i])
            j = n_bits
            for i in range(n_bits):
                j = min(j, np.int32(i) if keys[i] == least else n_bits)
            flipped[t] = j
            delta, sign, step = values[j], signs[j], steps[j]
            for i in range(n_bits):
                values[i] += step[i] * signs[i] * sign
            signs[j] = -sign
            values[j] = penalty - delta
            if t >= tenure:
                values[flipped[t - tenure]] -= penalty
            total += delta
            if total < lowest - min_gain:
                lowest, n_kept = total, t + 1
        for t in range(n_kept, n_steps):
            signs[flipped[t]] = -signs[flipped[t]]

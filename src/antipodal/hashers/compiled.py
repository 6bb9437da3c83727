"""The tabu search of `BitFlips`, compiled by Numba (extra `fast`); the bits are the same."""

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
    b: Any,
    a: Any,
    c: Any,
    kappa: Any,
    steps: Any,
    weight: Any,
    frozen: Any,
    n_steps: int,
    tenure: int,
    least: float,
) -> None:
    """Do what `BitFlips._tabu` does, one row after another.

    The smallest change is found among integers, which have the order of the float32 values: this
    loop is vectorised, and one over floats is not.
    """
    n_bits = np.int32(b.shape[1])
    change = np.empty(n_bits, np.float32)
    keys = np.empty(n_bits, np.int32)
    flipped = np.empty(n_steps, np.int32)
    kept_a = np.empty(n_steps, np.float32)
    square = np.float32(1 if weight else 0)
    for row in range(len(b)):
        signs, first, second, factor = b[row], a[row], c[row], kappa[row]
        total, lowest, n_kept = 0.0, 0.0, 0
        for i in range(n_bits):
            change[i] = (square * second[i] + factor) * second[i] + first[i]
        for t in range(n_steps):
            bits, least_key = change.view(np.int32), np.int32(2**31 - 1)
            for i in range(n_bits):
                keys[i] = bits[i] ^ ((bits[i] >> 31) & 0x7FFFFFFF)
                least_key = min(least_key, keys[i])
            j = n_bits
            for i in range(n_bits):
                j = min(j, np.int32(i) if keys[i] == least_key else n_bits)
            total += change[j]
            moved, step = second[j], steps[j + n_bits if signs[j] < 0 else j]
            factor += np.float32(2) * square * moved
            for i in range(n_bits):
                second[i] += step[i] * signs[i]
                change[i] = (square * second[i] + factor) * second[i] + first[i]
            flipped[t], kept_a[t] = j, -first[j]
            signs[j], second[j], first[j], change[j] = -signs[j], -moved, frozen, frozen
            if t >= tenure:
                i = flipped[t - tenure]
                first[i] = kept_a[t - tenure]
                change[i] = (square * second[i] + factor) * second[i] + first[i]
            if total < lowest - least:
                lowest, n_kept = total, t + 1
        for t in range(n_kept, n_steps):
            signs[flipped[t]] = -signs[flipped[t]]

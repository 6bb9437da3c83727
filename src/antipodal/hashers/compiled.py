"""The tabu searches of `bit_flips`, compiled by Numba (extra `fast`); the bits are the same."""

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Search = Callable[..., None]

_MIN_ROWS = 30_000  # number of rows from which compiling takes less time than it saves
_LANES = 64  # tables are padded to a multiple: vectorised loops have no scalar remainder
_CACHE_LINE = 64  # bytes

_n_rows = 0  # rows searched in this process so far


class Searches(NamedTuple):
    """The searches of `BitFlips` and of `NearFlips`."""

    length: Search
    near: Search


def compiled_searches(n_rows: int) -> Searches | None:
    """Return the compiled searches for the next n_rows rows, or None.

    Without Numba, and until enough rows have been searched to justify compiling, it is None.
    """
    global _n_rows
    _n_rows += n_rows
    return _compile() if _n_rows > _MIN_ROWS else None


@functools.cache
def _compile() -> Searches | None:
    if importlib.util.find_spec("numba") is None:
        return None
    return make_searches(importlib.import_module("numba").njit(nogil=True))


def padded(n_rows: int, n: int) -> NDArray[np.float32]:
    """Return a table of zeros with at least n columns, each row at the start of a cache line."""
    width = -(-n // _LANES) * _LANES
    memory = np.zeros(n_rows * width + _CACHE_LINE, np.float32)
    start = -memory.ctypes.data % _CACHE_LINE // memory.itemsize
    return memory[start : start + n_rows * width].reshape(n_rows, width)


def make_searches(jit: Callable[[Any], Any]) -> Searches:
    """Return the searches, with their functions compiled by `jit`.

    The smallest change is found among integers, which have the order of the float32 values: loops
    over them are vectorised, and those over floats are not. Casts to int32 keep Numba from
    computing with 64 bits.
    """

    @jit
    def ordered(bits: Any) -> Any:
        """Map the bits of a float32 to an integer of the same order, and back."""
        return np.int32(bits ^ ((bits >> 31) & 0x7FFFFFFF))

    @jit
    def update(second: Any, step: Any, signs: Any, first: Any, kappa: Any, keys: Any) -> Any:
        """Update c after a flip; write the changes of f as integers and return the smallest."""
        least = np.int32(2**31 - 1)
        for i in range(len(second)):
            c = second[i] + step[i] * signs[i]
            second[i] = c
            key = ordered(np.float32((c + kappa) * c + first[i]).view(np.int32))
            keys[i] = key
            least = min(least, key)
        return least

    @jit
    def update_linear(second: Any, step: Any, signs: Any, first: Any, keys: Any) -> Any:
        """Do the same as `update` without the penalty, γ = 0."""
        least = np.int32(2**31 - 1)
        for i in range(len(second)):
            c = second[i] + step[i] * signs[i]
            second[i] = c
            key = ordered(np.float32(c + first[i]).view(np.int32))
            keys[i] = key
            least = min(least, key)
        return least

    @jit
    def find(keys: Any, key: Any) -> Any:
        """Return the first index of a key. Without an early exit, the loop is vectorised."""
        n = np.int32(len(keys))
        place = n
        for i in range(n):
            place = min(place, np.int32(i) if keys[i] == key else n)
        return place

    @jit
    def search(
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
        """Run the search of `BitFlips._tabu` row by row; `steps` is padded."""
        n_bits, width = b.shape[1], steps.shape[1]
        no_step = np.zeros(width, np.float32)
        signs, second = np.ones(width, np.float32), np.zeros(width, np.float32)
        first = np.full(width, frozen, np.float32)  # the padding is never flipped
        keys = np.empty(width, np.int32)
        flipped = np.empty(n_steps, np.int32)
        kept_a = np.empty(n_steps, np.float32)
        for row in range(len(b)):
            signs[:n_bits], first[:n_bits], second[:n_bits] = b[row], a[row], c[row]
            factor, step = kappa[row], no_step
            total, lowest, n_kept = 0.0, 0.0, 0
            for t in range(n_steps):
                if weight:
                    key = update(second, step, signs, first, factor, keys)
                else:
                    key = update_linear(second, step, signs, first, keys)
                total += float(np.int32(ordered(key)).view(np.float32))
                if total < lowest - least:
                    lowest, n_kept = total, t + 1
                j = find(keys, key)
                step = steps[j + n_bits if signs[j] < 0 else j]
                factor += np.float32(2) * second[j]
                signs[j], second[j] = -signs[j], -second[j]  # steps[j, j] is 0
                flipped[t], kept_a[t], first[j] = j, -first[j], frozen
                if t >= tenure:
                    first[flipped[t - tenure]] = kept_a[t - tenure]
            for t in range(n_kept, n_steps):
                signs[flipped[t]] = -signs[flipped[t]]
            b[row] = signs[:n_bits]

    @jit
    def update_near(
        u: Any, step: Any, sign: Any, signs: Any, e: Any, kappa: Any, frozen: Any, keys: Any
    ) -> Any:
        """Update u after a flip; write the changes of f as integers and return the smallest."""
        least = np.int32(2**31 - 1)
        for i in range(len(u)):
            value = u[i] + step[i] * signs[i] * sign
            u[i] = value
            change = (e[i] + kappa) * e[i] + value + frozen[i]
            key = ordered(np.float32(change).view(np.int32))
            keys[i] = key
            least = min(least, key)
        return least

    @jit
    def add_rows(out: Any, w: Any, p0: Any, p1: Any, p2: Any, p3: Any) -> None:
        """Add four rows times weights. All are integers, and float32 represents the sums."""
        w0, w1, w2, w3 = w[0], w[1], w[2], w[3]
        for i in range(len(out)):
            out[i] += w0 * p0[i] + w1 * p1[i] + w2 * p2[i] + w3 * p3[i]

    @jit
    def combine(weights: Any, P: Any, out: Any) -> None:
        """Write the sum of the rows of P, a multiple of four, times their weights."""
        out[:] = 0
        for k in range(0, len(P), 4):
            add_rows(out, weights[k : k + 4], P[k], P[k + 1], P[k + 2], P[k + 3])

    @jit
    def load(
        products: Any,
        numbers: Any,
        errors: Any,
        factors: Any,
        P: Any,
        sums: Any,
        u: Any,
        signs: Any,
    ) -> None:
        """Write the products of the near rows to P, and add their terms to u."""
        gradient, diagonal = factors
        n_bits = products.shape[1]
        for k in range(len(numbers)):
            P[k, :n_bits] = products[numbers[k]]
        combine(errors, P, sums)
        for i in range(n_bits):
            u[i] -= signs[i] * (sums[i] * gradient)
        sums[:] = 0
        for k in range(len(numbers)):
            for i in range(n_bits):
                sums[i] += P[k, i] * P[k, i]
        for i in range(n_bits):
            u[i] += sums[i] * diagonal

    @jit
    def search_near(
        b: Any,
        u: Any,
        e: Any,
        kappa: Any,
        errors: Any,
        near: Any,
        products: Any,
        plain_steps: Any,
        gradient: Any,
        diagonal: Any,
        scale: Any,
        never: Any,
        n_steps: int,
        tenure: int,
        least: float,
    ) -> None:
        """Run the search of `NearFlips` row by row; `plain_steps` is padded."""
        n_bits, width = plain_steps.shape
        signs, linear = np.ones(width, np.float32), np.zeros(width, np.float32)
        own, closed = np.zeros(width, np.float32), np.full(width, never, np.float32)
        keys = np.empty(width, np.int32)
        step, column = np.zeros(width, np.float32), np.empty(near.shape[1], np.float32)
        P = np.zeros((near.shape[1], width), np.float32)
        flipped = np.empty(n_steps, np.int32)
        for row in range(len(b)):
            signs[:n_bits], linear[:n_bits], own[:n_bits] = b[row], u[row], e[row]
            closed[:n_bits] = np.float32(0)
            load(products, near[row], errors[row], (gradient, diagonal), P, step, linear, signs)
            step[:] = 0
            factor, sign = kappa[row], np.float32(1)
            total, lowest, n_kept = 0.0, 0.0, 0
            for t in range(n_steps):
                key = update_near(linear, step, sign, signs, own, factor, closed, keys)
                total += float(np.int32(ordered(key)).view(np.float32))
                if total < lowest - least:
                    lowest, n_kept = total, t + 1
                j = find(keys, key)
                sign = signs[j]
                for k in range(len(column)):
                    column[k] = P[k, j]
                combine(column, P, step)
                for i in range(n_bits):
                    step[i] = step[i] * scale + plain_steps[j, i]
                step[j] = 0  # uⱼ itself changes its sign
                factor += np.float32(2) * own[j]
                signs[j], linear[j], own[j] = -signs[j], -linear[j], -own[j]
                flipped[t], closed[j] = j, never
                if t >= tenure:
                    closed[flipped[t - tenure]] = np.float32(0)
            for t in range(n_kept, n_steps):
                signs[flipped[t]] = -signs[flipped[t]]
            b[row] = signs[:n_bits]

    return Searches(search, search_near)

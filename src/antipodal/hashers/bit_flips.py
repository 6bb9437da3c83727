"""Searches for the bits b of a code, v = μ + D·b, by flips of single bits.

    f(b) = ‖y - v‖² + γ(‖v‖² - 1)²                                     `BitFlips`
    f(b) = ‖y - v‖² + errors of scores for queries near y              `NearFlips`

A descent flips the bit that lowers f most, until no flip lowers it. A tabu search makes a given
number of flips, including flips that increase f, and so leaves local minima. For some steps it
does not flip the same bit again. It returns the best code found. [Glover1989]
"""

import math
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.hashers.compiled import compiled_searches, padded
from antipodal.hashers.near_rows import EXACT, N_NEAR, NearRows, NearScores
from antipodal.hashers.operations import Array, chunks, product

LENGTH_WEIGHT = 1.0  # γ: recall is the same from 0.5 to 2
NEAR_WEIGHT = 1 / 3  # of w: recall is similar from a half to twice as much
_MAX_SQUARE = 0.9  # of ⟨q, y⟩² in w: duplicates would have an infinite weight
OWN_WEIGHT = 3.0  # η: recall is the same from 3 to 6
_MIN_GAIN = 1e-6  # smaller gains are rounding: a bit could be flipped forever
_WINDOW = 256  # rows that descend at the same time: their tables stay in the cache
_NEAR_WINDOW = 32  # fewer, since each row has its own products
_TENURE = 12  # steps for which the tabu search does not flip a bit again
_NEAR_TENURE = 6  # in `NearFlips`, which makes fewer flips
_FROZEN = np.float32(1e30)  # replaces a term of the change while a bit must not be flipped
_LARGEST = 127  # of the integers that products with near rows are rounded to
_DEVIATIONS = 5  # the largest integer, in standard deviations of these products
_SAMPLE = 1000  # near rows from which the standard deviation is computed
_PER_ERROR = np.float32(2048)  # integer that an error of 1 is rounded to

Floats = NDArray[np.floating[Any]]


class TabuSearch(ABC):
    """Tabu search; a window is a list of tables with one row per code.

    The first table has the signs b, the second one terms of the change of f that are replaced while
    a bit is frozen.
    """

    n_steps: int
    tenure: int
    least: float

    @abstractmethod
    def run(self, Y: Any, offset: Any, signs: Any) -> Any:
        """Return the signs after all flips; they do not depend on the other rows.

        Parameters
        ----------
        Y : (m, n)
            Rows of length 1.
        offset : (n,) or (m, n)
            μ, for all rows or one per row.
        signs : (m, N)
            Initial ±1; may be overwritten.
        """

    @abstractmethod
    def _best(
        self, window: list[Any], work: Floats, starts: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], Floats]:
        """Return the bit of each row whose flip changes f most, and the change."""

    @abstractmethod
    def _flip(
        self, window: list[Any], flips: NDArray[np.intp], work: Floats, starts: NDArray[np.intp]
    ) -> None:
        """Flip a bit of each row."""

    def _tabu(self, window: list[Any]) -> None:
        """Search a window of rows."""
        b, a, *_ = window
        starts = np.arange(len(b)) * b.shape[1]
        flat_b, flat_a = b.reshape(-1), a.reshape(-1)
        flipped = np.empty((self.n_steps, len(b)), np.intp)
        kept_a = np.empty((self.n_steps, len(b)), a.dtype)  # aⱼ replaced by _FROZEN
        total, lowest = np.zeros(len(b)), np.zeros(len(b))
        n_kept = np.zeros(len(b), np.intp)  # flips up to the best code
        work = np.empty_like(b)
        for t in range(self.n_steps):
            bits, changes = self._best(window, work, starts)
            self._flip(window, bits, work, starts)
            flipped[t] = at = starts + bits
            kept_a[t] = flat_a[at]
            flat_a[at] = _FROZEN
            if t >= self.tenure:
                flat_a[flipped[t - self.tenure]] = kept_a[t - self.tenure]
            total += changes
            better = total < lowest - self.least
            lowest[better] = total[better]
            n_kept[better] = t + 1
        for t in range(self.n_steps):
            undone = flipped[t, n_kept <= t]
            flat_b[undone] = -flat_b[undone]


class BitFlips(TabuSearch):
    """Minimise f(b) = ‖y - v‖² + γ(‖v‖² - 1)² for each row by flips of single bits.

    With G = DᵀD, a flip of bⱼ changes v by -2bⱼdⱼ, and therefore

        -2⟨y, v⟩ by aⱼ = 4bⱼ(Dᵀy)ⱼ,    ‖v‖² by cⱼ = 4(Gⱼⱼ - bⱼ(Dᵀv)ⱼ)
        f(b) by aⱼ + cⱼ(γcⱼ + κ),      κ = 1 + 2γ(‖v‖² - 1)

    After a flip of bⱼ, aⱼ and cⱼ change their signs, all other cᵢ change by 8bᵢbⱼGᵢⱼ, and κ
    changes by 2γcⱼ. A flip therefore takes a few operations per bit and no product with D. If
    γ > 0, the tables of a and c are multiplied by γ, which saves another operation.

    Parameters
    ----------
    D : (n, N)
        Dictionary.
    length_weight : float
        γ.
    n_steps : int
        Flips of the tabu search; 0 for a descent.
    """

    def __init__(self, D: Floats, length_weight: float = LENGTH_WEIGHT, n_steps: int = 0) -> None:
        gram = D.T @ D
        self.D, self.diagonal = D, gram.diagonal().copy()
        self.gram = _rounded_for_signs(gram)
        self.weight = gram.dtype.type(length_weight)
        step = 8 * (self.weight or 1) * gram
        np.fill_diagonal(step, 0)  # cⱼ itself changes its sign
        self.steps = np.concatenate([step, -step])  # for bⱼ = 1 and for bⱼ = -1
        self.least = _MIN_GAIN * (length_weight or 1)
        self.n_steps, self.tenure = n_steps, min(_TENURE, len(gram) // 4)

    @cached_property
    def padded_steps(self) -> Floats:
        """The steps in the memory layout of the compiled search."""
        table = padded(*self.steps.shape)
        table[:, : self.steps.shape[1]] = self.steps
        return table

    def run(self, Y: Floats, offset: Floats, signs: Floats) -> Floats:
        """Search in place: the signs are overwritten."""
        D = self.D
        a = product(Y, D, np.empty_like(signs))
        c = signs @ self.gram  # exact, so that the order of summation has no effect
        shift = offset @ D if offset.ndim == 1 else product(offset, D, np.empty_like(signs))
        c += shift  # Dᵀv; shift is Dᵀμ
        # ‖v‖² = ‖μ‖² + ⟨b, Dᵀμ⟩ + ⟨b, Dᵀv⟩
        square = np.vecdot(offset, offset) + np.vecdot(signs, shift) + np.vecdot(signs, c)
        a *= signs
        a *= 4 * (self.weight or 1)
        c *= signs
        np.subtract(self.diagonal, c, out=c)
        c *= 4 * (self.weight or 1)
        kappa = 1 + 2 * self.weight * (square - 1)
        if self.n_steps:
            self._search(signs, a, c, kappa)
        else:
            self._descend(signs, a, c, kappa)
        return signs

    def _search(self, signs: Floats, a: Floats, c: Floats, kappa: Floats) -> None:
        compiled = compiled_searches(len(signs)) if signs.dtype == np.float32 else None
        if compiled:
            limits = self.n_steps, self.tenure, self.least
            compiled.length(signs, a, c, kappa, self.padded_steps, self.weight, _FROZEN, *limits)
            return
        for start in range(0, len(signs), _WINDOW):
            part = slice(start, start + _WINDOW)
            self._tabu([table[part] for table in (signs, a, c, kappa)])

    def _descend(self, signs: Floats, a: Floats, c: Floats, kappa: Floats) -> None:
        """Descend in a window of rows; waiting rows replace those that are done."""
        tables = signs, a, c, kappa
        n_rows, n_bits = signs.shape
        rows = np.arange(min(n_rows, _WINDOW))  # rows in the window
        starts = rows * n_bits  # offsets of these rows in the flattened tables of the window
        waiting = len(rows)  # first row that has not entered the window yet
        window = [table[rows] for table in tables]
        live = np.ones(len(rows), bool)  # rows that are not done
        work = np.empty_like(window[0])
        while True:
            flips, gains = self._best(window, work, starts)
            done = live & (gains > -self.least)
            if done.any():
                signs[rows[done]] = window[0][done]
                live &= ~done
                n_live = np.count_nonzero(live)
                if waiting == n_rows and n_live < 0.8 * len(live):
                    if not n_live:
                        return
                    rows, flips = rows[live], flips[live]
                    window = [table[live] for table in window]
                    live = live[live]
            self._flip(window, flips, work, starts)  # without effect on rows that are done
            if waiting < n_rows and np.count_nonzero(live) <= 0.9 * len(live):
                free = np.flatnonzero(~live)[: n_rows - waiting]
                rows[free] = entering = np.arange(waiting, waiting + len(free))
                for inside, table in zip(window, tables, strict=True):
                    inside[free] = table[entering]
                live[free] = True
                waiting += len(free)

    def _best(
        self, window: list[Floats], work: Floats, starts: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], Floats]:
        """Return the bit of each row whose flip changes f most, and the change."""
        _, a, c, kappa = window
        change = work[: len(c)]
        if self.weight:
            np.add(c, kappa[:, None], out=change)
            change *= c
            change += a
        else:
            np.add(c, a, out=change)
        flips = change.argmin(axis=1)
        return flips, change.reshape(-1)[starts[: len(c)] + flips]

    def _flip(
        self,
        window: list[Floats],
        flips: NDArray[np.intp],
        work: Floats,
        starts: NDArray[np.intp],
    ) -> None:
        """Flip a bit of each row."""
        b, a, c, kappa = window
        at = starts[: len(b)] + flips
        flat_b, flat_a, flat_c = (table.reshape(-1) for table in (b, a, c))
        flipped, change = flat_b[at], flat_c[at]
        step = work[: len(b)]
        np.take(self.steps, flips + (flipped < 0) * b.shape[1], axis=0, out=step, mode="clip")
        step *= b
        c += step
        if self.weight:
            kappa += 2 * change
        flat_b[at] = -flipped
        flat_a[at] = -flat_a[at]
        flat_c[at] = -change


class ScoreFlips(TabuSearch):
    """Minimise f(b) = ‖y - v‖² + errors of scores, including the row's own, η(⟨y, v⟩ - α - β)².

    With w times the errors of other scores, vᵀMv - 2lᵀv + const, and G = DᵀMD, a flip of bⱼ changes

        vᵀMv - 2lᵀv by uⱼ = 4(Gⱼⱼ - bⱼ(Dᵀ(Mv - l))ⱼ),    √η⟨y, v⟩ by eⱼ = -2√η·bⱼ(Dᵀy)ⱼ
        f(b) by eⱼ(eⱼ + κ) + uⱼ,                          κ = 2√η(⟨y, v⟩ - α - β)

    After a flip of bⱼ, uⱼ and eⱼ change their signs, all other uᵢ change by 8bᵢbⱼGᵢⱼ, and κ
    changes by 2eⱼ. A window has the tables b, frozen, u, e and κ, and those of `_steps`.
    """

    one_in: int  # one in this many flips of an encoder is a flip of this search
    least = _MIN_GAIN

    def __init__(self, D: Array, scores: NearScores, n_steps: int) -> None:
        self.D, self.scores, self.n_steps = D, scores, n_steps
        square = min(scores.square, _MAX_SQUARE)
        self.weight = NEAR_WEIGHT * len(D) * square / (1 - square)  # w

    @cached_property
    def plain_steps(self) -> Array:
        """8DᵀD, padded."""
        steps = padded(self.D.shape[1], self.D.shape[1])
        np.matmul(8 * self.D.T, self.D, out=steps[:, : self.D.shape[1]])
        return steps

    @abstractmethod
    def _steps(self, window: list[Any], flips: NDArray[np.intp]) -> Array:
        """Return 8Gᵢⱼ of the flipped bit j of each row, (m, N); the value at i = j is not used."""

    def _own_errors(self, Y: Array, V: Array, signs: Array) -> tuple[Array, Array]:
        """Return e and κ."""
        own = np.float32(np.sqrt(OWN_WEIGHT))
        kappa = 2 * own * (np.vecdot(Y, V) - np.float32(self.scores.slope + self.scores.offset))
        e = product(Y, self.D, np.empty_like(signs))
        e *= signs
        e *= -2 * own
        return e, kappa

    def _gradient(self, residual: Array, signs: Array) -> Array:
        """Return -4bⱼ(Dᵀr)ⱼ for rows r."""
        u = product(residual, self.D, np.empty_like(signs))
        u *= signs
        u *= -4
        return u

    def _best(
        self, window: list[Any], work: Floats, starts: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], Floats]:
        _, frozen, u, e, kappa, *_ = window
        change = work[: len(u)]
        np.add(e, kappa[:, None], out=change)
        change *= e
        change += u
        change += frozen
        flips = change.argmin(axis=1)
        return flips, change.reshape(-1)[starts + flips]

    def _flip(
        self, window: list[Any], flips: NDArray[np.intp], work: Floats, starts: NDArray[np.intp]
    ) -> None:
        b, _, u, e, kappa, *_ = window
        at = starts + flips
        flat_b, flat_u, flat_e = (each.reshape(-1) for each in (b, u, e))
        flipped, change, own = flat_b[at], flat_u[at], flat_e[at]
        step = self._steps(window, flips)
        step *= b
        step *= flipped[:, None]
        u += step
        kappa += 2 * own
        flat_b[at], flat_u[at], flat_e[at] = -flipped, -change, -own


class NearFlips(ScoreFlips):
    """Minimise the errors of scores for queries near y, by a tabu search from given signs.

        f(b) = ‖y - v‖² + w·mean(⟨q, v⟩ - α⟨q, y⟩ - β)² + η(⟨y, v⟩ - α - β)²

    The mean is over r training rows q near y. If c² is the mean of ⟨q, y⟩² over near rows,
    other directions have the variance (1 - c²)/n, and w = nc²/3(1 - c²) is proportional to the
    ratio of the two.

    With the products P = QD of the near rows, G = DᵀD + (w/r)PᵀP: the step of a flip takes r
    operations per bit. P and the errors are rounded to integers: float32 represents their sums
    exactly, so that the order of summation has no effect on the bits.

    Parameters
    ----------
    D : (n, N)
        Dictionary.
    near : NearRows
        Training rows.
    scores : NearScores
        α, β and c².
    n_steps : int
        Flips of the tabu search.
    n_before : int
        Number of bits before those of D, in a nested code.
    """

    one_in = 6

    def __init__(
        self, D: Array, near: NearRows, scores: NearScores, n_steps: int, n_before: int = 0
    ) -> None:
        super().__init__(D, scores, n_steps)
        self.reach = near.reach(n_before + D.shape[1])
        self.near, self.tenure = near, min(_NEAR_TENURE, D.shape[1] // 4)
        sample = near.rows(np.arange(0, len(near.values), -(-len(near.values) // _SAMPLE))) @ D
        self.unit = max(float(np.sqrt(np.square(sample).mean())), 1e-9) * _DEVIATIONS / _LARGEST
        square = self.weight / N_NEAR * self.unit**2
        self.gradient = np.float32(4 * self.weight / N_NEAR * self.unit / _PER_ERROR)
        self.diagonal, self.step = np.float32(4 * square), np.float32(8 * square)
        # QD as integers for the training rows that occurred so far, and which they are. Threads may
        # compute the same product; it is the same in each.
        self.products = np.zeros((len(near.values), D.shape[1]), np.int8)
        self.is_known = np.zeros(len(near.values), bool)

    def run(
        self,
        Y: Array,
        offset: Array,
        signs: Array,
        found: dict[int, NDArray[np.intp]] | None = None,
    ) -> Array:
        """Search in place: the signs are overwritten.

        `found` has the near rows of Y that earlier levels found, by reach.
        """
        found = {} if found is None else found
        if self.reach not in found:
            found[self.reach] = self.near.nearest(Y, self.reach)
        near = found[self.reach]
        self._multiply(near)
        for part in chunks(len(Y)):  # rows that fit in the cache
            here = offset if offset.ndim == 1 else offset[part]
            self._search(Y[part], here, signs[part], near[part])
        return signs

    def _multiply(self, near: NDArray[np.intp]) -> None:
        """Compute the products of training rows that occur for the first time."""
        occurs = np.zeros(len(self.is_known), bool)
        occurs[near] = True
        new = np.flatnonzero(occurs & ~self.is_known)
        for part in chunks(len(new)):
            rows = self.near.rows(new[part])
            P = product(rows, self.D, np.empty((len(rows), self.D.shape[1]), np.float32))
            P /= np.float32(self.unit)
            self.products[new[part]] = np.rint(P, out=P).clip(-_LARGEST, _LARGEST)
        self.is_known[new] = True

    def _search(self, Y: Array, offset: Array, b: Array, near: NDArray[np.intp]) -> None:
        V = product(b, self.D.T, np.empty_like(Y))
        V += offset
        e, kappa = self._own_errors(Y, V, b)
        u = self._gradient(V - Y, b)
        u += self.plain_steps.diagonal() / 2
        errors = self.near.products(near, V - np.float32(self.scores.slope) * Y)
        errors -= np.float32(self.scores.offset)
        errors *= _PER_ERROR
        limit = EXACT // (_LARGEST * N_NEAR)
        errors = np.rint(errors, out=errors).clip(-limit, limit)
        frozen = np.zeros_like(b)
        if compiled := compiled_searches(len(b)):
            factors = self.gradient, self.diagonal, self.step
            limits = self.n_steps, self.tenure, self.least
            tables = b, u, e, kappa, errors, near, self.products, self.plain_steps
            compiled.near(*tables, *factors, _FROZEN, *limits)
            return
        for start in range(0, len(b), _NEAR_WINDOW):
            part = slice(start, start + _NEAR_WINDOW)
            P = self.products[near[part]].astype(np.float32)
            u[part] -= b[part] * (np.matmul(errors[part, None], P)[:, 0] * self.gradient)
            u[part] += np.square(P).sum(axis=1) * self.diagonal
            self._tabu([*(each[part] for each in (b, frozen, u, e, kappa)), P])

    def _steps(self, window: list[Any], flips: NDArray[np.intp]) -> Array:
        P = window[-1]
        column = np.take_along_axis(P, flips[:, None, None], axis=2)
        steps: Array = np.matmul(column.transpose(0, 2, 1), P)[:, 0]
        steps *= self.step
        steps += self.plain_steps[flips, : P.shape[2]]
        return steps


def _rounded_for_signs(gram: Floats) -> Floats:
    """Return G rounded so that sums of ±its entries are exact in their dtype."""
    largest = float(np.abs(gram).sum(axis=0).max())
    unit = 2.0 ** (math.frexp(largest)[1] - np.finfo(gram.dtype).nmant)
    rounded: Floats = (np.rint(gram / unit) * unit).astype(gram.dtype)
    return rounded

"""Searches for the bits b of a code, v = μ + D·b, by flips of single bits.

    f(b) = ‖y - v‖² + γ(‖v‖² - 1)²                                     `BitFlips`
    f(b) = ‖y - v‖² + errors of scores for queries near y              `NeighbourFlips`

A descent flips the bit that lowers f most, until no flip lowers it. A tabu search makes a given
number of flips, including flips that increase f, and so leaves local minima. For some steps it
does not flip the same bit again. It returns the best code found. [Glover1989]
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.hashers.compiled import compiled_searches, padded
from antipodal.hashers.neighbourhoods import NearScores, Neighbourhoods
from antipodal.hashers.operations import Array, product

LENGTH_WEIGHT = 1.0  # γ: recall is the same from 0.5 to 2
NEAR_WEIGHT = 1 / 3  # of w: recall is similar from a half to twice as much
_MAX_SQUARE = 0.9  # of ⟨q, y⟩² in w: duplicates would have an infinite weight
OWN_WEIGHT = 3.0  # η: recall is the same from 3 to 6
_MIN_GAIN = 1e-6  # smaller gains are rounding: a bit could be flipped forever
_WINDOW = 256  # rows that descend at the same time: their tables stay in the cache
_TENURE = 12  # steps for which the tabu search does not flip a bit again
_FROZEN = np.float32(1e30)  # replaces a term of the change while a bit must not be flipped
_TABLE_BYTES = 2**24  # step tables of neighbourhoods that are in memory at the same time

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


class NeighbourFlips(TabuSearch):
    """Minimise the errors of scores for queries near y, by a tabu search from given signs.

        f(b) = ‖y - v‖² + w·mean(⟨q, v⟩ - α⟨q, y⟩ - β)² + η(⟨y, v⟩ - α - β)²

    The mean is over the rows q of the neighbourhood of y, with mean m and AᵀA ≈ mean of qqᵀ. If c²
    is the mean of ⟨q, y⟩² over near rows, other directions have the variance (1 - c²)/n, and
    w = nc²/3(1 - c²) is proportional to the ratio of the two.

    With M = I + wAᵀA, G = DᵀMD and l = y + w(αAᵀAy + βm), a flip of bⱼ changes

        vᵀMv - 2lᵀv by uⱼ = 4(Gⱼⱼ - bⱼ(Dᵀ(Mv - l))ⱼ),    √η⟨y, v⟩ by eⱼ = -2√η·bⱼ(Dᵀy)ⱼ
        f(b) by eⱼ(eⱼ + κ) + uⱼ,                          κ = 2√η(⟨y, v⟩ - α - β)

    After a flip of bⱼ, uⱼ and eⱼ change their signs, all other uᵢ change by 8bᵢbⱼGᵢⱼ, and κ
    changes by 2eⱼ. G depends on the neighbourhood: rows are sorted by it, and the tables of a few
    neighbourhoods are computed at a time.

    Parameters
    ----------
    D : (n, N)
        Dictionary.
    neighbourhoods : Neighbourhoods
        Of training rows.
    scores : NearScores
        α, β and c².
    n_steps : int
        Flips of the tabu search.
    """

    def __init__(
        self, D: Array, neighbourhoods: Neighbourhoods, scores: NearScores, n_steps: int
    ) -> None:
        self.D, self.neighbourhoods, self.scores = D, neighbourhoods, scores
        self.n_steps, self.tenure = n_steps, min(_TENURE, D.shape[1] // 4)
        self.least = _MIN_GAIN
        square = min(scores.square, _MAX_SQUARE)
        self.weight = NEAR_WEIGHT * len(D) * square / (1 - square)  # w

    @cached_property
    def plain_steps(self) -> Array:
        """8DᵀD, padded."""
        steps = padded(self.D.shape[1], self.D.shape[1])
        np.matmul(8 * self.D.T, self.D, out=steps[:, : self.D.shape[1]])
        return steps

    @cached_property
    def _projected(self) -> tuple[Array, NDArray[np.bool_]]:
        """AD of the neighbourhoods that occurred so far, padded (K, r, width), and which they are.

        Threads may compute the same product; it is the same in each.
        """
        K, rank, _ = self.neighbourhoods.factors.shape
        return np.zeros((K, rank, self.plain_steps.shape[1]), np.float32), np.zeros(K, bool)

    def run(self, Y: Array, offset: Array, signs: Array) -> Array:
        """Sort the rows by neighbourhood and search."""
        nearest = self.neighbourhoods.nearest(Y)
        order = np.argsort(nearest, kind="stable")
        nearest, Y, b = nearest[order], Y[order], signs[order]
        V = product(b, self.D.T, np.empty_like(Y))
        V += offset if offset.ndim == 1 else offset[order]
        own = np.float32(np.sqrt(OWN_WEIGHT))
        kappa = 2 * own * (np.vecdot(Y, V) - np.float32(self.scores.slope + self.scores.offset))
        e = product(Y, self.D, np.empty_like(b))
        e *= b
        e *= -2 * own
        present, starts = np.unique(nearest, return_index=True)
        ends = [*starts[1:], len(Y)]
        gradient = self._gradient(Y, V, nearest, zip(present, starts, ends, strict=True))
        u = product(gradient, self.D, np.empty_like(b))
        u *= b
        u *= -4
        frozen = np.zeros_like(b)
        n = max(1, _TABLE_BYTES // self.plain_steps.nbytes)  # neighbourhoods at a time
        for i in range(0, len(present), n):
            some, part = present[i : i + n], slice(starts[i], ends[min(i + n, len(ends)) - 1])
            table = np.searchsorted(some, nearest[part])
            diagonals, steps = self._tables(some)
            u[part] += diagonals[table] / 2
            self._search([each[part] for each in (b, frozen, u, e, kappa)], table, steps)
        found = np.empty_like(b)
        found[order] = b
        return found

    def _gradient(
        self, Y: Array, V: Array, nearest: NDArray[np.intp], groups: Iterable[tuple[int, int, int]]
    ) -> Array:
        """Return Mv - l = v - y + w(Aᵀ(A(v - αy)) - βm), (m, n)."""
        near = self.neighbourhoods
        R = V - np.float32(self.scores.slope) * Y
        for i, start, stop in groups:
            A, part = near.factors[i], R[start:stop]
            errors = product(part, A.T, np.empty((len(part), len(A)), np.float32))
            product(errors, A, part)
        R -= np.float32(self.scores.offset) * near.means[nearest]
        R *= np.float32(self.weight)
        R += V
        R -= Y
        return R

    def _tables(self, numbers: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return the diagonals of 8G, and 8G with a diagonal of zeros, for some neighbourhoods."""
        N, width = self.plain_steps.shape
        steps = padded(len(numbers) * N, N).reshape(len(numbers), N, width)
        diagonals = np.empty((len(numbers), N), np.float32)
        projected, is_known = self._projected
        for i, step, diagonal in zip(numbers, steps, diagonals, strict=True):
            P = projected[i]
            if not is_known[i]:
                np.matmul(self.neighbourhoods.factors[i], self.D, out=P[:, :N])
                is_known[i] = True
            left = P[:, :N].T * np.float32(8 * self.weight)
            np.matmul(left, P, out=step)
            step += self.plain_steps
            diagonal[:] = step.diagonal()
            np.fill_diagonal(step, 0)  # uⱼ itself changes its sign
        return diagonals, steps

    def _search(self, tables: list[Array], table: NDArray[np.intp], steps: Array) -> None:
        """Search with the steps (K, N, width) of neighbourhood table[i] for row i."""
        b = tables[0]
        if compiled := compiled_searches(len(b)):
            limits = self.n_steps, self.tenure, self.least
            compiled.near(*tables, table, steps, _FROZEN, *limits)
            return
        for start in range(0, len(b), _WINDOW):
            part = slice(start, start + _WINDOW)
            self._tabu([*(each[part] for each in tables), table[part], steps])

    def _best(
        self, window: list[Any], work: Floats, starts: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], Floats]:
        _, frozen, u, e, kappa, _, _ = window
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
        b, _, u, e, kappa, table, steps = window
        at = starts + flips
        flat_b, flat_u, flat_e = (each.reshape(-1) for each in (b, u, e))
        flipped, change, own = flat_b[at], flat_u[at], flat_e[at]
        step = steps[table, flips, : b.shape[1]]
        step *= b
        step *= flipped[:, None]
        u += step
        kappa += 2 * own
        flat_b[at], flat_u[at], flat_e[at] = -flipped, -change, -own


def _rounded_for_signs(gram: Floats) -> Floats:
    """Return G rounded so that sums of ±its entries are exact in their dtype."""
    largest = float(np.abs(gram).sum(axis=0).max())
    unit = 2.0 ** (math.frexp(largest)[1] - np.finfo(gram.dtype).nmant)
    rounded: Floats = (np.rint(gram / unit) * unit).astype(gram.dtype)
    return rounded

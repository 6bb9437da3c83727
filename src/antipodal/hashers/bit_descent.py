"""Bit descent: codes b and a dictionary D for which μ + D·b approximates rows y of length 1.

    f(b) = ‖y - v‖² + γ(‖v‖² - 1)²,    v = μ + D·b,    b in {-1, 1}ᴺ

The second term keeps reconstructions at length 1, so that scores estimate cosines.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.hashers.operations import (
    Array,
    Operation,
    Workspace,
    check_width,
    product,
    unit_rows,
)

LENGTH_WEIGHT = 1.0  # γ: recall is the same from 0.5 to 2
RIDGE = 0.01  # ε of the least squares for D, relative to a mean over rows
_MIN_GAIN = 1e-6  # smaller gains are rounding: a bit could be flipped forever
_WINDOW = 256  # rows that descend at the same time: their tables stay in the cache

Floats = NDArray[np.floating[Any]]


class BitFlips:
    """Flip the bit of each row that lowers f(b) most, until no flip lowers it.

    With G = DᵀD, a flip of bⱼ changes v by -2bⱼdⱼ, and therefore

        -2⟨y, v⟩ by aⱼ = 4bⱼ(Dᵀy)ⱼ,    ‖v‖² by cⱼ = 4(Gⱼⱼ - bⱼ(Dᵀv)ⱼ)
        f(b) by aⱼ + cⱼ(γcⱼ + κ),      κ = 1 + 2γ(‖v‖² - 1)

    After a flip of bⱼ, aⱼ and cⱼ change their signs, all other cᵢ change by 8bᵢbⱼGᵢⱼ, and κ by
    2γcⱼ, so that a flip takes a few operations per bit and no product with D. If γ > 0, the
    tables of a and c are multiplied by γ, which saves another operation.

    Parameters
    ----------
    D : (n, N)
        Dictionary.
    length_weight : float
        γ.
    """

    def __init__(self, D: Floats, length_weight: float = LENGTH_WEIGHT) -> None:
        gram = D.T @ D
        self.D, self.diagonal = D, gram.diagonal().copy()
        self.gram = _rounded_for_signs(gram)
        self.weight = gram.dtype.type(length_weight)
        step = 8 * (self.weight or 1) * gram
        self.steps = np.concatenate([step, -step])  # for bⱼ = 1 and for bⱼ = -1
        self.least = _MIN_GAIN * (length_weight or 1)

    def run(self, Y: Floats, offset: Floats, signs: Floats) -> Floats:
        """Return the signs after all flips; they do not depend on the other rows.

        Parameters
        ----------
        Y : (m, n)
            Rows of length 1.
        offset : (n,) or (m, n)
            μ, for all rows or one per row.
        signs : (m, N)
            Initial ±1; overwritten.
        """
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
        self._descend(signs, a, c, kappa)
        return signs

    def _descend(self, signs: Floats, a: Floats, c: Floats, kappa: Floats) -> None:
        """Flip bits in a window of rows, which others enter when some of its rows are done."""
        tables = signs, a, c, kappa
        n_rows, n_bits = signs.shape
        rows = np.arange(min(n_rows, _WINDOW))  # rows in the window
        starts = rows * n_bits  # of the rows of the window, in its flattened tables
        waiting = len(rows)  # first row that has not entered it yet
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


def _rounded_for_signs(gram: Floats) -> Floats:
    """Return G rounded so that sums of ±its entries are exact in their dtype."""
    largest = float(np.abs(gram).sum(axis=0).max())
    unit = 2.0 ** (math.frexp(largest)[1] - np.finfo(gram.dtype).nmant)
    rounded: Floats = (np.rint(gram / unit) * unit).astype(gram.dtype)
    return rounded


def refit_dictionary(Y: Floats, offset: Floats, signs: Floats) -> Floats:
    """Return the D (n, N) that minimises Σ ‖y - μ - D·b‖² / m + ε‖D‖²."""
    gram = signs.T @ signs / len(signs)
    gram[np.diag_indices(len(gram))] += RIDGE
    D = np.linalg.solve(gram, signs.T @ (Y - offset) / len(signs)).T
    return np.ascontiguousarray(D, dtype=Y.dtype)


def rescale_dictionary(D: Floats, offset: Floats, signs: Floats) -> Floats:
    """Return s·D for which mean ‖μ + s·D·b‖² = 1.

    Least squares make reconstructions too short, by the part of the rows that they lose.
    """
    parts = signs @ D.T
    a = float(np.vecdot(parts, parts).mean(dtype=np.float64))
    b = float((parts @ offset).mean(dtype=np.float64))
    c = min(float(offset @ offset) - 1, 0.0)
    return D * D.dtype.type((math.sqrt(b * b - a * c) - b) / a if a > 0 else 1.0)


# From a dictionary with atoms of mean length 1 to the step from rows to solutions x of Eq. 1.
MakeSolver = Callable[[Array], Operation]


class Level:
    """The bits after the first n_before bits of a nested code."""

    def __init__(self, D: Array, n_before: int, mean: Array, make_solver: MakeSolver) -> None:
        self.mean, self.n_before = mean, n_before
        self.before = np.ascontiguousarray(D[:, :n_before].T)
        self.new = np.ascontiguousarray(D[:, n_before:])
        self.flips = BitFlips(self.new)
        size = np.linalg.norm(self.new, axis=0).mean()
        self.solver = make_solver(self.new / np.maximum(size, np.float32(1e-30)))

    def initial_signs(self, Y: Array, signs: Array, memory: Workspace) -> Array:
        """Return initial signs of the new bits, from the solution of Eq. 1 for the remainder."""
        x = self.solver.run(unit_rows(Y - self.offset(signs)), memory)
        return np.where(x > 0, np.float32(1), np.float32(-1))

    def extend(self, Y: Array, signs: Array, memory: Workspace) -> Array:
        """Append the signs of the new bits to the signs (m, n_before)."""
        new = self.initial_signs(Y, signs, memory)
        return np.concatenate([signs, self.flips.run(Y, self.offset(signs), new)], axis=1)

    def offset(self, signs: Array) -> Array:
        """Return the reconstruction from the first n_before bits."""
        if not self.n_before:
            return self.mean
        offset = np.empty((len(signs), len(self.mean)), np.float32)
        return product(signs, self.before, offset) + self.mean


class BitDescent(Operation):
    """Map rows of length 1 to signs (m, N), level by level; it has no ONNX form."""

    def __init__(self, dictionaries: Sequence[Array], mean: Array, make_solver: MakeSolver) -> None:
        lengths = [0, *(D.shape[1] for D in dictionaries)]
        self.levels = [
            Level(D, n, mean, make_solver) for D, n in zip(dictionaries, lengths[:-1], strict=True)
        ]
        self.n_bits = int(lengths[-1])

    def width(self, n: int) -> int:
        """Return the number of bits."""
        for level in self.levels:
            check_width(n, len(level.new))
            check_width(n, len(level.mean))
        return self.n_bits

    def run(self, X: Array, memory: Workspace) -> Array:
        """Descend in each level."""
        signs = np.empty((len(X), 0), np.float32)
        for level in self.levels:
            signs = level.extend(X, signs, memory)
        return signs


def fit_levels(
    Y: Array, mean: Array, frames: Sequence[Array], n_refits: int, make_solver: MakeSolver
) -> list[Array]:
    """Fit one dictionary per level to rows of length 1, starting from a frame for its new bits.

    Bit descent (with γ = 0) and refits of the dictionary alternate; neither increases the error.
    Lengths are corrected at the end.
    """
    signs, D = np.empty((len(Y), 0), np.float32), np.empty((Y.shape[1], 0), np.float32)
    dictionaries = []
    memory = Workspace()
    for frame in frames:
        n_before = signs.shape[1]
        level = Level(np.concatenate([D, frame], axis=1), n_before, mean, make_solver)
        new, remainder = level.initial_signs(Y, signs, memory), Y - level.offset(signs)
        parts = new @ frame.T
        size = np.vdot(parts, remainder) / max(np.vdot(parts, parts), np.float32(1e-30))
        D = np.concatenate([D, size * frame], axis=1)
        for _ in range(n_refits):
            level = Level(D, n_before, mean, make_solver)
            new = BitFlips(level.new, length_weight=0).run(Y, level.offset(signs), new)
            D = refit_dictionary(Y, mean, np.concatenate([signs, new], axis=1))
        D = rescale_dictionary(D, mean, np.concatenate([signs, new], axis=1))
        dictionaries.append(D)
        signs = Level(D, n_before, mean, make_solver).extend(Y, signs, memory)
    return dictionaries

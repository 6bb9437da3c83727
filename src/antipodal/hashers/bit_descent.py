"""Bit descent: codes b and a dictionary D for which v = μ + D·b approximates rows y of length 1.

Codes minimise ‖y - v‖² + γ(‖v‖² - 1)². The second term keeps reconstructions near length 1, so
that ⟨q, v⟩ ranks items. The last bits of a code may store a correction of this score
(`Correction`).
"""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from antipodal.hashers.compiled import compiled_search, padded
from antipodal.hashers.operations import (
    Array,
    Operation,
    Workspace,
    as_signs,
    check_width,
    chunks,
    product,
    unit_rows,
)

LENGTH_WEIGHT = 1.0  # γ: recall is the same from 0.5 to 2
RIDGE = 0.01  # ε of the least squares for D, relative to a mean over rows
_MIN_GAIN = 1e-6  # smaller gains are rounding: a bit could be flipped forever
_WINDOW = 256  # rows that descend at the same time: their tables stay in the cache
_TENURE = 12  # steps for which the tabu search does not flip a bit again
_FROZEN = np.float32(1e30)  # replaces aⱼ while bⱼ must not be flipped
_NEIGHBOURS = 20  # neighbours per query that `Correction` is fitted to
_QUERIES = 1000  # rows that serve as queries when `Correction` is fitted
FIRST_ROWS = 20_000  # rows of the first refit, of a correction, and per block of a refit
_TAIL = 0.003  # fraction of the corrections that is clipped at each end
_TINY = np.finfo(np.float32).tiny

Floats = NDArray[np.floating[Any]]


class BitFlips:
    """Minimise f(b) = ‖y - v‖² + γ(‖v‖² - 1)² for each row by flips of single bits.

    With G = DᵀD, a flip of bⱼ changes v by -2bⱼdⱼ, and therefore

        -2⟨y, v⟩ by aⱼ = 4bⱼ(Dᵀy)ⱼ,    ‖v‖² by cⱼ = 4(Gⱼⱼ - bⱼ(Dᵀv)ⱼ)
        f(b) by aⱼ + cⱼ(γcⱼ + κ),      κ = 1 + 2γ(‖v‖² - 1)

    After a flip of bⱼ, aⱼ and cⱼ change their signs, all other cᵢ change by 8bᵢbⱼGᵢⱼ, and κ
    changes by 2γcⱼ. A flip therefore takes a few operations per bit and no product with D. If
    γ > 0, the tables of a and c are multiplied by γ, which saves another operation.

    A descent flips the bit that lowers f most, until no flip lowers it. A tabu search makes a
    given number of flips, including flips that increase f, and so leaves local minima. For some
    steps it does not flip the same bit again. It returns the best code found. [Glover1989]

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
        return padded(self.steps)

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
        if self.n_steps:
            self._search(signs, a, c, kappa)
        else:
            self._descend(signs, a, c, kappa)
        return signs

    def _search(self, signs: Floats, a: Floats, c: Floats, kappa: Floats) -> None:
        search = compiled_search(len(signs)) if signs.dtype == np.float32 else None
        if search:
            limits = self.n_steps, self.tenure, self.least
            search(signs, a, c, kappa, self.padded_steps, self.weight, _FROZEN, *limits)
            return
        for start in range(0, len(signs), _WINDOW):
            part = slice(start, start + _WINDOW)
            self._tabu([table[part] for table in (signs, a, c, kappa)])

    def _tabu(self, window: list[Floats]) -> None:
        """Search a window of rows."""
        b, a, _, _ = window
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


class Correction(NamedTuple):
    """Correction of scores by the error e = v - y of an item, stored in the last bits of its code.

        ⟨q, y⟩ ≈ α(⟨q, v⟩ - κ⟨v, e⟩) + β

    A neighbour q of y also resembles v, so that ⟨q, e⟩, the error of the score, increases with
    ⟨v, e⟩. The codes store low + k·step ≈ -κ⟨v, e⟩ as a binary number k.
    """

    weight: float = 0.0  # κ
    low: float = 0.0
    step: float = 0.0
    slope: float = 1.0  # α
    offset: float = 0.0  # β

    def signs(self, Y: Array, V: Array, n_bits: int) -> Array:
        """Return the bits of k as ±1, (m, n_bits), the most significant one first."""
        value = -self.weight * np.vecdot(V, V - Y)
        k = np.rint((value - self.low) / max(self.step, _TINY)).clip(0, 2**n_bits - 1)
        bits = k.astype(np.int64)[:, None] >> np.arange(n_bits)[::-1] & 1
        return as_signs(bits)

    def query_values(self, n_bits: int) -> Floats:
        """Return the values of a float query for the bits of k."""
        values: Floats = self.slope * self.step / 2 * 2.0 ** np.arange(n_bits)[::-1]
        return values

    def constant(self, n_bits: int) -> float:
        """Return the part of the score that is the same for all items: β and the mean of k."""
        largest = float(2**n_bits - 1)
        return self.offset + self.slope * (self.low + self.step * largest / 2)

    @classmethod
    def fit(cls, Y: Array, V: Array, n_bits: int) -> Self:
        """Fit the correction to rows y and their reconstructions v.

        Rows also serve as queries, each with its nearest other rows as neighbours. A linear
        regression predicts the error ⟨q, e⟩ of a neighbour's score from ⟨v, e⟩ and the score,
        both relative to their means over the neighbours of the query. κ is its coefficient of
        ⟨v, e⟩. α and β are fitted to neighbours and to random rows.
        """
        n = min(_NEIGHBOURS, len(Y) - 2)
        if n < 2:
            return cls()
        n_queries = min(len(Y), _QUERIES)
        cosines = Y[:n_queries] @ Y.T
        cosines[np.arange(n_queries), np.arange(n_queries)] = -2  # not a neighbour of itself
        near = np.argpartition(-cosines, n, axis=1)[:, :n]
        scores = Y[:n_queries] @ V.T
        error = np.vecdot(V, V - Y)
        truth, score = (np.take_along_axis(x, near, axis=1) for x in (cosines, scores))
        columns = [x - x.mean(axis=1, keepdims=True) for x in (error[near], score, score - truth)]
        A, target = np.stack([x.ravel() for x in columns[:2]], axis=1), columns[2].ravel()
        weight = max(float(np.linalg.lstsq(A, target)[0][0]), 0.0)
        low, high = np.quantile(-weight * error, [_TAIL, 1 - _TAIL])
        step = float(high - low) / (2**n_bits - 1)
        others = (np.arange(n_queries)[:, None] + np.arange(1, n + 1)) % len(Y)
        pairs = np.concatenate([near, others], axis=1)
        estimate = np.take_along_axis(scores, pairs, axis=1) - weight * error[pairs]
        A = np.stack([estimate.ravel(), np.ones(estimate.size)], axis=1)
        slope, offset = np.linalg.lstsq(A, np.take_along_axis(cosines, pairs, axis=1).ravel())[0]
        if not slope > 0:
            slope, offset = 1.0, 0.0
        return cls(weight, float(low), step, float(slope), float(offset))


class Search(NamedTuple):
    """Search for the bits of a level: γ, and the number of tabu steps per bit."""

    length_weight: float = LENGTH_WEIGHT
    effort: float = 0.0

    def flips(self, D: Floats) -> BitFlips:
        """Return the search for a dictionary."""
        return BitFlips(D, self.length_weight, math.ceil(self.effort * D.shape[1]))


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
    products = sum(signs[part].T @ (Y[part] - offset) for part in _blocks(len(Y)))
    D = np.linalg.solve(gram, products / len(signs)).T
    return np.ascontiguousarray(D, dtype=Y.dtype)


def _blocks(n_rows: int) -> list[slice]:
    """Return slices of rows that bound the memory of a fit."""
    return [slice(start, start + FIRST_ROWS) for start in range(0, n_rows, FIRST_ROWS)]


def rescale_dictionary(D: Floats, offset: Floats, signs: Floats) -> Floats:
    """Return s·D for which mean ‖μ + s·D·b‖² = 1.

    Least-squares reconstructions are too short: they lack the part of y that D·b cannot represent.
    """
    parts = signs @ D.T
    a = float(np.vecdot(parts, parts).mean(dtype=np.float64))
    b = float((parts @ offset).mean(dtype=np.float64))
    c = min(float(offset @ offset) - 1, 0.0)
    return D * D.dtype.type((math.sqrt(b * b - a * c) - b) / a if a > 0 else 1.0)


# Maps a dictionary, with atoms of mean length 1, to the operation that solves Eq. 1 for rows.
MakeSolver = Callable[[Array], Operation]


class Level:
    """Bits of a nested code after the first n_before; the last of them may store a correction."""

    def __init__(
        self,
        D: Array,
        n_before: int,
        mean: Array,
        make_solver: MakeSolver,
        n_correction: int = 0,
        correction: Correction | None = None,
        search: Search | None = None,
    ) -> None:
        self.mean, self.n_before = mean, n_before
        self.n_correction, self.correction = n_correction, correction or Correction()
        self.before = np.ascontiguousarray(D[:, :n_before].T)
        self.new = np.ascontiguousarray(D[:, n_before : D.shape[1] - n_correction])
        self.search = (search or Search()).flips(self.new)
        size = np.linalg.norm(self.new, axis=0).mean()
        self.solver = make_solver(self.new / np.maximum(size, np.float32(1e-30)))

    def initial_signs(self, Y: Array, signs: Array, memory: Workspace) -> Array:
        """Return initial signs of the new bits, from the solution of Eq. 1 for the remainder."""
        x = self.solver.run(unit_rows(Y - self.offset(signs)), memory)
        return as_signs(x > 0)

    def descend(self, Y: Array, signs: Array, new: Array) -> Array:
        """Return the new bits after descent from initial signs, without those of the correction."""
        return self.search.run(Y, self.offset(signs), new)

    def search_blocks(
        self, Y: Array, signs: Array, memory: Workspace, new: Array | None = None
    ) -> Array:
        """Descend from signs of the first rows, and from initial signs of the others."""
        done = 0 if new is None else len(new)
        blocks = []
        for part in _blocks(len(Y)):
            before = np.empty((0, self.new.shape[1]), np.float32) if new is None else new[part]
            entering = slice(max(part.start, done), part.stop)
            started = self.initial_signs(Y[entering], signs[entering], memory)
            started = np.concatenate([before, started])
            blocks.append(self.descend(Y[part], signs[part], started))
        return np.concatenate(blocks)

    def extend(self, Y: Array, signs: Array, memory: Workspace) -> Array:
        """Append the signs of the new bits to the signs (m, n_before)."""
        new = self.descend(Y, signs, self.initial_signs(Y, signs, memory))
        parts = [signs, new]
        if self.n_correction:
            V = self.reconstruct(signs, new)
            parts.append(self.correction.signs(Y, V, self.n_correction))
        return np.concatenate(parts, axis=1)

    def offset(self, signs: Array) -> Array:
        """Return the reconstruction from the first n_before bits."""
        if not self.n_before:
            return self.mean
        offset = np.empty((len(signs), len(self.mean)), np.float32)
        return product(signs, self.before, offset) + self.mean

    def reconstruct(self, signs: Array, new: Array) -> Array:
        """Return v, (m, n)."""
        V = product(new, self.new.T, np.empty((len(new), len(self.mean)), np.float32))
        V += self.offset(signs)
        return V


class BitDescent(Operation):
    """Map rows of length 1 to signs (m, N), level by level; it has no ONNX form."""

    def __init__(self, levels: Sequence[Level]) -> None:
        self.levels = levels
        last = levels[-1]
        self.n_bits = int(last.n_before + last.new.shape[1] + last.n_correction)

    def width(self, n: int) -> int:
        """Return the number of bits."""
        for level in self.levels:
            check_width(n, len(level.new))
            check_width(n, len(level.mean))
        return self.n_bits

    def run(self, X: Array, memory: Workspace) -> Array:
        """Descend in each level, in chunks of rows that fit in the cache."""
        out = memory.array(self, len(X), self.n_bits)
        for part in chunks(len(X)):
            signs = np.empty((len(X[part]), 0), np.float32)
            for level in self.levels:
                signs = level.extend(X[part], signs, memory)
            out[part] = signs
        return out


def fit_levels(
    Y: Array,
    mean: Array,
    frames: Sequence[Array],
    n_corrections: Sequence[int],
    n_refits: int,
    make_solver: MakeSolver,
    search: Search,
) -> tuple[list[Array], list[Correction]]:
    """Fit one dictionary and one correction per level to rows of length 1.

    A level starts from a frame for its new bits. Searches on ‖y - v‖² and refits of the dictionary
    alternate, and lengths are corrected at the end. The number of rows grows from refit to refit,
    up to all rows in the last one; the rows must be in random order. With a correction, the
    dictionary has columns of zeros for its bits.
    """
    signs, D = np.empty((len(Y), 0), np.float32), np.empty((Y.shape[1], 0), np.float32)
    dictionaries, corrections = [], []
    memory = Workspace()
    sizes = [max(len(Y) * (i + 1) // n_refits, min(len(Y), FIRST_ROWS)) for i in range(n_refits)]
    for frame, n_correction in zip(frames, n_corrections, strict=True):
        n_before = signs.shape[1]
        level = Level(np.concatenate([D, frame], axis=1), n_before, mean, make_solver)
        first = slice(sizes[0] if sizes else FIRST_ROWS)
        new = level.initial_signs(Y[first], signs[first], memory)
        remainder, parts = Y[first] - level.offset(signs[first]), new @ frame.T
        size = np.vdot(parts, remainder) / max(np.vdot(parts, parts), np.float32(1e-30))
        D = np.concatenate([D, size * frame], axis=1)
        for n_rows in sizes:
            level = Level(D, n_before, mean, make_solver, search=search._replace(length_weight=0))
            new = level.search_blocks(Y[:n_rows], signs[:n_rows], memory, new)
            D = refit_dictionary(Y[:n_rows], mean, np.concatenate([signs[:n_rows], new], axis=1))
        if search.length_weight:
            found = np.concatenate([signs[: len(new)], new], axis=1)
            D = rescale_dictionary(D, mean, found)
        D = np.concatenate([D, np.zeros((len(D), n_correction), D.dtype)], axis=1)
        level = Level(D, n_before, mean, make_solver, n_correction, search=search)
        if n_correction:
            first = slice(FIRST_ROWS)
            new = level.search_blocks(Y[first], signs[first], memory)
            V = level.reconstruct(signs[first], new)
            level.correction = Correction.fit(Y[first], V, n_correction)
        dictionaries.append(D)
        corrections.append(level.correction)
        if len(dictionaries) < len(frames):
            signs = np.concatenate([level.extend(Y[p], signs[p], memory) for p in _blocks(len(Y))])
    return dictionaries, corrections

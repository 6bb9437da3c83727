"""Bit descent: codes b and a dictionary D for which v = μ + D·b approximates rows y of length 1.

The dictionary is fitted to codes that minimise ‖y - v‖² + γ(‖v‖² - 1)². Then the flips of
`NearFlips` adapt a code to the queries that are likely near its row.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodal.hashers.bit_flips import LENGTH_WEIGHT, BitFlips, Floats, NearFlips, ScoreFlips
from antipodal.hashers.near_rows import NearRows, NearScores
from antipodal.hashers.neighbourhoods import NeighbourFlips, Neighbourhoods
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

RIDGE = 0.01  # ε of the least squares for D, relative to a mean over rows
FIRST_ROWS = 20_000  # rows of the first refit and per block of a refit
_SCORED_ROWS = 1000  # rows whose reconstructions `NearScores` is fitted to
_TINY = np.finfo(np.float32).tiny


class Correction(NamedTuple):
    """Correction of scores by the error e = v - y of an item, in models of version 0.8 to 0.12.

        ⟨q, y⟩ ≈ α(⟨q, v⟩ - κ⟨v, e⟩) + β

    A neighbour q of y also resembles v, so that ⟨q, e⟩, the error of the score, increases with
    ⟨v, e⟩. The last bits of a code store low + k·step ≈ -κ⟨v, e⟩ as a binary number k.
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


class Search(NamedTuple):
    """Search for the bits of a level: γ, and the number of tabu steps per bit."""

    length_weight: float = LENGTH_WEIGHT
    effort: float = 0.0


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
    """Bits of a nested code after the first n_before; the last of them may store a correction.

    With near rows, one in six steps of the search is one of `NearFlips`.
    """

    def __init__(
        self,
        D: Array,
        n_before: int,
        mean: Array,
        make_solver: MakeSolver,
        search: Search | None = None,
        *,
        n_correction: int = 0,
        correction: Correction | None = None,
        near: NearRows | Neighbourhoods | None = None,
        scores: NearScores | None = None,
    ) -> None:
        search, scores = search or Search(), scores or NearScores()
        self.mean, self.n_before = mean, n_before
        self.n_correction, self.correction = n_correction, correction or Correction()
        self.before = np.ascontiguousarray(D[:, :n_before].T)
        self.new = np.ascontiguousarray(D[:, n_before : D.shape[1] - n_correction])
        n_steps = math.ceil(search.effort * self.new.shape[1])
        self.near = _near_flips(self.new, near, scores, n_steps, n_before)
        n_steps -= self.near.n_steps if self.near else 0
        self.search = BitFlips(self.new, search.length_weight, n_steps)
        size = np.linalg.norm(self.new, axis=0).mean()
        self.solver = make_solver(self.new / np.maximum(size, np.float32(1e-30)))

    def initial_signs(self, Y: Array, offset: Array, memory: Workspace) -> Array:
        """Return initial signs of the new bits, from the solution of Eq. 1 for the remainder."""
        x = self.solver.run(unit_rows(Y - offset), memory)
        return as_signs(x > 0)

    def search_blocks(
        self, Y: Array, signs: Array, memory: Workspace, new: Array | None = None
    ) -> Array:
        """Search from signs of the first rows, and from initial signs of the others."""
        done = 0 if new is None else len(new)
        blocks = []
        for part in _blocks(len(Y)):
            before = np.empty((0, self.new.shape[1]), np.float32) if new is None else new[part]
            entering = slice(max(part.start, done), part.stop)
            started = self.initial_signs(Y[entering], self.offset(signs[entering]), memory)
            started = np.concatenate([before, started])
            blocks.append(self.search.run(Y[part], self.offset(signs[part]), started))
        return np.concatenate(blocks)

    def extend(
        self,
        Y: Array,
        signs: Array,
        memory: Workspace,
        found: dict[int, NDArray[np.intp]] | None = None,
    ) -> Array:
        """Append the signs of the new bits to the signs (m, n_before).

        `found` is passed to `NearFlips`.
        """
        offset = self.offset(signs)
        new = np.empty((len(Y), self.new.shape[1]), np.float32)
        for part in chunks(len(Y)):  # rows that fit in the cache
            here = offset if offset.ndim == 1 else offset[part]
            new[part] = self.search.run(Y[part], here, self.initial_signs(Y[part], here, memory))
        if isinstance(self.near, NearFlips):
            new = self.near.run(Y, offset, new, found)
        elif self.near:
            new = self.near.run(Y, offset, new)
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


def _near_flips(
    D: Array,
    near: NearRows | Neighbourhoods | None,
    scores: NearScores,
    n_steps: int,
    n_before: int,
) -> ScoreFlips | None:
    """Return the search for the last of n_steps flips, or None without near rows or flips."""
    if isinstance(near, Neighbourhoods):
        n_near = n_steps // NeighbourFlips.one_in
        return NeighbourFlips(D, near, scores, n_near) if n_near else None
    n_near = n_steps // NearFlips.one_in
    return NearFlips(D, near, scores, n_near, n_before) if near and n_near else None


class BitDescent(Operation):
    """Map rows of length 1 to signs (m, N), level by level; it has no ONNX form."""

    block_rows = 4096  # several rows share the lists that are searched for near rows

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
        """Compute the bits of one level after the other."""
        signs = np.empty((len(X), 0), np.float32)
        found: dict[int, NDArray[np.intp]] = {}
        for level in self.levels:
            signs = level.extend(X, signs, memory, found)
        return signs


def fit_levels(
    Y: Array,
    mean: Array,
    frames: Sequence[Array],
    n_refits: int,
    make_solver: MakeSolver,
    search: Search,
    near: Sequence[NearRows | None],
) -> tuple[list[Array], list[NearScores | None]]:
    """Fit one dictionary per level to rows of length 1, and `NearScores` of levels with near rows.

    A level starts from a frame for its new bits. Searches on ‖y - v‖² and refits of the dictionary
    alternate, and lengths are corrected at the end. The number of rows grows from refit to refit,
    up to all rows in the last one; the rows must be in random order.
    """
    signs, D = np.empty((len(Y), 0), np.float32), np.empty((Y.shape[1], 0), np.float32)
    dictionaries: list[Array] = []
    near_scores: list[NearScores | None] = []
    memory = Workspace()
    sizes = [max(len(Y) * (i + 1) // n_refits, min(len(Y), FIRST_ROWS)) for i in range(n_refits)]
    for frame, near_rows in zip(frames, near, strict=True):
        n_before = signs.shape[1]
        level = Level(np.concatenate([D, frame], axis=1), n_before, mean, make_solver)
        first = slice(sizes[0] if sizes else FIRST_ROWS)
        offset = level.offset(signs[first])
        new = level.initial_signs(Y[first], offset, memory)
        remainder, parts = Y[first] - offset, new @ frame.T
        size = np.vdot(parts, remainder) / max(np.vdot(parts, parts), np.float32(1e-30))
        D = np.concatenate([D, size * frame], axis=1)
        for n_rows in sizes:
            level = Level(D, n_before, mean, make_solver, search._replace(length_weight=0))
            new = level.search_blocks(Y[:n_rows], signs[:n_rows], memory, new)
            D = refit_dictionary(Y[:n_rows], mean, np.concatenate([signs[:n_rows], new], axis=1))
        if search.length_weight:
            found = np.concatenate([signs[: len(new)], new], axis=1)
            D = rescale_dictionary(D, mean, found)
        scores = None
        if near_rows:
            level, first = Level(D, n_before, mean, make_solver, search), slice(_SCORED_ROWS)
            new = level.search_blocks(Y[first], signs[first], memory)
            scores = NearScores.fit(Y[:FIRST_ROWS], level.reconstruct(signs[first], new))
        dictionaries.append(D)
        near_scores.append(scores)
        if len(dictionaries) < len(frames):
            level = Level(D, n_before, mean, make_solver, search, near=near_rows, scores=scores)
            signs = np.concatenate([level.extend(Y[p], signs[p], memory) for p in _blocks(len(Y))])
    return dictionaries, near_scores

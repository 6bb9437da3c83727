"""Codes of signs made a length at a time: each level adds bits to those before, which stay.

    v = μ + D·b,   D = [A B],  b = [a c]        a the bits of the levels before, c the new ones

A level knows its own D for all bits so far. Its new bits begin at the signs of the solution of
Eq. 1 for what a leaves of the row, and descend from there. So the first bits are a code of their
own.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from antipodal.descent import LENGTH_WEIGHT, bit_descent, refit_dictionary, stretched
from antipodal.hashers.parts.rows import unit_rows

Solver = Callable[[Tensor], Tensor]  # rows of length 1 -> the solution of Eq. 1
SolverOf = Callable[[Tensor], Solver]  # of a dictionary with atoms of mean length 1


class Level:
    """The bits from n_before on, given those before."""

    def __init__(self, D: Tensor, n_before: int, mean: Tensor, solver_of: SolverOf) -> None:
        self.mean, self.known, self.new = mean, D[:, :n_before], D[:, n_before:].contiguous()
        self.gram = self.new.T @ self.new
        size = torch.linalg.vector_norm(self.new, dim=0).mean().clamp(min=1e-30)
        self.solve = solver_of(self.new / size)

    def begin(self, Y: Tensor, signs: Tensor) -> Tensor:
        """Return the new bits to begin with."""
        return torch.where(self.solve(unit_rows(Y - self.offset(signs))) > 0, 1.0, -1.0)

    def descend(self, Y: Tensor, signs: Tensor, new: Tensor, length_weight: float) -> Tensor:
        """Return better new bits; they are overwritten."""
        return bit_descent(Y, self.new, self.offset(signs), new, length_weight, gram=self.gram)

    def extend(self, Y: Tensor, signs: Tensor) -> Tensor:
        """Return the signs (m, n_before) with the new ones behind."""
        new = self.descend(Y, signs, self.begin(Y, signs), LENGTH_WEIGHT)
        return torch.cat([signs, new], dim=1)

    def offset(self, signs: Tensor) -> Tensor:
        """Return what the bits before rebuild, a row for each."""
        return torch.addmm(self.mean, signs, self.known.T)


def coder(dictionaries: Sequence[Tensor], mean: Tensor, solver_of: SolverOf) -> Solver:
    """Return the map from rows of length 1 to signs (m, N), through all levels."""
    lengths = [0, *(D.shape[1] for D in dictionaries)]
    levels = [Level(D, n, mean, solver_of) for D, n in zip(dictionaries, lengths[:-1], strict=True)]

    def code(Y: Tensor) -> Tensor:
        signs = Y.new_empty(len(Y), 0)
        for level in levels:
            signs = level.extend(Y, signs)
        return signs

    return code


def fit_levels(
    Y: Tensor, mean: Tensor, frames: Sequence[Tensor], n_refits: int, solver_of: SolverOf
) -> list[Tensor]:
    """Fit a dictionary for every level to rows of length 1, from a frame for its new bits.

    Codes descend and the dictionary is fitted to them, in turns; neither makes the error larger.
    Lengths count only when that is done.
    """
    signs, D = Y.new_empty(len(Y), 0), Y.new_empty(Y.shape[1], 0)
    dictionaries = []
    for frame in frames:
        n_before = signs.shape[1]
        level = Level(torch.cat([D, frame], dim=1), n_before, mean, solver_of)
        new, left = level.begin(Y, signs), Y - level.offset(signs)
        parts = new @ frame.T
        size = (parts * left).sum() / parts.square().sum().clamp(min=1e-30)
        D = torch.cat([D, size * frame], dim=1)
        for _ in range(n_refits):
            level = Level(D, n_before, mean, solver_of)
            new = level.descend(Y, signs, new, length_weight=0)
            D = refit_dictionary(Y, mean, torch.cat([signs, new], dim=1))
        D = stretched(D, mean, torch.cat([signs, new], dim=1))
        dictionaries.append(D)
        signs = Level(D, n_before, mean, solver_of).extend(Y, signs)
    return dictionaries

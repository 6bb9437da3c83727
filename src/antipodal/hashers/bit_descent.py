"""Sign codes by bit descent, and the dictionary that reconstructs rows from them."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from antipodal.hashers.rows import unit_rows

LENGTH_WEIGHT = 1.0  # γ: from 0.5 to 2 the same neighbours are found
RIDGE = 0.01  # of the dictionary's least squares, for a mean over rows
_BLOCK_BYTES = 2**20  # a table of rows × bits this large stays in the cache through a sweep
_LEAST_GAIN = 1e-6  # what is less is rounding, and a bit could be flipped forever


def bit_descent(
    Y: Tensor,
    D: Tensor,
    offset: Tensor,
    signs: Tensor,
    length_weight: float = LENGTH_WEIGHT,
    *,
    gram: Tensor | None = None,
) -> Tensor:
    """Flip, in every row, the bit that lowers the objective most, until no bit does.

    Flipping bⱼ moves v by -2bⱼdⱼ, so that with G = DᵀD

        ⟨y, v⟩ changes by -2bⱼ(Dᵀy)ⱼ,    ‖v‖² by 4(Gⱼⱼ - bⱼ(Dᵀv)ⱼ),    Dᵀv by -2bⱼGⱼ

    All gains of a row take a few operations per bit: a flip never costs a product with D.

    Parameters
    ----------
    Y : (m, n)
        Rows of length 1.
    D : (n, N)
        What the signs add up with.
    offset : (n,) or (m, n)
        μ, or one for each row.
    signs : (m, N)
        ±1 to begin with; they are overwritten.
    gram : (N, N), optional
        DᵀD, if it is known.

    Returns
    -------
    The signs (m, N). Each row has those it would have alone.
    """
    gram = D.T @ D if gram is None else gram
    drive = Y @ D
    pull = torch.addmm(offset @ D, signs, gram)
    rebuilt = torch.addmm(offset, signs, D.T)
    inner = (Y * rebuilt).sum(dim=1, keepdim=True)
    square = rebuilt.square().sum(dim=1, keepdim=True)
    size = max(1, _BLOCK_BYTES // (D.shape[1] * D.element_size()))
    for start in range(0, len(Y), size):
        part = slice(start, start + size)
        block = (signs[part], drive[part], pull[part], inner[part], square[part])
        _descend(*block, gram=gram, length_weight=length_weight)
    return signs


def _descend(
    signs: Tensor,
    drive: Tensor,
    pull: Tensor,
    inner: Tensor,
    square: Tensor,
    *,
    gram: Tensor,
    length_weight: float,
) -> None:
    """Go on with the rows of a block until all are done; `signs` is overwritten."""

    def objective(inner: Tensor, square: Tensor) -> Tensor:
        excess = square - 1
        return (excess * length_weight + 1).mul_(excess).sub_(inner, alpha=2)

    left, b = torch.arange(len(signs)), signs
    diagonal = gram.diagonal()
    now = objective(inner, square)
    while len(left):
        inners = torch.addcmul(inner, b, drive, value=-2)
        squares = torch.addcmul(square + 4 * diagonal, b, pull, value=-4)
        lowest, j = objective(inners, squares).min(dim=1, keepdim=True)
        going = (lowest < now - _LEAST_GAIN)[:, 0]
        if not going.all():
            signs[left[~going]] = b[~going]
            left, b, drive, pull = left[going], b[going], drive[going], pull[going]
            inners, squares, lowest, j = inners[going], squares[going], lowest[going], j[going]
        inner, square, now = inners.gather(1, j), squares.gather(1, j), lowest
        flipped = b.gather(1, j)
        pull.addcmul_(flipped, gram[j[:, 0]], value=-2)
        b.scatter_(1, j, -flipped)


def refit_dictionary(Y: Tensor, offset: Tensor, signs: Tensor) -> Tensor:
    """Return the D (n, N) that minimises Σ ‖y - μ - D·b‖² / m + ε‖D‖²."""
    gram = signs.T @ signs / len(signs)
    gram.diagonal().add_(RIDGE)
    D: Tensor = torch.linalg.solve(gram, signs.T @ (Y - offset) / len(signs)).T
    return D.contiguous()


def stretched(D: Tensor, offset: Tensor, signs: Tensor) -> Tensor:
    """Return s·D for which mean ‖μ + s·D·b‖² = 1.

    Least squares rebuild rows too short by what they lose of them.
    """
    parts = signs @ D.T
    a = parts.square().sum(dim=1).mean().item()
    b = (parts @ offset).mean().item()
    c = min((offset @ offset).item() - 1, 0.0)
    return D * ((math.sqrt(b * b - a * c) - b) / a if a > 0 else 1.0)


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

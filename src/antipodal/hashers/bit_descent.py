"""Bit descent: codes b and a dictionary D for which μ + D·b approximates rows y of length 1.

    f(b) = ‖y - v‖² + γ(‖v‖² - 1)²,    v = μ + D·b,    b in {-1, 1}ᴺ

The second term keeps reconstructions at length 1, so that scores estimate cosines.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from antipodal.hashers.rows import unit_rows

LENGTH_WEIGHT = 1.0  # γ: recall is the same from 0.5 to 2
RIDGE = 0.01  # ε of the least squares for D, relative to a mean over rows
_BLOCK_BYTES = 2**20  # a table of rows × bits of this size stays in the cache
_MIN_GAIN = 1e-6  # smaller gains are rounding: a bit could be flipped forever


def bit_descent(
    Y: Tensor,
    D: Tensor,
    offset: Tensor,
    signs: Tensor,
    length_weight: float = LENGTH_WEIGHT,
    *,
    gram: Tensor | None = None,
) -> Tensor:
    """Flip the bit of each row that lowers f(b) most, until no flip lowers it.

    Flipping bⱼ changes v by -2bⱼdⱼ. With G = DᵀD,

        ⟨y, v⟩ changes by -2bⱼ(Dᵀy)ⱼ,    ‖v‖² by 4(Gⱼⱼ - bⱼ(Dᵀv)ⱼ),    Dᵀv by -2bⱼGⱼ

    so that the gains of all flips of a row take a few operations per bit, and no product with D.

    Parameters
    ----------
    Y : (m, n)
        Rows of length 1.
    D : (n, N)
        Dictionary.
    offset : (n,) or (m, n)
        μ, for all rows or one per row.
    signs : (m, N)
        Initial ±1; overwritten.
    length_weight : float
        γ.
    gram : (N, N), optional
        DᵀD, if already computed.

    Returns
    -------
    signs : (m, N)
        They do not depend on the other rows.
    """
    gram = D.T @ D if gram is None else gram
    drive = Y @ D
    pull = torch.addmm(offset @ D, signs, gram)
    v = torch.addmm(offset, signs, D.T)
    inner = (Y * v).sum(dim=1, keepdim=True)
    square = v.square().sum(dim=1, keepdim=True)
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
    """Flip bits of a block of rows until all rows are done; `signs` is overwritten.

    `drive` is Dᵀy, `pull` Dᵀv, `inner` ⟨y, v⟩ and `square` ‖v‖².
    """

    def objective(inner: Tensor, square: Tensor) -> Tensor:
        excess = square - 1
        return (excess * length_weight + 1).mul_(excess).sub_(inner, alpha=2)

    active, b = torch.arange(len(signs)), signs
    diagonal = gram.diagonal()
    current = objective(inner, square)
    while len(active):
        inners = torch.addcmul(inner, b, drive, value=-2)
        squares = torch.addcmul(square + 4 * diagonal, b, pull, value=-4)
        lowest, j = objective(inners, squares).min(dim=1, keepdim=True)
        lower = (lowest < current - _MIN_GAIN)[:, 0]
        if not lower.all():
            signs[active[~lower]] = b[~lower]
            active, b, drive, pull = active[lower], b[lower], drive[lower], pull[lower]
            inners, squares, lowest, j = inners[lower], squares[lower], lowest[lower], j[lower]
        inner, square, current = inners.gather(1, j), squares.gather(1, j), lowest
        flipped = b.gather(1, j)
        pull.addcmul_(flipped, gram[j[:, 0]], value=-2)
        b.scatter_(1, j, -flipped)


def refit_dictionary(Y: Tensor, offset: Tensor, signs: Tensor) -> Tensor:
    """Return the D (n, N) that minimises Σ ‖y - μ - D·b‖² / m + ε‖D‖²."""
    gram = signs.T @ signs / len(signs)
    gram.diagonal().add_(RIDGE)
    D: Tensor = torch.linalg.solve(gram, signs.T @ (Y - offset) / len(signs)).T
    return D.contiguous()


def rescale_dictionary(D: Tensor, offset: Tensor, signs: Tensor) -> Tensor:
    """Return s·D for which mean ‖μ + s·D·b‖² = 1.

    Least squares make reconstructions too short, by the part of the rows that they lose.
    """
    parts = signs @ D.T
    a = parts.square().sum(dim=1).mean().item()
    b = (parts @ offset).mean().item()
    c = min((offset @ offset).item() - 1, 0.0)
    return D * ((math.sqrt(b * b - a * c) - b) / a if a > 0 else 1.0)


Solver = Callable[[Tensor], Tensor]  # rows of length 1 -> solutions x of Eq. 1
MakeSolver = Callable[[Tensor], Solver]  # from a dictionary with atoms of mean length 1


class Level:
    """The bits after the first n_before bits of a nested code."""

    def __init__(self, D: Tensor, n_before: int, mean: Tensor, make_solver: MakeSolver) -> None:
        self.mean, self.before, self.new = mean, D[:, :n_before], D[:, n_before:].contiguous()
        self.gram = self.new.T @ self.new
        size = torch.linalg.vector_norm(self.new, dim=0).mean().clamp(min=1e-30)
        self.solve = make_solver(self.new / size)

    def initial_signs(self, Y: Tensor, signs: Tensor) -> Tensor:
        """Return initial signs of the new bits, from the solution of Eq. 1 for the remainder."""
        return torch.where(self.solve(unit_rows(Y - self.offset(signs))) > 0, 1.0, -1.0)

    def descend(self, Y: Tensor, signs: Tensor, new: Tensor, length_weight: float) -> Tensor:
        """Improve the signs of the new bits by bit descent; `new` is overwritten."""
        return bit_descent(Y, self.new, self.offset(signs), new, length_weight, gram=self.gram)

    def extend(self, Y: Tensor, signs: Tensor) -> Tensor:
        """Append the signs of the new bits to the signs (m, n_before)."""
        new = self.descend(Y, signs, self.initial_signs(Y, signs), LENGTH_WEIGHT)
        return torch.cat([signs, new], dim=1)

    def offset(self, signs: Tensor) -> Tensor:
        """Return the reconstruction from the first n_before bits."""
        return torch.addmm(self.mean, signs, self.before.T)


def nested_encoder(dictionaries: Sequence[Tensor], mean: Tensor, make_solver: MakeSolver) -> Solver:
    """Return the function from rows of length 1 to signs (m, N), level by level."""
    lengths = [0, *(D.shape[1] for D in dictionaries)]
    levels = [
        Level(D, n, mean, make_solver) for D, n in zip(dictionaries, lengths[:-1], strict=True)
    ]

    def encode(Y: Tensor) -> Tensor:
        signs = Y.new_empty(len(Y), 0)
        for level in levels:
            signs = level.extend(Y, signs)
        return signs

    return encode


def fit_levels(
    Y: Tensor, mean: Tensor, frames: Sequence[Tensor], n_refits: int, make_solver: MakeSolver
) -> list[Tensor]:
    """Fit one dictionary per level to rows of length 1, starting from a frame for its new bits.

    Bit descent (with γ = 0) and refits of the dictionary alternate; neither increases the error.
    Lengths are corrected at the end.
    """
    signs, D = Y.new_empty(len(Y), 0), Y.new_empty(Y.shape[1], 0)
    dictionaries = []
    for frame in frames:
        n_before = signs.shape[1]
        level = Level(torch.cat([D, frame], dim=1), n_before, mean, make_solver)
        new, remainder = level.initial_signs(Y, signs), Y - level.offset(signs)
        parts = new @ frame.T
        size = (parts * remainder).sum() / parts.square().sum().clamp(min=1e-30)
        D = torch.cat([D, size * frame], dim=1)
        for _ in range(n_refits):
            level = Level(D, n_before, mean, make_solver)
            new = level.descend(Y, signs, new, length_weight=0)
            D = refit_dictionary(Y, mean, torch.cat([signs, new], dim=1))
        D = rescale_dictionary(D, mean, torch.cat([signs, new], dim=1))
        dictionaries.append(D)
        signs = Level(D, n_before, mean, make_solver).extend(Y, signs)
    return dictionaries

"""Codes of signs that rebuild rows of unit length, and the dictionary they rebuild them with.

    min_b ‖y - v‖² + γ(‖v‖² - 1)²,    v = μ + D·b,  b = ±1,  ‖y‖ = 1

The solution of Eq. 1 is where to begin (`antipodal.solver`), and its signs are not the best ones:
flip the bit that lowers this most, until none does. A query q is then compared by ⟨q, v⟩, which is
the cosine if v is as long as y. That is what γ is for: vectors v differ in length less than the
directions that they lose, so that no length has to be kept beside the code.
"""

import math

import torch
from torch import Tensor

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

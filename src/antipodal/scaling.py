"""Units in which a least-squares problem in a box neither over- nor underflows.

    min_x ‖Dx - y‖²  subject to  ‖x‖∞ ≤ λ

Where y and λ are multiplied by s, so is x; where an atom is divided by s, its entry of x and that
entry's bound are multiplied by s. So z = x·length/2ᵉ solves the problem for atoms of length 1 and
y/2ᵉ in the box |z| ≤ λ·length/2ᵉ, for any e. Powers of two round nothing.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipodal.neurons import clip

OCTAVES = 32  # rows that are scaled alike differ by at most this many powers of two


class Units(NamedTuple):
    """The box |z| ≤ `box` (N,), what |x| is at its wall, `reach` (N,), and the `grain` of x.

    The grain is what the smallest number above zero that x can be is in z.
    """

    box: Tensor
    reach: Tensor
    grain: float

    def leave(self, z: Tensor) -> Tensor:
        """Return x for z, in the box exactly, and ±λ to the last bit where z is on its wall."""
        return z / self.box * self.reach

    def enter(self, x: Tensor) -> Tensor:
        """Return z for x, moved into the box if it is outside."""
        return clip(x / self.reach.clamp(min=_tiniest(x.dtype)), 1.0) * self.box


class Scaling:
    """The atoms of D at length 1, and the units of z for rows of any size."""

    def __init__(self, D: Tensor, bound: float) -> None:
        # The length of an atom is lengths·2^exponents, which may be beyond the range of its dtype.
        self.exponents = _exponents(D, dim=0).cpu().numpy()
        atoms = times_two_to(-self.exponents, D)
        lengths = torch.linalg.vector_norm(atoms, dim=0)
        lengths = torch.where(lengths > 0, lengths, torch.ones_like(lengths))
        self.lengths = lengths.double().cpu().numpy()
        self.atoms = atoms / lengths
        self.bound = float(torch.tensor(bound, dtype=D.dtype))

    def units(self, exponent: int) -> Units:
        """Return the box of rows that are divided by 2^exponent, λ·length/2^exponent.

        It is cut to a range whose squares are numbers: a wall outside it is one that no solution
        reaches, or holds entries too small to matter beside y.
        """
        dtype = self.atoms.dtype
        room = math.sqrt(torch.finfo(dtype).max)
        bound, power = math.frexp(self.bound)
        tiniest, fall = math.frexp(_tiniest(dtype))
        with np.errstate(over="ignore"):  # infinity is cut as well
            box = np.ldexp(bound * self.lengths, self.exponents + power - exponent)
            grains = np.ldexp(tiniest * self.lengths, self.exponents + fall - exponent)
            farthest = np.ldexp(room / self.lengths, exponent - self.exponents)
        box, reach = np.clip(box, 1 / room, room), np.minimum(self.bound, farthest)
        return Units(
            torch.as_tensor(box).to(self.atoms),
            torch.as_tensor(reach).to(self.atoms),
            float(grains.max()),
        )


def alike(Y: Tensor, rows: int) -> Iterator[tuple[int, slice | Tensor]]:
    """Yield blocks of rows that are of one order of magnitude, and its exponent.

    It is 0 for rows of a length between 2⁻¹⁷ and 2¹⁵, which need no scaling.
    """
    orders = (_exponents(Y, dim=1) + OCTAVES // 2) // OCTAVES
    first, last = int(orders.min()), int(orders.max())
    if first == last:  # the usual case, where slices make no copies
        for i in range(0, len(Y), rows):
            yield OCTAVES * first, slice(i, i + rows)
        return
    for order in range(first, last + 1):
        members = (orders == order).nonzero()[:, 0]
        for i in range(0, len(members), rows):
            yield OCTAVES * order, members[i : i + rows]


def times_two_to(power: int | NDArray[np.integer[Any]], X: Tensor) -> Tensor:
    """Multiply columns by powers of two, in two steps because 2^power may not be a number."""
    if not np.any(power):
        return X
    for half in (power // 2, power - power // 2):
        X = X * torch.as_tensor(np.ldexp(1.0, half)).to(X)
    return X


def _exponents(X: Tensor, dim: int) -> Tensor:
    """Return e with ‖x‖ in [2^(e-1), 2^e), 0 where all is zero.

    Where squares could leave the range of numbers the largest entry stands for the length.
    """
    size = torch.linalg.vector_norm(X, dim=dim)
    safe = torch.finfo(X.dtype).max ** 0.25
    sure = (size > 1 / safe) & (size < safe)
    if not sure.all():
        size = torch.where(sure, size, X.abs().amax(dim=dim))
    return torch.frexp(size).exponent


def _tiniest(dtype: torch.dtype) -> float:
    """Return the smallest number above zero."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps

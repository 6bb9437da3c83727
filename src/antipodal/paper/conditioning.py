"""Numerical safeguards of the solver: scaling and projected Newton steps."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipodal.paper.neurons import clip

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


_BLOCK_BYTES = 2**25  # of the small systems that are factored together
_MOST_BLOCKED = 5  # times that the free entries of one step are thinned out


def kkt_violation(z: Tensor, gradient: Tensor, box: Tensor) -> Tensor:
    """How far each entry is from optimality: the slope along which it could still move downhill.

    An entry inside the box needs slope 0; one on its upper end may have a negative slope, one on
    its lower end a positive slope.
    """
    held = (z.abs() >= box) & (z * gradient < 0)
    return gradient.abs().masked_fill_(held, 0.0)


def projected_newton(
    z: Tensor, gram: Tensor, Dty: Tensor, box: Tensor, tol: Tensor, max_steps: int = 50
) -> Tensor:
    """Lower ½zᵀGz - zᵀDᵀy over the box |z| ≤ box, from z, each row for itself.

    Each step solves G_FF δ = -g_F on the free entries F: all but those on the box that the
    gradient holds there, or that δ would push out. Then it moves to clip(z + δ), which may put
    many entries on the box at once [Bertsekas1982], or along δ to the first entry that meets the
    box, which always lowers the objective, whichever lowers it more.
    """
    z = z.clone()
    left = torch.arange(len(z), device=z.device)
    for _ in range(max_steps):
        g = z[left] @ gram - Dty[left]
        violation = kkt_violation(z[left], g, box)
        going = (violation > 0.1 * tol[left]).any(dim=1)
        left, g, violation = left[going], g[going], violation[going]
        if not len(left):
            break
        at = z[left]
        on_box = at.abs() >= box
        held = on_box & (violation == 0)
        for _ in range(_MOST_BLOCKED):
            direction = _newton_direction(g, held, gram)
            blocked = on_box & ~held & (direction * at > 0)
            if not blocked.any():
                break
            held |= blocked
        moved = _move(at, g, direction, gram, box)
        z[left] = moved
        left = left[(moved != at).any(dim=1)]
    return z


def _newton_direction(gradient: Tensor, held: Tensor, gram: Tensor) -> Tensor:
    """Solve G_FF δ_F = -g_F a row, δ = 0 on the held entries, in blocks of bounded memory."""
    n = gram.shape[0]
    # The ridge keeps singular systems solvable; it shortens the step, not its end point.
    ridge = 10 * n * torch.finfo(gram.dtype).eps
    rows = max(1, _BLOCK_BYTES // (n * n * gram.element_size()))
    directions = []
    for i in range(0, len(gradient), rows):
        g, fixed = gradient[i : i + rows], held[i : i + rows]
        free = (~fixed).to(g.dtype)
        system = gram * free[:, :, None] * free[:, None, :]
        system.diagonal(dim1=1, dim2=2).add_(fixed.to(g.dtype) + ridge)
        factor, _ = torch.linalg.cholesky_ex(system)
        directions.append(torch.cholesky_solve(-(g * free)[:, :, None], factor)[:, :, 0])
    return torch.cat(directions)


def _move(z: Tensor, g: Tensor, direction: Tensor, gram: Tensor, box: Tensor) -> Tensor:
    """Return the better of clip(z + δ) and of z + tδ, t ≤ 1 as large as the box allows."""
    room = torch.where(direction > 0, box - z, box + z)
    reach = torch.where(direction != 0, room / direction.abs(), torch.inf)
    t = reach.amin(dim=1, keepdim=True).clamp(max=1.0)
    clipped = clip(z + direction, box) - z
    stopped = clip(z + t * direction, box) - z
    # The entries that stop the step are put on the box exactly, or they would stop the next too.
    first = reach <= t
    stopped = torch.where(first, torch.sign(direction) * box - z, stopped)

    def change(step: Tensor) -> Tensor:  # f(z + s) - f(z) = gᵀs + ½ sᵀGs
        return (g * step).sum(dim=1) + 0.5 * ((step @ gram) * step).sum(dim=1)

    gain_clipped, gain_stopped = change(clipped), change(stopped)
    step = torch.where((gain_clipped < gain_stopped)[:, None], clipped, stopped)
    step[~(torch.minimum(gain_clipped, gain_stopped) < 0)] = 0
    return clip(z + step, box)

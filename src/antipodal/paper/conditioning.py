"""Numerical safeguards of the solver: scaling and projected Newton steps."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipodal.paper.neurons import clip

OCTAVES = 32  # rows that share a scale differ by at most this many powers of two


class Units(NamedTuple):
    """Conversion between codes x and scaled codes z, for rows of one magnitude.

    Attributes
    ----------
    box : (N,)
        Bounds of z: |z| ≤ box.
    limit : (N,)
        |x| where |z| = box.
    resolution : float
        Size, in z, of the smallest positive number of x.
    """

    box: Tensor
    limit: Tensor
    resolution: float

    def to_x(self, z: Tensor) -> Tensor:
        """Return x of z: inside the box exactly, and ±λ to the last bit where |z| = box."""
        return z / self.box * self.limit

    def from_x(self, x: Tensor) -> Tensor:
        """Return z of x, clipped to the box."""
        return clip(x / self.limit.clamp(min=_smallest_positive(x.dtype)), 1.0) * self.box


class Scaling:
    """Atoms of D scaled to length 1, and the units of z for rows of any magnitude."""

    def __init__(self, D: Tensor, bound: float) -> None:
        # The length of an atom, lengths·2^exponents, may exceed the range of its dtype.
        self.exponents = _exponents(D, dim=0).cpu().numpy()
        atoms = scale_by_power_of_two(D, -self.exponents)
        lengths = torch.linalg.vector_norm(atoms, dim=0)
        lengths = torch.where(lengths > 0, lengths, torch.ones_like(lengths))
        self.lengths = lengths.double().cpu().numpy()
        self.atoms = atoms / lengths
        self.bound = float(torch.tensor(bound, dtype=D.dtype))

    def units(self, exponent: int) -> Units:
        """Return the units of rows that are divided by 2^exponent: box = λ·length/2^exponent.

        The box is clipped to a range in which squares neither over- nor underflow. No solution
        reaches a larger bound, and entries within a smaller one are negligible against y.
        """
        dtype = self.atoms.dtype
        largest = math.sqrt(torch.finfo(dtype).max)
        bound, bound_exponent = math.frexp(self.bound)
        smallest, smallest_exponent = math.frexp(_smallest_positive(dtype))
        with np.errstate(over="ignore"):  # infinity is clipped too
            box = np.ldexp(bound * self.lengths, self.exponents + bound_exponent - exponent)
            resolutions = np.ldexp(
                smallest * self.lengths, self.exponents + smallest_exponent - exponent
            )
            limit = np.ldexp(largest / self.lengths, exponent - self.exponents)
        box, limit = np.clip(box, 1 / largest, largest), np.minimum(self.bound, limit)
        return Units(
            torch.as_tensor(box).to(self.atoms),
            torch.as_tensor(limit).to(self.atoms),
            float(resolutions.max()),
        )


def magnitude_blocks(Y: Tensor, rows: int) -> Iterator[tuple[int, slice | Tensor]]:
    """Yield the exponent and the indices of blocks of rows that have one order of magnitude.

    The exponent is 0 for rows of a length between 2⁻¹⁷ and 2¹⁵, which need no scaling.
    """
    orders = (_exponents(Y, dim=1) + OCTAVES // 2) // OCTAVES
    first, last = int(orders.min()), int(orders.max())
    if first == last:  # the usual case: slices need no copies
        for i in range(0, len(Y), rows):
            yield OCTAVES * first, slice(i, i + rows)
        return
    for order in range(first, last + 1):
        members = (orders == order).nonzero()[:, 0]
        for i in range(0, len(members), rows):
            yield OCTAVES * order, members[i : i + rows]


def scale_by_power_of_two(X: Tensor, power: int | NDArray[np.integer[Any]]) -> Tensor:
    """Return X·2^power, one power or one per column, in two steps since 2^power may overflow."""
    if not np.any(power):
        return X
    for half in (power // 2, power - power // 2):
        X = X * torch.as_tensor(np.ldexp(1.0, half)).to(X)
    return X


def _exponents(X: Tensor, dim: int) -> Tensor:
    """Return e with ‖x‖ in [2^(e-1), 2^e), or 0 for a zero vector.

    Where squares may over- or underflow, the largest entry replaces ‖x‖.
    """
    length = torch.linalg.vector_norm(X, dim=dim)
    safe = torch.finfo(X.dtype).max ** 0.25
    exact = (length > 1 / safe) & (length < safe)
    if not exact.all():
        length = torch.where(exact, length, X.abs().amax(dim=dim))
    return torch.frexp(length).exponent


def _smallest_positive(dtype: torch.dtype) -> float:
    """Return the smallest positive (subnormal) number of a dtype."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


_BLOCK_BYTES = 2**25  # of the small systems that are factored together
_MAX_BLOCKED = 5  # times that blocked entries are fixed within one step


def kkt_violation(z: Tensor, gradient: Tensor, box: Tensor) -> Tensor:
    """Return the violation of the optimality conditions of each entry.

    It is |gradient|, except that an entry at its upper bound may have a negative gradient and one
    at its lower bound a positive gradient: there the violation is 0.
    """
    optimal = (z.abs() >= box) & (z * gradient < 0)
    return gradient.abs().masked_fill_(optimal, 0.0)


def projected_newton(
    z: Tensor, gram: Tensor, Dty: Tensor, box: Tensor, tol: Tensor, max_steps: int = 50
) -> Tensor:
    """Minimise ½zᵀGz - zᵀDᵀy over the box |z| ≤ box by Newton steps from z, row by row.

        G_FF δ_F = -g_F                       F: the free entries, δ = 0 elsewhere
        z ← clip(z + δ)                       or z + tδ with the largest t ≤ 1 inside the box

    Entries at a bound are free unless the gradient or δ points outwards. Clipping can move many
    entries to the bound at once [Bertsekas1982], while the shortened step always lowers the
    objective; the better of the two is taken.
    """
    z = z.clone()
    active = torch.arange(len(z), device=z.device)  # rows that are not solved yet
    for _ in range(max_steps):
        g = z[active] @ gram - Dty[active]
        violation = kkt_violation(z[active], g, box)
        unsolved = (violation > 0.1 * tol[active]).any(dim=1)
        active, g, violation = active[unsolved], g[unsolved], violation[unsolved]
        if not len(active):
            break
        current = z[active]
        at_bound = current.abs() >= box
        fixed = at_bound & (violation == 0)
        for _ in range(_MAX_BLOCKED):
            direction = _newton_direction(g, fixed, gram)
            blocked = at_bound & ~fixed & (direction * current > 0)
            if not blocked.any():
                break
            fixed |= blocked
        moved = _move(current, g, direction, gram, box)
        z[active] = moved
        active = active[(moved != current).any(dim=1)]
    return z


def _newton_direction(gradient: Tensor, fixed: Tensor, gram: Tensor) -> Tensor:
    """Solve G_FF δ_F = -g_F for each row, with δ = 0 on fixed entries, in blocks of rows."""
    n = gram.shape[0]
    # The ridge keeps singular systems solvable. It shortens steps, but does not move the solution.
    ridge = 10 * n * torch.finfo(gram.dtype).eps
    rows = max(1, _BLOCK_BYTES // (n * n * gram.element_size()))
    directions = []
    for i in range(0, len(gradient), rows):
        g, free = gradient[i : i + rows], (~fixed[i : i + rows]).to(gradient.dtype)
        system = gram * free[:, :, None] * free[:, None, :]
        system.diagonal(dim1=1, dim2=2).add_(1 - free + ridge)
        factor, _ = torch.linalg.cholesky_ex(system)
        directions.append(torch.cholesky_solve(-(g * free)[:, :, None], factor)[:, :, 0])
    return torch.cat(directions)


def _move(z: Tensor, g: Tensor, direction: Tensor, gram: Tensor, box: Tensor) -> Tensor:
    """Return the better of clip(z + δ) and z + tδ, with the largest t ≤ 1 inside the box."""
    distance = torch.where(direction > 0, box - z, box + z)
    max_t = torch.where(direction != 0, distance / direction.abs(), torch.inf)
    t = max_t.amin(dim=1, keepdim=True).clamp(max=1.0)
    clipped = clip(z + direction, box) - z
    shortened = clip(z + t * direction, box) - z
    # Entries that limit t are set to the bound exactly, or they would limit the next step too.
    shortened = torch.where(max_t <= t, torch.sign(direction) * box - z, shortened)

    def change(step: Tensor) -> Tensor:  # f(z + s) - f(z) = gᵀs + ½ sᵀGs
        return (g * step).sum(dim=1) + 0.5 * ((step @ gram) * step).sum(dim=1)

    change_clipped, change_shortened = change(clipped), change(shortened)
    step = torch.where((change_clipped < change_shortened)[:, None], clipped, shortened)
    step[~(torch.minimum(change_clipped, change_shortened) < 0)] = 0
    return clip(z + step, box)

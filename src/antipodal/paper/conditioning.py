"""Numerical safeguards of the solver: scaling and projected Newton steps."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

from antipodal.paper.admm import Array

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

    box: Array
    limit: Array
    resolution: float

    def to_x(self, z: Array) -> Array:
        """Return x of z: inside the box exactly, and ±λ to the last bit where |z| = box."""
        return z / self.box * self.limit

    def from_x(self, x: Array) -> Array:
        """Return z of x, clipped to the box."""
        xp = array_namespace(x)
        limit = xp.clip(self.limit, _smallest_positive(xp, x.dtype), None)
        return xp.clip(x / limit, -1, 1) * self.box


class Scaling:
    """Atoms of D scaled to length 1, and the units of z for rows of any magnitude."""

    def __init__(self, D: Array, bound: float) -> None:
        # The length of an atom, lengths·2^exponents, may exceed the range of its dtype.
        xp = array_namespace(D)
        self.exponents = _to_numpy(_exponents(D, axis=0))
        atoms = scale_by_power_of_two(D, -self.exponents)
        lengths = xp.linalg.vector_norm(atoms, axis=0)
        lengths = xp.where(lengths > 0, lengths, xp.ones_like(lengths))
        self.lengths = _to_numpy(lengths).astype(np.float64)
        self.atoms = atoms / lengths
        self.bound = float(xp.asarray(bound, dtype=D.dtype))

    def units(self, exponent: int) -> Units:
        """Return the units of rows that are divided by 2^exponent: box = λ·length/2^exponent.

        The box is clipped to a range in which squares neither over- nor underflow. No solution
        reaches a larger bound, and entries within a smaller one are negligible against y.
        """
        xp, dtype = array_namespace(self.atoms), self.atoms.dtype
        largest = math.sqrt(xp.finfo(dtype).max)
        bound, bound_exponent = math.frexp(self.bound)
        smallest, smallest_exponent = math.frexp(_smallest_positive(xp, dtype))
        with np.errstate(over="ignore"):  # infinity is clipped too
            box = np.ldexp(bound * self.lengths, self.exponents + bound_exponent - exponent)
            resolutions = np.ldexp(
                smallest * self.lengths, self.exponents + smallest_exponent - exponent
            )
            limit = np.ldexp(largest / self.lengths, exponent - self.exponents)
        box, limit = np.clip(box, 1 / largest, largest), np.minimum(self.bound, limit)
        return Units(_like(box, self.atoms), _like(limit, self.atoms), float(resolutions.max()))


def magnitude_blocks(Y: Array, rows: int) -> Iterator[tuple[int, slice | NDArray[np.int64]]]:
    """Yield the exponent and the indices of blocks of rows that have one order of magnitude.

    The exponent is 0 for rows of a length between 2⁻¹⁷ and 2¹⁵, which need no scaling.
    """
    orders = (_to_numpy(_exponents(Y, axis=1)).astype(np.int64) + OCTAVES // 2) // OCTAVES
    first, last = int(orders.min()), int(orders.max())
    if first == last:  # the usual case: slices need no copies
        for i in range(0, len(Y), rows):
            yield OCTAVES * first, slice(i, i + rows)
        return
    for order in range(first, last + 1):
        members = np.flatnonzero(orders == order)
        for i in range(0, len(members), rows):
            yield OCTAVES * order, members[i : i + rows]


def scale_by_power_of_two(X: Array, power: int | NDArray[np.integer[Any]]) -> Array:
    """Return X·2^power, one power or one per column, in two steps since 2^power may overflow."""
    if not np.any(power):
        return X
    for half in (power // 2, power - power // 2):
        X = X * _like(np.ldexp(1.0, half), X)
    return X


def _exponents(X: Array, axis: int) -> Array:
    """Return e with ‖x‖ in [2^(e-1), 2^e), or 0 for a zero vector.

    Where squares may over- or underflow, the largest entry replaces ‖x‖.
    """
    xp = array_namespace(X)
    with np.errstate(over="ignore"):
        length = xp.linalg.vector_norm(X, axis=axis)
    safe = xp.finfo(X.dtype).max ** 0.25
    exact = (length > 1 / safe) & (length < safe)
    if not xp.all(exact):
        length = xp.where(exact, length, xp.max(xp.abs(X), axis=axis))
    return xp.frexp(length)[1]


def _smallest_positive(xp: Any, dtype: Any) -> float:
    """Return the smallest positive (subnormal) number of a dtype."""
    return float(xp.finfo(dtype).smallest_normal) * float(xp.finfo(dtype).eps)


def _to_numpy(X: Array) -> NDArray[Any]:
    return X if isinstance(X, np.ndarray) else np.asarray(X.cpu())


def _like(values: Any, X: Array) -> Array:
    """Return values as an array of the same kind, dtype and device as X."""
    return array_namespace(X).asarray(values, dtype=X.dtype, device=device(X))


_BLOCK_BYTES = 2**25  # of the small systems that are factored together
_MAX_BLOCKED = 5  # times that blocked entries are fixed within one step
_MAX_STEPS = 50  # Newton steps


def kkt_violation(z: Array, gradient: Array, box: Array) -> Array:
    """Return the violation of the optimality conditions of each entry.

    It is |gradient|, and 0 for an entry at its upper bound with a negative gradient or at its lower
    bound with a positive gradient.
    """
    xp = array_namespace(z)
    optimal = (xp.abs(z) >= box) & (z * gradient < 0)
    return xp.where(optimal, xp.zeros_like(z), xp.abs(gradient))


def projected_newton(z: Array, gram: Array, Dty: Array, box: Array, tol: Array) -> Array:
    """Minimise ½zᵀGz - zᵀDᵀy over the box |z| ≤ box by Newton steps from z, row by row.

        G_FF δ_F = -g_F                       F: the free entries, δ = 0 elsewhere
        z ← clip(z + δ)                       or z + tδ with the largest t ≤ 1 inside the box

    Entries at a bound are free unless the gradient or δ points outwards. Clipping can move many
    entries to the bound at once [Bertsekas1982], while the shortened step always lowers the
    objective; the better of the two is taken.
    """
    xp = array_namespace(z)
    z = xp.asarray(z, copy=True)
    active = xp.arange(len(z), device=device(z))  # rows that are not solved yet
    for _ in range(_MAX_STEPS):
        g = z[active] @ gram - Dty[active]
        violation = kkt_violation(z[active], g, box)
        unsolved = xp.any(violation > 0.1 * tol[active], axis=1)
        active, g, violation = active[unsolved], g[unsolved], violation[unsolved]
        if not len(active):
            break
        current = z[active]
        at_bound = xp.abs(current) >= box
        fixed = at_bound & (violation == 0)
        for _ in range(_MAX_BLOCKED):
            direction = _newton_direction(g, fixed, gram)
            blocked = at_bound & ~fixed & (direction * current > 0)
            if not xp.any(blocked):
                break
            fixed |= blocked
        moved = _move(current, g, direction, gram, box)
        z[active] = moved
        active = active[xp.any(moved != current, axis=1)]
    return z


def _newton_direction(gradient: Array, fixed: Array, gram: Array) -> Array:
    """Solve G_FF δ_F = -g_F for each row, with δ = 0 on fixed entries, in blocks of rows."""
    xp = array_namespace(gradient)
    n = gram.shape[0]
    # The ridge keeps singular systems solvable. It shortens steps, but does not move the solution.
    ridge = 10 * n * float(xp.finfo(gram.dtype).eps)
    identity = xp.eye(n, dtype=gram.dtype, device=device(gram))
    rows = max(1, _BLOCK_BYTES // (n * n * gram.itemsize))
    directions = []
    for i in range(0, len(gradient), rows):
        g, free = gradient[i : i + rows], xp.astype(~fixed[i : i + rows], gradient.dtype)
        system = gram * free[:, :, None] * free[:, None, :]
        system += identity * (1 - free + ridge)[:, :, None]
        directions.append(xp.linalg.solve(system, -(g * free)[:, :, None])[:, :, 0])
    return xp.concat(directions)


def _move(z: Array, g: Array, direction: Array, gram: Array, box: Array) -> Array:
    """Return the better of clip(z + δ) and z + tδ, with the largest t ≤ 1 inside the box."""
    xp = array_namespace(z)
    distance = xp.where(direction > 0, box - z, box + z)
    moves = direction != 0
    size = xp.where(moves, xp.abs(direction), xp.ones_like(z))
    max_t = xp.where(moves, distance / size, xp.full_like(z, math.inf))
    t = xp.clip(xp.min(max_t, axis=1, keepdims=True), None, 1.0)
    clipped = xp.clip(z + direction, -box, box) - z
    shortened = xp.clip(z + t * direction, -box, box) - z
    # Entries that limit t are set to the bound exactly, or they would also limit the next one.
    shortened = xp.where(max_t <= t, xp.sign(direction) * box - z, shortened)

    def change(step: Array) -> Array:  # f(z + s) - f(z) = gᵀs + ½ sᵀGs
        return xp.sum(g * step, axis=1) + 0.5 * xp.sum((step @ gram) * step, axis=1)

    change_clipped, change_shortened = change(clipped), change(shortened)
    step = xp.where((change_clipped < change_shortened)[:, None], clipped, shortened)
    step[~(xp.minimum(change_clipped, change_shortened) < 0)] = 0
    return xp.clip(z + step, -box, box)

"""The convex problem solved to convergence, for many right-hand sides at once.

    min_x ‖Dx - y‖²  subject to  ‖x‖∞ ≤ λ                                    [Wang2016, Eq. 1]

Inside, z stands for x in the units of `conditioning`, where atoms have length 1 and no square
over- or underflows. Neither the penalty nor the tolerance then depends on the units of y and D.
"""

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from antipodal.paper.admm import RELAXATION, relaxed_step, relaxed_weight
from antipodal.paper.conditioning import (
    OCTAVES,
    Scaling,
    alike,
    kkt_violation,
    projected_newton,
    times_two_to,
)
from antipodal.paper.neurons import clip
from antipodal.threads import one_thread_if_small

Array = TypeVar("Array", Tensor, NDArray[Any])

_PATIENCE = 3.0
_CHECK_EVERY = 8
_FIRST_POLISH = 96
_COARSE = 16  # iterations in single precision; a multiple of _CHECK_EVERY
_BLOCK_BYTES = 2**20  # a block of rows this large stays in the cache through an iteration
_LEAST_PENALTY, _MOST_PENALTY = 1e-9, 1e9  # beyond, steps lead nowhere


@dataclass(frozen=True)
class LinfSolution(Generic[Array]):
    """What `solve_linf` found: `codes` (m, N) inside the box, and how well they solve Eq. 1.

    `residual` is the largest violation of the optimality conditions over all rows and entries,
    for atoms of unit length and relative to ‖y‖: how steeply the objective still falls along an
    entry that is free to move. `converged` says that it is at most the tolerance.
    """

    codes: Array
    n_iter: int
    residual: float
    converged: bool


def solve_linf(
    Y: Array,
    D: Array,
    bound: float,
    *,
    penalty: float = 0.6,
    max_iter: int = 5000,
    tol: float | None = None,
    start: Array | None = None,
) -> LinfSolution[Array]:
    """Solve min_x ‖Dx - y‖² subject to ‖x‖∞ ≤ λ for every row y of Y. [Wang2016, Eq. 1]

    It runs `relaxed_step`, the iteration of Eq. 7-8 with α = 1.6, until every row is solved. DᵀD
    is factored once, by its eigenvectors, so that the penalty can follow the residuals at little
    cost. Rows that are slow, because D is nearly singular, are finished by Newton steps on their
    free entries. Rows and atoms may be as large or small as the floating point numbers allow.

    Parameters
    ----------
    Y : (m, n)
        A right-hand side a row, NumPy or torch, float32 or float64, on any device.
    D : (n, N)
        The dictionary, an atom a column; of the same kind as Y. N > n and dependent columns
        are allowed: the solution is then one of many with the same Dx.
    bound : float
        λ > 0, within the range of Y's dtype.
    penalty : float
        β to begin with, for atoms of unit length. Kept between 1e-9 and 1e9.
    max_iter : int
        At most so many iterations.
    tol : float, optional
        Stop when `LinfSolution.residual` is at most this. 1e-9 for float64, 1e-5 for float32.
    start : (m, N), optional
        Codes to start from, such as those of a similar problem.

    Returns
    -------
    LinfSolution
        Its codes lie in the box exactly. Where `max_iter` was not enough, or the codes are too
        small for their dtype, it says so (`converged`), and a ConvergenceWarning is given. No
        gradients pass through it; for those, unfold it (`LinfEncoder.from_dictionary`).

    Examples
    --------
    >>> D = np.eye(2)
    >>> solve_linf(np.array([[3.0, -0.25]]), D, bound=1.0).codes
    array([[ 1.  , -0.25]])
    """
    if isinstance(Y, np.ndarray):
        solution = solve_linf(
            _to_tensor(Y),
            _to_tensor(D),
            bound,
            penalty=penalty,
            max_iter=max_iter,
            tol=tol,
            start=None if start is None else _to_tensor(start),
        )
        return LinfSolution(
            solution.codes.numpy(), solution.n_iter, solution.residual, solution.converged
        )
    _check_problem(Y, D, bound, penalty, max_iter, start)
    if tol is None:
        tol = 1e-9 if Y.dtype == torch.float64 else 1e-5
    if len(Y) == 0:
        return LinfSolution(Y @ D, 0, 0.0, converged=True)
    n, N = D.shape
    rows = max(1, _BLOCK_BYTES // (N * D.element_size()))
    codes = Y.new_empty(len(Y), N)
    n_iter, residuals, too_small = 0, [], False
    with torch.no_grad(), one_thread_if_small(rows * N * max(n, N)):
        solver = _Solver(D, bound, penalty, max_iter, tol)
        for exponent, block in alike(Y, rows):
            found = solver.solve(Y[block], exponent, None if start is None else start[block])
            codes[block] = found.codes
            n_iter = max(n_iter, found.n_iter)
            residuals.append(found.residual)
            too_small |= found.too_small
    residual = float(np.max(residuals))  # NaN if any is
    if not residual <= tol:
        if too_small:
            advice = f"Some codes are too small for {Y.dtype}: scale D down, or Y and bound up"
        else:
            advice = "Allow more iterations (max_iter), or a larger tolerance"
            if Y.dtype == torch.float32:
                advice += "; float32 cannot reach much less than 1e-6"
        warnings.warn(
            f"solve_linf stopped after {n_iter} iterations with residual {residual:.1e}, above "
            f"the tolerance {tol:.1e}. {advice}.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return LinfSolution(codes, n_iter, residual, converged=residual <= tol)


class _Found(NamedTuple):
    codes: Tensor
    n_iter: int
    residual: float
    too_small: bool  # whether it is rounding the codes to their dtype that spoiled the residual


class _Solver:
    """One dictionary, factored, and the iteration for blocks of right-hand sides."""

    def __init__(self, D: Tensor, bound: float, penalty: float, max_iter: int, tol: float) -> None:
        self.scaling = Scaling(D, bound)
        self.atoms = self.scaling.atoms
        self.gram = self.atoms.T @ self.atoms
        self.eigenvalues, self.basis = torch.linalg.eigh(self.gram)
        self.penalty = min(max(penalty, _LEAST_PENALTY), _MOST_PENALTY)
        self.max_iter, self.tol = max_iter, tol

    def solve(self, Y: Tensor, exponent: int, start: Tensor | None) -> _Found:
        """Iterate on a block of rows divided by 2^exponent, dropping those that are done."""
        Y = times_two_to(-exponent, Y)
        units = self.scaling.units(exponent)
        box, neuron = units.box, partial(clip, bound=units.box)
        Dty = every_Dty = Y @ self.atoms
        size = torch.linalg.vector_norm(Y, dim=1, keepdim=True)
        size = every_size = torch.where(size > 0, size, torch.ones_like(size))
        solved = torch.empty_like(Dty)
        residuals = Dty.new_empty(len(Y))
        left = torch.arange(len(Y), device=Y.device)  # rows that are not done yet
        beta = self.penalty
        R, drive = self.weights(Dty, beta)
        began = 0
        if start is not None:
            u = self.restart(units.enter(start), Dty, beta)
        elif self.max_iter > _COARSE:
            u, began = self.coarse(Dty, R, drive, box, beta), _COARSE
        else:
            u = Dty / beta  # what restart makes of z = 0
        z, work = neuron(u), torch.empty_like(u)
        u_old, z_old = u, z
        n_iter, next_polish = began, _FIRST_POLISH
        while len(left):
            if n_iter % _CHECK_EVERY == 0 or n_iter == self.max_iter:
                if n_iter in (next_polish, self.max_iter):
                    next_polish = 2 * n_iter
                    z = projected_newton(z, self.gram, Dty, box, self.tol * size)
                    u = self.restart(z, Dty, beta)
                elif n_iter > began:
                    factor = _balance(z, z_old, u, u_old)
                    if not 1 / _PATIENCE < factor < _PATIENCE:
                        changed = min(max(beta * factor, _LEAST_PENALTY), _MOST_PENALTY)
                        u = torch.lerp(z, u, beta / changed)  # keeps the multiplier β(z - u)
                        beta = changed
                        R, drive = self.weights(Dty, beta)
                worst = self.violation(z, Dty, box, size)
                done = (worst <= self.tol) | (n_iter == self.max_iter)
                solved[left[done]], residuals[left[done]] = z[done], worst[done]
                if done.any():
                    left, Dty, size, drive, z, u = (
                        rows[~done] for rows in (left, Dty, size, drive, z, u)
                    )
                    work = work[: len(left)]
            elif (n_iter + 1) % _CHECK_EVERY == 0:
                u_old, z_old = u.clone(), z.clone()
            z, u = relaxed_step(drive, z, R, u, partial(neuron, out=z), work)
            n_iter += 1
        codes = units.leave(solved)
        residual, too_small = float(residuals.max()), False
        if units.grain > 2**-OCTAVES * self.tol:
            rounded = self.violation(units.enter(codes), every_Dty, box, every_size)
            too_small = residual <= self.tol < float(rounded.max())
            residual = max(residual, float(rounded.max()))
        return _Found(codes, n_iter - 1, residual, too_small)

    def coarse(self, Dty: Tensor, R: Tensor, drive: Tensor, box: Tensor, beta: float) -> Tensor:
        """Make the first iterations in single precision: as good as double, in half the time."""
        u, R, drive, box = (Dty / beta).float(), R.float(), drive.float(), box.float()
        z, work = clip(u, box), torch.empty_like(u)
        for _ in range(_COARSE):
            z, u = relaxed_step(drive, z, R, u, partial(clip, bound=box, out=z), work)
        return u.to(Dty.dtype)

    def weights(self, Dty: Tensor, beta: float) -> tuple[Tensor, Tensor]:
        """R and αWy of `relaxed_step`, from the eigenvectors of DᵀD."""
        shrink = 1 / (self.eigenvalues.clamp(min=0) + beta)
        inverse = (self.basis * shrink) @ self.basis.T
        return relaxed_weight(beta * inverse), Dty @ (RELAXATION * inverse)

    def restart(self, z: Tensor, Dty: Tensor, beta: float) -> Tensor:
        """Return u = z - p/β for given z: at a solution the multiplier p is the gradient."""
        return z - (z @ self.gram - Dty) / beta

    def violation(self, z: Tensor, Dty: Tensor, box: Tensor, size: Tensor) -> Tensor:
        """Return how far each row is from optimal, relative to its size."""
        return kkt_violation(z, z @ self.gram - Dty, box).amax(dim=1) / size[:, 0]


def _balance(z: Tensor, z_old: Tensor, u: Tensor, u_old: Tensor) -> float:
    """Factor on β that evens out the primal residual x - z and the dual one β(z - z_old).

    Each is measured against its own scale, ‖z‖ and ‖p‖ = β‖z - u‖; x - z is in u - u_old.
    """
    tiny = torch.finfo(z.dtype).tiny
    primal = (u - u_old).norm() / z.norm().clamp(min=tiny)
    dual = (z - z_old).norm() / (z - u).norm().clamp(min=tiny)
    return float((primal / dual.clamp(min=tiny)).sqrt().clamp(1e-3, 1e3))


def _to_tensor(array: NDArray[Any]) -> Tensor:
    """Share the memory of an array, unless it is read-only, which torch cannot express."""
    contiguous = np.ascontiguousarray(array)
    return torch.from_numpy(contiguous if contiguous.flags.writeable else contiguous.copy())


def _check_problem(
    Y: Tensor, D: Tensor, bound: float, penalty: float, max_iter: int, start: Tensor | None
) -> None:
    for name, value in (("Y", Y), ("D", D)):
        if not isinstance(value, Tensor):
            raise TypeError(f"Y and D must both be arrays or both tensors: {name} is {type(value)}")
        if value.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"{name} must be float32 or float64: got {value.dtype}")
        if value.ndim != 2:
            raise ValueError(
                f"{name} must be a matrix: got shape {tuple(value.shape)}. "
                "A single right-hand side is a matrix with one row: y[None]"
            )
        # The sum is one quick pass; it may also overflow, so ask again before complaining.
        if not torch.isfinite(value.sum()) and not torch.isfinite(value).all():
            raise ValueError(f"{name} contains NaN or infinity")
    if Y.dtype != D.dtype or Y.device != D.device:
        raise TypeError(
            f"Y and D must have one dtype and device: got {Y.dtype} on {Y.device} "
            f"and {D.dtype} on {D.device}"
        )
    if Y.shape[1] != D.shape[0]:
        raise ValueError(
            f"D must have one row per feature: Y has {Y.shape[1]} features, "
            f"D has shape {tuple(D.shape)}. Is D transposed?"
        )
    if D.numel() == 0:
        raise ValueError(f"D must have at least one row and one column: got {tuple(D.shape)}")
    if not 0 < torch.tensor(bound, dtype=Y.dtype) < float("inf"):
        raise ValueError(f"bound must be positive and finite: got {bound} for {Y.dtype}")
    if not 0 < penalty < float("inf"):
        raise ValueError(f"penalty must be positive and finite: got {penalty}")
    if max_iter < 1:
        raise ValueError(f"max_iter must be at least 1: got {max_iter}")
    if start is not None and (start.shape != (Y.shape[0], D.shape[1]) or start.dtype != Y.dtype):
        raise ValueError(
            f"start must hold {Y.shape[0]} × {D.shape[1]} codes of {Y.dtype}: "
            f"got {tuple(start.shape)} of {start.dtype}"
        )
    if start is not None and not torch.isfinite(start).all():
        raise ValueError("start contains NaN or infinity")

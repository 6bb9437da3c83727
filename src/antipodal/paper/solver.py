"""Solver of the convex problem, for many right-hand sides at once.

    min_x ‖Dx - y‖²  subject to  ‖x‖∞ ≤ λ                                    [Wang2016, Eq. 1]

Internally z is x in the units of `conditioning`: atoms have length 1, and squares neither over-
nor underflow. The penalty and the tolerance then do not depend on the units of y and D.
"""

import math
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array
from numpy.typing import NDArray

from antipodal.paper.admm import RELAXATION, relaxed_step, relaxed_weight
from antipodal.paper.conditioning import (
    OCTAVES,
    Scaling,
    kkt_violation,
    magnitude_blocks,
    projected_newton,
    scale_by_power_of_two,
)
from antipodal.threads import one_blas_thread, one_thread

if TYPE_CHECKING:
    from torch import Tensor

Array = TypeVar("Array", "Tensor", NDArray[Any])

_MAX_IMBALANCE = 3.0  # ratio of primal and dual residual at which β changes
_CHECK_EVERY = 8
_FIRST_NEWTON = 96  # iterations before the first Newton steps; then after each doubling
_N_FLOAT32 = 16  # first iterations, in single precision; a multiple of _CHECK_EVERY
_BLOCK_BYTES = 2**20  # a block of rows of this size stays in the cache during an iteration
_MIN_PENALTY, _MAX_PENALTY = 1e-9, 1e9
_MIN_PARALLEL = 2**26  # multiplications per step from which more threads are faster


@dataclass(frozen=True)
class LinfSolution(Generic[Array]):
    """Result of `solve_linf`.

    Attributes
    ----------
    codes : (m, N)
        Solutions, exactly inside the box.
    n_iter : int
        Number of iterations of the slowest row.
    residual : float
        Largest violation of the optimality conditions over all rows and entries: the slope of the
        objective along an entry that may move, for atoms of unit length and relative to ‖y‖.
    converged : bool
        Whether the residual is at most the tolerance. It bounds slopes, not the distance from
        the optimum: see the notes of `solve_linf`.
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

    The iteration is `relaxed_step`, Eq. 7-8 with α = 1.6. DᵀD is factored once, into its
    eigenvectors, so that the penalty can be adapted to the residuals at little cost. Rows that
    converge slowly, because D is nearly singular, are finished by projected Newton steps. Rows
    and atoms may have any magnitude that their dtype can represent.

    Parameters
    ----------
    Y : (m, n)
        Right-hand sides, one per row: NumPy or torch, float32 or float64, on any device.
    D : (n, N)
        Dictionary, one atom per column, of the same type as Y. N > n and dependent columns are
        allowed: the solution is then one of several with the same Dx.
    bound : float
        λ > 0, within the range of Y's dtype.
    penalty : float
        Initial β, for atoms of unit length. It is adapted between 1e-9 and 1e9.
    max_iter : int
        Largest number of iterations.
    tol : float, optional
        Largest `LinfSolution.residual`, by default 1e-9 for float64 and 1e-5 for float32.
    start : (m, N), optional
        Initial codes, such as the solutions of a similar problem.

    Returns
    -------
    LinfSolution
        Codes and convergence. If `max_iter` iterations do not suffice, or the codes underflow in
        their dtype, `converged` is False and a ConvergenceWarning is issued. The solution is not
        differentiable by autograd; the unfolded iteration is (`LinfEncoder.from_dictionary`).

    Notes
    -----
    A small residual implies a nearly optimal objective only if D is well conditioned. In float32,
    with nearly singular D such as Hilbert matrices, the objective of a solution with
    `converged=True` can exceed the optimum by 1e-3·‖y‖². Use float64 for such dictionaries.

    Examples
    --------
    >>> D = np.eye(2)
    >>> solve_linf(np.array([[3.0, -0.25]]), D, bound=1.0).codes
    array([[ 1.  , -0.25]])
    """
    _check_problem(Y, D, bound, penalty, max_iter, start)
    xp: Any = array_namespace(Y)
    single = Y.dtype == xp.float32
    if tol is None:
        tol = 1e-5 if single else 1e-9
    if len(Y) == 0:
        return LinfSolution(Y @ D, 0, 0.0, converged=True)
    n, N = D.shape
    rows = max(1, _BLOCK_BYTES // (N * D.itemsize))
    codes = xp.empty((len(Y), N), dtype=Y.dtype, device=device(Y))
    n_iter, residuals, too_small = 0, [], False
    small = rows * N * max(n, N) < _MIN_PARALLEL
    with _settings(Y, small=small):
        solver = _Solver(D, bound, penalty, max_iter, tol)
        for exponent, block in magnitude_blocks(Y, rows):
            part = solver.solve(Y[block], exponent, None if start is None else start[block])
            codes[block] = part.codes
            n_iter = max(n_iter, part.n_iter)
            residuals.append(part.residual)
            too_small |= part.too_small
    residual = float(np.max(residuals))  # NaN if any of them is NaN
    if not residual <= tol:
        from sklearn.exceptions import ConvergenceWarning  # not at the top: it takes a second

        if too_small:
            advice = f"Some codes are too small for {Y.dtype}: scale D down, or Y and bound up"
        else:
            advice = "Increase max_iter or tol"
            if single:
                advice += "; float32 cannot reach residuals much below 1e-6"
        warnings.warn(
            f"solve_linf stopped after {n_iter} iterations with residual {residual:.1e}, above "
            f"the tolerance {tol:.1e}. {advice}.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return LinfSolution(codes, n_iter, residual, converged=residual <= tol)


class _BlockSolution(NamedTuple):
    codes: Any
    n_iter: int
    residual: float
    too_small: bool  # whether the residual exceeds the tolerance because codes were rounded


class _Solver:
    """A factored dictionary and the iteration for blocks of right-hand sides."""

    def __init__(self, D: Any, bound: float, penalty: float, max_iter: int, tol: float) -> None:
        self.scaling = Scaling(D, bound)
        self.atoms = self.scaling.atoms
        self.xp: Any = array_namespace(D)
        self.gram = self.atoms.T @ self.atoms
        self.eigenvalues, self.basis = self.xp.linalg.eigh(self.gram)
        self.penalty = min(max(penalty, _MIN_PENALTY), _MAX_PENALTY)
        self.max_iter, self.tol = max_iter, tol

    def solve(self, Y: Any, exponent: int, start: Any | None) -> _BlockSolution:
        """Solve for a block of rows in units of 2^exponent, dropping rows as they converge."""
        xp = self.xp
        Y = scale_by_power_of_two(Y, -exponent)
        units = self.scaling.units(exponent)
        box = units.box
        Dty = all_Dty = Y @ self.atoms
        norm = xp.linalg.vector_norm(Y, axis=1, keepdims=True)
        norm = all_norm = xp.where(norm > 0, norm, xp.ones_like(norm))
        solved = xp.empty_like(Dty)
        residuals = xp.empty_like(Dty[:, 0])
        active = xp.arange(len(Y), device=device(Y))  # rows that have not converged yet

        def neuron(u: Any) -> Any:
            return xp.clip(u, -box, box)

        beta = self.penalty
        R, drive = self.weights(Dty, beta)
        first_iter = 0
        if start is not None:
            u = self.restart(units.from_x(start), Dty, beta)
        elif self.max_iter > _N_FLOAT32:
            u, first_iter = self.iterate_float32(Dty, R, drive, box, beta), _N_FLOAT32
        else:
            u = Dty / beta  # `restart` from z = 0
        z = neuron(u)
        u_old, z_old = u, z
        n_iter, next_newton = first_iter, _FIRST_NEWTON
        while len(active):
            if n_iter % _CHECK_EVERY == 0 or n_iter == self.max_iter:
                if n_iter in (next_newton, self.max_iter):
                    next_newton = 2 * n_iter
                    z = projected_newton(z, self.gram, Dty, box, self.tol * norm)
                    u = self.restart(z, Dty, beta)
                elif n_iter > first_iter:
                    factor = _balance(z, z_old, u, u_old)
                    if not 1 / _MAX_IMBALANCE < factor < _MAX_IMBALANCE:
                        new_beta = min(max(beta * factor, _MIN_PENALTY), _MAX_PENALTY)
                        u = z + (beta / new_beta) * (u - z)  # keeps the multiplier β(z - u)
                        beta = new_beta
                        R, drive = self.weights(Dty, beta)
                violation = self.violation(z, Dty, box, norm)
                done = (violation <= self.tol) | (n_iter == self.max_iter)
                solved[active[done]], residuals[active[done]] = z[done], violation[done]
                if xp.any(done):
                    active, Dty, norm, drive, z, u = (
                        rows[~done] for rows in (active, Dty, norm, drive, z, u)
                    )
            elif (n_iter + 1) % _CHECK_EVERY == 0:
                u_old, z_old = xp.asarray(u, copy=True), xp.asarray(z, copy=True)
            z, u = relaxed_step(drive, z, R, u, neuron)
            n_iter += 1
        codes = units.to_x(solved)
        residual, too_small = float(residuals.max()), False
        if units.resolution > 2**-OCTAVES * self.tol:
            rounded = float(self.violation(units.from_x(codes), all_Dty, box, all_norm).max())
            too_small = residual <= self.tol < rounded
            residual = max(residual, rounded)
        return _BlockSolution(codes, n_iter - 1, residual, too_small)

    def iterate_float32(self, Dty: Any, R: Any, drive: Any, box: Any, beta: float) -> Any:
        """Return u after the first iterations, in float32: as good, in half the time of float64."""
        xp = self.xp
        u, R, drive, box = (xp.astype(X, xp.float32) for X in (Dty / beta, R, drive, box))

        def neuron(u: Any) -> Any:
            return xp.clip(u, -box, box)

        z = neuron(u)
        for _ in range(_N_FLOAT32):
            z, u = relaxed_step(drive, z, R, u, neuron)
        return xp.astype(u, Dty.dtype)

    def weights(self, Dty: Any, beta: float) -> tuple[Any, Any]:
        """Return R and αWy of `relaxed_step`, from the eigenvectors of DᵀD."""
        shrink = 1 / (self.xp.clip(self.eigenvalues, 0, None) + beta)
        inverse = (self.basis * shrink) @ self.basis.T
        return relaxed_weight(beta * inverse), Dty @ (RELAXATION * inverse)

    def restart(self, z: Any, Dty: Any, beta: float) -> Any:
        """Return u = z - p/β for given z, with p the gradient, as at a solution."""
        return z - (z @ self.gram - Dty) / beta

    def violation(self, z: Any, Dty: Any, box: Any, norm: Any) -> Any:
        """Return the largest violation of optimality of each row, relative to ‖y‖."""
        return self.xp.max(kkt_violation(z, z @ self.gram - Dty, box), axis=1) / norm[:, 0]


def _balance(z: Any, z_old: Any, u: Any, u_old: Any) -> float:
    """Return the factor for β that balances the primal residual x - z and the dual β(z - z_old).

    Each is relative to its own scale, ‖z‖ and ‖p‖ = β‖z - u‖; x - z is proportional to u - u_old.
    """
    xp: Any = array_namespace(z)
    tiny = float(xp.finfo(z.dtype).smallest_normal)

    def length(X: Any) -> float:
        return float(xp.linalg.vector_norm(X))

    primal = length(u - u_old) / max(length(z), tiny)
    dual = length(z - z_old) / max(length(z - u), tiny)
    return min(max(math.sqrt(primal / max(dual, tiny)), 1e-3), 1e3)


def _settings(Y: Any, *, small: bool) -> ExitStack:
    """Enter the contexts of the iteration: no gradients, and one thread for small steps.

    More threads do not speed up a small step. On a busy machine, synchronising them after every
    step makes it many times slower.
    """
    stack = ExitStack()
    stack.enter_context(np.errstate(all="ignore"))  # infinite boxes are clipped
    if is_torch_array(Y):
        import torch

        stack.enter_context(torch.no_grad())
    if small:
        stack.enter_context(one_thread() if is_torch_array(Y) else one_blas_thread())
    return stack


def _check_problem(Y: Any, D: Any, bound: float, penalty: float, max_iter: int, start: Any) -> None:
    for name, value in (("Y", Y), ("D", D)):
        if type(value) is not type(Y) or not (isinstance(Y, np.ndarray) or is_torch_array(Y)):
            raise TypeError(f"Y and D must both be arrays or both tensors: {name} is {type(value)}")
        xp: Any = array_namespace(value)
        if value.dtype not in (xp.float32, xp.float64):
            raise TypeError(f"{name} must be float32 or float64: got {value.dtype}")
        if value.ndim != 2:
            raise ValueError(
                f"{name} must be a matrix: got shape {tuple(value.shape)}. "
                "A single right-hand side is a matrix with one row: y[None]"
            )
        if not xp.all(xp.isfinite(value)):
            raise ValueError(f"{name} contains NaN or infinity")
    if Y.dtype != D.dtype or device(Y) != device(D):
        raise TypeError(
            f"Y and D must have one dtype and device: got {Y.dtype} on {device(Y)} "
            f"and {D.dtype} on {device(D)}"
        )
    if Y.shape[1] != D.shape[0]:
        raise ValueError(
            f"D must have one row per feature: Y has {Y.shape[1]} features, "
            f"D has shape {tuple(D.shape)}. Is D transposed?"
        )
    if 0 in D.shape:
        raise ValueError(f"D must have at least one row and one column: got {tuple(D.shape)}")
    if not 0 < _rounded(bound, Y) < float("inf"):
        raise ValueError(f"bound must be positive and finite: got {bound} for {Y.dtype}")
    if not 0 < penalty < float("inf"):
        raise ValueError(f"penalty must be positive and finite: got {penalty}")
    if max_iter < 1:
        raise ValueError(f"max_iter must be at least 1: got {max_iter}")
    if start is not None and (start.shape != (Y.shape[0], D.shape[1]) or start.dtype != Y.dtype):
        raise ValueError(
            f"start must have the shape {Y.shape[0]} × {D.shape[1]} and dtype {Y.dtype}: "
            f"got {tuple(start.shape)} of {start.dtype}"
        )
    if start is not None and not xp.all(xp.isfinite(start)):
        raise ValueError("start contains NaN or infinity")


def _rounded(value: float, Y: Any) -> float:
    """Return a number in the precision of Y, infinity if it is too large."""
    with np.errstate(over="ignore"):
        return float(np.float32(value)) if Y.itemsize == 4 else value

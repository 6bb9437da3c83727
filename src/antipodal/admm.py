"""The convex problem and its ADMM iteration: Eq. 1-11 of [Wang2016].

    min_x ‖Dx - y‖²  subject to  ‖x‖∞ ≤ λ                                    [Wang2016, Eq. 1]

`admm_step` is the iteration itself. `admm_iterations` repeats it as printed and records the
multipliers, the encoders of `antipodal.encoders` are K of these steps with learned weights, and
`solve_linf` runs the same map to convergence.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from antipodal.polish import kkt_violation, projected_newton
from antipodal.threads import one_thread_if_small

Array = TypeVar("Array", Tensor, NDArray[Any])

_STEP = 0.8  # α/2: half the over-relaxation of ADMM, which converges for any α in (0, 2)
_PATIENCE = 3.0
_CHECK_EVERY = 8
_FIRST_POLISH = 96
_COARSE = 16  # iterations in single precision; a multiple of _CHECK_EVERY
_BLOCK_BYTES = 2**20  # a block of rows this large stays in the cache through an iteration


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


class Trace(NamedTuple):
    """The state after some plain iterations: `codes` (m, N), `multipliers` (n_iter, m, N)."""

    codes: Tensor
    multipliers: Tensor


def unfolded_weights(D: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Weights of the unfolded iteration, W (N, n) and S (N, N).

    W = (DᵀD + βI)⁻¹Dᵀ,  S = β(DᵀD + βI)⁻¹                                  [Wang2016, Eq. 11]
    """
    identity = torch.eye(D.shape[1], dtype=D.dtype, device=D.device)
    factor = torch.linalg.cholesky(D.T @ D + penalty * identity)
    return torch.cholesky_solve(D.T, factor), penalty * torch.cholesky_solve(identity, factor)


def unfolded_bias(multiplier: Tensor, S: Tensor, penalty: float) -> Tensor:
    """Bias that stands for the multiplier p (…, N): b = [(DᵀD + βI)⁻¹ - I/β] p = (S - I) p/β."""
    return (multiplier @ S - multiplier) / penalty


def admm_step(
    drive: Tensor, z: Tensor, S: Tensor, b: Tensor, neuron: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """One iteration, z ← B_λ(Wy + Sz + b): the new z and what went into B_λ. [Wang2016, Eq. 11]

    `drive` is Wy. With u = Wy + Sz + b the x of Eq. 7 is u + p/β, so the multiplier update of
    Eq. 6, p ← p + β(z - x), is p ← β(z - u): β times what the box cut off.
    """
    u = drive + z @ S.T + b
    return neuron(u), u


def admm_iterations(
    Y: Tensor, D: Tensor, bound: float, *, penalty: float = 0.6, n_iter: int = 2
) -> Trace:
    """Iterate Eq. 7-8 from z = 0, p = 0 as printed, recording p after each iteration."""
    W, S = unfolded_weights(D, penalty)
    drive = Y @ W.T
    z = p = torch.zeros_like(drive)
    multipliers = []
    for _ in range(n_iter):
        b = unfolded_bias(p, S, penalty)
        z, u = admm_step(drive, z, S, b, lambda u: u.clamp(-bound, bound))
        p = penalty * (z - u)
        multipliers.append(p)
    return Trace(z, torch.stack(multipliers) if multipliers else drive.new_empty(0, *drive.shape))


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

    Written in u = x - p/β alone, the iteration of Eq. 7-8 is

        z = clip(u, -λ, λ)                    projection onto the box
        x = Wy + S(2z - u)                    least squares pulled towards z
        u ← u + α(x - z)                      how far the two still disagree

    where α = 1 is the paper's and α = 1.6 converges faster. In code the last two lines are one
    average of reflections, u ← (1 - α/2) u + (α/2) (2Wy + (2S - I)(2z - u)). DᵀD is factored
    once, by its eigenvectors, so that the penalty can follow the residuals at little cost. Rows
    that are slow, because D is nearly singular, are finished by Newton steps on their free
    entries.

    Parameters
    ----------
    Y : (m, n)
        A right-hand side a row, NumPy or torch, float32 or float64, on any device.
    D : (n, N)
        The dictionary, an atom a column; of the same kind as Y. N > n and dependent columns
        are allowed: the solution is then one of many with the same Dx.
    bound : float
        λ > 0.
    penalty : float
        β to begin with, for atoms of unit length.
    max_iter : int
        At most so many iterations.
    tol : float, optional
        Stop when `LinfSolution.residual` is at most this. 1e-9 for float64, 1e-5 for float32.
    start : (m, N), optional
        Codes to start from, such as those of a similar problem.

    Returns
    -------
    LinfSolution
        Its codes lie in the box exactly. Where `max_iter` was not enough it says so
        (`converged`), and a ConvergenceWarning is given.

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
    with one_thread_if_small(rows * N * max(n, N)):
        solver = _Solver(D, bound, penalty, max_iter, tol)
        blocks = [
            solver.solve(Y[i : i + rows], None if start is None else start[i : i + rows])
            for i in range(0, len(Y), rows)
        ]
    n_iter = max(block.n_iter for block in blocks)
    residual = max(block.residual for block in blocks)
    if residual > tol:
        warnings.warn(
            f"solve_linf stopped after {n_iter} iterations with residual {residual:.1e}, above "
            f"the tolerance {tol:.1e}. Allow more iterations (max_iter), or a larger tolerance"
            + ("; float32 cannot reach much less than 1e-6." if Y.dtype == torch.float32 else "."),
            ConvergenceWarning,
            stacklevel=2,
        )
    codes = torch.cat([block.codes for block in blocks])
    return LinfSolution(codes, n_iter, residual, converged=residual <= tol)


class _Solver:
    """One dictionary, factored, and the iteration for blocks of right-hand sides.

    Inside, atoms have unit length: x and its bounds are multiplied by the lengths. This makes
    the penalty and the tolerance independent of the scale of D and of its columns.
    """

    def __init__(self, D: Tensor, bound: float, penalty: float, max_iter: int, tol: float) -> None:
        lengths = torch.linalg.vector_norm(D, dim=0)
        self.lengths = torch.where(lengths > 0, lengths, torch.ones_like(lengths))
        self.atoms = D / self.lengths
        self.gram = self.atoms.T @ self.atoms
        self.eigenvalues, self.basis = torch.linalg.eigh(self.gram)
        self.bound, self.box = bound, bound * self.lengths
        self.penalty, self.max_iter, self.tol = penalty, max_iter, tol

    def solve(self, Y: Tensor, start: Tensor | None) -> LinfSolution[Tensor]:
        """Iterate on a block of rows, dropping those that are done."""
        Dty = Y @ self.atoms
        size = torch.linalg.vector_norm(Y, dim=1, keepdim=True)
        size = torch.where(size > 0, size, torch.ones_like(size))
        codes = torch.empty_like(Dty)
        residuals = Dty.new_empty(len(Y))
        left = torch.arange(len(Y), device=Y.device)  # rows that are not done yet
        beta = self.penalty
        reflect, drive = self.reflection(Dty, beta)
        began = 0
        if start is not None:
            u = self.restart((start * self.lengths).clamp(-self.box, self.box), Dty, beta)
        elif self.max_iter > _COARSE and _fits_single(Dty, self.box):
            u, began = self.coarse(Dty, reflect, drive, beta), _COARSE
        else:
            u = Dty / beta  # what restart makes of z = 0
        z, u_old = torch.zeros_like(u), u
        n_iter, next_polish = began, _FIRST_POLISH
        while len(left):
            z_old = z
            z = u.clamp(-self.box, self.box)
            if n_iter % _CHECK_EVERY == 0 or n_iter == self.max_iter:
                if n_iter in (next_polish, self.max_iter):
                    next_polish = 2 * n_iter
                    z = projected_newton(z, self.gram, Dty, self.box, self.tol * size)
                    u = self.restart(z, Dty, beta)
                elif n_iter > began:
                    factor = _balance(z, z_old, u, u_old)
                    if not 1 / _PATIENCE < factor < _PATIENCE:
                        u = torch.lerp(z, u, 1 / factor)  # keeps the multiplier β(z - u)
                        beta *= factor
                        reflect, drive = self.reflection(Dty, beta)
                worst = kkt_violation(z, z @ self.gram - Dty, self.box).amax(dim=1) / size[:, 0]
                done = (worst <= self.tol) | (n_iter == self.max_iter)
                codes[left[done]], residuals[left[done]] = z[done], worst[done]
                if done.any():
                    left, Dty, size, drive, z, u = (
                        rows[~done] for rows in (left, Dty, size, drive, z, u)
                    )
            u_old, u = u, _average_reflections(u, z, reflect, drive)
            n_iter += 1
        # Dividing by the lengths rounds; an entry on the box must stay there to the last bit.
        inside = (codes / self.lengths).clamp(-self.bound, self.bound)
        inside = torch.where(codes.abs() >= self.box, self.bound * codes.sign(), inside)
        residual = float(residuals.max())
        return LinfSolution(inside, n_iter - 1, residual, residual <= self.tol)

    def coarse(self, Dty: Tensor, reflect: Tensor, drive: Tensor, beta: float) -> Tensor:
        """Make the first iterations in single precision: as good as double, in half the time."""
        box, u = self.box.float(), (Dty / beta).float()
        reflect, drive = reflect.float(), drive.float()
        for _ in range(_COARSE):
            u = _average_reflections(u, u.clamp(-box, box), reflect, drive)
        return u.to(Dty.dtype)

    def reflection(self, Dty: Tensor, beta: float) -> tuple[Tensor, Tensor]:
        """2S - I and 2Wy, from the eigenvectors of DᵀD."""
        shrink = 1 / (self.eigenvalues.clamp(min=0) + beta)
        inverse = (self.basis * shrink) @ self.basis.T
        identity = torch.eye(len(inverse), dtype=inverse.dtype, device=inverse.device)
        return 2 * beta * inverse - identity, Dty @ (2 * inverse)

    def restart(self, z: Tensor, Dty: Tensor, beta: float) -> Tensor:
        """Return u = z - p/β for given z: at a solution the multiplier p is the gradient."""
        return z - (z @ self.gram - Dty) / beta


def _average_reflections(u: Tensor, z: Tensor, reflect: Tensor, drive: Tensor) -> Tensor:
    """Return (1 - α/2) u + (α/2) (2Wy + (2S - I)(2z - u)), α/2 being _STEP."""
    averaged = torch.addmm(u, torch.lerp(u, z, 2.0), reflect, beta=1 - _STEP, alpha=_STEP)
    return averaged.add_(drive, alpha=_STEP)


def _fits_single(*tensors: Tensor) -> bool:
    """Whether float32 can hold the magnitudes, squares included."""
    return all(1e-15 < float(t.abs().max()) < 1e15 for t in tensors)


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
    if not 0 < bound < float("inf"):
        raise ValueError(f"bound must be positive and finite: got {bound}")
    if not 0 < penalty < float("inf"):
        raise ValueError(f"penalty must be positive and finite: got {penalty}")
    if max_iter < 1:
        raise ValueError(f"max_iter must be at least 1: got {max_iter}")
    if start is not None and (start.shape != (Y.shape[0], D.shape[1]) or start.dtype != Y.dtype):
        raise ValueError(
            f"start must hold {Y.shape[0]} × {D.shape[1]} codes of {Y.dtype}: "
            f"got {tuple(start.shape)} of {start.dtype}"
        )

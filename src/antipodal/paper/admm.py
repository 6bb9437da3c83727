"""The iteration of the paper: ADMM for the convex problem, Eq. 1-11 of [Wang2016].

    min_x ‖Dx - y‖²  subject to  ‖x‖∞ ≤ λ                                    [Wang2016, Eq. 1]

`admm_step` is the iteration itself, and everything else calls it: `admm_iterations` repeats it as
printed and records the multipliers, the encoders of `encoders` are K of these steps with
learned weights, and `solver` runs it, over-relaxed (`relaxed_step`), to convergence.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from antipodal.paper.neurons import clip

RELAXATION = 1.6  # α of `relaxed_step`, which converges for any α in (0, 2)


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
    drive: Tensor,
    z: Tensor,
    S: Tensor,
    b: Tensor,
    neuron: Callable[[Tensor], Tensor],
    *,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One iteration, z ← B_λ(Wy + Sz + b): the new z and what went into B_λ. [Wang2016, Eq. 11]

    `drive` is Wy. With u = Wy + Sz + b the x of Eq. 7 is u + p/β, so the multiplier update of
    Eq. 6, p ← p + β(z - x), is p ← β(z - u): β times what the box cut off.

    Without gradients u can be written to `out`, which may be `b`, to save the time that new
    memory takes.
    """
    u = drive + z @ S.T + b if out is None else torch.add(drive, b, out=out).addmm_(z, S.T)
    return neuron(u), u


def relaxed_step(
    drive: Tensor, z: Tensor, R: Tensor, u: Tensor, neuron: Callable[[Tensor], Tensor], work: Tensor
) -> tuple[Tensor, Tensor]:
    """One iteration of Eq. 7-8 with over-relaxation: the new z and u, which is overwritten.

    With u = x - p/β the iteration needs no other state:

        x = Wy + S(2z - u)                    least squares pulled towards z
        u ← u + α(x - z)                      how far the two still disagree
        z ← B_λ(u)                            projection onto the box

    α = 1 is the paper's, and α = 1.6 converges faster. It is the step of Eq. 11 from 2z - u:

        u ← αWy + R(2z - u) + (1 - α/2) u,    R = αS - (α/2)I

    `drive` is αWy, `R` comes from `relaxed_weight`, `work` is memory for as much as u.
    """
    reflected = torch.lerp(u, z, 2.0, out=work)
    return admm_step(drive, reflected, R, u.mul_(1 - RELAXATION / 2), neuron, out=u)


def relaxed_weight(S: Tensor) -> Tensor:
    """Return R = αS - (α/2)I of `relaxed_step`."""
    identity = torch.eye(len(S), dtype=S.dtype, device=S.device)
    return RELAXATION * S - (RELAXATION / 2) * identity


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
        z, u = admm_step(drive, z, S, b, partial(clip, bound=bound))
        p = penalty * (z - u)
        multipliers.append(p)
    return Trace(z, torch.stack(multipliers) if multipliers else drive.new_empty(0, *drive.shape))

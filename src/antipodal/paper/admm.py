"""The iteration of the paper: ADMM for the convex problem, Eq. 1-11 of [Wang2016].

    min_x ‖Dx - y‖²  subject to  ‖x‖∞ ≤ λ                                    [Wang2016, Eq. 1]

`admm_step` is one iteration. `admm_iterations` repeats it as printed and records the multipliers,
`encoders` unfolds K of these steps with learned weights, and `solver` runs the over-relaxed form,
`relaxed_step`, until it converges.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from antipodal.paper.neurons import clip

RELAXATION = 1.6  # α of `relaxed_step`, which converges for any α in (0, 2)


class Trace(NamedTuple):
    """Codes (m, N) after n_iter iterations, and multipliers (n_iter, m, N) after each of them."""

    codes: Tensor
    multipliers: Tensor


def unfolded_weights(D: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Return the weights of the unfolded iteration, W (N, n) and S (N, N).

    W = (DᵀD + βI)⁻¹Dᵀ,  S = β(DᵀD + βI)⁻¹                                  [Wang2016, Eq. 11]
    """
    identity = torch.eye(D.shape[1], dtype=D.dtype, device=D.device)
    factor = torch.linalg.cholesky(D.T @ D + penalty * identity)
    return torch.cholesky_solve(D.T, factor), penalty * torch.cholesky_solve(identity, factor)


def unfolded_bias(multiplier: Tensor, S: Tensor, penalty: float) -> Tensor:
    """Return the bias of a multiplier p (…, N).

    b = [(DᵀD + βI)⁻¹ - I/β] p = (S - I) p/β                                 [Wang2016, Eq. 11]
    """
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
    """Return z ← B_λ(u) and u = Wy + Sz + b, one iteration of ADMM. [Wang2016, Eq. 11]

    The x of Eq. 7 is u + p/β, so that the multiplier update of Eq. 6, p ← p + β(z - x), becomes
    p ← β(z - u).

    `drive` is Wy. Without gradients u can be written to `out`, which may be `b`: allocating memory
    in every iteration takes time.
    """
    u = drive + z @ S.T + b if out is None else torch.add(drive, b, out=out).addmm_(z, S.T)
    return neuron(u), u


def relaxed_step(
    drive: Tensor, z: Tensor, R: Tensor, u: Tensor, neuron: Callable[[Tensor], Tensor], work: Tensor
) -> tuple[Tensor, Tensor]:
    """Return z and u after one iteration of Eq. 7-8 with over-relaxation; u is overwritten.

    With u = x - p/β the iteration needs no other state:

        x = Wy + S(2z - u)                    least squares pulled towards z
        u ← u + α(x - z)                      accumulated difference of x and z
        z ← B_λ(u)                            projection onto the box

    The paper has α = 1; α = 1.6 converges faster. In the form of `admm_step`, from 2z - u:

        u ← αWy + R(2z - u) + (1 - α/2) u,    R = αS - (α/2)I

    `drive` is αWy, `R` is the result of `relaxed_weight`, `work` is scratch memory like u.
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
    """Iterate Eq. 7-8 from z = 0, p = 0 as printed, and record p after each iteration."""
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

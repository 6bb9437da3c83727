"""The iteration of the paper: ADMM for the convex problem, Eq. 1-11 of [Wang2016].

    min_x ‖Dx - y‖²  subject to  ‖x‖∞ ≤ λ                                    [Wang2016, Eq. 1]

`admm_step` is one iteration. `admm_iterations` repeats it as printed and records the multipliers.
`encoders` unfolds K of these steps with learned weights. `solver` runs the over-relaxed form,
`relaxed_step`, until it converges.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from array_api_compat import array_namespace, device

RELAXATION = 1.6  # α of `relaxed_step`, which converges for any α in (0, 2)

Array = Any  # a NumPy array or a PyTorch tensor


class Trace(NamedTuple):
    """Codes (m, N) after n_iter iterations, and multipliers (n_iter, m, N) after each of them."""

    codes: Array
    multipliers: Array


def unfolded_weights(D: Array, penalty: float) -> tuple[Array, Array]:
    """Return the weights of the unfolded iteration, W (N, n) and S (N, N).

    W = (DᵀD + βI)⁻¹Dᵀ,  S = β(DᵀD + βI)⁻¹                                  [Wang2016, Eq. 11]
    """
    xp = array_namespace(D)
    identity = _identity(D.shape[1], D)
    gram = D.T @ D + penalty * identity
    return xp.linalg.solve(gram, D.T), penalty * xp.linalg.solve(gram, identity)


def unfolded_bias(multiplier: Array, S: Array, penalty: float) -> Array:
    """Return the bias of a multiplier p (…, N).

    b = [(DᵀD + βI)⁻¹ - I/β] p = (S - I) p/β                                 [Wang2016, Eq. 11]
    """
    return (multiplier @ S - multiplier) / penalty


def admm_step(
    drive: Array, z: Array, S: Array, b: Array, neuron: Callable[[Array], Array]
) -> tuple[Array, Array]:
    """Return z ← B_λ(u) and u = Wy + Sz + b, one iteration of ADMM. [Wang2016, Eq. 11]

    The x of Eq. 7 is u + p/β, so that the multiplier update of Eq. 6, p ← p + β(z - x), becomes
    p ← β(z - u). `drive` is Wy.
    """
    u = drive + z @ S.T + b
    return neuron(u), u


def relaxed_step(
    drive: Array, z: Array, R: Array, u: Array, neuron: Callable[[Array], Array]
) -> tuple[Array, Array]:
    """Return z and u after one iteration of Eq. 7-8 with over-relaxation; both are overwritten.

    With u = x - p/β the iteration needs no other state:

        x = Wy + S(2z - u)                    least squares pulled towards z
        u ← u + α(x - z)                      accumulated difference of x and z
        z ← B_λ(u)                            projection onto the box

    The paper has α = 1; α = 1.6 converges faster. In the form of `admm_step`, from 2z - u:

        u ← αWy + R(2z - u) + (1 - α/2) u,    R = αS - (α/2)I

    `drive` is αWy, `R` is the result of `relaxed_weight`.
    """
    z *= 2
    z -= u
    u *= 1 - RELAXATION / 2
    u += drive
    u += z @ R.T
    return neuron(u), u


def relaxed_weight(S: Array) -> Array:
    """Return R = αS - (α/2)I of `relaxed_step`."""
    return RELAXATION * S - (RELAXATION / 2) * _identity(len(S), S)


def admm_iterations(
    Y: Array, D: Array, bound: float, *, penalty: float = 0.6, n_iter: int = 2
) -> Trace:
    """Iterate Eq. 7-8 from z = 0, p = 0 as printed, and record p after each iteration."""
    xp = array_namespace(Y, D)
    W, S = unfolded_weights(D, penalty)
    drive = Y @ W.T
    z = p = xp.zeros_like(drive)
    multipliers = []
    for _ in range(n_iter):
        b = unfolded_bias(p, S, penalty)
        z, u = admm_step(drive, z, S, b, lambda u: xp.clip(u, -bound, bound))
        p = penalty * (z - u)
        multipliers.append(p)
    none = xp.zeros((0, *drive.shape), dtype=drive.dtype, device=device(drive))
    return Trace(z, xp.stack(multipliers) if multipliers else none)


def _identity(n: int, like: Array) -> Array:
    return array_namespace(like).eye(n, dtype=like.dtype, device=device(like))

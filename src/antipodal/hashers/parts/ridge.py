"""How well a kernel machine predicts rows that it has not seen, without fitting it anew for each.

    f = Ka + b,    a = (K + λI)⁻¹(t - b),   1ᵀa = 0           ridge regression with an offset b
    t_i - f₋ᵢ(x_i) = a_i / (G - G11ᵀG / 1ᵀG1)_ii              G = (K + λI)⁻¹

f₋ᵢ is the machine without row i: one inverse gives the errors of all rows. [Cawley2006]
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotri

from antipodal.hashers.parts.rows import row_blocks

Floats = NDArray[np.floating[Any]]

_RIDGES = (0.03, 0.1, 0.3, 1.0)


def gaussian_kernel(X: Floats, gamma: float) -> Floats:
    """Return exp(-γ‖x - x'‖²) for all pairs of rows, (m, m)."""
    lengths = np.einsum("ij,ij->i", X, X)
    K: Floats = 2 * X @ X.T
    for block in row_blocks(K):  # in place: K is the largest array of all
        squared = lengths[block, None] + lengths - K[block]
        K[block] = np.exp(-gamma * np.maximum(squared, 0))
    return K


def leave_one_out_error(X: Floats, targets: NDArray[np.bool_]) -> float:
    """Return the mean squared error of ±1 targets (m, c), each row left out; the best λ's.

    γ is 1/n: rows (m, n) are scaled to mean square 1.
    """
    K = gaussian_kernel(X.astype(np.float64), 1 / X.shape[1])
    T = np.where(targets, 1.0, -1.0)
    return min(float(np.square(left_out_residuals(K, T, ridge)).mean()) for ridge in _RIDGES)


def left_out_residuals(K: Floats, T: Floats, ridge: float) -> Floats:
    """Return t - f₋ᵢ(x_i) for each row i and each column of T (m, c)."""
    factor, _ = dpotrf(K + ridge * np.eye(len(K)), lower=True)
    lower, _ = dpotri(factor, lower=True)  # the inverse, below its diagonal: half the work
    G = np.tril(lower) + np.tril(lower, -1).T
    sums = G.sum(axis=1)
    total = sums.sum()
    a = G @ T - np.outer(sums, sums @ T / total)
    residuals: Floats = a / (np.diag(G) - sums**2 / total)[:, None]
    return residuals

"""Gaussian kernels on anchors: distances, bandwidth, kernel principal components."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodal.hashers.base import FloatArray
from antipodal.hashers.operations import Affine, GaussianKernel, Operation, SquaredDistances
from antipodal.hashers.pipeline import Pipeline
from antipodal.hashers.preprocessing import gaussian_kernel

Float32Array = NDArray[np.float32]


def cluster_centres(
    rows: FloatArray, n_centres: int, n_iter: int, rng: np.random.RandomState
) -> NDArray[np.float32]:
    """Return up to n_centres distinct cluster centres, by k-means from random rows."""
    from sklearn.cluster import KMeans  # lazy: only AGH needs it

    start = rng.permutation(len(rows))[:n_centres]
    centres: NDArray[np.float32] = np.unique(rows[start].astype(np.float32), axis=0)
    if n_iter == 0:
        return centres
    sides = rows.max(axis=0).astype(np.float64) - rows.min(axis=0)
    _check_distances(float(np.square(sides).sum()))
    kmeans = KMeans(len(centres), init=centres, n_init=1, max_iter=n_iter, tol=0)
    found = kmeans.fit(rows.astype(np.float32, copy=False))
    return np.unique(found.cluster_centers_.astype(np.float32), axis=0)


def check_bandwidth(bandwidth: float | None) -> None:
    """Raise ValueError unless the bandwidth is positive and finite, or None to learn it."""
    if bandwidth is not None and not 0 < bandwidth < float("inf"):
        raise ValueError(f"bandwidth must be positive and finite, or None: got {bandwidth}")


def choose_bandwidth(bandwidth: float | None, squared: float) -> float:
    """Return the given bandwidth, or the root of a typical squared distance, or 1 if that is 0."""
    _check_distances(squared)
    return bandwidth or float(np.sqrt(squared)) or 1.0


def _check_distances(squared: float) -> None:
    if not squared < float(np.finfo(np.float32).max):
        raise ValueError(
            "the squared distances between training rows are too large for float32: "
            "scale the features down"
        )


_MAX_COMPONENTS = 512  # further components fit single rows rather than classes
_MAX_ROWS = 16_384  # more rows hardly change the components
_KERNEL_BLOCK_ROWS = 8192
_RANK = 1e-6  # eigenvalues below this share of the largest are rounding
_RIDGE = 1e-4  # added to the diagonal of the kernel of a reduced set


class KernelFeatures(NamedTuple):
    """Kernel principal components on anchors, φ(y) = Lᵀk(y) - c, kᵢ(y) = exp(-γ‖y - aᵢ‖²)."""

    anchors: Float32Array  # (m, n)
    gamma: float
    weight: Float32Array  # L (m, p)
    offset: Float32Array  # c (p,)


def learn_kernel_features(Y: Float32Array, n_anchors: int, seed: int) -> KernelFeatures:
    """Draw up to n_anchors anchors from the rows Y (l, n), and learn the components.

        Z = K_YA K_AA^(-½),    φ = s·Vᵀ(z - z̄)

    V holds the principal components of Z, largest variance first. s scales φ to mean square 1,
    and γ is 2 / (mean squared distance of rows from anchors). Up to 16,384 rows are used.
    """
    from scipy.linalg import eigh  # lazy: encoding does not need it

    rng = np.random.default_rng(seed)
    order = rng.permutation(len(Y))
    anchors = np.ascontiguousarray(Y[np.sort(order[:n_anchors])])
    if len(Y) > _MAX_ROWS:
        Y = Y[np.sort(order[:_MAX_ROWS])]
    squared = Pipeline([SquaredDistances(anchors)])

    def distances(rows: Float32Array) -> NDArray[np.float64]:
        return squared.values(rows, len(anchors)).astype(np.float64)

    blocks = [
        Y[start : start + _KERNEL_BLOCK_ROWS] for start in range(0, len(Y), _KERNEL_BLOCK_ROWS)
    ]
    total = sum(float(distances(block).sum()) for block in blocks)
    gamma = 2 / (total / (len(Y) * len(anchors)) or 1.0)  # any γ will do if all rows are equal
    values, U = eigh(np.exp(-gamma * distances(anchors)))
    kept = values > _RANK * values[-1]
    root = U[:, kept] / np.sqrt(values[kept])  # K_AA^(-½) up to a rotation
    n = root.shape[1]
    mean, scatter, n_rows = np.zeros(n), np.zeros((n, n)), 0
    for block in blocks:
        # Combine mean and scatter of the previous blocks with those of this block [Chan1983].
        Z = np.exp(-gamma * distances(block)) @ root
        step = Z.mean(axis=0) - mean
        Z -= mean + step
        scatter += Z.T @ Z
        scatter += np.outer(step, step) * (n_rows * len(Z) / (n_rows + len(Z)))
        n_rows += len(Z)
        mean += step * (len(Z) / n_rows)
    leading = (max(n - _MAX_COMPONENTS, 0), n - 1)
    variances, V = eigh(scatter / len(Y), subset_by_index=leading)
    kept = np.flatnonzero(variances >= _RANK * variances[-1])[::-1]
    V = V[:, kept]
    scale = np.sqrt(len(kept) / (float(variances[kept].sum()) or 1.0))
    return KernelFeatures(
        anchors,
        gamma,
        np.ascontiguousarray(scale * (root @ V), dtype=np.float32),
        (scale * (mean @ V)).astype(np.float32),
    )


def reduced_set(
    features: KernelFeatures, weights: Float32Array, n_points: int, seed: int, max_iter: int = 200
) -> KernelFeatures:
    """Replace the anchors by fewer points, chosen so that Wφ changes little. [Burges1996]

    The products are functions f(y) = Σ_i k(y, aᵢ) αᵢ, with coefficients αᵢ = WLᵢ for the rows Lᵢ of
    `weight`, and W (N, p). The points c minimise the distance from f to functions f̂ of the same
    form on c, in the reproducing kernel Hilbert space. With the best coefficients it is

        ‖f - f̂‖² = ‖f‖² - tr(AᵀK_ac K_cc⁻¹ K_ca A)

    It is minimised by L-BFGS from random anchors. φ is replaced by its projection,
    L ← K_cc⁻¹ K_ca L, so that W is unchanged.
    """
    if n_points >= len(features.anchors):
        return features
    from scipy.linalg import cho_factor, cho_solve
    from scipy.optimize import minimize

    anchors, gamma = features.anchors.astype(np.float64), features.gamma
    A = features.weight.astype(np.float64) @ weights.T
    A /= np.sqrt((A * (gaussian_kernel(anchors, gamma) @ A)).sum()) or 1.0  # ‖f‖ = 1
    chosen = np.random.default_rng(seed).permutation(len(anchors))[:n_points]
    start = anchors[np.sort(chosen)]

    def factor(points: FloatArray) -> tuple[FloatArray, FloatArray, Any]:
        K = gaussian_kernel(points, gamma)
        return cross_kernel(points), K, cho_factor(K + _RIDGE * np.eye(n_points))

    def cross_kernel(points: FloatArray) -> FloatArray:
        squared = np.square(points).sum(axis=1)[:, None] + lengths - 2 * points @ anchors.T
        kernel: FloatArray = np.exp(-gamma * np.maximum(squared, 0))
        return kernel

    def loss(flat: FloatArray) -> tuple[float, FloatArray]:
        points = flat.reshape(start.shape)
        K_ca, K_cc, cholesky = factor(points)
        R = K_ca @ A
        B = cho_solve(cholesky, R)
        # d tr(RᵀK⁻¹R) = 2 tr(BᵀdR) - tr(BᵀdK B), and dk(c, a) = -2γ(c - a)k(c, a) dc
        M, P = (B @ A.T) * K_ca, (B @ B.T) * K_cc
        slope = (M.sum(axis=1) - P.sum(axis=1))[:, None] * points - M @ anchors + P @ points
        return -float((R * B).sum()), (4 * gamma * slope).ravel()

    lengths = np.square(anchors).sum(axis=1)
    found = minimize(
        loss,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": max_iter, "maxfun": 2 * max_iter, "gtol": 0.0},
    )
    points = found.x.reshape(start.shape)
    K_ca, _, cholesky = factor(points)
    projected = cho_solve(cholesky, K_ca @ features.weight.astype(np.float64))
    return KernelFeatures(
        points.astype(np.float32), gamma, projected.astype(np.float32), features.offset
    )


def kernel_steps(features: KernelFeatures) -> list[Operation]:
    """Return the steps from y to φ(y)."""
    return [
        GaussianKernel(features.anchors, features.gamma),
        Affine(features.weight, -features.offset),
    ]


def kernel_feature_rows(features: KernelFeatures, Y: Float32Array) -> Float32Array:
    """Return φ(y) for each row, (l, p)."""
    return Pipeline(kernel_steps(features)).values(Y, len(features.offset))

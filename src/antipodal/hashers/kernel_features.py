"""Gaussian kernels on anchors: distances, bandwidth, kernel principal components."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodal.hashers.base import FloatArray
from antipodal.hashers.operations import Affine, GaussianKernel, Operation, SquaredDistances
from antipodal.hashers.pipeline import Pipeline

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


def kernel_steps(features: KernelFeatures) -> list[Operation]:
    """Return the steps from y to φ(y)."""
    return [
        GaussianKernel(features.anchors, features.gamma),
        Affine(features.weight, -features.offset),
    ]


def kernel_feature_rows(features: KernelFeatures, Y: Float32Array) -> Float32Array:
    """Return φ(y) for each row, (l, p)."""
    return Pipeline(kernel_steps(features)).values(Y, len(features.offset))

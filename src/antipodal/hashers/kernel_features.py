"""Gaussian kernel features: anchors, bandwidth, kernel principal components."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh
from torch import Tensor

from antipodal.hashers.base import FloatArray

_BLOCK_ROWS = 4096


def distance_map(
    anchors: NDArray[np.float32], mean: NDArray[np.float32], max_rows: int
) -> Callable[[Tensor], Tensor]:
    """Return the map (m, n) -> (m, k) to squared distances from the anchors, float32.

        ‖x - a‖² = ‖x‖² - 2xᵀa + ‖a‖²,    x and a both seen from the mean

    One matrix product; without the shift, features far from zero would lose their digits in the
    differences. The result is good until the next call.
    """
    centre = torch.from_numpy(mean)
    A = torch.from_numpy(anchors) - centre
    anchor_norms = A.square().sum(dim=1)
    work = torch.empty(max_rows, len(A))

    def distances(X: Tensor) -> Tensor:
        x = X - centre
        norms = x.square().sum(dim=1)
        squared = torch.addmm(anchor_norms, x, A.T, alpha=-2.0, out=work[: len(X)])
        return squared.add_(norms[:, None]).clamp_(min=0.0)

    return distances


def distance_blocks(
    rows: FloatArray, anchors: NDArray[np.float32], mean: NDArray[np.float32]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the rows, float32, and their squared distances from the anchors, a block at a time."""
    distances = distance_map(anchors, mean, min(len(rows), _BLOCK_ROWS))
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = torch.from_numpy(rows[start : start + _BLOCK_ROWS].astype(np.float32))
        yield block, distances(block)


def cluster_centres(
    rows: FloatArray, n_centres: int, n_iter: int, rng: np.random.RandomState
) -> NDArray[np.float32]:
    """Return up to n_centres centres of clusters, by Lloyd's iterations from random rows.

    They are distinct, so that there are never more than distinct rows.
    """
    from sklearn.cluster import KMeans  # lazy: AGH alone needs it

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
    """Refuse a width of the kernel that is not a positive number, or None to learn it."""
    if bandwidth is not None and not 0 < bandwidth < float("inf"):
        raise ValueError(f"bandwidth must be positive and finite, or None: got {bandwidth}")


def choose_bandwidth(given: float | None, squared: float) -> float:
    """Return the width given, or else that whose square is a typical squared distance.

    Where all rows are equal any width will do: 1.
    """
    _check_distances(squared)
    return given or float(np.sqrt(squared)) or 1.0


def _check_distances(squared: float) -> None:
    if not squared < float(np.finfo(np.float32).max):
        raise ValueError(
            "the squared distances between training rows are too large for float32: "
            "scale the features down"
        )


_MOST_COMPONENTS = 512  # later ones fit single rows more than classes
_MOST_ROWS = 16_384  # more move the components little, and take longer
_KERNEL_BLOCK_ROWS = 8192
_RANK = 1e-6  # eigenvalues below this share of the largest are rounding

Float32Array = NDArray[np.float32]


class Lift(NamedTuple):
    """What `lift_map` needs: anchors (m, n), γ, L (m, p) and c (p,)."""

    anchors: Float32Array
    gamma: float
    weight: Float32Array
    offset: Float32Array


def learn_lift(Y: Float32Array, n_anchors: int, seed: int) -> Lift:
    """Choose anchors among the rows Y (l, n), at most so many, and learn the components.

    γ, c and the components are those of up to 16,384 rows, drawn as the anchors are.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(Y))
    anchors = np.ascontiguousarray(Y[np.sort(order[:n_anchors])])
    if len(Y) > _MOST_ROWS:
        Y = Y[np.sort(order[:_MOST_ROWS])]
    origin = np.zeros(Y.shape[1], np.float32)

    def distances(rows: Float32Array) -> NDArray[np.float64]:
        blocks = [part.double() for _, part in distance_blocks(rows, anchors, origin)]
        return torch.cat(blocks).numpy()

    blocks = [
        Y[start : start + _KERNEL_BLOCK_ROWS] for start in range(0, len(Y), _KERNEL_BLOCK_ROWS)
    ]
    total = sum(float(distances(block).sum()) for block in blocks)
    gamma = 2 / (total / (len(Y) * len(anchors)) or 1.0)  # all rows equal: any will do
    values, U = eigh(np.exp(-gamma * distances(anchors)))
    kept = values > _RANK * values[-1]
    root = U[:, kept] / np.sqrt(values[kept])  # K^(-½), turned
    n = root.shape[1]
    mean, scatter, n_seen = np.zeros(n), np.zeros((n, n)), 0
    for block in blocks:
        # Mean and scatter of what was seen and of the block make those of both [Chan1983].
        Z = np.exp(-gamma * distances(block)) @ root
        step = Z.mean(axis=0) - mean
        Z -= mean + step
        scatter += Z.T @ Z
        scatter += np.outer(step, step) * (n_seen * len(Z) / (n_seen + len(Z)))
        n_seen += len(Z)
        mean += step * (len(Z) / n_seen)
    widest = (max(n - _MOST_COMPONENTS, 0), n - 1)
    variances, V = eigh(scatter / len(Y), subset_by_index=widest)
    kept = np.flatnonzero(variances >= _RANK * variances[-1])[::-1]
    V = V[:, kept]  # the widest first
    scale = np.sqrt(len(kept) / (float(variances[kept].sum()) or 1.0))
    return Lift(
        anchors,
        gamma,
        np.ascontiguousarray(scale * (root @ V), dtype=np.float32),
        (scale * (mean @ V)).astype(np.float32),
    )


def kernel_map(lift: Lift, max_rows: int) -> Callable[[Tensor], Tensor]:
    """Return the map (r, n) -> (r, m) to k(y). Its result is good until the next call."""
    origin = np.zeros(lift.anchors.shape[1], np.float32)
    distances = distance_map(lift.anchors, origin, max_rows)
    return lambda Y: distances(Y).mul_(-lift.gamma).exp_()


def lift_rows(lift: Lift, Y: Tensor) -> Tensor:
    """Return φ(y) for each row, (l, p)."""
    L, c = torch.from_numpy(lift.weight), torch.from_numpy(lift.offset)
    kernels = kernel_map(lift, min(len(Y), _KERNEL_BLOCK_ROWS))
    lifted = torch.empty(len(Y), len(c))
    for start in range(0, len(Y), _KERNEL_BLOCK_ROWS):
        rows = slice(start, start + _KERNEL_BLOCK_ROWS)
        torch.mm(kernels(Y[rows]), L, out=lifted[rows]).sub_(c)
    return lifted

"""Principal components of a Gaussian kernel: features in which curved boundaries are straight.

    k(y) = exp(-γ‖y - aᵢ‖²), i = 1 … m        anchors aᵢ, γ = 2 / mean ‖y - aᵢ‖²
    φ(y) = Lᵀk(y) - c                         L = K^(-½)V·s up to a rotation, K = (k(a₁), …, k(a_m))

K^(-½)k(y) has the kernel for inner product [Williams2001]; V turns it to the principal components
of the training rows, c centres them, and s gives them mean square 1. They are not scaled one by
one: a weight of given size on an early component is a smooth function, and costs the same weight
decay as a rough one on a late component.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh
from torch import Tensor

from antipodal.hashers.parts.anchors import distance_blocks, distance_map

_MOST_COMPONENTS = 512  # later ones fit single rows more than classes
_MOST_ROWS = 16_384  # more move the components little, and take longer
_BLOCK_ROWS = 8192
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

    blocks = [Y[start : start + _BLOCK_ROWS] for start in range(0, len(Y), _BLOCK_ROWS)]
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
    kernels = kernel_map(lift, min(len(Y), _BLOCK_ROWS))
    lifted = torch.empty(len(Y), len(c))
    for start in range(0, len(Y), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        torch.mm(kernels(Y[rows]), L, out=lifted[rows]).sub_(c)
    return lifted

"""Anchors: a few points of feature space that stand for all, and the distances to them."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
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

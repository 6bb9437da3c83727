"""Anchor graph hashing: eigenvectors of a neighbourhood graph that anchors make tractable."""

from collections.abc import Callable
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh
from scipy.sparse import csr_array
from sklearn.utils import check_random_state
from torch import Tensor
from torch.nn.functional import embedding_bag

from antipodal.hashers.base import BaseHasher, FloatArray
from antipodal.hashers.kernel_features import (
    check_bandwidth,
    choose_bandwidth,
    cluster_centres,
    distance_blocks,
    distance_map,
)
from antipodal.hashers.registry import built_in
from antipodal.hashers.rows import sample_rows
from antipodal.threads import one_thread
from antipodal.validation import check_whole

_SMALLEST = 1e-9  # eigenvalues are in [0, 1]; smaller ones are rounding

Float64Array = NDArray[np.float64]


@built_in
class AGH(BaseHasher):
    """Signs of the smoothest functions on a graph of the training rows. [Liu2011]

    Rows are joined through the anchors they are near to, A = ZΛ⁻¹Zᵀ, with

        Z_ij = exp(-‖xᵢ - aⱼ‖²/σ²) / Σ_j'  over the s anchors nearest to xᵢ, else 0
        Λ = diag(Zᵀ1)

    and the bits are signs of eigenvectors of A, whose extension to a new row is z(x)ᵀW. With two
    layers each eigenvector gives a second bit, which cuts both of its sides once more.

    Parameters
    ----------
    n_bits : int
        Length of the code. One layer takes as many eigenvectors, two take half, and there are
        fewer of them than anchors. The first ⌈n_bits / 2⌉ bits of two layers are the first layer.
    layers : {1, 2}
        Bits made from an eigenvector.
    n_anchors : int
        Most anchors: centres of clusters of the training rows.
    n_nearest : int
        s, the anchors that a row is joined to.
    bandwidth : float, optional
        σ, by default the mean distance of a row from the farthest of its s anchors.
    n_iter : int
        Iterations of the clustering.
    n_samples : int
        Rows to learn from, at most; where there are more, so many are drawn.
    random_state : int, RandomState or None
        Seed of the rows that are drawn, and of those that clustering starts from.
    """

    encoding_parameters = ("n_bits", "n_nearest")

    mean_: NDArray[np.float32]
    anchors_: NDArray[np.float32]
    bandwidth_: float
    projection_: NDArray[np.float32]
    thresholds_: NDArray[np.float32]
    eigenvalues_: Float64Array

    def __init__(
        self,
        n_bits: int = 64,
        *,
        layers: Literal[1, 2] = 2,
        n_anchors: int = 300,
        n_nearest: int = 2,
        bandwidth: float | None = None,
        n_iter: int = 5,
        n_samples: int = 100_000,
        random_state: Any = None,
    ) -> None:
        self.n_bits = n_bits
        self.layers = layers
        self.n_anchors = n_anchors
        self.n_nearest = n_nearest
        self.bandwidth = bandwidth
        self.n_iter = n_iter
        self.n_samples = n_samples
        self.random_state = random_state

    @one_thread()
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Find the anchors and the eigenvectors of their graph; y is ignored."""
        checked = self.check_fit(X)
        self._check_parameters()
        rng = check_random_state(self.random_state)
        rows = sample_rows(checked, self.n_samples, rng)
        self.mean_ = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        self.anchors_ = cluster_centres(rows, self.n_anchors, self.n_iter, rng)
        nearest, squared = self._nearest_anchors(rows)
        self.bandwidth_ = choose_bandwidth(
            self.bandwidth, float(np.sqrt(squared[:, -1]).mean(dtype=np.float64)) ** 2
        )
        weights = _weights(torch.from_numpy(squared), self.bandwidth_).numpy()
        Z = _row_sparse(nearest, weights.astype(np.float64), len(self.anchors_))
        # An anchor may be nobody's neighbour once the clustering has stopped.
        used = Z.sum(axis=0) > 0
        self.anchors_, Z = self.anchors_[used], Z[:, used]

        n_first = -(-self.n_bits // self.layers)
        values, W = graph_functions(Z, n_first)
        if len(values) < n_first:
            raise ValueError(
                f"AGH needs {n_first} eigenvectors for {self.n_bits} bits in {self.layers} "
                f"layer(s), and the graph of {len(self.anchors_)} anchors on {len(rows)} rows has "
                f"{len(values)} besides the constant one. Take more anchors (n_anchors is "
                f"{self.n_anchors}; never more than distinct rows) or fewer bits"
            )
        self.eigenvalues_ = values
        self.projection_ = np.ascontiguousarray(W, dtype=np.float32)
        n_second = self.n_bits - n_first
        cuts = [split_thresholds(Z, Z @ w) for w in W.T[:n_second]]
        self.thresholds_ = np.array(cuts, np.float32).reshape(n_second, 2)
        return self

    def _nearest_anchors(self, rows: FloatArray) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return which anchors are nearest to each row, the nearest first, and how near."""
        s = min(self.n_nearest, len(self.anchors_))
        parts = [
            torch.topk(squared, s, dim=1, largest=False)
            for _, squared in distance_blocks(rows, self.anchors_, self.mean_)
        ]
        return (
            torch.cat([part.indices for part in parts]).numpy(),
            torch.cat([part.values for part in parts]).numpy(),
        )

    def projector(self, max_rows: int) -> Callable[[Tensor], Tensor]:
        """Return the map to the values whose signs are the bits."""
        distances = distance_map(self.anchors_, self.mean_, max_rows)
        W = torch.from_numpy(self.projection_)
        above, below = torch.from_numpy(self.thresholds_).unbind(dim=1)
        s = min(self.n_nearest, len(self.anchors_))

        def project(X: Tensor) -> Tensor:
            squared, nearest = torch.topk(distances(X), s, dim=1, largest=False)
            z = _weights(squared, self.bandwidth_)
            y = embedding_bag(nearest, W, mode="sum", per_sample_weights=z)  # zᵀW, z sparse
            first = y[:, : len(above)]
            second = torch.where(first > 0, first - above, below - first)
            return torch.cat([y, second], dim=1)

        return project

    def check_restored(self) -> None:
        """Refuse what was read from a file if it has not a row of the projection per anchor."""
        if len(self.projection_) != len(self.anchors_):
            raise ValueError("projection_ must have a row per anchor")
        super().check_restored()

    def _check_parameters(self) -> None:
        if self.layers not in (1, 2):
            raise ValueError(f"layers must be 1 or 2: got {self.layers!r}")
        check_whole(self.n_anchors, "n_anchors", 2)
        check_whole(self.n_nearest, "n_nearest", 1)
        check_whole(self.n_iter, "n_iter", 0)
        check_bandwidth(self.bandwidth)


def graph_functions(Z: csr_array, n_functions: int) -> tuple[Float64Array, Float64Array]:
    """Return eigenvalues and W of the smoothest functions Y = ZW on the graph ZΛ⁻¹Zᵀ.

        M = Λ^-½ ZᵀZ Λ^-½ = VΣVᵀ,    W = √n Λ^-½ V Σ^-½

    Y holds eigenvectors of the graph, with YᵀY = nI and Yᵀ1 = 0: the constant one is left out.
    They are fewer than asked for where the graph has no more.
    """
    n = Z.shape[0]
    sizes = np.asarray(Z.sum(axis=0))
    root = np.sqrt(sizes)
    M = (Z.T @ Z).toarray() / np.outer(root, root)
    # The constant function is V's column Λ^½1/√n, of eigenvalue 1. In a graph of several parts
    # it shares that eigenvalue with others, so it is taken out before instead of skipped after.
    M -= np.outer(root, root) / n
    values, V = eigh(M)
    values, V = values[::-1][:n_functions], V[:, ::-1][:, :n_functions]
    kept = values > _SMALLEST
    values, V = values[kept], V[:, kept]
    return values, np.sqrt(n) * V / (root[:, None] * np.sqrt(values))


def split_thresholds(Z: csr_array, y: Float64Array) -> tuple[float, float]:
    """Return where to cut the two sides of an eigenvector y once more: b⁺ and b⁻.

    With f = y - b⁺ where y > 0 and f = b⁻ - y elsewhere,

        min fᵀLf  subject to 1ᵀf = 0,    L = I - ZΛ⁻¹Zᵀ

    With e the indicator of y > 0, f = |y| - (b⁺ + b⁻)e + b⁻1. Since L1 = 0 the objective knows
    only β = b⁺ + b⁻, and β = eᵀL|y| / eᵀLe; the constraint, n⁺b⁺ - n⁻b⁻ = 1ᵀ|y|, settles the rest.
    """
    e = y > 0
    size = np.abs(y)
    Le = e - Z @ ((Z.T @ e) / Z.sum(axis=0))
    n, n_above = len(y), np.count_nonzero(e)
    n_below = n - n_above
    between = float(Le @ e)  # weight of the edges from one side to the other
    if between > _SMALLEST * n:
        beta = float(Le @ size) / between
    else:  # then any β is as good: cut each side at its mean
        beta = float(size[e].mean() - size[~e].mean())
    return (size.sum() + n_below * beta) / n, (n_above * beta - size.sum()) / n


def _weights(squared: Tensor, bandwidth: float) -> Tensor:
    """Kernel weights of the anchors of a row, exp(-d²/σ²), divided by their sum."""
    return torch.softmax(squared / -(bandwidth**2), dim=1)


def _row_sparse(columns: NDArray[np.int64], values: Float64Array, n_columns: int) -> csr_array:
    n, s = columns.shape
    return csr_array(
        (values.ravel(), columns.ravel(), np.arange(0, n * s + 1, s)), shape=(n, n_columns)
    )

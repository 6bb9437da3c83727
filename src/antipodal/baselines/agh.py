"""Anchor graph hashing (AGH): eigenvectors of a neighbourhood graph, approximated with anchors."""

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh
from scipy.sparse import csr_array

from antipodal.hashers.base import BaseHasher, FloatArray
from antipodal.hashers.kernel_features import (
    check_bandwidth,
    choose_bandwidth,
    cluster_centres,
)
from antipodal.hashers.operations import (
    Array,
    Graph,
    Operation,
    SquaredDistances,
    Workspace,
    check_width,
    softmax,
)
from antipodal.hashers.pipeline import Pipeline
from antipodal.hashers.preprocessing import sample_rows
from antipodal.hashers.registry import built_in
from antipodal.threads import one_thread
from antipodal.validation import check_random_state, check_whole

_MIN_EIGENVALUE = 1e-9  # eigenvalues are in [0, 1]; smaller ones are rounding

Float64Array = NDArray[np.float64]


@built_in
class AGH(BaseHasher):
    """Signs of the smoothest functions on a graph of the training rows: b = [Wᵀz(x) > 0]. [Liu2011]

    The graph connects rows through their nearest anchors, with the adjacency matrix A = ZΛ⁻¹Zᵀ:

        Z_ij = exp(-‖xᵢ - aⱼ‖²/σ²) / Σ_j'  over the s anchors nearest to xᵢ, else 0
        Λ = diag(Zᵀ1)

    The bits are signs of eigenvectors of A, extended to new rows by Wᵀz(x). With two layers each
    eigenvector gives a second bit, which splits each of its two sides again.

    Parameters
    ----------
    n_bits : int
        Code length. One layer uses n_bits eigenvectors, two layers ⌈n_bits / 2⌉; there are fewer
        eigenvectors than anchors. With two layers the bits of the first layer come first.
    layers : {1, 2}
        Bits per eigenvector.
    n_anchors : int
        Largest number of anchors, which are cluster centres of the training rows.
    n_nearest : int
        s, number of nearest anchors per row.
    bandwidth : float, optional
        σ, by default the mean distance of rows from the farthest of their s anchors.
    n_iter : int
        Iterations of k-means.
    n_samples : int
        Largest number of rows to learn from; more rows are sampled.
    random_state : int, RandomState or None
        Seed of the sample and of the initial cluster centres.
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
        """Learn the anchors and the eigenvectors of their graph; y is ignored."""
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
        weights = softmax(squared / np.float32(-(self.bandwidth_**2)))
        Z = _row_sparse(nearest, weights.astype(np.float64), len(self.anchors_))
        # If k-means stops early, some anchors may have no rows.
        used = Z.sum(axis=0) > 0
        self.anchors_, Z = self.anchors_[used], Z[:, used]

        n_first = -(-self.n_bits // self.layers)
        values, W = graph_functions(Z, n_first)
        if len(values) < n_first:
            raise ValueError(
                f"AGH needs {n_first} eigenvectors for {self.n_bits} bits in {self.layers} "
                f"layer(s), but the graph of {len(self.anchors_)} anchors on {len(rows)} rows has "
                f"{len(values)} that are not constant. Use more anchors (n_anchors is "
                f"{self.n_anchors}; at most one per distinct row) or fewer bits"
            )
        self.eigenvalues_ = values
        self.projection_ = np.ascontiguousarray(W, dtype=np.float32)
        n_second = self.n_bits - n_first
        cuts = [split_thresholds(Z, Z @ w) for w in W.T[:n_second]]
        self.thresholds_ = np.array(cuts, np.float32).reshape(n_second, 2)
        return self

    def _nearest_anchors(self, rows: FloatArray) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the nearest anchors of each row, nearest first, and their squared distances."""
        s = min(self.n_nearest, len(self.anchors_))
        nearest, squared = np.empty((len(rows), s), np.int64), np.empty((len(rows), s), np.float32)

        def select(start: int, distances: Array) -> None:
            block = slice(start, start + len(distances))
            nearest[block], squared[block] = nearest_columns(distances, s)

        Pipeline([SquaredDistances(self.anchors_, self.mean_)]).each_block(rows, select)
        return nearest, squared

    def pipeline(self) -> list[Operation]:
        """Return the steps whose signs are the bits."""
        return [
            SquaredDistances(self.anchors_, self.mean_),
            AnchorGraph(self.n_nearest, self.bandwidth_, self.projection_),
            SecondBits(self.thresholds_),
        ]

    def check_restored(self) -> None:
        """Raise ValueError unless the projection read from a file has one row per anchor."""
        if len(self.projection_) != len(self.anchors_):
            raise ValueError(
                f"projection_ must have one row per anchor: got {len(self.projection_)} rows and "
                f"{len(self.anchors_)} anchors"
            )
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

    Y holds up to n_functions eigenvectors of the graph, with YᵀY = nI, without the constant one:
    Yᵀ1 = 0.
    """
    n = Z.shape[0]
    sizes = np.asarray(Z.sum(axis=0))
    root = np.sqrt(sizes)
    M = (Z.T @ Z).toarray() / np.outer(root, root)
    # The constant function is V's column Λ^½1/√n, with eigenvalue 1. A graph of several components
    # has several eigenvectors of that eigenvalue, so it is removed before the decomposition.
    M -= np.outer(root, root) / n
    values, V = eigh(M)
    values, V = values[::-1][:n_functions], V[:, ::-1][:, :n_functions]
    kept = values > _MIN_EIGENVALUE
    values, V = values[kept], V[:, kept]
    return values, np.sqrt(n) * V / (root[:, None] * np.sqrt(values))


def split_thresholds(Z: csr_array, y: Float64Array) -> tuple[float, float]:
    """Return the thresholds b⁺ and b⁻ of the second bit, for the two sides of an eigenvector y.

    With f = y - b⁺ where y > 0 and f = b⁻ - y elsewhere,

        min fᵀLf  subject to 1ᵀf = 0,    L = I - ZΛ⁻¹Zᵀ

    With e the indicator of y > 0, f = |y| - (b⁺ + b⁻)e + b⁻1. Since L1 = 0 the objective depends
    only on β = b⁺ + b⁻ = eᵀL|y| / eᵀLe. The constraint, n⁺b⁺ - n⁻b⁻ = 1ᵀ|y|, gives b⁺ and b⁻.
    """
    e = y > 0
    size = np.abs(y)
    Le = e - Z @ ((Z.T @ e) / Z.sum(axis=0))
    n, n_above = len(y), np.count_nonzero(e)
    n_below = n - n_above
    between = float(Le @ e)  # weight of the edges between the two sides
    if between > _MIN_EIGENVALUE * n:
        beta = float(Le @ size) / between
    else:  # the objective does not depend on β: split each side at its mean
        beta = float(size[e].mean() - size[~e].mean())
    return (size.sum() + n_below * beta) / n, (n_above * beta - size.sum()) / n


def nearest_columns(squared: Array, s: int) -> tuple[NDArray[np.int64], Array]:
    """Return the columns of the s smallest entries of each row, smallest first, and the entries."""
    columns = np.arange(squared.shape[1])
    if s < len(columns):
        chosen = np.argpartition(squared, s - 1, axis=1)[:, :s]
    else:
        chosen = np.broadcast_to(columns, squared.shape)
    values = np.take_along_axis(squared, chosen, axis=1)
    order = np.argsort(values, axis=1, kind="stable")
    nearest: NDArray[np.int64] = np.take_along_axis(chosen, order, axis=1)
    return nearest, np.take_along_axis(values, order, axis=1)


class AnchorGraph(Operation):
    """Map squared distances from anchors to Wᵀz, z the weights of the s nearest anchors.

    z = exp(-d²/σ²), divided by their sum; 0 for all other anchors.
    """

    def __init__(self, n_nearest: int, bandwidth: float, projection: Array) -> None:
        self.n_nearest, self.projection = n_nearest, projection
        self.divisor = np.float32(-(bandwidth**2))

    def width(self, n: int) -> int:
        """Return the number of columns of W."""
        check_width(n, len(self.projection))
        return int(self.projection.shape[1])

    def run(self, X: Array, memory: Workspace) -> Array:
        """Add the rows of W of the nearest anchors, weighted."""
        nearest, squared = nearest_columns(X, min(self.n_nearest, X.shape[1]))
        squared /= self.divisor
        z = softmax(squared, squared)
        y = memory.array(self, len(X), self.projection.shape[1])
        y[:] = 0
        for column, weight in zip(nearest.T, z.T, strict=True):
            y += weight[:, None] * self.projection[column]
        return y

    def export(self, graph: Graph, x: str) -> str:
        """Add TopK, Softmax, Gather and a product."""
        s = min(self.n_nearest, len(self.projection))
        squared, nearest = graph.nodes("TopK", 2, x, [s], axis=1, largest=0)
        z = graph.node("Softmax", graph.node("Div", squared, self.divisor), axis=1)  # (m, s)
        rows = graph.node("Gather", self.projection, nearest, axis=0)  # (m, s, p)
        summed = graph.node("MatMul", graph.node("Unsqueeze", z, [1]), rows)
        return graph.node("Squeeze", summed, [1])


class SecondBits(Operation):
    """Append the bits of the second layer: y - b⁺ where y > 0, and b⁻ - y elsewhere."""

    def __init__(self, thresholds: Array) -> None:
        self.above, self.below = np.ascontiguousarray(thresholds.T)

    def width(self, n: int) -> int:
        """Return n plus the number of second bits."""
        return n + len(self.above)

    def run(self, X: Array, memory: Workspace) -> Array:
        """Concatenate both layers."""
        first = X[:, : len(self.above)]
        second = np.where(first > 0, first - self.above, self.below - first)
        return np.concatenate([X, second], axis=1)

    def export(self, graph: Graph, x: str) -> str:
        """Add Slice, Where and Concat."""
        first = graph.node("Slice", x, [0], [len(self.above)], [1], [1])
        side = graph.node("Greater", first, np.float32(0))
        above, below = graph.node("Sub", first, self.above), graph.node("Sub", self.below, first)
        return graph.node("Concat", x, graph.node("Where", side, above, below), axis=1)


def _row_sparse(columns: NDArray[np.int64], values: Float64Array, n_columns: int) -> csr_array:
    n, s = columns.shape
    return csr_array(
        (values.ravel(), columns.ravel(), np.arange(0, n * s + 1, s)), shape=(n, n_columns)
    )

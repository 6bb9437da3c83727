"""Supervised hashing with kernels (KSH): codes whose inner products approximate label agreement."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cholesky, eigh, solve_triangular

from antipodal.hashers.base import SupervisedHasher
from antipodal.hashers.kernel_features import (
    check_bandwidth,
    choose_bandwidth,
)
from antipodal.hashers.operations import (
    Affine,
    GaussianKernel,
    Operation,
    SquaredDistances,
    as_signs,
)
from antipodal.hashers.pipeline import Pipeline
from antipodal.hashers.preprocessing import as_floats, draw_rows
from antipodal.hashers.registry import built_in
from antipodal.threads import one_thread
from antipodal.validation import check_random_state, check_whole

Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]

_MIN_GAIN = 1e-5  # relative gain of an iteration below which the ascent stops
_STEP_GROWTH = 1.3  # growth of the step after each iteration; backtracking halves it


@built_in
class KSH(SupervisedHasher):
    """Signs of kernel expansions: b = [Aᵀk̄(x) > 0]. [Liu2012]

        min ‖HHᵀ/r - S‖_F²,    H = sign(K̄A),  S_ij = 1 where labels agree, else -1

    with r bits, and k̄ the kernels exp(-‖x - a‖²/σ²) on anchors a, minus their means. The bits are
    learned one after another, each from the remainder of rS.

    Parameters
    ----------
    n_bits : int
        Code length.
    n_anchors : int
        Largest number of anchors, which are sampled training rows.
    n_labelled : int
        Largest number of rows to learn from; more rows are sampled, evenly from classes.
        Time grows with their number, memory with the square of the number of distinct label sets.
    bandwidth : float, optional
        σ, by default the root of the mean squared distance of rows from anchors.
    ridge : float
        ε, added to the diagonal of K̄ᵀK̄, relative to the mean of the diagonal.
    n_iter : int
        Largest number of iterations of the gradient ascent per bit. With 0 the bits are those of
        the spectral relaxation.
    random_state : int, RandomState or None
        Seed of the samples.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> KSH(n_bits=16, n_anchors=50, random_state=0).fit(X[:200], y[:200]).encode(X).shape
    (1797, 2)
    """

    mean_: Float32Array
    anchors_: Float32Array
    bandwidth_: float
    kernel_mean_: Float32Array
    projection_: Float32Array

    def __init__(
        self,
        n_bits: int = 64,
        *,
        n_anchors: int = 1000,
        n_labelled: int = 5000,
        bandwidth: float | None = None,
        ridge: float = 0.1,
        n_iter: int = 60,
        random_state: Any = None,
    ) -> None:
        self.n_bits = n_bits
        self.n_anchors = n_anchors
        self.n_labelled = n_labelled
        self.bandwidth = bandwidth
        self.ridge = ridge
        self.n_iter = n_iter
        self.random_state = random_state

    @one_thread()
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn from labels y: one class per row (n,), or multi-hot concepts (n, c)."""
        checked = self.check_fit(X)
        labels = self.check_labels(y, len(checked))
        self._check_parameters()
        rng = check_random_state(self.random_state)
        chosen = draw_rows(len(checked), self.n_labelled, rng, labels)
        rows, labels = as_floats(checked[chosen]), labels[chosen]

        self.mean_ = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        anchors = np.sort(rng.permutation(len(rows))[: self.n_anchors])
        self.anchors_ = rows[anchors].astype(np.float32)
        distances = Pipeline([SquaredDistances(self.anchors_, self.mean_)])
        squared = distances.values(rows, len(self.anchors_))
        self.bandwidth_ = choose_bandwidth(self.bandwidth, float(squared.mean(dtype=np.float64)))
        kernels = np.exp(squared / -np.float32(self.bandwidth_**2)).astype(np.float64)
        mean = kernels.mean(axis=0)
        self.kernel_mean_ = mean.astype(np.float32)
        residue = LabelResidue(labels, self.n_bits)
        A = learn_bits(kernels - mean, residue, self.ridge, self.n_iter)
        self.projection_ = A.astype(np.float32)
        return self

    def pipeline(self) -> list[Operation]:
        """Return the steps whose signs are the bits."""
        return [
            GaussianKernel(self.anchors_, 1 / self.bandwidth_**2, self.mean_),
            Affine(self.projection_, mean=self.kernel_mean_),
        ]

    def _check_parameters(self) -> None:
        check_whole(self.n_anchors, "n_anchors", 1)
        check_whole(self.n_labelled, "n_labelled", 2)
        check_whole(self.n_iter, "n_iter", 0)
        check_bandwidth(self.bandwidth)
        if not 0 < self.ridge < float("inf"):
            raise ValueError(f"ridge must be positive and finite: got {self.ridge}")


class LabelResidue:
    """R = rS - Σ bbᵀ over the learned bits b: the remainder of the labels.

    Rows with the same labels have the same row in S. Thus S = PTPᵀ, with T the similarities of
    distinct labels (classes, or sets of concepts) and P the membership of rows. R is not formed.
    """

    def __init__(self, labels: NDArray[Any], n_bits: int) -> None:
        distinct, group = np.unique(labels, axis=0, return_inverse=True)
        if labels.ndim == 1:
            similar = distinct[:, None] == distinct
        else:
            similar = distinct.astype(np.float32) @ distinct.T.astype(np.float32) > 0
        self.n_bits = n_bits
        self.n_learned = 0
        self._group = group.reshape(-1)
        self._table = np.where(similar, np.float32(n_bits), np.float32(-n_bits))  # rT
        self._bits = np.empty((n_bits, len(labels)), np.float32)

    def times(self, v: Float32Array) -> Float32Array:
        """Return Rv."""
        by_label = np.bincount(self._group, v, len(self._table)).astype(np.float32)  # Pᵀv
        B = self._bits[: self.n_learned]
        product: Float32Array = np.dot(self._table, by_label)[self._group] - (B @ v) @ B
        return product

    def form(self, Q: Float64Array) -> Float64Array:
        """Return QᵀRQ."""
        by_label = np.zeros((len(self._table), Q.shape[1]))
        np.add.at(by_label, self._group, Q)
        BQ = self._bits[: self.n_learned] @ Q
        return by_label.T @ (self._table.astype(np.float64) @ by_label) - BQ.T @ BQ

    def fit(self, b: Float32Array) -> float:
        """Return bᵀRb, which bit b should maximise: ‖R - bbᵀ‖² = ‖R‖² - 2bᵀRb + l²."""
        return float(b @ self.times(b).astype(np.float64))

    def subtract(self, b: Float32Array) -> None:
        """Update R ← R - bbᵀ."""
        self._bits[self.n_learned] = b
        self.n_learned += 1


def learn_bits(K: Float64Array, residue: LabelResidue, ridge: float, n_iter: int) -> Float64Array:
    """Return A (m, r), one column per bit, for centred kernels K (l, m). [Liu2012]

    A bit is b = sign(Ka), and a should maximise bᵀRb. Two relaxations are solved, the second
    starting from the first, and the better bit is kept:

        max (Ka)ᵀR(Ka)      subject to ‖Ka‖² = l       generalised eigenproblem of KᵀRK and KᵀK
        max φ(Ka)ᵀRφ(Ka)    φ(x) = 2/(1 + e⁻ˣ) - 1     gradient ascent

    With GGᵀ = KᵀK + εI the variables are c = Gᵀa, and K is replaced by Q = KG⁻ᵀ, which is nearly
    orthonormal: the eigenproblem becomes an ordinary one, and the ascent well conditioned.
    """
    n_rows, m = K.shape
    gram = K.T @ K
    gram[np.diag_indices(m)] += ridge * (np.trace(gram) / m or 1.0)
    G = cholesky(gram, lower=True)
    Q = solve_triangular(G, K.T, lower=True).T
    Q32 = np.ascontiguousarray(Q, dtype=np.float32)
    form = residue.form(Q)
    C = np.empty((m, residue.n_bits))
    for k in range(residue.n_bits):
        direction = leading_direction(form)
        length = float(np.linalg.norm(Q @ direction)) or 1.0  # 0 if all rows are equal
        spectral = (direction * np.sqrt(n_rows) / length).astype(np.float32)
        smooth = ascend(Q32, residue, spectral, n_iter)
        c, b = max(
            ((c, as_signs(Q32 @ c > 0)) for c in (spectral, smooth)),
            key=lambda candidate: residue.fit(candidate[1]),
        )
        C[:, k] = c
        residue.subtract(b)
        Qb = b @ Q
        form -= np.outer(Qb, Qb)
    return solve_triangular(G, C, lower=True, trans="T")


def leading_direction(form: Float64Array) -> Float64Array:
    """Return the unit vector c that maximises the quadratic form cᵀFc."""
    last = len(form) - 1
    _, vectors = eigh(form, subset_by_index=(last, last))
    direction: Float64Array = vectors[:, 0]
    return direction


def smoothed_fit(
    c: Float32Array, Q: Float32Array, residue: LabelResidue
) -> tuple[float, Float32Array]:
    """Return φᵀRφ for φ = φ(Qc), and (1 - φ²) ∘ Rφ, from which its gradient is computed.

    ∇ = Qᵀ[(1 - φ²) ∘ Rφ],    since φ' = (1 - φ²)/2
    """
    phi = np.tanh(Q @ c / 2)
    R_phi = residue.times(phi)
    return float(phi @ R_phi), (1 - phi * phi) * R_phi


def ascend(
    Q: Float32Array, residue: LabelResidue, start: Float32Array, n_iter: int
) -> Float32Array:
    """Maximise `smoothed_fit` from a start by Nesterov's accelerated gradient method.

    The step is found by backtracking. Momentum is reset when it lowers the objective.
    """
    x = point = start
    best, momentum, step = -np.inf, 1.0, 0.0
    for _ in range(n_iter):
        value, sensitivity = smoothed_fit(point, Q, residue)
        gradient = sensitivity @ Q
        slope = float(np.linalg.norm(gradient))
        if slope == 0:
            break
        step = step or float(np.linalg.norm(start)) / slope
        while True:
            new = point + np.float32(step) * gradient
            new_value, _ = smoothed_fit(new, Q, residue)
            if new_value >= value + step * slope**2 / 2:
                break
            step /= 2
            if step * slope <= 1e-6 * float(np.linalg.norm(point)):
                return x
        if new_value < best:
            point, momentum = x, 1.0
            continue
        gain = new_value - best
        next_momentum = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        point = new + np.float32((momentum - 1) / next_momentum) * (new - x)
        x, best, momentum = new, new_value, next_momentum
        if gain <= _MIN_GAIN * abs(best):
            break
        step *= _STEP_GROWTH
    return x

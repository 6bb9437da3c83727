"""LDAHash: discriminant projections that separate similar and dissimilar pairs."""

import math
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh

from antipodal.baselines.thresholds import best_cuts
from antipodal.hashers.base import SupervisedHasher
from antipodal.hashers.operations import Affine, Operation
from antipodal.hashers.preprocessing import sample_labelled
from antipodal.hashers.registry import built_in
from antipodal.paper.pairs import Pairs, sample_pairs
from antipodal.threads import one_thread
from antipodal.validation import check_random_state, check_whole

Covariances = tuple[NDArray[np.float64], NDArray[np.float64]]


@built_in
class LDAHash(SupervisedHasher):
    """Thresholded discriminant projections: b = [Pᵀ(x - μ) > t]. [Strecha2012]

    With the covariances of differences x - x′ over similar and over dissimilar pairs,

        Σ_P = E[(x - x′)(x - x′)ᵀ | similar],    Σ_N = E[(x - x′)(x - x′)ᵀ | dissimilar],

    P = Σ_P^(-1/2) V, with V the leading eigenvectors of Σ_P^(-1/2) Σ_N Σ_P^(-1/2): similar pairs
    have covariance PᵀΣ_P P = I, and dissimilar pairs the largest variances. Each t_i minimises
    the false negative plus the false positive rate of its bit over the pairs.

    With c classes only c - 1 directions separate them. Further bits add little, and many of them
    lower the retrieval quality.

    Parameters
    ----------
    n_bits : int
        Code length, at most the number of features.
    regularization : float
        Added to the diagonal of Σ_P, relative to the mean of the diagonal of Σ_N.
    n_pairs : int
        Number of sampled pairs, half of them similar, with multi-hot labels. With one class per
        row all pairs are used.
    n_samples : int
        Largest number of rows to learn from; more rows are sampled, evenly from classes.
    random_state : int, RandomState or None
        Seed of the samples of rows and pairs.
    """

    mean_: NDArray[np.float32]
    projection_: NDArray[np.float32]
    thresholds_: NDArray[np.float32]

    def __init__(
        self,
        n_bits: int = 64,
        *,
        regularization: float = 0.1,
        n_pairs: int = 100_000,
        n_samples: int = 50_000,
        random_state: Any = None,
    ) -> None:
        self.n_bits = n_bits
        self.regularization = regularization
        self.n_pairs = n_pairs
        self.n_samples = n_samples
        self.random_state = random_state

    @one_thread()
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn from labels y: one class per row (n,), or multi-hot concepts (n, c)."""
        if not 0 < self.regularization < math.inf:
            raise ValueError(
                f"regularization must be positive and finite: got {self.regularization}"
            )
        check_whole(self.n_pairs, "n_pairs", 2)
        checked = self.check_fit(X)
        n_features = checked.shape[1]
        if self.n_bits > n_features:
            raise ValueError(
                f"LDAHash needs n_bits ≤ features, one eigenvector per bit: got {self.n_bits} bits "
                f"for {n_features} feature(s)"
            )
        labels = self.check_labels(y, len(checked))
        rng = check_random_state(self.random_state)
        sample, labels = sample_labelled(checked, labels, self.n_samples, rng)
        rows = sample.astype(np.float64)
        mean = rows.mean(axis=0)
        rows -= mean
        pairs: NDArray[np.int64] | Pairs = labels
        if labels.ndim == 1:
            similar, dissimilar = covariances_of_classes(rows, labels)
        else:
            generator = np.random.default_rng(rng.randint(2**31 - 1))
            pairs = sample_pairs(labels, self.n_pairs, generator)
            similar, dissimilar = _covariances_of_pairs(rows, pairs)
        ridge = self.regularization * np.trace(dissimilar) / n_features
        if not ridge > 0:
            raise ValueError(
                f"LDAHash needs rows that differ: every dissimilar pair of the {len(rows)} "
                "training rows consists of two equal rows"
            )
        _, vectors = eigh(
            dissimilar,
            similar + ridge * np.eye(n_features),
            subset_by_index=(n_features - self.n_bits, n_features - 1),
        )
        self.mean_ = mean.astype(np.float32)
        self.projection_ = np.ascontiguousarray(vectors[:, ::-1], dtype=np.float32)
        self.thresholds_ = best_cuts(rows.astype(np.float32), self.projection_, pairs).thresholds
        return self

    def pipeline(self) -> list[Operation]:
        """Return the steps whose signs are the bits."""
        return [Affine(self.projection_, -self.thresholds_, self.mean_)]


def covariances_of_classes(rows: NDArray[np.float64], labels: NDArray[np.int64]) -> Covariances:
    """Return Σ_P and Σ_N over all pairs of rows; rows of the same class are similar.

    The outer products of the differences of all pairs of n rows sum to n times their scatter
    S = Σ_i (x_i - x̄)(x_i - x̄)ᵀ. With n_c, x̄_c and S_c of each class c,

        Σ_P ∝ Σ_c n_c S_c
        Σ_N ∝ n S - Σ_c n_c S_c = Σ_c (n - n_c) S_c + n Σ_c n_c (x̄_c - x̄)(x̄_c - x̄)ᵀ

    Rows are multiplied by the roots of their weights, which needs no loop over classes.

    Parameters
    ----------
    rows : (n, d)
    labels : (n,)
        Class numbers from 0, without gaps.
    """
    n = len(rows)
    counts = np.bincount(labels)
    order = np.argsort(labels, kind="stable")
    starts = np.cumsum(counts) - counts
    means = np.add.reduceat(rows[order], starts, axis=0) / counts[:, None]
    within = rows - means[labels]
    between = means - rows.mean(axis=0)
    similar = _scatter(within, counts[labels])
    dissimilar = _scatter(within, n - counts[labels]) + _scatter(between, n * counts)
    n_similar = (counts * (counts - 1) // 2).sum()
    return similar / n_similar, dissimilar / (n * (n - 1) // 2 - n_similar)


def _scatter(rows: NDArray[np.float64], weights: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return Σ w xxᵀ over the rows x."""
    weighted = rows * np.sqrt(weights)[:, None]
    scatter: NDArray[np.float64] = weighted.T @ weighted
    return scatter


def _covariances_of_pairs(rows: NDArray[np.float64], pairs: Pairs) -> Covariances:
    """Return Σ_P and Σ_N over listed pairs."""

    def covariance(ends: NDArray[np.int64]) -> NDArray[np.float64]:
        total = np.zeros((rows.shape[1],) * 2)
        for block in np.array_split(ends, -(-len(ends) // 10_000)):  # bounds the memory
            difference = rows[block[:, 0]] - rows[block[:, 1]]
            total += difference.T @ difference
        return total / len(ends)

    return covariance(pairs.rows[pairs.similar]), covariance(pairs.rows[~pairs.similar])

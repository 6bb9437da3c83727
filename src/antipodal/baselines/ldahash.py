"""LDAHash: projections that shrink similar pairs most against dissimilar ones."""

import math
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh
from sklearn.utils import check_random_state
from torch import Tensor

from antipodal.baselines.thresholds import best_cuts
from antipodal.hashers.base import SupervisedHasher
from antipodal.hashers.registry import built_in
from antipodal.hashers.rows import sample_labelled
from antipodal.paper.pair_sampling import ListedPairs, sample_pairs
from antipodal.threads import one_thread
from antipodal.validation import check_whole

Covariances = tuple[NDArray[np.float64], NDArray[np.float64]]


@built_in
class LDAHash(SupervisedHasher):
    """Thresholded discriminant projections: b = [Pᵀ(x - μ) > t]. [Strecha2012]

    With the covariances of differences x - x′ over similar and over dissimilar pairs,

        Σ_P = E[(x - x′)(x - x′)ᵀ | similar],    Σ_N = E[(x - x′)(x - x′)ᵀ | dissimilar],

    P holds the leading eigenvectors of Σ_P^(-1/2) Σ_N Σ_P^(-1/2), taken back by Σ_P^(-1/2): in
    them similar pairs have covariance PᵀΣ_P P = I and dissimilar ones the largest variances.
    Each t_i minimises the false negative plus the false positive rate of its bit over the pairs.

    With c classes only c - 1 directions tell them apart. The bits beyond, along directions that
    vary most, add little, and too many of them hide the others.

    Parameters
    ----------
    n_bits : int
        Length of the code, at most the number of features.
    regularization : float
        Added to the diagonal of Σ_P, as a share of the mean of the diagonal of Σ_N.
    n_pairs : int
        Pairs, half of them similar, to draw where labels are multi-hot. With one class per row
        no pair is drawn: all are counted.
    n_samples : int
        Rows to learn from, at most; where there are more, so many are drawn, evenly
        from classes.
    random_state : int, RandomState or None
        Seed of the rows and the pairs that are drawn.
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
        """Learn from labels, (n,) classes or (n, c) multi-hot: rows that share one are similar."""
        if not 0 < self.regularization < math.inf:
            raise ValueError(
                f"regularization must be positive and finite: got {self.regularization}"
            )
        check_whole(self.n_pairs, "n_pairs", 2)
        checked = self.check_fit(X)
        n_features = checked.shape[1]
        if self.n_bits > n_features:
            raise ValueError(
                f"LDAHash needs n_bits ≤ features, since it takes one eigenvector a bit: "
                f"got {self.n_bits} bits for {n_features} feature(s)"
            )
        labels = self.check_labels(y, len(checked))
        rng = check_random_state(self.random_state)
        sample, labels = sample_labelled(checked, labels, self.n_samples, rng)
        rows = sample.astype(np.float64)
        mean = rows.mean(axis=0)
        rows -= mean
        pairs: NDArray[np.int64] | ListedPairs = labels
        if labels.ndim == 1:
            similar, dissimilar = covariances_of_classes(rows, labels)
        else:
            generator = torch.Generator().manual_seed(int(rng.randint(2**31 - 1)))
            pairs = sample_pairs(torch.from_numpy(labels), self.n_pairs, generator)
            similar, dissimilar = _covariances_of_pairs(rows, pairs)
        ridge = self.regularization * np.trace(dissimilar) / n_features
        if not ridge > 0:
            raise ValueError(
                f"LDAHash needs rows that differ: all dissimilar pairs of the {len(rows)} "
                "training rows are of equal rows"
            )
        _, vectors = eigh(
            dissimilar,
            similar + ridge * np.eye(n_features),
            subset_by_index=(n_features - self.n_bits, n_features - 1),
        )
        self.mean_ = mean.astype(np.float32)
        self.projection_ = np.ascontiguousarray(vectors[:, ::-1], dtype=np.float32)
        centred = torch.from_numpy(rows.astype(np.float32))
        self.thresholds_ = best_cuts(centred, torch.from_numpy(self.projection_), pairs).thresholds
        return self

    def projector(self, max_rows: int) -> Callable[[Tensor], Tensor]:
        """Return the map to the values whose signs are the bits."""
        mean, projection = torch.from_numpy(self.mean_), torch.from_numpy(self.projection_)
        thresholds = torch.from_numpy(self.thresholds_)
        return lambda X: (X - mean) @ projection - thresholds


def covariances_of_classes(rows: NDArray[np.float64], labels: NDArray[np.int64]) -> Covariances:
    """Return Σ_P and Σ_N over all pairs of rows, which are similar if of the same class.

    The outer products of the differences of all pairs of n rows sum to n times their scatter
    S = Σ_i (x_i - x̄)(x_i - x̄)ᵀ. With n_c, x̄_c and S_c of each class c, that gives

        Σ_P ∝ Σ_c n_c S_c
        Σ_N ∝ n S - Σ_c n_c S_c = Σ_c (n - n_c) S_c + n Σ_c n_c (x̄_c - x̄)(x̄_c - x̄)ᵀ,

    without a loop over classes if each row carries the root of its weight.

    Parameters
    ----------
    rows : (n, d)
    labels : (n,)
        Class numbers from 0, none left out.
    """
    n = len(rows)
    counts = np.bincount(labels)
    order = np.argsort(labels, kind="stable")
    starts = np.cumsum(counts) - counts
    means = np.add.reduceat(rows[order], starts, axis=0) / counts[:, None]
    own = rows - means[labels]
    between = means - rows.mean(axis=0)
    similar = _scatter(own, counts[labels])
    dissimilar = _scatter(own, n - counts[labels]) + _scatter(between, n * counts)
    n_similar = (counts * (counts - 1) // 2).sum()
    return similar / n_similar, dissimilar / (n * (n - 1) // 2 - n_similar)


def _scatter(rows: NDArray[np.float64], weights: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return Σ w xxᵀ over the rows x."""
    weighted = rows * np.sqrt(weights)[:, None]
    scatter: NDArray[np.float64] = weighted.T @ weighted
    return scatter


def _covariances_of_pairs(rows: NDArray[np.float64], pairs: ListedPairs) -> Covariances:
    """Return Σ_P and Σ_N over listed pairs."""

    def covariance(ends: NDArray[np.int64]) -> NDArray[np.float64]:
        total = np.zeros((rows.shape[1],) * 2)
        for some in np.array_split(ends, -(-len(ends) // 10_000)):  # bounds the memory
            difference = rows[some[:, 0]] - rows[some[:, 1]]
            total += difference.T @ difference
        return total / len(ends)

    listed, flags = pairs.pairs.numpy(), pairs.similar.numpy()
    return covariance(listed[flags]), covariance(listed[~flags])

"""Parameter-sensitive hashing (PSH): projections and thresholds that separate dissimilar pairs."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh

from antipodal.baselines.thresholds import best_cuts, column_blocks
from antipodal.hashers.base import SupervisedHasher
from antipodal.hashers.operations import Affine, Operation
from antipodal.hashers.preprocessing import sample_labelled
from antipodal.hashers.registry import built_in
from antipodal.paper.pairs import Pairs, sample_pairs
from antipodal.threads import one_thread
from antipodal.validation import check_random_state, check_whole

_MAX_COMPONENTS = 128  # principal components among the candidates
_MAX_CANDIDATES = 2000  # candidates of largest gap that bits are selected from


@built_in
class PSH(SupervisedHasher):
    """Thresholded projections selected by labels: b = [wᵀ(x - μ) > t]. [Shakhnarovich2003]

    A useful bit agrees for similar rows and differs for dissimilar rows. Over the pairs of
    training rows, the gap of a candidate is

        g = P(same bit | similar) - P(same bit | dissimilar),

    the true positive minus the false positive rate of classifying pairs by this bit. Candidates
    are all features, the first principal components and random projections, each with the
    threshold of largest gap.

    The candidates of largest gap are nearly duplicates. Bits are therefore selected greedily, to
    maximise the separation of the Hamming distances d of similar and dissimilar pairs,

        (E[d | dissimilar] - E[d | similar]) / √(Var[d | dissimilar] + Var[d | similar]),

    whose numerator is the sum of the gaps of the bits.

    Parameters
    ----------
    n_bits : int
        Code length.
    n_projections : int
        Number of random projections among the candidates.
    n_pairs : int
        Number of sampled pairs, half of them similar, for the variances; with multi-hot labels
        also for the gaps, which otherwise use all pairs.
    n_samples : int
        Largest number of rows to learn from; more rows are sampled, evenly from classes.
    random_state : int, RandomState or None
        Seed of the samples of rows, pairs and projections.

    Attributes
    ----------
    gaps_ : (n_bits,) float64
        g of each bit, in the order of selection.
    """

    mean_: NDArray[np.float32]
    directions_: NDArray[np.float32]
    thresholds_: NDArray[np.float32]
    gaps_: NDArray[np.float64]

    def __init__(
        self,
        n_bits: int = 64,
        *,
        n_projections: int = 1000,
        n_pairs: int = 20_000,
        n_samples: int = 20_000,
        random_state: Any = None,
    ) -> None:
        self.n_bits = n_bits
        self.n_projections = n_projections
        self.n_pairs = n_pairs
        self.n_samples = n_samples
        self.random_state = random_state

    @one_thread()
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn from labels y: one class per row (n,), or multi-hot concepts (n, c)."""
        check_whole(self.n_projections, "n_projections", 0)
        check_whole(self.n_pairs, "n_pairs", 2)
        checked = self.check_fit(X)
        labels = self.check_labels(y, len(checked))
        rng = check_random_state(self.random_state)
        rows, labels = sample_labelled(checked, labels, self.n_samples, rng)
        generator = np.random.default_rng(rng.randint(2**31 - 1))
        pairs = sample_pairs(labels, self.n_pairs, generator)

        self.mean_ = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        centred = rows.astype(np.float32) - self.mean_
        directions = self._candidates(centred, rng)
        cuts = best_cuts(centred, directions, labels if labels.ndim == 1 else pairs)
        kept = np.argsort(-cuts.gaps, kind="stable")[:_MAX_CANDIDATES]
        kept = kept[np.isfinite(cuts.gaps[kept])]
        if len(kept) < self.n_bits:
            raise ValueError(
                f"PSH needs one candidate per bit: got {self.n_bits} bits, and {len(kept)} "
                "candidates that vary among the training rows. Increase n_projections"
            )
        directions, gaps = directions[:, kept], cuts.gaps[kept]
        splits = _split_pairs(centred, directions, cuts.thresholds[kept], pairs)
        chosen = _select_bits(gaps, splits, self.n_bits)
        self.directions_ = np.ascontiguousarray(directions[:, chosen])
        self.thresholds_ = cuts.thresholds[kept[chosen]]
        self.gaps_ = gaps[chosen]
        return self

    def _candidates(
        self, centred: NDArray[np.float32], rng: np.random.RandomState
    ) -> NDArray[np.float32]:
        """Return unit directions (n, m): features, principal components, random projections."""
        n_features = centred.shape[1]
        first = max(0, n_features - _MAX_COMPONENTS)
        doubles = centred.astype(np.float64)
        variances, components = eigh(doubles.T @ doubles, subset_by_index=(first, n_features - 1))
        components = components[:, variances > 1e-9 * variances[-1]]  # others are rounding
        random = rng.standard_normal((n_features, self.n_projections))
        random /= np.linalg.norm(random, axis=0)
        return np.hstack([np.eye(n_features), components[:, ::-1], random]).astype(np.float32)

    def pipeline(self) -> list[Operation]:
        """Return the steps whose signs are the bits."""
        return [Affine(self.directions_, -self.thresholds_, self.mean_)]


def _split_pairs(
    rows: NDArray[np.float32],
    directions: NDArray[np.float32],
    thresholds: NDArray[np.float32],
    pairs: Pairs,
) -> NDArray[np.float32]:
    """Return whether each bit differs on each pair, (pairs, m), minus the mean of its kind."""
    left, right = pairs.rows.T
    splits = np.empty((len(left), directions.shape[1]), np.float32)
    for block in column_blocks(directions.shape[1], len(rows)):
        bits = rows @ directions[:, block] > thresholds[block]
        splits[:, block] = bits[left] ^ bits[right]
    for kind in (pairs.similar, ~pairs.similar):
        splits[kind] -= splits[kind].mean(axis=0)
    return splits


def _select_bits(
    gaps: NDArray[np.float64], splits: NDArray[np.float32], n_bits: int
) -> NDArray[np.int64]:
    """Select n_bits bits greedily, each to maximise Σ g / √Var[Σ split]."""
    half = len(splits) / 2
    variances = np.einsum("pm,pm->m", splits, splits).astype(np.float64) / half
    distance = np.zeros(len(splits), np.float32)  # of each pair in the selected bits, centred
    gap = variance = 0.0
    free = np.ones(len(gaps), bool)
    chosen = np.empty(n_bits, np.int64)
    for i in range(n_bits):
        covariances = (distance @ splits).astype(np.float64) / half
        # The sample variance may be 0 by chance: bound it from below by that of a single pair.
        spread = np.maximum(variance + 2 * covariances + variances, 1 / half)
        j = int(np.where(free, (gap + gaps) / np.sqrt(spread), -np.inf).argmax())
        gap += gaps[j]
        variance += 2 * covariances[j] + variances[j]
        distance += splits[:, j]
        chosen[i], free[j] = j, False
    return chosen

"""Parameter-sensitive hashing: thresholds that keep similar rows together and split others."""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh
from sklearn.utils import check_random_state
from torch import Tensor

from antipodal.baselines.thresholds import best_cuts, column_blocks
from antipodal.hashers.base import SupervisedHasher
from antipodal.hashers.registry import built_in
from antipodal.hashers.rows import sample_labelled
from antipodal.paper.pair_sampling import ListedPairs, sample_pairs
from antipodal.threads import one_thread
from antipodal.validation import check_whole

_MOST_COMPONENTS = 128  # later principal components vary little and tell little
_MOST_CANDIDATES = 2000  # that bits are chosen from, those of largest gap: bounds the memory


@built_in
class PSH(SupervisedHasher):
    """Thresholded projections chosen by labels: b = [wᵀ(x - μ) > t]. [Shakhnarovich2003]

    A bit is good if it is the same for similar rows and differs for others. Over the pairs of
    training rows, the gap of a candidate is

        g = P(same bit | similar) - P(same bit | dissimilar),

    TP - FP of telling pairs apart by this bit alone. Candidates are all features, the first
    principal components and random projections, each with the threshold of largest gap.

    The candidates of largest gap are nearly copies of each other, so bits are taken one after
    the other, each time the one that sets the Hamming distances d of similar and dissimilar
    pairs furthest apart for their spread:

        (E[d | dissimilar] - E[d | similar]) / √(Var[d | dissimilar] + Var[d | similar]),

    where the numerator is the sum of the gaps of the bits.

    Parameters
    ----------
    n_bits : int
        Length of the code.
    n_projections : int
        Random projections among the candidates.
    n_pairs : int
        Pairs, half of them similar, that are drawn to measure the spread; with multi-hot
        labels also the gaps, which otherwise are those of all pairs.
    n_samples : int
        Rows to learn from, at most; where there are more, so many are drawn, evenly
        from classes.
    random_state : int, RandomState or None
        Seed of rows, projections and pairs.

    Attributes
    ----------
    gaps_ : (n_bits,) float64
        g of each bit, in the order they were chosen.
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
        """Learn from labels, (n,) classes or (n, c) multi-hot: rows that share one are similar."""
        check_whole(self.n_projections, "n_projections", 0)
        check_whole(self.n_pairs, "n_pairs", 2)
        checked = self.check_fit(X)
        labels = self.check_labels(y, len(checked))
        rng = check_random_state(self.random_state)
        rows, labels = sample_labelled(checked, labels, self.n_samples, rng)
        generator = torch.Generator().manual_seed(int(rng.randint(2**31 - 1)))
        pairs = sample_pairs(torch.from_numpy(labels), self.n_pairs, generator)

        self.mean_ = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        centred = torch.from_numpy(rows.astype(np.float32) - self.mean_)
        directions = torch.from_numpy(self._candidates(centred.numpy(), rng))
        cuts = best_cuts(centred, directions, labels if labels.ndim == 1 else pairs)
        kept = np.argsort(-cuts.gaps, kind="stable")[:_MOST_CANDIDATES]
        kept = kept[np.isfinite(cuts.gaps[kept])]
        if len(kept) < self.n_bits:
            raise ValueError(
                f"PSH needs a candidate a bit: got {self.n_bits} bits, and {len(kept)} candidates "
                "that vary among the training rows. A larger n_projections may help"
            )
        directions, gaps = directions[:, kept], cuts.gaps[kept]
        splits = _splits(centred, directions, cuts.thresholds[kept], pairs)
        chosen = _choose(gaps, splits, self.n_bits)
        self.directions_ = directions[:, chosen].contiguous().numpy()
        self.thresholds_ = cuts.thresholds[kept[chosen]]
        self.gaps_ = gaps[chosen]
        return self

    def _candidates(
        self, centred: NDArray[np.float32], rng: np.random.RandomState
    ) -> NDArray[np.float32]:
        """Return unit directions (n, m): the features, principal components, random ones."""
        n_features = centred.shape[1]
        first = max(0, n_features - _MOST_COMPONENTS)
        doubles = centred.astype(np.float64)
        variances, components = eigh(doubles.T @ doubles, subset_by_index=(first, n_features - 1))
        components = components[:, variances > 1e-9 * variances[-1]]  # the others are rounding
        random = rng.standard_normal((n_features, self.n_projections))
        random /= np.linalg.norm(random, axis=0)
        return np.hstack([np.eye(n_features), components[:, ::-1], random]).astype(np.float32)

    def projector(self, max_rows: int) -> Callable[[Tensor], Tensor]:
        """Return the map to the values whose signs are the bits."""
        mean, directions = torch.from_numpy(self.mean_), torch.from_numpy(self.directions_)
        thresholds = torch.from_numpy(self.thresholds_)
        return lambda X: (X - mean) @ directions - thresholds


def _splits(
    rows: Tensor, directions: Tensor, thresholds: NDArray[np.float32], pairs: ListedPairs
) -> Tensor:
    """Return which bits differ on which pairs, (pairs, m), centred among each kind of pair."""
    left, right = pairs.pairs.T
    splits = torch.empty(len(left), directions.shape[1])
    for block in column_blocks(directions.shape[1], len(rows)):
        bits = rows @ directions[:, block] > torch.from_numpy(thresholds[block])
        splits[:, block] = (bits[left] ^ bits[right]).float()
    for kind in (pairs.similar, ~pairs.similar):
        splits[kind] -= splits[kind].mean(dim=0)
    return splits


def _choose(gaps: NDArray[np.float64], splits: Tensor, n_bits: int) -> NDArray[np.int64]:
    """Add the bit that makes Σ g / √Var[Σ split] largest, n_bits times."""
    half = len(splits) / 2
    variances = splits.square().sum(dim=0).double().numpy() / half
    distance = torch.zeros(len(splits))  # of each pair in the bits chosen so far, centred
    gap = variance = 0.0
    free = np.ones(len(gaps), bool)
    chosen = np.empty(n_bits, np.int64)
    for i in range(n_bits):
        covariances = (distance @ splits).double().numpy() / half
        # What no drawn pair shows to vary may still vary by one pair in as many.
        spread = np.maximum(variance + 2 * covariances + variances, 1 / half)
        j = int(np.where(free, (gap + gaps) / np.sqrt(spread), -np.inf).argmax())
        gap += gaps[j]
        variance += 2 * covariances[j] + variances[j]
        distance += splits[:, j]
        chosen[i], free[j] = j, False
    return chosen

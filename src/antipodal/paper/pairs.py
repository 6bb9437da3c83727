"""Random pairs of rows with labels, half of them similar."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_MAX_DRAWS = 1000  # attempts to find dissimilar pairs


class Pairs(NamedTuple):
    """Pairs of row numbers (P, 2), and whether the rows of each are similar (P,)."""

    rows: NDArray[np.int64]
    similar: NDArray[np.bool_]


def sample_pairs(labels: NDArray[Any], n_pairs: int, rng: np.random.Generator) -> Pairs:
    """Draw pairs of rows, half of them similar, as in the paper.

    A similar pair is a random row and another row that has one of its labels. A dissimilar pair is
    any two rows without a shared label. Labels are class numbers (m,) or multi-hot concepts (m, c).
    """
    member, label = _memberships(labels)
    counts = np.bincount(label)
    starts = np.cumsum(counts) - counts
    shared = np.flatnonzero(counts[label] > 1)  # memberships of labels with several rows
    if len(shared) == 0:
        raise ValueError(
            f"labels must contain similar pairs: no two of the {len(labels)} rows share a label"
        )
    n_similar = n_pairs // 2
    first = shared[rng.integers(len(shared), size=n_similar)]
    size, start = counts[label[first]], starts[label[first]]
    second = start + (first - start + rng.integers(1, size)) % size  # another row with the label
    similar_pairs = np.stack([member[first], member[second]], axis=1)

    dissimilar_pairs: list[NDArray[np.int64]] = []
    missing = n_pairs - n_similar
    for _ in range(_MAX_DRAWS):
        if missing == 0:
            break
        drawn = rng.integers(len(labels), size=(2 * missing, 2))
        left, right = labels[drawn[:, 0]], labels[drawn[:, 1]]
        same = left == right if labels.ndim == 1 else np.logical_and(left, right).any(axis=1)
        kept = drawn[~same & (drawn[:, 0] != drawn[:, 1])][:missing]
        dissimilar_pairs.append(kept)
        missing -= len(kept)
    if missing:
        raise ValueError(
            f"found only {n_pairs - n_similar - missing} dissimilar pairs in {_MAX_DRAWS} draws: "
            f"almost all of the {len(labels)} rows share a label. Remove the most frequent label"
        )
    similar = np.arange(n_pairs) < n_similar
    return Pairs(np.concatenate([similar_pairs, *dissimilar_pairs]), similar)


def _memberships(labels: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return pairs of a row and one of its labels as two arrays, grouped by label."""
    if labels.ndim == 1:
        member = np.argsort(labels, kind="stable")
        return member, labels[member]
    label, member = np.nonzero(labels.T)
    return member, label

"""Row sampling, hold-out sets, feature moments."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.hashers.base import FloatArray
from antipodal.validation import check_labels, check_whole

_BLOCK_ENTRIES = 2**20  # entries of a block of rows: 8 MB as float64

Rng = np.random.RandomState | np.random.Generator


def draw_rows(
    n_rows: int, n_samples: int, rng: Rng, labels: NDArray[Any] | None = None
) -> NDArray[np.int64]:
    """Return the numbers of up to n_samples random rows, ascending, for sequential file access.

    Given classes (n,), the same number of rows is drawn from each class, or all of a smaller
    class: no class is lost unless there are more classes than samples. Otherwise all rows are
    equally likely.
    """
    order = rng.permutation(n_rows)
    if n_rows <= n_samples:
        return np.arange(n_rows)
    if labels is not None and labels.ndim == 1:
        by_class = order[np.argsort(labels[order], kind="stable")]
        rank = np.concatenate([np.arange(count) for count in np.bincount(labels)])
        order = by_class[np.argsort(rank, kind="stable")]
    return np.sort(order[:n_samples])


def sample_rows(rows: NDArray[Any], n_samples: int, rng: Rng) -> FloatArray:
    """Return up to n_samples rows as floats, which bounds the memory of `fit`.

    If there are no more rows than that, the generator is not used.
    """
    check_whole(n_samples, "n_samples", 2)
    if len(rows) <= n_samples:
        return as_floats(rows)
    return as_floats(rows[draw_rows(len(rows), n_samples, rng)])


def sample_labelled(
    rows: NDArray[Any], labels: NDArray[Any], n_samples: int, rng: Rng
) -> tuple[FloatArray, NDArray[Any]]:
    """Return up to n_samples rows as floats, sampled evenly from classes, and their labels."""
    check_whole(n_samples, "n_samples", 2)
    if len(rows) <= n_samples:
        return as_floats(rows), labels
    chosen = draw_rows(len(rows), n_samples, rng, labels)
    # The sample may have lost classes, or all similar pairs: check again.
    return as_floats(rows[chosen]), check_labels(labels[chosen], len(chosen))


def hold_out(
    groups: NDArray[Any], share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of training and validation rows, with the same share of each group."""
    n = len(groups)
    order = np.random.default_rng(seed).permutation(n)
    if groups.ndim == 1:  # spread each group evenly over the order
        order = order[np.argsort(groups[order], kind="stable")]
        rank = np.concatenate([np.arange(c) / c for c in np.unique(groups, return_counts=True)[1]])
        order = order[np.argsort(rank, kind="stable")]
    n_held_out = round(n * share)
    return np.sort(order[n_held_out:]), np.sort(order[:n_held_out])


def as_floats(rows: NDArray[Any]) -> FloatArray:
    """Return float32 and float64 rows unchanged, and other dtypes as float64."""
    return rows if rows.dtype in (np.float32, np.float64) else rows.astype(np.float64)


def row_blocks(rows: NDArray[Any]) -> Iterator[slice]:
    """Yield slices of rows with a bounded number of entries."""
    size = max(1, _BLOCK_ENTRIES // max(1, rows.shape[1]))
    for start in range(0, len(rows), size):
        yield slice(start, start + size)


def feature_moments(rows: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of each feature, in float64 for any dtype.

        μ = Σ x / n,    σ² = Σ (x - μ)² / n

    float32 sums of many rows far from zero would lose the digits in which the rows differ.
    """
    mean: NDArray[np.float64] = rows.mean(axis=0, dtype=np.float64)  # without a copy of the rows
    squares = np.zeros_like(mean)
    for block in row_blocks(rows):
        squares += np.square(rows[block] - mean).sum(axis=0)
    return mean, np.sqrt(squares / len(rows))


def feature_scale(mean: NDArray[Any], deviation: NDArray[Any]) -> NDArray[Any]:
    """Return the divisor of each feature: its standard deviation, or 1 if it is constant.

    The variation of a (nearly) constant feature is rounding: it is not amplified.
    """
    varies = deviation > 1e-6 * np.abs(mean).clip(min=np.finfo(np.float32).tiny)
    scale: NDArray[Any] = np.where(varies, deviation, 1.0)
    return scale

"""Labels and pairs as they are given, checked: there must be something to tell apart."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def check_labels(y: ArrayLike, n_samples: int) -> NDArray[Any]:
    """Labels as class numbers (n,) int64 or concepts (n, c) bool, or say why they cannot be.

    There must be at least one similar and one dissimilar pair among them.
    """
    labels = np.asarray(y)
    if labels.ndim not in (1, 2):
        raise ValueError(f"labels must be (n,) or multi-hot (n, c): got shape {labels.shape}")
    if len(labels) != n_samples:
        raise ValueError(f"there must be one label a row: {n_samples} rows, {len(labels)} labels")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError("labels contain NaN or infinity")
    if labels.ndim == 1:
        if labels.dtype.kind == "f":
            if (labels != np.floor(labels)).any():
                raise ValueError("Unknown label type: labels must be classes, got real numbers")
            largest = np.abs(labels).max(initial=0)
            if largest >= 2.0 ** (np.finfo(labels.dtype).nmant + 1):
                raise ValueError(
                    f"labels as large as {largest:.0f} may have been rounded, as {labels.dtype}: "
                    "pass integers"
                )
        classes, numbers = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"labels must name at least two classes: got one class, {classes[:1].tolist()}. "
                "Without dissimilar pairs all codes would become equal"
            )
        if len(classes) == n_samples:
            raise ValueError(
                f"no two of the {n_samples} labels are equal: there are no similar pairs to learn "
                "from. Are these identifiers or measurements instead of classes?"
            )
        return numbers.astype(np.int64)
    if not np.isin(labels, (0, 1)).all():
        raise ValueError("multi-hot labels must be 0 or 1: got other values")
    concepts = labels.astype(bool)
    counts = concepts.sum(axis=0)
    if counts.max(initial=0) < 2:
        raise ValueError("no two rows share a concept: there are no similar pairs to learn from")
    if (counts == n_samples).any():
        raise ValueError(
            f"every row has concept {int(np.argmax(counts == n_samples))}: all pairs are similar "
            "and all codes would become equal. Leave that concept out"
        )
    return concepts


def check_pairs(
    pairs: ArrayLike, similar: ArrayLike, n_samples: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Explicit pairs as (P, 2) row numbers and (P,) booleans, or say why they cannot be."""
    rows, flags = np.asarray(pairs), np.asarray(similar)
    if rows.ndim != 2 or rows.shape[1] != 2 or len(rows) == 0:
        raise ValueError(f"pairs must be (P, 2) with P ≥ 1: got shape {rows.shape}")
    if not np.issubdtype(rows.dtype, np.integer):
        raise TypeError(f"pairs must be row numbers, integers: got {rows.dtype}")
    if rows.min() < 0 or rows.max() >= n_samples:
        raise ValueError(
            f"pairs must be row numbers from 0 to {n_samples - 1}: "
            f"got values from {rows.min()} to {rows.max()}"
        )
    if flags.shape != (len(rows),):
        raise ValueError(f"similar must have one entry a pair, ({len(rows)},): got {flags.shape}")
    if not np.isin(flags, (0, 1)).all():
        raise ValueError("similar must be true or false (1 or 0) for each pair")
    flags = flags.astype(bool)
    if flags.all() or not flags.any():
        kind = "similar" if flags.all() else "dissimilar"
        raise ValueError(
            f"pairs must be of both kinds: all {len(rows)} are {kind}, which codes satisfy by "
            f"being {'all equal' if flags.all() else 'anything far apart'}"
        )
    return rows.astype(np.int64), flags

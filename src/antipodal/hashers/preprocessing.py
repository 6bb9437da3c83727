"""Preprocessing of training rows: samples, hold-out sets, and the scaling of features.

    y = (r(x) - μ) / σ,    r(x) = x or sign(x)·√|x|

Whether to take roots, and how to choose σ, is selected by leave-one-out error.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodal.hashers.base import FloatArray
from antipodal.hashers.operations import Affine, Operation, Root
from antipodal.validation import check_labels, check_whole

Floats = NDArray[np.floating[Any]]

_RIDGES = (0.03, 0.1, 0.3, 1.0)  # λ of the kernel ridge regression that selects a scaling


def gaussian_kernel(X: Floats, gamma: float) -> Floats:
    """Return exp(-γ‖x - x'‖²) for all pairs of rows, (m, m)."""
    lengths = np.einsum("ij,ij->i", X, X)
    K: Floats = 2 * X @ X.T
    for block in row_blocks(K):  # in place: K is the largest array of all
        squared = lengths[block, None] + lengths - K[block]
        K[block] = np.exp(-gamma * np.maximum(squared, 0))
    return K


def leave_one_out_error(X: Floats, targets: NDArray[np.bool_]) -> float:
    """Return the mean squared leave-one-out error of ±1 targets (m, c), for the best λ.

    The predictor is kernel ridge regression with γ = 1/n; rows (m, n) have mean square 1.
    """
    K = gaussian_kernel(X.astype(np.float64), 1 / X.shape[1])
    T = np.where(targets, 1.0, -1.0)
    return min(float(np.square(leave_one_out_residuals(K, T, ridge)).mean()) for ridge in _RIDGES)


def leave_one_out_residuals(K: Floats, T: Floats, ridge: float) -> Floats:
    """Return tᵢ - f₋ᵢ(xᵢ), f₋ᵢ fitted without row i, for each row and each column of T (m, c).

    f(x) = k(x)ᵀa + b, and with G = (K + λI)⁻¹ and a = GT - G1·1ᵀGT / 1ᵀG1

        tᵢ - f₋ᵢ(xᵢ) = aᵢ / (Gᵢᵢ - (G1)ᵢ² / 1ᵀG1)
    """
    from scipy.linalg.lapack import dpotrf, dpotri  # lazy: encoding does not need it

    factor, _ = dpotrf(K + ridge * np.eye(len(K)), lower=True)
    lower, _ = dpotri(factor, lower=True)  # lower triangle of the inverse, in half the time
    G = np.tril(lower) + np.tril(lower, -1).T
    sums = G.sum(axis=1)
    total = sums.sum()
    a = G @ T - np.outer(sums, sums @ T / total)
    residuals: Floats = a / (np.diag(G) - sums**2 / total)[:, None]
    return residuals


Scaling = Literal["auto", "each", "common", "root-each", "root-common", "none"]

SCALINGS: tuple[Scaling, ...] = ("auto", "each", "common", "root-each", "root-common", "none")
_CHOICES: tuple[Scaling, ...] = ("each", "common", "root-each", "root-common")
_MAX_ROWS = 1000  # rows that a scaling is selected on
_FAR = 30.0  # |mean| in standard deviations above which means are subtracted separately


class Inputs(NamedTuple):
    """Fitted preprocessing: whether to take roots, μ (n,) and σ (n,)."""

    root: bool
    mean: NDArray[np.float32]
    scale: NDArray[np.float32]


def check_scaling(scaling: str) -> None:
    """Raise ValueError unless the scaling is one of `SCALINGS`."""
    if scaling not in SCALINGS:
        raise ValueError(f"scaling must be one of {', '.join(SCALINGS)}: got {scaling!r}")


def learn_inputs(rows: NDArray[Any], scaling: Scaling) -> Inputs:
    """Learn μ and σ from rows (m, n); `scaling` must not be "auto"."""
    root = scaling.startswith("root")
    n_features = rows.shape[1]
    if scaling == "none":
        return Inputs(False, np.zeros(n_features, np.float32), np.ones(n_features, np.float32))
    mean, deviation = feature_moments(rooted(rows) if root else rows)
    if scaling.endswith("common"):
        deviation = np.full(n_features, np.sqrt(np.square(deviation).mean()))
        mean_size = np.full(n_features, np.abs(mean).mean())
    else:
        mean_size = mean
    scale = feature_scale(mean_size, deviation)
    return Inputs(root, mean.astype(np.float32), scale.astype(np.float32))


def rooted(rows: NDArray[Any]) -> NDArray[Any]:
    """Return sign(x)·√|x| of each entry."""
    roots: NDArray[Any] = np.copysign(np.sqrt(np.abs(rows)), rows)
    return roots


def scaled(rows: NDArray[Any], inputs: Inputs) -> NDArray[np.float32]:
    """Return y of each row as float32, computed in blocks and in the dtype of the rows."""
    Y = np.empty(rows.shape, np.float32)
    for block in row_blocks(rows):
        values = rooted(rows[block]) if inputs.root else rows[block]
        Y[block] = (values - inputs.mean) / inputs.scale
    return Y


def linear_steps(
    inputs: Inputs, weight: NDArray[np.float32], offset: NDArray[np.float32]
) -> list[Operation]:
    """Return the steps from x to Wy + c, with one product: W (N, n) and c (N,).

    W(r(x) - μ)/σ + c = (W/σ)·r(x) + c - (W/σ)·μ.
    """
    roots: list[Operation] = [Root()] if inputs.root else []
    weight = weight / inputs.scale
    if (np.abs(inputs.mean) > _FAR * inputs.scale).any():
        # The product would lose digits of features far from zero: subtract their mean first.
        return [*roots, Affine(weight.T, offset, inputs.mean)]
    return [*roots, Affine(weight.T, offset - weight @ inputs.mean)]


def choose_scaling(
    rows: NDArray[Any], targets: NDArray[np.bool_], rng: np.random.RandomState
) -> Scaling:
    """Return the scaling with the least leave-one-out error, on up to 1,000 rows.

    `targets` has one column per class or concept. If errors are equal, as with and without roots
    of features that are all 0 or 1, the first of `_CHOICES` is returned.
    """
    if len(rows) > _MAX_ROWS:
        chosen = np.sort(rng.permutation(len(rows))[:_MAX_ROWS])
        rows, targets = rows[chosen], targets[chosen]

    def error(scaling: Scaling) -> float:
        return leave_one_out_error(scaled(rows, learn_inputs(rows, scaling)), targets)

    return min(_CHOICES, key=error)


_BLOCK_ENTRIES = 2**20  # entries of a block of rows: 8 MB as float64

Rng = np.random.RandomState | np.random.Generator


def draw_rows(
    n_rows: int, n_samples: int, rng: Rng, labels: NDArray[Any] | None = None
) -> NDArray[np.int64]:
    """Return the numbers of up to n_samples random rows, ascending, for sequential file access.

    Given classes (n,), the same number of rows is drawn from each class, or all of a smaller
    class. No class is lost unless there are more classes than samples. Without classes, all rows
    are equally likely.
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

    In float32, sums of many rows far from zero would lose the digits in which rows differ.
    """
    mean: NDArray[np.float64] = rows.mean(axis=0, dtype=np.float64)  # without a copy of the rows
    squares = np.zeros_like(mean)
    for block in row_blocks(rows):
        squares += np.square(rows[block] - mean).sum(axis=0)
    return mean, np.sqrt(squares / len(rows))


def feature_scale(mean: NDArray[Any], deviation: NDArray[Any]) -> NDArray[Any]:
    """Return the divisor of each feature: its standard deviation, or 1 if it is constant.

    The variation of a nearly constant feature is rounding, which must not be amplified.
    """
    varies = deviation > 1e-6 * np.abs(mean).clip(min=np.finfo(np.float32).tiny)
    scale: NDArray[Any] = np.where(varies, deviation, 1.0)
    return scale

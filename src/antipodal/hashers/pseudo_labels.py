"""Class probabilities of a kernel SVM, as pseudo-labels for unlabelled rows."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, softmax
from sklearn.svm import SVC
from torch import Tensor

from antipodal.hashers.base import block_rows, map_blocks
from antipodal.hashers.preprocessing import gaussian_kernel
from antipodal.hashers.rows import draw_rows

Floats = NDArray[np.floating[Any]]

_FOLDS = 5


class SVM(NamedTuple):
    """A fitted classifier of n features and c classes, with m support vectors."""

    support: NDArray[np.float32]  # (m, n)
    weights: NDArray[np.float32]  # (m, c): t·a
    offsets: NDArray[np.float32]  # (c,): t·b + o
    gamma: float
    multilabel: bool


def fit_svm(
    X: Floats,
    labels: NDArray[Any],
    C: float,
    gamma: float | None,
    rng: np.random.RandomState,
) -> SVM:
    """Fit to scaled rows (m, n) and labels, classes 0 … c - 1 (m,) or concepts (m, c).

    gamma=None is 1/n. The slope and the offsets come from cross-validation in five folds.
    """
    X = X.astype(np.float64)
    gamma = 1 / X.shape[1] if gamma is None else gamma
    multilabel = labels.ndim == 2
    Y = label_table(labels)
    K = gaussian_kernel(X, gamma)
    fold = _folds(labels, rng)
    held_out = np.empty(Y.shape)
    for k in range(_FOLDS):
        train, test = np.flatnonzero(fold != k), np.flatnonzero(fold == k)
        a, b = _machines(K[np.ix_(train, train)], Y[train], C)
        held_out[test] = K[np.ix_(test, train)] @ a + b
    t, o = _calibrate(held_out, Y, multilabel=multilabel)
    a, b = _machines(K, Y, C)
    used = np.flatnonzero(np.abs(a).max(axis=1))
    return SVM(
        support=X[used].astype(np.float32),
        weights=(t * a[used]).astype(np.float32),
        offsets=(t * b + o).astype(np.float32),
        gamma=float(gamma),
        multilabel=multilabel,
    )


def svm_probabilities(svm: SVM, max_rows: int) -> Callable[[Tensor], Tensor]:
    """Return the map (m, n) -> (m, c), for up to max_rows scaled rows."""
    S, weights, offsets = (torch.from_numpy(array) for array in svm[:3])
    gamma = svm.gamma
    # -γ‖z - s‖² = 2γ z·s - γ‖s‖² - γ‖z‖²
    doubled, lengths = 2 * gamma * S.T, -gamma * S.square().sum(dim=1)
    work = torch.empty(max_rows, len(S))

    def probabilities(Z: Tensor) -> Tensor:
        length = Z.square().sum(dim=1, keepdim=True)
        K = torch.addmm(lengths, Z, doubled, out=work[: len(Z)])
        K.sub_(gamma * length).clamp_(max=0).exp_()
        f = torch.addmm(offsets, K, weights)
        return f.sigmoid() if svm.multilabel else f.softmax(dim=1)

    return probabilities


def label_table(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which row has which class or concept, (m, c), of classes (m,) or concepts (m, c)."""
    if labels.ndim == 2:
        return labels.astype(bool)
    table: NDArray[np.bool_] = labels[:, None] == np.arange(labels.max() + 1)
    return table


def _machines(K: Floats, Y: NDArray[np.bool_], C: float) -> tuple[Floats, Floats]:
    """Dual coefficients a (m, c) and intercepts b (c,) of a machine for each column of Y."""
    a, b = np.zeros(Y.shape), np.empty(Y.shape[1])
    for c, y in enumerate(Y.T):
        if y.all() or not y.any():
            b[c] = 1.0 if y.all() else -1.0  # nothing to tell apart
            continue
        machine = SVC(C=C, kernel="precomputed").fit(K, y)
        a[machine.support_, c], b[c] = machine.dual_coef_[0], machine.intercept_[0]
    return a, b


def _folds(labels: NDArray[Any], rng: np.random.RandomState) -> NDArray[np.int64]:
    """Deal the rows out to the folds at random, those of a class evenly."""
    order = rng.permutation(len(labels))
    if labels.ndim == 1:
        order = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(len(labels), np.int64)
    fold[order] = np.arange(len(labels)) % _FOLDS
    return fold


def _calibrate(F: Floats, Y: NDArray[np.bool_], *, multilabel: bool) -> tuple[float, Floats]:
    """Slope t ≥ 0 and offsets o that make probabilities of F likely, the mean log-loss least.

    A little weight on o² decides where the rows do not: a class that is never, or always, there.
    """
    n, c = Y.shape

    def loss(parameters: Floats) -> tuple[float, Floats]:
        t, o = parameters[0], parameters[1:]
        S = t * F + o
        if multilabel:
            likelihood = -np.logaddexp(0, np.where(Y, -S, S)).sum()
            gap = expit(S) - Y
        else:
            likelihood = log_softmax(S, axis=1)[Y].sum()
            gap = softmax(S, axis=1) - Y
        value = -likelihood / n + 1e-3 * (o @ o)
        gradient = np.concatenate([[(gap * F).sum() / n], gap.sum(axis=0) / n + 2e-3 * o])
        return float(value), gradient

    start = np.concatenate([[1.0], np.zeros(c)])
    bounds = [(0.0, None), *[(None, None)] * c]
    best = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    return float(best[0]), best[1:]


Float32Array = NDArray[np.float32]

_MOST_LABELLED = 5000  # rows that the machines are fitted to: their memory grows with the square
_FEWEST_A_CLASS = 3  # labelled rows, on average, that probabilities can be calibrated with
_PENALTY = 5.0  # C of the machines, as in `ClassifierLSH`
_NEAREST, _SHARE = 10, 0.25
_BLOCK_ROWS = 1024


def can_teach(labels: NDArray[Any]) -> bool:
    """Return whether labels are enough to calibrate probabilities; if not, warn that they are not.

    Without a teacher a network learns from the labelled rows alone.
    """
    table = label_table(labels)
    n_classes = int(table.any(axis=0).sum())
    if table.sum() >= _FEWEST_A_CLASS * n_classes:
        return True
    warnings.warn(
        f"{len(labels)} labelled rows of {n_classes} classes are too few to calibrate a classifier "
        "with: the rows without labels are not used",
        UserWarning,
        stacklevel=4,
    )
    return False


def beliefs(
    labelled: Float32Array,
    labels: NDArray[Any],
    unlabelled: Float32Array,
    rng: np.random.RandomState,
) -> Float32Array:
    """Return p of all rows, the labelled ones first, (l + u, c); rows are scaled."""
    known = label_table(labels).astype(np.float32)
    shown = draw_rows(len(labelled), _MOST_LABELLED, rng, labels)
    teacher = fit_svm(labelled[shown], labels[shown], _PENALTY, None, rng)
    believed = np.empty((len(unlabelled), known.shape[1]), np.float32)
    believed[:, len(teacher.offsets) :] = 0.0  # classes that no shown row is of
    probabilities = svm_probabilities(teacher, block_rows(len(unlabelled)))
    for start, values in map_blocks(probabilities, unlabelled):
        believed[start : start + len(values), : values.shape[1]] = values
    means = _mean_of_nearest(
        unlabelled,
        np.concatenate([unlabelled, labelled[shown]]),
        np.concatenate([believed, known[shown]]),
    )
    believed += _SHARE * (means - believed)
    return np.concatenate([known, believed])


def sharpened(p: Float32Array, power: float, *, exclusive: bool) -> Float32Array:
    """Return p^a, of classes over its sum, of concepts over p^a + (1 - p)^a: surer for a > 1."""
    if power == 1:
        return p
    raised = np.power(p, np.float32(power))
    total = raised.sum(axis=1, keepdims=True)
    if not exclusive:
        total = raised + np.power(1 - p, np.float32(power))
    surer: Float32Array = raised / total
    return surer


def _mean_of_nearest(
    queries: Float32Array, rows: Float32Array, values: Float32Array
) -> Float32Array:
    """Return the mean value of the rows nearest to each query.

    The queries are the first rows: a query does not count among those nearest to itself.
    """
    index = faiss.IndexFlatL2(rows.shape[1])
    index.add(rows)
    n_nearest = min(_NEAREST, len(rows) - 1)
    means = np.empty((len(queries), values.shape[1]), np.float32)
    for start in range(0, len(queries), _BLOCK_ROWS):
        block = queries[start : start + _BLOCK_ROWS]
        _, found = index.search(block, n_nearest + 1)
        others = found != np.arange(start, start + len(block))[:, None]
        others[:, -1] &= ~others.all(axis=1)  # one too many where many rows are equal to the query
        total = np.einsum("qk,qkc->qc", others.astype(np.float32), values[found])
        means[start : start + len(block)] = total / n_nearest
    return means

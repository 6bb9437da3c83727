"""Class probabilities from support vector machines with a Gaussian kernel, kept as arrays.

    f_c(x) = Σ_i a_ic exp(-γ‖x - s_i‖²) + b_c     one machine a class, it against the others
    p(x)   = softmax(t·f(x) + o)                  the slope t and offsets o fitted on f of rows
                                                  that the machines were not trained on

Where a row may have several labels, the softmax is a sigmoid, a label at a time. x is scaled
already: see `antipodal.hashers.parts.inputs`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, softmax
from sklearn.svm import SVC
from torch import Tensor

from antipodal.hashers.parts.ridge import gaussian_kernel

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

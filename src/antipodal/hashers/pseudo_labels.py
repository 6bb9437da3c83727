"""Class probabilities of a kernel SVM, and pseudo-labels for unlabelled rows.

Each class or concept has an SVM with the Gaussian kernel k(x, s) = exp(-γ‖x - s‖²) on support
vectors s. Probabilities are calibrated with a common slope t and one offset o per class (Platt
scaling):

    f(x) = Σ_s a_s k(x, s) + b
    p(x) = softmax(t·f(x) + o)             classes
    p(x) = sigmoid(t·f(x) + o)             concepts
"""

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodal.hashers.operations import Affine, Each, GaussianKernel, Operation, Softmax
from antipodal.hashers.pipeline import Pipeline
from antipodal.hashers.preprocessing import draw_rows, gaussian_kernel

Floats = NDArray[np.floating[Any]]
Float32Array = NDArray[np.float32]

_N_FOLDS = 5  # of the cross-validation that calibrates probabilities
_MAX_LABELLED = 5000  # labelled rows for the SVM, whose memory grows with their square
_MIN_PER_CLASS = 3  # labelled rows, on average, that calibration needs
_PENALTY = 5.0  # C of the SVM, as in `ClassifierLSH`
_N_NEAREST, _SHARE = 10, 0.25  # neighbours that pseudo-labels are averaged with, and their weight
_BLOCK_ROWS = 1024


class SVM(NamedTuple):
    """Fitted classifier of n features and c classes or concepts, with m support vectors."""

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
    """Fit an SVM to scaled rows (m, n) and labels: classes 0 … c - 1 (m,) or concepts (m, c).

    gamma=None is 1/n. The slope and the offsets are fitted to out-of-fold values of f.
    """
    X = X.astype(np.float64)
    gamma = 1 / X.shape[1] if gamma is None else gamma
    multilabel = labels.ndim == 2
    Y = label_table(labels)
    K = gaussian_kernel(X, gamma)
    fold = _folds(labels, rng)
    F = np.empty(Y.shape)
    for k in range(_N_FOLDS):
        train, test = np.flatnonzero(fold != k), np.flatnonzero(fold == k)
        a, b = _machines(K[np.ix_(train, train)], Y[train], C)
        F[test] = K[np.ix_(test, train)] @ a + b
    t, o = _calibrate(F, Y, multilabel=multilabel)
    a, b = _machines(K, Y, C)
    used = np.flatnonzero(np.abs(a).max(axis=1))
    return SVM(
        support=X[used].astype(np.float32),
        weights=(t * a[used]).astype(np.float32),
        offsets=(t * b + o).astype(np.float32),
        gamma=float(gamma),
        multilabel=multilabel,
    )


def svm_probabilities(svm: SVM) -> list[Operation]:
    """Return the steps from scaled rows (m, n) to probabilities (m, c)."""
    return [
        GaussianKernel(svm.support, svm.gamma),
        Affine(svm.weights, svm.offsets),
        Each("Sigmoid") if svm.multilabel else Softmax(),
    ]


def label_table(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Return multi-hot labels (m, c) of class numbers (m,) or concepts (m, c)."""
    if labels.ndim == 2:
        return labels.astype(bool)
    table: NDArray[np.bool_] = labels[:, None] == np.arange(labels.max() + 1)
    return table


def _machines(K: Floats, Y: NDArray[np.bool_], C: float) -> tuple[Floats, Floats]:
    """Return dual coefficients a (m, c) and intercepts b (c,), one SVM per column of Y."""
    from sklearn.svm import SVC  # lazy: encoding does not need it

    a, b = np.zeros(Y.shape), np.empty(Y.shape[1])
    for c, y in enumerate(Y.T):
        if y.all() or not y.any():
            b[c] = 1.0 if y.all() else -1.0  # no boundary to learn
            continue
        machine = SVC(C=C, kernel="precomputed").fit(K, y)
        a[machine.support_, c], b[c] = machine.dual_coef_[0], machine.intercept_[0]
    return a, b


def _folds(labels: NDArray[Any], rng: np.random.RandomState) -> NDArray[np.int64]:
    """Return a random fold number of each row, with classes spread evenly over the folds."""
    order = rng.permutation(len(labels))
    if labels.ndim == 1:
        order = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(len(labels), np.int64)
    fold[order] = np.arange(len(labels)) % _N_FOLDS
    return fold


def _calibrate(F: Floats, Y: NDArray[np.bool_], *, multilabel: bool) -> tuple[float, Floats]:
    """Return the slope t ≥ 0 and the offsets o that minimise the mean log-loss + 10⁻³‖o‖².

    The second term determines the offset of a class that no row, or every row, belongs to.
    """
    from scipy.optimize import minimize  # lazy: encoding does not need it
    from scipy.special import expit, log_softmax, softmax

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


def enough_labels(labels: NDArray[Any]) -> bool:
    """Return whether the labels suffice to calibrate probabilities; warn if they do not.

    With too few labels a network learns from the labelled rows alone.
    """
    table = label_table(labels)
    n_classes = int(table.any(axis=0).sum())
    if table.sum() >= _MIN_PER_CLASS * n_classes:
        return True
    warnings.warn(
        f"{len(labels)} labelled rows of {n_classes} classes are too few to calibrate a "
        f"classifier, which needs {_MIN_PER_CLASS} per class: the unlabelled rows are not used",
        UserWarning,
        stacklevel=4,
    )
    return False


def pseudo_labels(
    labelled: Float32Array,
    labels: NDArray[Any],
    unlabelled: Float32Array,
    rng: np.random.RandomState,
) -> Float32Array:
    """Return class probabilities of all scaled rows, the labelled ones first, (l + u, c).

    Labelled rows have their labels. The probabilities p of unlabelled rows are those of an SVM,
    smoothed over the 10 nearest labelled or unlabelled rows: ¾p + ¼ of their mean.
    """
    known = label_table(labels).astype(np.float32)
    chosen = draw_rows(len(labelled), _MAX_LABELLED, rng, labels)
    svm = fit_svm(labelled[chosen], labels[chosen], _PENALTY, None, rng)
    predicted = np.empty((len(unlabelled), known.shape[1]), np.float32)
    predicted[:, len(svm.offsets) :] = 0.0  # classes without a chosen row
    n_known = len(svm.offsets)
    predicted[:, :n_known] = Pipeline(svm_probabilities(svm)).values(unlabelled, n_known)
    means = _mean_of_nearest(
        unlabelled,
        np.concatenate([unlabelled, labelled[chosen]]),
        np.concatenate([predicted, known[chosen]]),
    )
    predicted += _SHARE * (means - predicted)
    return np.concatenate([known, predicted])


def sharpen(p: Float32Array, power: float, *, exclusive: bool) -> Float32Array:
    """Return probabilities raised to a power and normalised: closer to 0 and 1 for powers above 1.

    p^a / Σ_c p_c^a for exclusive classes, p^a / (p^a + (1 - p)^a) for concepts.
    """
    if power == 1:
        return p
    raised = np.power(p, np.float32(power))
    total = raised.sum(axis=1, keepdims=True)
    if not exclusive:
        total = raised + np.power(1 - p, np.float32(power))
    sharper: Float32Array = raised / total
    return sharper


def _mean_of_nearest(
    queries: Float32Array, rows: Float32Array, values: Float32Array
) -> Float32Array:
    """Return the mean value of the rows nearest to each query.

    The queries are the first rows; a query is not its own neighbour.
    """
    import faiss  # lazy: encoding does not need it

    index = faiss.IndexFlatL2(rows.shape[1])
    index.add(rows)
    n_nearest = min(_N_NEAREST, len(rows) - 1)
    means = np.empty((len(queries), values.shape[1]), np.float32)
    for start in range(0, len(queries), _BLOCK_ROWS):
        block = queries[start : start + _BLOCK_ROWS]
        _, found = index.search(block, n_nearest + 1)
        others = found != np.arange(start, start + len(block))[:, None]
        # If many rows equal the query, it may be missing from the result: drop the last neighbour.
        others[:, -1] &= ~others.all(axis=1)
        total = np.einsum("qk,qkc->qc", others.astype(np.float32), values[found])
        means[start : start + len(block)] = total / n_nearest
    return means

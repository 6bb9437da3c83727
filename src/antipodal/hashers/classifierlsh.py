"""Codes of class probabilities: a kernel SVM, then random projections of its probabilities."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.hashers.base import SupervisedHasher
from antipodal.hashers.operations import Affine, Operation, Standardise
from antipodal.hashers.pipeline import Pipeline
from antipodal.hashers.preprocessing import (
    Scaling,
    check_scaling,
    choose_scaling,
    learn_inputs,
    sample_labelled,
    scaled,
)
from antipodal.hashers.pseudo_labels import SVM, fit_svm, label_table, svm_probabilities
from antipodal.hashers.registry import built_in
from antipodal.threads import one_thread
from antipodal.validation import check_random_state


class ClassifierHasher(SupervisedHasher):
    """Base of `ClassifierLSH` and `OneHotHash`: an SVM, then a code of its class probabilities."""

    root_: bool
    mean_: NDArray[np.float32]
    scale_: NDArray[np.float32]
    support_: NDArray[np.float32]
    weights_: NDArray[np.float32]
    offsets_: NDArray[np.float32]
    gamma_: float
    multilabel_: bool

    def __init__(
        self, n_bits: int = 64, *, C: float = 5.0, gamma: float | None = None,
        scaling: Scaling = "auto", n_samples: int = 8000, random_state: Any = None,
    ) -> None:  # fmt: skip
        self.n_bits = n_bits
        self.C = C
        self.gamma = gamma
        self.scaling = scaling
        self.n_samples = n_samples
        self.random_state = random_state

    @abstractmethod
    def _fit_code(self, probabilities: NDArray[np.float32], rng: np.random.RandomState) -> None:
        """Learn the code from the class probabilities of the training rows."""

    @abstractmethod
    def _code(self) -> Operation:
        """Return the step from probabilities (m, c) to values whose signs are the bits."""

    @one_thread()
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn from labels y: one class per row (m,), or multi-hot concepts (m, c)."""
        checked = self.check_fit(X)
        labels = self.check_labels(y, len(checked))
        for name in ("C", "gamma"):
            value = getattr(self, name)
            if not (name == "gamma" and value is None) and not 0 < value < float("inf"):
                raise ValueError(f"{name} must be positive and finite: got {value}")
        check_scaling(self.scaling)
        rng = check_random_state(self.random_state)
        rows, labels = sample_labelled(checked, labels, self.n_samples, rng)
        scaling = self.scaling
        if scaling == "auto":
            scaling = choose_scaling(rows, label_table(labels), rng)
        inputs = learn_inputs(rows, scaling)
        svm = fit_svm(scaled(rows, inputs), labels, self.C, self.gamma, rng)
        self.root_, self.mean_, self.scale_ = inputs
        self.support_, self.weights_, self.offsets_ = svm[:3]
        self.gamma_, self.multilabel_ = svm.gamma, svm.multilabel
        self._fit_code(self.class_probabilities(rows), rng)
        return self

    def class_probabilities(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return the probability of each class or concept, (m, c), classes in sorted order.

        The ranking by their inner products is an upper bound for codes computed from them:
        `antipodal.evaluation.float_ranking.evaluate_floats` computes its metrics.
        """
        rows = self._check_rows(X)
        return Pipeline(self._probabilities()).values(rows, len(self.offsets_))

    def _probabilities(self) -> list[Operation]:
        svm = SVM(self.support_, self.weights_, self.offsets_, self.gamma_, self.multilabel_)
        scale = Standardise(self.mean_, self.scale_, root=self.root_)
        return [scale, *svm_probabilities(svm)]

    def restore_state(self, fitted: Mapping[str, Any]) -> None:
        """Set the fitted attributes; files of versions before 0.3 have no `root_`."""
        super().restore_state({"root_": False, **fitted})

    def pipeline(self) -> list[Operation]:
        """Return the steps whose signs are the bits."""
        return [*self._probabilities(), self._code()]


@built_in
class ClassifierLSH(ClassifierHasher):
    """Signs of random projections of class probabilities: b = [Rᵀ(p - p̄) > 0]. [Sablayrolles2017]

    p are the class probabilities of a kernel SVM, p̄ their mean over the training rows, and R is
    Gaussian.

    Parameters
    ----------
    n_bits : int
        Code length.
    C : float
        Penalty of training errors of the SVM.
    gamma : float, optional
        γ of its kernel exp(-γ‖x - s‖²) on scaled features, by default 1 / number of features.
    scaling : str
        Scaling of the features, as for `DeepLinf`.
    n_samples : int
        Largest number of rows to learn from; more rows are sampled, evenly from classes. Memory
        grows with the square of their number.
    random_state : int, RandomState or None
        Seed of the sample, of the calibration folds and of the projections.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> ClassifierLSH(n_bits=32, random_state=0).fit(X[:200], y[:200]).encode(X).shape
    (1797, 4)
    """

    mean_probabilities_: NDArray[np.float32]
    hyperplanes_: NDArray[np.float32]

    def _fit_code(self, probabilities: NDArray[np.float32], rng: np.random.RandomState) -> None:
        self.mean_probabilities_ = probabilities.mean(axis=0)
        normals = rng.standard_normal((probabilities.shape[1], self.n_bits))
        self.hyperplanes_ = normals.astype(np.float32)

    def _code(self) -> Operation:
        return Affine(self.hyperplanes_, mean=self.mean_probabilities_)

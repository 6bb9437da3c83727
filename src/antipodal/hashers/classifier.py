"""Codes that only say what a classifier predicts: what supervised hashing has to beat.

Where labels say what is relevant, and queries are of the classes seen in training, a classifier
already solves the problem, and any code of its output is a supervised hash. [Sablayrolles2017]
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from torch import Tensor

from antipodal.hashers.base import SupervisedHasher
from antipodal.hashers.svm import SVM, fit_svm, svm_probabilities

_BLOCK_ROWS = 4096


class ClassifierHasher(SupervisedHasher):
    """Base of the two: a support vector machine, then a code of its class probabilities."""

    mean_: NDArray[np.float32]
    scale_: NDArray[np.float32]
    support_: NDArray[np.float32]
    weights_: NDArray[np.float32]
    offsets_: NDArray[np.float32]
    gamma_: float
    multilabel_: bool

    def __init__(
        self, n_bits: int = 64, *, C: float = 5.0, gamma: float | None = None,
        random_state: Any = None,
    ) -> None:  # fmt: skip
        self.n_bits = n_bits
        self.C = C
        self.gamma = gamma
        self.random_state = random_state

    @abstractmethod
    def _fit_code(self, probabilities: NDArray[np.float32], rng: np.random.RandomState) -> None:
        """Choose the code, given the class probabilities of the training rows."""

    @abstractmethod
    def _code(self) -> Callable[[Tensor], Tensor]:
        """Return the map from probabilities (m, c) to values whose signs are the bits."""

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn to predict y: a class a row (m,), or multi-hot concepts (m, c)."""
        rows = self._check_fit(X)
        labels = self._check_labels(y, len(rows))
        for name in ("C", "gamma"):
            value = getattr(self, name)
            if not (name == "gamma" and value is None) and not 0 < value < float("inf"):
                raise ValueError(f"{name} must be positive and finite: got {value}")
        rng = check_random_state(self.random_state)
        svm = fit_svm(rows, labels, self.C, self.gamma, rng)
        self.mean_, self.scale_, self.support_, self.weights_, self.offsets_ = svm[:5]
        self.gamma_, self.multilabel_ = svm.gamma, svm.multilabel
        self._fit_code(self.class_probabilities(rows), rng)
        return self

    def class_probabilities(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return the probability of each class or concept, (m, c), classes in sorted order.

        Their inner products rank a database as well as the classifier can; a code of them does
        not do better. `antipodal.ceiling.evaluate_floats` scores that ranking.
        """
        rows = self._check_rows(X)
        found = np.empty((len(rows), len(self.offsets_)), np.float32)
        size = min(len(rows), _BLOCK_ROWS)
        probabilities = self._probabilities(size)
        for start in range(0, len(rows), size):
            block = np.array(rows[start : start + size], np.float32)
            found[start : start + size] = probabilities(torch.from_numpy(block)).numpy()
        if not np.isfinite(found).all():
            raise ValueError("X contains NaN, infinity or a value too large for float32")
        return found

    def _probabilities(self, max_rows: int) -> Callable[[Tensor], Tensor]:
        svm = SVM(
            self.mean_, self.scale_, self.support_, self.weights_, self.offsets_,
            self.gamma_, self.multilabel_,
        )  # fmt: skip
        return svm_probabilities(svm, max_rows)

    def _projector(self, max_rows: int) -> Callable[[Tensor], Tensor]:
        probabilities, code = self._probabilities(max_rows), self._code()
        return lambda X: code(probabilities(X))


class OneHotHash(ClassifierHasher):
    """The predicted class as a code, the same for all rows of a class. [Sablayrolles2017]

    With at least as many bits as classes, each class has ⌊n_bits / c⌋ bits of its own, which are
    set where it is predicted: any two classes are equally far apart, and more bits put them
    further apart. Left-over bits are 0. With fewer bits, the code is the number of the class in
    binary, repeated. Concepts (multi-hot y) are each predicted or not, at least one of them; with
    fewer bits than concepts only the most probable one is.

    Parameters
    ----------
    n_bits : int
        Length of the code, at least ⌈log₂ c⌉.
    C : float
        Weight of training errors against the margin of the support vector machine.
    gamma : float, optional
        γ of its kernel exp(-γ‖x - s‖²) on standardised features; by default 1 / their number.
    random_state : int, RandomState or None
        Seed of the folds in which probabilities are calibrated.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> OneHotHash(8, random_state=0).fit(X, y).transform(X[[0, 50, 100]])
    array([[1, 0, 0, 1, 0, 0, 0, 0],
           [0, 1, 0, 0, 1, 0, 0, 0],
           [0, 0, 1, 0, 0, 1, 0, 0]], dtype=uint8)
    """

    codewords_: NDArray[np.float32]

    def _fit_code(self, probabilities: NDArray[np.float32], rng: np.random.RandomState) -> None:
        n_classes = probabilities.shape[1]
        if 2**self.n_bits < n_classes:
            raise ValueError(
                f"OneHotHash needs a code for every class: {self.n_bits} bit(s) make "
                f"{2**self.n_bits} codes, and y has {n_classes} classes"
            )
        if self.n_bits >= n_classes:
            word = np.eye(n_classes, dtype=np.int64)
        else:
            length = (n_classes - 1).bit_length()
            word = np.arange(n_classes)[:, None] >> np.arange(length)[::-1] & 1
        repeated = np.tile(word, self.n_bits // word.shape[1])
        self.codewords_ = np.zeros((n_classes, self.n_bits), np.float32)
        self.codewords_[:, : repeated.shape[1]] = repeated

    def _code(self) -> Callable[[Tensor], Tensor]:
        codewords = torch.from_numpy(self.codewords_)
        several = self.multilabel_ and self.n_bits >= len(codewords)

        def code(P: Tensor) -> Tensor:
            predicted = torch.zeros_like(P).scatter_(1, P.argmax(dim=1, keepdim=True), 1.0)
            if several:
                predicted = torch.maximum(predicted, (P > 0.5).float())
            return predicted @ codewords - 0.5 + 0 * P[:, :1]  # NaN stays NaN

        return code


class ClassifierLSH(ClassifierHasher):
    """Signs of random projections of class probabilities: b = [Rᵀ(p - p̄) > 0]. [Sablayrolles2017]

    p̄ is the mean over the training rows, R is Gaussian.

    Parameters
    ----------
    n_bits : int
        Length of the code.
    C : float
        Weight of training errors against the margin of the support vector machine.
    gamma : float, optional
        γ of its kernel exp(-γ‖x - s‖²) on standardised features; by default 1 / their number.
    random_state : int, RandomState or None
        Seed of the projections, and of the folds in which probabilities are calibrated.
    """

    mean_probabilities_: NDArray[np.float32]
    hyperplanes_: NDArray[np.float32]

    def _fit_code(self, probabilities: NDArray[np.float32], rng: np.random.RandomState) -> None:
        self.mean_probabilities_ = probabilities.mean(axis=0)
        normals = rng.standard_normal((probabilities.shape[1], self.n_bits))
        self.hyperplanes_ = normals.astype(np.float32)

    def _code(self) -> Callable[[Tensor], Tensor]:
        mean = torch.from_numpy(self.mean_probabilities_)
        hyperplanes = torch.from_numpy(self.hyperplanes_)
        return lambda P: (P - mean) @ hyperplanes

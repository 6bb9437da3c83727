"""One-hot code: the predicted class, repeated."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipodal.hashers.classifierlsh import ClassifierHasher
from antipodal.hashers.registry import built_in


@built_in
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
        γ of its kernel exp(-γ‖x - s‖²) on scaled features; by default 1 / their number.
    scaling : str
        How features are scaled first, as `DeepLinf` explains.
    n_samples : int
        Rows to learn from, at most; where there are more, so many are drawn, evenly
        from classes. Memory grows with their square.
    random_state : int, RandomState or None
        Seed of the rows that are drawn, and of the folds in which probabilities are calibrated.

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
            return predicted @ codewords - 0.5

        return code

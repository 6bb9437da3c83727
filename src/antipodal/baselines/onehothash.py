"""One-hot codes of the predicted class."""

import numpy as np
from numpy.typing import NDArray

from antipodal.hashers.classifierlsh import ClassifierHasher
from antipodal.hashers.operations import Array, Graph, Operation, Workspace, check_width, product
from antipodal.hashers.registry import built_in


@built_in
class OneHotHash(ClassifierHasher):
    """One code per predicted class: b = codeword of argmax_c p_c(x). [Sablayrolles2017]

    p are the class probabilities of a kernel SVM. With at least as many bits as classes, each of
    the c classes has its own ⌊n_bits / c⌋ bits, so any two codewords have the same distance.
    Remaining bits are 0. With fewer bits, the codeword is the class number in binary, repeated.
    With concepts (multi-hot y), all with p > ½ and the most probable one are predicted; with
    fewer bits than concepts only the most probable one.

    Parameters
    ----------
    n_bits : int
        Code length, at least ⌈log₂ c⌉.
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
        Seed of the sample and of the calibration folds.

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
                f"OneHotHash needs one code per class: {self.n_bits} bit(s) give "
                f"{2**self.n_bits} codes, but y has {n_classes} classes"
            )
        if self.n_bits >= n_classes:
            codeword = np.eye(n_classes, dtype=np.int64)
        else:
            length = (n_classes - 1).bit_length()
            codeword = np.arange(n_classes)[:, None] >> np.arange(length)[::-1] & 1
        repeated = np.tile(codeword, self.n_bits // codeword.shape[1])
        self.codewords_ = np.zeros((n_classes, self.n_bits), np.float32)
        self.codewords_[:, : repeated.shape[1]] = repeated

    def _code(self) -> Operation:
        several = self.multilabel_ and self.n_bits >= len(self.codewords_)
        return Codewords(self.codewords_, several=several)


class Codewords(Operation):
    """Map probabilities to the codeword of the most probable class, minus ½.

    With `several`, codewords of all concepts with a probability above ½ are added.
    """

    def __init__(self, codewords: Array, *, several: bool) -> None:
        self.codewords, self.several = codewords, several

    def width(self, n: int) -> int:
        """Return the length of the codewords."""
        check_width(n, len(self.codewords))
        return int(self.codewords.shape[1])

    def run(self, X: Array, memory: Workspace) -> Array:
        """Multiply the predicted classes by the codewords."""
        predicted = memory.array(self, *X.shape)
        predicted[:] = X > 0.5 if self.several else 0
        predicted[np.arange(len(X)), X.argmax(axis=1)] = 1
        out = memory.array(self, len(X), self.codewords.shape[1], 1)
        values = product(predicted, self.codewords, out)
        values -= np.float32(0.5)
        return values

    def export(self, graph: Graph, x: str) -> str:
        """Add ArgMax, OneHot and MatMul."""
        classes = graph.node("ArgMax", x, axis=1, keepdims=0)
        on_off = np.array([0, 1], np.float32)
        predicted = graph.node("OneHot", classes, np.int64(len(self.codewords)), on_off)
        if self.several:
            likely = graph.node("Greater", x, np.float32(0.5))
            predicted = graph.node("Max", predicted, graph.node("Cast", likely, to=1))
        return graph.node("Sub", graph.node("MatMul", predicted, self.codewords), np.float32(0.5))

"""Random projections of what a classifier believes."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipodal.hashers.parts.classifier import ClassifierHasher


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
        γ of its kernel exp(-γ‖x - s‖²) on scaled features; by default 1 / their number.
    scaling : str
        How features are scaled first, as `DeepLinf` explains.
    n_samples : int
        Rows to learn from, at most; where there are more, so many are drawn, evenly
        from classes. Memory grows with their square.
    random_state : int, RandomState or None
        Seed of the rows that are drawn, of the projections, and of the folds in which
        probabilities are calibrated.
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

"""Locality-sensitive hashing (LSH) with random hyperplanes."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.hashers.base import BaseHasher
from antipodal.hashers.operations import Affine, Operation
from antipodal.hashers.registry import built_in
from antipodal.threads import one_thread
from antipodal.validation import check_random_state


@built_in
class LSH(BaseHasher):
    """Signs of random projections of centred features: b = [Wᵀ(x - μ) > 0]. [Charikar2002]

    W is Gaussian. Two vectors at angle θ from each other, after subtracting μ, agree in each bit
    with probability 1 - θ/π.

    Parameters
    ----------
    n_bits : int
        Code length.
    random_state : int, RandomState or None
        Seed of the hyperplanes.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X = load_digits().data
    >>> LSH(n_bits=128, random_state=0).fit(X).encode(X).shape
    (1797, 16)
    """

    hyperplanes_: NDArray[np.float32]
    mean_: NDArray[np.float32]

    def __init__(self, n_bits: int = 64, *, random_state: Any = None) -> None:
        self.n_bits = n_bits
        self.random_state = random_state

    @one_thread()
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn the mean and draw the hyperplanes; y is ignored."""
        rows = self.check_fit(X, min_samples=1)
        rng = check_random_state(self.random_state)
        self.mean_ = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        normals = rng.standard_normal((rows.shape[1], self.n_bits))
        self.hyperplanes_ = normals.astype(np.float32)
        return self

    def pipeline(self) -> list[Operation]:
        """Return the steps whose signs are the bits."""
        return [Affine(self.hyperplanes_, mean=self.mean_)]

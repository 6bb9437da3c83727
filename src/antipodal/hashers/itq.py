"""Iterative quantisation (ITQ): principal components, rotated to reduce quantisation error."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.hashers.base import BaseHasher
from antipodal.hashers.operations import Affine, Operation
from antipodal.hashers.preprocessing import sample_rows
from antipodal.hashers.registry import built_in
from antipodal.threads import one_thread
from antipodal.validation import check_random_state


@built_in
class ITQ(BaseHasher):
    """Signs of rotated principal components: b = [RᵀPᵀ(x - μ) > 0]. [Gong2013]

        min ‖B - VR‖_F²    V = (X - μ)P,  RᵀR = I,  B in {-1, 1}

    P holds the leading principal components. B = sign(VR) and R, an orthogonal Procrustes
    problem, are solved for in turn.

    Parameters
    ----------
    n_bits : int
        Code length, at most the number of features.
    n_iter : int
        Number of alternations. With 0 and `rotate=False` the bits are the signs of the components.
    rotate : bool
        Whether R starts as a random rotation, as in the paper, or as the identity.
    n_samples : int
        Largest number of rows to learn from; more rows are sampled.
    random_state : int, RandomState or None
        Seed of the rotation and of the sample.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X = load_digits().data
    >>> ITQ(n_bits=32, random_state=0).fit(X).encode(X).shape
    (1797, 4)
    """

    mean_: NDArray[np.float32]
    projection_: NDArray[np.float32]

    def __init__(
        self,
        n_bits: int = 64,
        *,
        n_iter: int = 50,
        rotate: bool = True,
        n_samples: int = 100_000,
        random_state: Any = None,
    ) -> None:
        self.n_bits = n_bits
        self.n_iter = n_iter
        self.rotate = rotate
        self.n_samples = n_samples
        self.random_state = random_state

    @one_thread()
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn components and rotation; y is ignored."""
        from scipy.linalg import eigh, svd  # lazy: encoding does not need it

        checked = self.check_fit(X)
        n_features = checked.shape[1]
        if self.n_bits > n_features:
            raise ValueError(
                f"ITQ needs n_bits ≤ features, one principal component per bit: got "
                f"{self.n_bits} bits for {n_features} feature(s)"
            )
        rng = check_random_state(self.random_state)
        rows = sample_rows(checked, self.n_samples, rng).astype(np.float64)
        mean = rows.mean(axis=0)
        rows -= mean
        covariance = rows.T @ rows
        _, vectors = eigh(covariance, subset_by_index=(n_features - self.n_bits, n_features - 1))
        components = vectors[:, ::-1]
        rotation = np.eye(self.n_bits)
        if self.rotate:
            rotation = np.linalg.qr(rng.standard_normal((self.n_bits, self.n_bits)))[0]
        V = rows @ components
        for _ in range(self.n_iter):
            B = np.where(V @ rotation > 0, 1.0, -1.0)
            left, _, right = svd(B.T @ V)  # orthogonal Procrustes: R = (left·right)ᵀ
            rotation = (left @ right).T
        self.mean_ = mean.astype(np.float32)
        self.projection_ = np.ascontiguousarray(components @ rotation, dtype=np.float32)
        return self

    def pipeline(self) -> list[Operation]:
        """Return the steps whose signs are the bits."""
        return [Affine(self.projection_, mean=self.mean_)]

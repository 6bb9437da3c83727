"""Binary quantisation, as in vector databases: the sign of every feature."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.hashers.base import BaseHasher
from antipodal.hashers.operations import Affine, Operation
from antipodal.hashers.registry import built_in
from antipodal.threads import one_thread
from antipodal.validation import check_random_state


@built_in
class SignHash(BaseHasher):
    """Signs of the features, one bit per feature: b = [Qᵀ(x - μ) > 0], Q = I or orthogonal.

    With `rotate` the columns of Q are random and orthonormal, and all bits carry the same amount
    of information. The bits of two vectors at angle θ differ with probability θ/π as in `LSH`,
    but are less redundant. Without it, bit i is the sign of feature i, and fewer bits than
    features use the first features, which suits embeddings trained for truncation ("Matryoshka").

    Parameters
    ----------
    n_bits : int
        Code length, at most the number of features.
    center : bool
        Whether to subtract the mean μ of the training rows; otherwise μ = 0.
    rotate : bool
        Whether to rotate before the sign.
    random_state : int, RandomState or None
        Seed of the rotation.

    Examples
    --------
    >>> hasher = SignHash(2, center=False, rotate=False).fit([[0.5, -2.0, 1.0]])
    >>> hasher.transform([[0.5, -2.0, 1.0], [-0.1, 3.0, 1.0]])
    array([[1, 0],
           [0, 1]], dtype=uint8)
    """

    mean_: NDArray[np.float32]
    rotation_: NDArray[np.float32]

    def __init__(
        self,
        n_bits: int = 64,
        *,
        center: bool = True,
        rotate: bool = True,
        random_state: Any = None,
    ) -> None:
        self.n_bits = n_bits
        self.center = center
        self.rotate = rotate
        self.random_state = random_state

    @one_thread()
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn the mean and draw the rotation; y is ignored."""
        rows = self.check_fit(X, min_samples=1)
        n_features = rows.shape[1]
        if self.n_bits > n_features:
            raise ValueError(
                f"SignHash needs n_bits ≤ features, one feature per bit: got {self.n_bits} bits "
                f"for {n_features} feature(s). LSH has no such limit"
            )
        self.mean_ = np.zeros(n_features, np.float32)
        if self.center:
            self.mean_ = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        rotation = np.eye(n_features, self.n_bits)
        if self.rotate:
            rng = check_random_state(self.random_state)
            rotation = np.linalg.qr(rng.standard_normal((n_features, self.n_bits)))[0]
        self.rotation_ = rotation.astype(np.float32)
        return self

    def pipeline(self) -> list[Operation]:
        """Return the steps whose signs are the bits."""
        return [Affine(self.rotation_, mean=self.mean_)]

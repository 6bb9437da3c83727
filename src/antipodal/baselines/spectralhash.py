"""Spectral hashing: eigenfunctions of the Laplacian on a box, along principal components."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh

from antipodal.hashers.base import BaseHasher
from antipodal.hashers.operations import Affine, Clip, Columns, Each, Operation, Standardise
from antipodal.hashers.preprocessing import sample_rows
from antipodal.hashers.registry import built_in
from antipodal.threads import one_thread
from antipodal.validation import check_random_state

_MIN_SIDE = 1e-5  # components with a smaller range, relative to the largest, are rounding


@built_in
class SpectralHash(BaseHasher):
    """Signs of the smoothest eigenfunctions along principal components: b = [Φ(x) > 0]. [Weiss2008]

    For components v = Pᵀ(x - μ) distributed uniformly in a box, the eigenfunctions of the graph
    Laplacian are waves along its sides [aⱼ, bⱼ], smoother for smaller ω:

        Φ(v) = sin(π/2 + kπ(vⱼ - aⱼ)/(bⱼ - aⱼ)),    ω = kπ/(bⱼ - aⱼ),    k = 1, 2, …

    The bits are the signs of the n_bits smoothest over all components j and modes k, so that long
    sides get several bits. Rows outside the box are clipped to it.

    Parameters
    ----------
    n_bits : int
        Code length; it may exceed the number of features.
    n_samples : int
        Largest number of rows to learn from; more rows are sampled.
    random_state : int, RandomState or None
        Seed of the sample.

    Attributes
    ----------
    component_, mode_ : (n_bits,) int64
        j and k of each bit, in ascending order of ω.
    lower_, upper_ : (n_components,) float32
        a and b of the box: the ranges of the training rows.
    """

    mean_: NDArray[np.float32]
    components_: NDArray[np.float32]
    lower_: NDArray[np.float32]
    upper_: NDArray[np.float32]
    component_: NDArray[np.int64]
    mode_: NDArray[np.int64]

    def __init__(
        self, n_bits: int = 64, *, n_samples: int = 100_000, random_state: Any = None
    ) -> None:
        self.n_bits = n_bits
        self.n_samples = n_samples
        self.random_state = random_state

    @one_thread()
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn the components and the box; y is ignored."""
        rng = check_random_state(self.random_state)
        rows = sample_rows(self.check_fit(X), self.n_samples, rng).astype(np.float64)
        if (rows == rows[0]).all():
            raise ValueError(
                f"SpectralHash needs rows that differ: all {len(rows)} training rows are equal"
            )
        n_features = rows.shape[1]
        mean = rows.mean(axis=0)
        rows -= mean
        n_components = min(self.n_bits, n_features)
        _, vectors = eigh(
            rows.T @ rows, subset_by_index=(n_features - n_components, n_features - 1)
        )
        components = vectors[:, ::-1]
        V = rows @ components
        lower, upper = V.min(axis=0), V.max(axis=0)
        sides = upper - lower
        wide = sides > _MIN_SIDE * sides.max()
        self.mean_ = mean.astype(np.float32)
        self.components_ = np.ascontiguousarray(components[:, wide], dtype=np.float32)
        self.lower_ = lower[wide].astype(np.float32)
        self.upper_ = upper[wide].astype(np.float32)
        self.component_, self.mode_ = smoothest_modes(sides[wide], self.n_bits)
        return self

    def pipeline(self) -> list[Operation]:
        """Return the steps whose signs are the bits; sin(π/2 + ·) = cos(·)."""
        j = self.component_
        wavelength = (self.upper_ - self.lower_)[j] / (np.pi * self.mode_)
        return [
            Affine(self.components_, mean=self.mean_),
            Clip(self.lower_, self.upper_),
            Columns(j),
            Standardise(self.lower_[j], wavelength.astype(np.float32)),
            Each("Cos"),
        ]


def smoothest_modes(
    sides: NDArray[np.floating[Any]], n_modes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return side j and mode k ≥ 1 of the n_modes smallest k / sides[j], in ascending order.

    The eigenvalue 1 - exp(-ε²ω²/2) of a wave increases with ω = kπ/side for any ε. Products of
    waves along several sides are excluded: their signs follow from those of the factors.

    Examples
    --------
    >>> side, mode = smoothest_modes(np.array([3.0, 1.4]), 4)
    >>> side.tolist(), mode.tolist()
    ([0, 0, 1, 0], [1, 2, 1, 3])
    """
    # The longest side alone has n_modes waves up to k/side = n_modes / max(sides), so that faster
    # waves cannot be among the smoothest. One extra mode per side allows for rounding.
    most = (n_modes * sides / sides.max()).astype(np.int64) + 1
    side = np.repeat(np.arange(len(sides)), most)
    mode = np.arange(len(side)) - np.repeat(np.cumsum(most) - most, most) + 1
    order = np.argsort(mode / sides[side], kind="stable")[:n_modes]
    return side[order], mode[order]

"""Neighbourhoods of training rows: what queries near an item look like.

A query q scores an item y by ⟨q, v⟩, with v reconstructed from its code. An error of this score
matters most if q is near y, since it changes the order of the nearest items. Training rows near y
stand for such queries. [Zhang2023]
"""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from antipodal.hashers.operations import Array, product, unit_rows

_MAX_NEIGHBOURHOODS = 512
_ROWS, _MAX_ROWS, _FRACTION = 64, 256, 150  # of a neighbourhood: one in 150 rows, within limits
_RANK = 24  # of the mean of qqᵀ
_ROWS_PER_NEIGHBOURHOOD = 20  # fewest training rows per neighbourhood
_MIN_ROWS = 300  # fewer training rows say too little about queries: recall would be lower
_QUERIES = 20  # queries per row that `NearScores` is fitted to


class NearScores(NamedTuple):
    """Scores of queries near an item, ⟨q, v⟩ ≈ α⟨q, y⟩ + β; v is a shrunken estimate of y."""

    slope: float = 1.0  # α
    offset: float = 0.0  # β
    square: float = 0.0  # mean of ⟨q, y⟩²

    @classmethod
    def fit(cls, Y: Array, V: Array) -> Self:
        """Fit to reconstructions of the first rows, with their nearest rows as queries."""
        n = min(_QUERIES, len(Y) - 2)
        if n < 2:
            return cls()
        cosines = Y[: len(V)] @ Y.T
        np.fill_diagonal(cosines, -2)  # a row is not a query of itself
        near = np.argpartition(-cosines, n, axis=1)[:, :n]
        cosines = np.take_along_axis(cosines, near, axis=1).ravel()
        scores = np.take_along_axis(V @ Y.T, near, axis=1).ravel()
        A = np.stack([cosines, np.ones_like(cosines)], axis=1).astype(np.float64)
        slope, offset = np.linalg.lstsq(A, scores)[0]
        if not slope > 0:
            slope, offset = 1.0, 0.0
        return cls(float(slope), float(offset), float(np.square(A[:, 0]).mean()))


class Neighbourhoods:
    """K neighbourhoods, each with the mean m of its rows q and a factor A, AᵀA ≈ mean of qqᵀ."""

    def __init__(self, means: Array, factors: NDArray[np.float16]) -> None:
        self.means, self.factors = means, factors.astype(np.float32)  # (K, n) and (K, r, n)
        self.directions = np.ascontiguousarray(unit_rows(means).T)

    @classmethod
    def fit(cls, Y: Array, rng: np.random.RandomState) -> Self:
        """Take the nearest rows of random rows; none with few training rows."""
        n = min(_MAX_NEIGHBOURHOODS, len(Y) // _ROWS_PER_NEIGHBOURHOOD)
        if len(Y) < _MIN_ROWS:
            n = 0
        n_rows = min(max(_ROWS, len(Y) // _FRACTION), _MAX_ROWS, len(Y))
        rank = min(_RANK, n_rows, Y.shape[1])
        means = np.empty((n, Y.shape[1]), np.float32)
        factors = np.empty((n, rank, Y.shape[1]), np.float16)
        for i, centre in enumerate(rng.choice(len(Y), n, replace=False)):
            near = Y[np.argpartition(-(Y @ Y[centre]), n_rows - 1)[:n_rows]]
            means[i] = near.mean(axis=0)
            _, singular, Vt = np.linalg.svd(near / np.sqrt(np.float32(n_rows)), full_matrices=False)
            factors[i] = singular[:rank, None] * Vt[:rank]
        return cls(means, factors)

    def __len__(self) -> int:
        return len(self.means)

    def nearest(self, Y: Array) -> NDArray[np.intp]:
        """Return the neighbourhood of each row: that with the nearest mean direction."""
        cosines = product(Y, self.directions, np.empty((len(Y), len(self)), np.float32))
        nearest: NDArray[np.intp] = cosines.argmax(axis=1)
        return nearest

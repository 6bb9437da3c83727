"""Search of models of version 0.13, whose queries are those of neighbourhoods of training rows."""

import numpy as np
from numpy.typing import NDArray

from antipodal.hashers.bit_flips import ScoreFlips
from antipodal.hashers.near_rows import NearScores
from antipodal.hashers.operations import Array, product, unit_rows

_TENURE = 12


class Neighbourhoods:
    """K neighbourhoods, each with the mean m of its rows q and a factor A, AᵀA ≈ mean of qqᵀ."""

    def __init__(self, means: Array, factors: NDArray[np.float16]) -> None:
        self.means, self.factors = means, factors.astype(np.float32)  # (K, n) and (K, r, n)
        self.directions = np.ascontiguousarray(unit_rows(means).T)

    def nearest(self, Y: Array) -> NDArray[np.intp]:
        """Return the neighbourhood of each row: that with the nearest mean direction."""
        cosines = product(Y, self.directions, np.empty((len(Y), len(self.means)), np.float32))
        nearest: NDArray[np.intp] = cosines.argmax(axis=1)
        return nearest


class NeighbourFlips(ScoreFlips):
    """Minimise ‖y - v‖² + w·mean(⟨q, v⟩ - α⟨q, y⟩ - β)² + η(⟨y, v⟩ - α - β)² by a tabu search.

    The mean is over the rows q of the neighbourhood of y: M = I + wAᵀA and
    l = y + w(αAᵀAy + βm) in `ScoreFlips`.
    """

    one_in = 2

    def __init__(self, D: Array, near: Neighbourhoods, scores: NearScores, n_steps: int) -> None:
        super().__init__(D, scores, n_steps)
        self.near, self.tenure = near, min(_TENURE, D.shape[1] // 4)

    def run(self, Y: Array, offset: Array, signs: Array) -> Array:
        """Search the rows of one neighbourhood after the other."""
        nearest = self.near.nearest(Y)
        V = product(signs, self.D.T, np.empty_like(Y))
        V += offset
        for i in np.unique(nearest):
            part = nearest == i
            b = signs[part]
            steps = self._matrix(i)
            e, kappa = self._own_errors(Y[part], V[part], b)
            u = self._gradient(self._residual(i, Y[part], V[part]), b)
            u += steps.diagonal() / 2
            self._tabu([b, np.zeros_like(b), u, e, kappa, steps])
            signs[part] = b
        return signs

    def _residual(self, i: int, Y: Array, V: Array) -> Array:
        """Return Mv - l = v - y + w(Aᵀ(A(v - αy)) - βm)."""
        A = self.near.factors[i]
        R = V - np.float32(self.scores.slope) * Y
        product(product(R, A.T, np.empty((len(R), len(A)), np.float32)), A, R)
        R -= np.float32(self.scores.offset) * self.near.means[i]
        R *= np.float32(self.weight)
        R += V
        R -= Y
        return R

    def _matrix(self, i: int) -> Array:
        """Return 8G."""
        P = self.near.factors[i] @ self.D
        G: Array = P.T * np.float32(8 * self.weight) @ P
        G += self.plain_steps[:, : P.shape[1]]
        return G

    def _steps(self, window: list[Array], flips: NDArray[np.intp]) -> Array:
        steps: Array = window[-1][flips]
        return steps

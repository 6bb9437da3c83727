"""The convex problem itself as a hash: anti-sparse codes, from which features can be rebuilt."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from torch import Tensor

from antipodal.admm import RELAXATION, relaxed_step, relaxed_weight, unfolded_weights
from antipodal.checks import check_whole
from antipodal.codes import unpack
from antipodal.dictionary import ksvd
from antipodal.hashers.base import BaseHasher, FloatArray
from antipodal.hashers.parts.rows import as_floats, draw_rows, unit_rows
from antipodal.neurons import clip
from antipodal.threads import one_thread


class LinfHash(BaseHasher):
    """Signs of the solution of Eq. 1, without a network and without labels. [Jegou2012]

        x = argmin ‖Dx - y‖²  subject to  ‖x‖∞ ≤ λ,        y = (row - μ) / ‖row - μ‖
        b = [x > 0],   row ≈ μ + s·D·(2b - 1)              what `reconstruct` returns

    Most entries of x are ±λ already, so that little is lost by taking signs. Scaling y and λ
    alike scales x, which is why rows have length 1 here: one λ fits all of them.

    With fewer bits than features D is learned by K-SVD. With as many or more, it is a random
    tight frame, DDᵀ = (n_bits / features)·I; the more bits the better they agree on the row, and
    rebuild it with an error that random projections do not reach. (With n_bits = features the
    frame is a rotation, and x = clip(Dᵀy) has the signs of Dᵀy for any λ.)

    Parameters
    ----------
    n_bits : int
        Length N of the code; it may exceed the number of features.
    bound : float
        λ√N. At 1 the corners λ·D·(2b - 1) are about as long as y. Below, more entries reach the
        bound and bits are stabler: small bounds rank best by Hamming distance (0.1 to 0.3), and
        larger ones rebuild rows best: 0.6 to 0.8 up to four bits per feature, 0.4 at eight, where
        a larger box holds y with room to spare and fewer entries reach its walls.
    sparsity : int
        Atoms that a row may use in K-SVD.
    n_samples : int
        Rows that D is learned from, at most; where there are more, so many are drawn. The mean is
        that of all rows.
    n_iter : int
        Iterations of ADMM for every row, whatever the rows beside it need: signs settle long
        before values do.
    penalty : float
        β of the iteration.
    random_state : int, RandomState or None
        Seed of the frame, or of the rows that K-SVD sees and starts from.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, _ = load_digits(return_X_y=True)
    >>> hasher = LinfHash(n_bits=256, bound=0.6, random_state=0).fit(X)
    >>> rebuilt = hasher.reconstruct(hasher.encode(X))
    >>> bool(np.square(X - rebuilt).sum() < 0.07 * np.square(X - X.mean(axis=0)).sum())
    True
    """

    encoding_parameters = ("n_bits", "bound", "penalty", "n_iter")

    mean_: NDArray[np.float32]
    dictionary_: NDArray[np.float32]
    scale_: float

    def __init__(
        self,
        n_bits: int = 64,
        *,
        bound: float = 0.2,
        sparsity: int = 8,
        n_samples: int = 5000,
        n_iter: int = 50,
        penalty: float = 0.6,
        random_state: Any = None,
    ) -> None:
        self.n_bits = n_bits
        self.bound = bound
        self.sparsity = sparsity
        self.n_samples = n_samples
        self.n_iter = n_iter
        self.penalty = penalty
        self.random_state = random_state

    @one_thread()
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn the mean, the dictionary and the scale of reconstructions; y is ignored."""
        rows = self.check_fit(X)
        self._check_parameters()
        rng = check_random_state(self.random_state)
        mean = rows.mean(axis=0, dtype=np.float64)
        drawn = as_floats(rows[draw_rows(len(rows), self.n_samples, rng)])
        sample = drawn - mean
        self.mean_ = mean.astype(np.float32)
        self.dictionary_ = self._dictionary(sample, rng).astype(np.float32)
        # s minimises Σ ‖y - s·Db‖² over the sample: the mean length of rows, and λ, are in it.
        corners = self._corners(self.transform(drawn))
        self.scale_ = float(np.vdot(corners, sample) / max(np.vdot(corners, corners), 1e-30))
        return self

    def reconstruct(self, codes: ArrayLike) -> NDArray[np.float32]:
        """Return μ + s·D·(2b - 1), an estimate of the rows behind packed codes, (m, features).

        For asymmetric distances: a query as it is, against what the codes remember.
        """
        self._check_fitted()
        bits = unpack(codes, self.n_bits)
        return self.mean_ + np.float32(self.scale_) * self._corners(bits)

    def _corners(self, bits: NDArray[np.uint8]) -> NDArray[np.float32]:
        """D·(2b - 1), a row for each row of bits."""
        corners: NDArray[np.float32] = np.where(bits, np.float32(1), -1) @ self.dictionary_.T
        return corners

    def _dictionary(self, sample: FloatArray, rng: np.random.RandomState) -> FloatArray:
        n_features, N = sample.shape[1], self.n_bits
        if n_features <= N:
            Q = np.linalg.qr(rng.standard_normal((N, n_features)))[0]
            frame: FloatArray = math.sqrt(N / n_features) * Q.T
            return frame
        Y = unit_rows(torch.from_numpy(sample.astype(np.float32))).numpy()
        seed = rng.randint(2**31 - 1)
        return ksvd(Y, N, sparsity=min(self.sparsity, N), n_iter=10, random_state=seed).dictionary

    def projector(self, max_rows: int) -> Callable[[Tensor], Tensor]:
        """Return the map to the values whose signs are the bits."""
        mean, D = torch.from_numpy(self.mean_), torch.from_numpy(self.dictionary_)
        W, S = unfolded_weights(D, self.penalty)
        bound = self.bound / math.sqrt(self.n_bits)
        R = relaxed_weight(S)
        memory = torch.empty(4, max_rows, D.shape[1])

        def project(X: Tensor) -> Tensor:
            # The iteration of solve_linf, but as often for every row: one must not be iterated
            # longer because of its company.
            drive, u, z, work = memory[:, : len(X)].unbind()
            torch.mm(unit_rows(X - mean), W.T, out=u)
            torch.mul(u, RELAXATION, out=drive)
            box = partial(clip, bound=bound, out=z)
            box(u)
            for _ in range(self.n_iter):
                z, u = relaxed_step(drive, z, R, u, box, work)
            return z

        return project

    def _check_parameters(self) -> None:
        for name in ("sparsity", "n_samples", "n_iter"):
            check_whole(getattr(self, name), name, 1)
        for name in ("bound", "penalty"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite: got {getattr(self, name)}")

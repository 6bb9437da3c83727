"""Sparse neural-network hashing: a siamese network of LISTA encoders."""

from dataclasses import dataclass

import torch

from antipodal.hashers.network import NetworkHasher
from antipodal.hashers.registry import built_in
from antipodal.paper.encoders import SparseBitEncoder


@dataclass(kw_only=True, eq=False, repr=False)
@built_in
class SparseHash(NetworkHasher):
    """Siamese network of learned ISTA, the rival SNNH of the paper. [Masci2014]

    Loss, training, depth and weights are those of `DeepLinf`, where the other parameters are
    explained; only the encoder differs. With the one-sided soft threshold s(u) = max(u - θ, 0)

        z⁰ = s(Wy),   zᵏ = s(Wy + S_k zᵏ⁻¹ + b_k),   x = tanh(zᴷ/θ),   bits = (x > 0)

    so a zero of the sparse code is always bit 0.

    Parameters
    ----------
    threshold : float
        θ to begin with, for every bit; each is then learned.
    nonnegative : bool
        Whether no layer passes negative entries, which solves sparse coding with codes ≥ 0. Without
        it the encoder is the paper's, s(u) = sign(u)·max(|u| - θ, 0) and x = tanh(max(zᴷ, 0)/θ): a
        negative entry is bit 0 as well, and the last layer lets the loss see it as what it becomes.
        The default ranks better.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> hasher = SparseHash(n_bits=16, n_epochs=20, random_state=0).fit(X[:300], y[:300])
    >>> hasher.encode(X).shape
    (1797, 2)
    """

    encoding_parameters = (*NetworkHasher.encoding_parameters, "nonnegative")

    threshold: float = 0.3
    nonnegative: bool = True

    def new_encoder(
        self, n_features: int, n_bits: int, n_stages: int, seed: int = 0
    ) -> SparseBitEncoder:
        """Return an encoder with random weights."""
        return SparseBitEncoder(
            n_features, n_bits, n_stages, tied=self.tied, threshold=self.threshold,
            nonnegative=self.nonnegative, generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip

    def reach(self) -> float:
        """Return half the distance between the two values of a bit."""
        return 0.5  # entries go from 0 to 1

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not 0 < self.threshold < float("inf"):
            raise ValueError(f"threshold must be positive and finite: got {self.threshold}")

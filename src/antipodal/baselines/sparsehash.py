"""Sparse neural-network hashing: a siamese network of LISTA encoders."""

from dataclasses import dataclass

import torch

from antipodal.hashers.network import NetworkHasher
from antipodal.hashers.registry import built_in
from antipodal.paper.encoders import SparseBitEncoder


@dataclass(kw_only=True, eq=False, repr=False)
@built_in
class SparseHash(NetworkHasher):
    """Siamese network of learned ISTA, the baseline SNNH of the paper. [Masci2014]

    Other parameters, loss, training and the shapes of the weights are those of `DeepLinf`; only
    the encoder differs. With the one-sided soft threshold s(u) = max(u - θ, 0),

        z⁰ = s(Wy),   zᵏ = s(Wy + S_k zᵏ⁻¹ + b_k),   x = tanh(zᴷ/θ),   bits = (x > 0)

    so that zeros of the sparse code become bit 0.

    Parameters
    ----------
    threshold : float
        Initial θ of every bit; each bit learns its own.
    nonnegative : bool
        Solve sparse coding with codes ≥ 0, by the one-sided threshold above. With False the
        encoder is that of the paper, s(u) = sign(u)·max(|u| - θ, 0) and x = tanh(max(zᴷ, 0)/θ),
        whose negative entries become bit 0 as well. The default ranks better.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from antipodal import Training
    >>> X, y = load_digits(return_X_y=True)
    >>> hasher = SparseHash(n_bits=16, training=Training(n_epochs=20), random_state=0)
    >>> hasher.fit(X[:300], y[:300]).encode(X).shape
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
            n_features, n_bits, n_stages, threshold=self.threshold,
            nonnegative=self.nonnegative, generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip

    def reach(self) -> float:
        """Return half the distance between the two values of a bit, 0 and 1."""
        return 0.5

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not 0 < self.threshold < float("inf"):
            raise ValueError(f"threshold must be positive and finite: got {self.threshold}")

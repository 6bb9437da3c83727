"""Sparse neural-network hashing: a siamese network of LISTA encoders."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from antipodal.hashers.network import Layers, NetworkHasher, Weights
from antipodal.hashers.operations import Chain, Each, Rectify, Shrink
from antipodal.hashers.registry import built_in
from antipodal.hashers.training import Training

if TYPE_CHECKING:
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

    presets = ("paper", "reproduced")
    encoding_parameters = (*NetworkHasher.encoding_parameters, "nonnegative")

    threshold: float = 0.3
    nonnegative: bool = True

    @classmethod
    def paper(cls, n_bits: int, *, n_epochs: int = 10, random_state: Any = None) -> Self:
        """Return SNNH with the training of `DeepLinf.paper`.

        Stated in the paper: a network of LISTA encoders with the same depth, widths and training
        as the deep l∞ encoder, and no layer-wise biases.

        Not stated in the paper, with the values chosen here: initial weights (random), initial θ
        (0.3), an l1 term (none), the map from sparse codes to bits (tanh of the positive part),
        and all settings that `DeepLinf.paper` lists. Unlike in the paper, the layers have biases,
        which improve the ranking; `UnbiasedSparseHash` in `benchmarks/ablations.py` has none.
        """
        return cls(
            n_bits,
            feature_map="none",
            scaling="each",
            nonnegative=False,
            training=Training.paper(n_epochs),
            random_state=random_state,
        )

    @classmethod
    def reproduced(cls, n_bits: int, *, n_epochs: int = 1000, random_state: Any = None) -> Self:
        """Return the training of `DeepLinf.reproduced`."""
        return cls(
            n_bits,
            feature_map="none",
            scaling="root-each",
            nonnegative=False,
            training=Training.regularized(n_epochs),
            random_state=random_state,
        )

    def new_encoder(
        self, n_features: int, n_bits: int, n_stages: int, seed: int = 0
    ) -> "SparseBitEncoder":
        """Return an encoder with random weights."""
        import torch

        from antipodal.paper.encoders import SparseBitEncoder

        return SparseBitEncoder(
            n_features, n_bits, n_stages, threshold=self.threshold,
            nonnegative=self.nonnegative, generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip

    def layers(self, weights: Weights) -> Layers:
        """Describe the soft thresholds, and the readout tanh(max(z, 0)/θ)."""
        theta = np.exp(weights["shelu.log_threshold"])
        neuron = Rectify() if self.nonnegative else Shrink()
        return Layers(neuron, theta, readout=Chain(Rectify(0), Each("Tanh")))

    def reach(self) -> float:
        """Return half the distance between the two values of a bit, 0 and 1."""
        return 0.5

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not 0 < self.threshold < float("inf"):
            raise ValueError(f"threshold must be positive and finite: got {self.threshold}")

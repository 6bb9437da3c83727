"""Neural-network hashing: a siamese network of plain feed-forward encoders."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from antipodal.hashers.network import Layers, NetworkHasher, Weights
from antipodal.hashers.operations import Each
from antipodal.hashers.registry import built_in
from antipodal.hashers.training import Training

if TYPE_CHECKING:
    from antipodal.paper.encoders import PlainEncoder


@dataclass(kw_only=True, eq=False, repr=False)
@built_in
class NNHash(NetworkHasher):
    """Siamese network of tanh layers, the baseline NNH of the paper. [Masci2014b]

    Parameters, loss, training and the shapes of the weights are those of `DeepLinf`; only the
    encoder differs. The input reaches the first layer only:

        z⁰ = tanh(Wy),   zᵏ = tanh(S_k zᵏ⁻¹ + b_k),   bits = (zᴷ > 0)

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from antipodal import Training
    >>> X, y = load_digits(return_X_y=True)
    >>> hasher = NNHash(n_bits=16, training=Training(n_epochs=20), random_state=0)
    >>> hasher.fit(X[:300], y[:300]).encode(X).shape
    (1797, 2)
    """

    presets = ("paper", "reproduced")

    @classmethod
    def paper(cls, n_bits: int, *, n_epochs: int = 10, random_state: Any = None) -> Self:
        """Return NNH with the training of `DeepLinf.paper`.

        Stated in the paper: the same depth, widths and training as for the deep l∞ encoder, with
        tanh instead of its neuron and no layer-wise biases.

        Not stated in the paper, with the values chosen here: initial weights (random), and all
        settings that `DeepLinf.paper` lists. Unlike in the paper, the layers have biases, which
        improve the ranking; `UnbiasedNNHash` in `benchmarks/ablations.py` has none.
        """
        return cls(
            n_bits,
            feature_map="none",
            scaling="each",
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
            training=Training.regularized(n_epochs),
            random_state=random_state,
        )

    def new_encoder(
        self, n_features: int, n_bits: int, n_stages: int, seed: int = 0
    ) -> "PlainEncoder":
        """Return an encoder with random weights."""
        import torch

        from antipodal.paper.encoders import PlainEncoder

        generator = torch.Generator().manual_seed(seed)
        return PlainEncoder(n_features, n_bits, n_stages, generator=generator)

    def layers(self, weights: Weights) -> Layers:
        """Describe the tanh layers."""
        return Layers(Each("Tanh"), feeds_input=False)

    def reach(self) -> float:
        """Return half the distance between the two values of a bit, -1 and 1."""
        return 1.0

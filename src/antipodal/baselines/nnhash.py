"""Neural-network hashing: a siamese network of plain feed-forward encoders."""

from dataclasses import dataclass

import torch

from antipodal.hashers.network import NetworkHasher
from antipodal.hashers.registry import built_in
from antipodal.paper.encoders import PlainEncoder


@dataclass(kw_only=True, eq=False, repr=False)
@built_in
class NNHash(NetworkHasher):
    """Siamese network of layers with tanh, the rival NNH of the paper. [Masci2014b]

    Loss, training, depth and weights are those of `DeepLinf`, where the parameters are explained;
    only the encoder differs. Its first layer alone sees the input:

        z⁰ = tanh(Wy),   zᵏ = tanh(S_k zᵏ⁻¹ + b_k),   bits = (zᴷ > 0)

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> hasher = NNHash(n_bits=16, n_epochs=20, random_state=0).fit(X[:300], y[:300])
    >>> hasher.encode(X).shape
    (1797, 2)
    """

    def new_encoder(
        self, n_features: int, n_bits: int, n_stages: int, seed: int = 0
    ) -> PlainEncoder:
        """Return an encoder with random weights."""
        return PlainEncoder(
            n_features, n_bits, n_stages, tied=self.tied,
            generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip

    def reach(self) -> float:
        """Return half the distance between the two values of a bit."""
        return 1.0  # of tanh

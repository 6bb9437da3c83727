"""Central similarity quantisation: a network whose bits are those of a centre."""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from antipodal.baselines.centre_hasher import CentreHasher
from antipodal.hashers.registry import built_in
from antipodal.paper.centres import central_loss, random_centres


@dataclass(kw_only=True, eq=False, repr=False)
@built_in
class CSQ(CentreHasher):
    """Codes that copy, bit for bit, the centre of their class. [Yuan2020]

        L = mean over bits of H(b, (z + 1)/2) + λ·log cosh(|z| - 1)

    with H the cross entropy and b the bits of the centre, a row of a Hadamard matrix where
    `antipodal.paper.centres.class_centres` can have it; of several concepts the majority of their
    centres. Encoder and training are those of `NNHash`, and its other parameters are explained at
    `DeepLinf`; `loss`, `pairs`, `margin` and `similar_weight` of pairs have no use here.

    Parameters
    ----------
    quantization_weight : float
        λ, weight of the distance from ±1.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> hasher = CSQ(n_bits=16, n_epochs=20, random_state=0).fit(X[:300], y[:300])
    >>> hasher.encode(X).shape
    (1797, 2)
    """

    quantization_weight: float = 1e-4

    def centre_loss(self, centres: Tensor, *, exclusive: bool) -> partial[Tensor]:
        """Return the loss of (codes, beliefs)."""
        ties = random_centres(1, self.n_bits, np.random.default_rng(0))[0]
        return partial(
            central_loss,
            centres=centres,
            ties=torch.from_numpy(ties).to(centres),
            quantization_weight=self.quantization_weight,
            exclusive=exclusive,
        )

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not 0 <= self.quantization_weight < math.inf:
            raise ValueError(
                f"quantization_weight must not be negative: got {self.quantization_weight}"
            )

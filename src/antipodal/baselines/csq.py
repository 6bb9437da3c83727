"""Central similarity quantisation: a network trained to reproduce the code of each class."""

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from antipodal.baselines.centre_hasher import CentreHasher
from antipodal.hashers.registry import built_in

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(kw_only=True, eq=False, repr=False)
@built_in
class CSQ(CentreHasher):
    """Network trained to reproduce the bits of a centre per class. [Yuan2020]

        L = mean over bits of H(b, (z + 1)/2) + λ·log cosh(|z| - 1)

    with H the cross entropy and b the bits of the centre; several concepts use the majority of
    their centres. The centres are rows of a Hadamard matrix if there are enough of them (see
    `antipodal.paper.centres.class_centres`). The encoder is that of `NNHash`, and the other
    parameters are those of `DeepLinf`. The options for pairs, `loss` and the `pairs`, `margin`,
    `similar_weight` and `centres` of `Training`, must keep their defaults.

    Parameters
    ----------
    quantization_weight : float
        λ, the weight of the distance of the entries from ±1.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from antipodal import Training
    >>> X, y = load_digits(return_X_y=True)
    >>> hasher = CSQ(n_bits=16, training=Training(n_epochs=20), random_state=0)
    >>> hasher.fit(X[:300], y[:300]).encode(X).shape
    (1797, 2)
    """

    quantization_weight: float = 1e-4

    def centre_loss(self, centres: "Tensor", *, exclusive: bool) -> "partial[Tensor]":
        """Return the loss of (codes, class probabilities)."""
        import torch

        from antipodal.paper.centres import central_loss, random_centres

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

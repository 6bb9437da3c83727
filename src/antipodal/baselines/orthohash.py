"""OrthoHash: a network trained to classify by the angle to orthogonal class codes."""

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from antipodal.baselines.centre_hasher import CentreHasher
from antipodal.hashers.registry import built_in

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(kw_only=True, eq=False, repr=False)
@built_in
class OrthoHash(CentreHasher):
    """Network trained towards a fixed code per class, by a loss of their angle. [Hoe2021]

        L = -log softmax_c(s·(cos(z, h_c) - m)),    m for the class c of the row only

    with a fixed code h_c of ±1 per class, orthogonal if `antipodal.paper.centres.class_centres`
    finds orthogonal codes. The encoder is that of `NNHash`, and the other parameters are those of
    `DeepLinf`. The options for pairs, `loss` and the `pairs`, `margin`, `similar_weight` and
    `centres` of `Training`, must keep their defaults.

    Parameters
    ----------
    scale : float, optional
        s, the scale of the cosines. By default √2·ln C for C classes or concepts: the more
        classes, the larger the scale needed for a high probability of one of them.
    cosine_margin : float
        m, the margin by which the cosine of the correct class must exceed all others.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from antipodal import Training
    >>> X, y = load_digits(return_X_y=True)
    >>> hasher = OrthoHash(n_bits=16, training=Training(n_epochs=20), random_state=0)
    >>> hasher.fit(X[:300], y[:300]).encode(X).shape
    (1797, 2)
    """

    scale: float | None = None
    cosine_margin: float = 0.2

    def centre_loss(self, centres: "Tensor", *, exclusive: bool) -> "partial[Tensor]":
        """Return the loss of (codes, class probabilities)."""
        from antipodal.paper.centres import cosine_loss, default_scale

        scale = default_scale(len(centres)) if self.scale is None else self.scale
        return partial(cosine_loss, centres=centres, scale=scale, margin=self.cosine_margin)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.scale is not None and not 0 < self.scale < math.inf:
            raise ValueError(f"scale must be positive and finite, or None: got {self.scale}")
        if not 0 <= self.cosine_margin < 1:
            raise ValueError(f"cosine_margin must be in [0, 1): got {self.cosine_margin}")

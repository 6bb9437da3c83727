"""OrthoHash: a network that tells classes by the angle to orthogonal codes."""

import math
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from antipodal.baselines.centre_hasher import CentreHasher
from antipodal.hashers.registry import built_in
from antipodal.paper.centres import COSINE_MARGIN, cosine_loss, usual_scale


@dataclass(kw_only=True, eq=False, repr=False)
@built_in
class OrthoHash(CentreHasher):
    """Codes at a small angle to the one of their class: one loss for all. [Hoe2021]

        L = -log softmax_c(s·(cos(z, h_c) - m)),    m for the class c of the row alone

    with a fixed code h_c of ±1 for each class, orthogonal where `class_centres`
    can have it. Encoder and training are those of `NNHash`, and its other parameters are explained
    at `DeepLinf`; `loss`, `pairs`, `margin` and `similar_weight` of pairs have no use here.

    Parameters
    ----------
    scale : float, optional
        s, how sure a small angle is of a class. By default √2·ln C with C classes or concepts:
        the more there are, the surer it must be to rule out all others.
    cosine_margin : float
        m, by how much the cosine with the right code must exceed all others.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> hasher = OrthoHash(n_bits=16, n_epochs=20, random_state=0).fit(X[:300], y[:300])
    >>> hasher.encode(X).shape
    (1797, 2)
    """

    scale: float | None = None
    cosine_margin: float = COSINE_MARGIN

    def centre_loss(self, centres: Tensor, *, exclusive: bool) -> partial[Tensor]:
        """Return the loss of (codes, beliefs)."""
        scale = usual_scale(len(centres)) if self.scale is None else self.scale
        return partial(cosine_loss, centres=centres, scale=scale, margin=self.cosine_margin)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.scale is not None and not 0 < self.scale < math.inf:
            raise ValueError(f"scale must be positive and finite, or None: got {self.scale}")
        if not 0 <= self.cosine_margin < 1:
            raise ValueError(f"cosine_margin must be in [0, 1): got {self.cosine_margin}")

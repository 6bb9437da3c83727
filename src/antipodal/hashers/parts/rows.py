"""What several hashers do to rows first."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def feature_scale(mean: NDArray[Any], deviation: NDArray[Any]) -> NDArray[Any]:
    """Return what to divide each feature by: its deviation, or 1 if it (nearly) never varies.

    Such a feature carries nothing but rounding: it is left small.
    """
    varies = deviation > 1e-6 * np.abs(mean).clip(min=np.finfo(np.float32).tiny)
    scale: NDArray[Any] = np.where(varies, deviation, 1.0)
    return scale


def unit_rows(X: Tensor) -> Tensor:
    """Scale rows to length 1, in two steps because squares overflow; zero stays zero."""
    tiny = torch.finfo(X.dtype).tiny
    scaled = X / X.abs().amax(dim=1, keepdim=True).clamp(min=tiny)
    length: Tensor = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    return scaled / length.clamp(min=tiny)

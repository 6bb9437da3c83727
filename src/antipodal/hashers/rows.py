"""What several hashers do to rows first."""

import torch
from torch import Tensor


def unit_rows(X: Tensor) -> Tensor:
    """Scale rows to length 1, in two steps because squares overflow; zero stays zero."""
    tiny = torch.finfo(X.dtype).tiny
    scaled = X / X.abs().amax(dim=1, keepdim=True).clamp(min=tiny)
    length: Tensor = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    return scaled / length.clamp(min=tiny)

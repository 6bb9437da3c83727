"""Triplets: a row, one that is similar to it, and one that is not and has to be further away."""

import torch
from torch import Tensor

_SHIFTS = 4  # dissimilar rows that each similar pair is held against


def triplet_loss(z: Tensor, targets: Tensor, *, margin: float) -> Tensor:
    """Return the mean over triplets of a batch, i similar to j and not to k. [Lai2015]

        L = mean of ½ max(0, m + d_ij - d_ik)²,    d_ij = ‖z_i - z_j‖

    with codes z (m, N) and targets (m, m), 1 for similar pairs and -1 for dissimilar ones. Of all
    k, four are taken for a pair: the rows of a batch are in random order, so that k = j + 1 … j + 4
    is a random choice. Without triplets the loss is zero.
    """
    distance = torch.cdist(z, z, compute_mode="use_mm_for_euclid_dist")
    similar, dissimilar = (targets > 0).to(z.dtype), (targets < 0).to(z.dtype)
    total, count = z.new_zeros(()), z.new_zeros(())
    for shift in range(1, _SHIFTS + 1):
        counts = similar * dissimilar.roll(-shift, dims=1)
        short = (margin + distance - distance.roll(-shift, dims=1)).clamp(min=0)
        total = total + (counts * short.square()).sum()
        count = count + counts.sum()
    return 0.5 * total / count.clamp(min=1)

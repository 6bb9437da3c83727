"""Pairwise loss (Eq. 12), its expectation over class probabilities, and the triplet loss."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

CLOSEST = 1e-12  # least squared distance, because the root has no gradient at zero

PairLoss = Callable[[Tensor, Tensor], Tensor]


def pairwise_loss(
    distance: Tensor, similar: Tensor, dissimilar: Tensor, margin: float, similar_weight: float
) -> Tensor:
    """Return the mean loss of similar pairs plus that of dissimilar pairs. [Wang2016, Eq. 12]

        L = w·½‖x - x⁺‖² + ½ max(0, m - ‖x - x⁻‖)²

    The second term has the sign of [Hadsell2006]: with the minus sign printed in the paper,
    minimisation would draw dissimilar pairs together.
    """
    pull = 0.5 * (distance.square() * similar).sum() / similar.sum().clamp(min=1)
    short = (margin - distance).clamp(min=0)
    push = 0.5 * (short.square() * dissimilar).sum() / dissimilar.sum().clamp(min=1)
    return similar_weight * pull + push


def all_pairs_loss(z: Tensor, similar: Tensor, margin: float, similar_weight: float) -> Tensor:
    """Return `pairwise_loss` of all pairs of codes z (m, N), i ≠ j, of which some are similar.

    The distances are d_ij² = ‖z_i‖² + ‖z_j‖² - 2z_iᵀz_j. Sets the diagonal of `similar` to 0.
    """
    loss: Tensor = _AllPairsLoss.apply(  # type: ignore[no-untyped-call]
        z, similar, margin, similar_weight
    )
    return loss


class _AllPairsLoss(torch.autograd.Function):
    """The loss of all pairs with its gradient in closed form, twice as fast as automatic gradients.

    ∂L/∂d_ij² = g_ij = ½w/n⁺ for similar pairs, -½ max(0, m - d_ij) / (d_ij n⁻) for the others
    ∂L/∂z_i   = 2 Σ_j (g_ij + g_ji) (z_i - z_j)         n⁺, n⁻ similar and dissimilar pairs

    Operations have the order of automatic gradients, so that results are equal to the last bit.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, similar: Tensor, margin: float, weight: float) -> Tensor:
        norms = z.square().sum(dim=1)
        squared = norms[:, None] + norms
        squared -= (2 * z) @ z.T
        distance = squared.clamp(min=CLOSEST).sqrt_()
        alike = similar.fill_diagonal_(0).to(z.dtype)
        unlike = (1 - alike).fill_diagonal_(0)
        n_alike, n_unlike = alike.sum().clamp(min=1), unlike.sum().clamp(min=1)
        short = (margin - distance).clamp_(min=0)
        near, far = alike.mul_(distance), unlike.mul_(short)
        pull, push = 0.5 * (near * distance).sum() / n_alike, 0.5 * (far * short).sum() / n_unlike
        g = near.mul_(0.5 * z.new_tensor(weight) / n_alike).sub_(far.mul_(0.5 / n_unlike))
        g = g.div_(distance)
        g = torch.ops.aten.threshold_backward(g, squared, CLOSEST)  # no gradient for equal codes
        sums = (g.sum(dim=1) + g.sum(dim=0))[:, None]
        ctx.save_for_backward(2 * (sums * z - (g @ z + (z.T @ g).T)))
        return weight * pull + push

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return gradients[0] * slope, None, None, None


def expected_pairwise_loss(
    z: Tensor, similar: Tensor, margin: float, similar_weight: float
) -> Tensor:
    """Return the expectation of Eq. 12 for codes z (m, N) whose similarity is uncertain.

        L = w·Σ s_ij ½d_ij² / Σ s_ij + Σ (1 - s_ij) ½ max(0, m - d_ij)² / Σ (1 - s_ij)

    with d_ij = ‖z_i - z_j‖, i ≠ j, and s_ij (m, m) the probability that a pair is similar. If all
    s_ij are 0 or 1 it equals `pairwise_loss` of all pairs. Sets the diagonal of `similar` to 0.
    """
    loss: Tensor = _ExpectedLoss.apply(  # type: ignore[no-untyped-call]
        z, similar, margin, similar_weight
    )
    return loss


class _ExpectedLoss(torch.autograd.Function):
    """The expected loss with its gradient in closed form, twice as fast as automatic gradients.

    ∂L/∂d_ij² = g_ij = ½w s_ij / Σs - ½(1 - s_ij) max(0, m - d_ij) / (d_ij Σ(1 - s))
    ∂L/∂z_i   = 4 Σ_j g_ij (z_i - z_j)                  each pair occurs as ij and as ji
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, s: Tensor, margin: float, weight: float) -> Tensor:
        norms = z.square().sum(dim=1)
        squared = torch.addmm(norms[:, None] + norms, z, z.T, alpha=-2.0).clamp_(min=CLOSEST)
        distance = squared.sqrt()
        s.fill_diagonal_(0.0)
        unlike = (1.0 - s).fill_diagonal_(0.0)
        n_alike, n_unlike = s.sum().clamp(min=1), unlike.sum().clamp(min=1)
        short = (margin - distance).clamp_(min=0)
        unlike.mul_(short)
        pull = weight * (s * squared).sum() / n_alike
        push = (unlike * short).sum() / n_unlike
        g = s.mul(weight / n_alike).sub_(unlike.div_(distance.mul_(n_unlike)))
        ctx.save_for_backward(2 * (g.sum(dim=1, keepdim=True) * z - g @ z))
        return 0.5 * (pull + push)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return gradients[0] * slope, None, None, None


def mean_over_prefixes(
    loss: Callable[[Tensor, float], Tensor], z: Tensor, margin: float, nested: Sequence[int]
) -> Tensor:
    """Return the mean of a loss of (codes, margin) over prefixes of the codes z.

        mean of loss(z_1…z_L, m·√(L/N)),   L in nested, and N

    The margin is scaled like the distance of random codes, with the root of the length.
    """
    if not nested:
        return loss(z, margin)
    n_bits = z.shape[1]
    lengths = (*nested, n_bits)
    return torch.stack([loss(z[:, :n], margin * math.sqrt(n / n_bits)) for n in lengths]).mean()


def distance_of(squared: Tensor) -> Tensor:
    """Return the square root, with a gradient of zero for equal codes."""
    return squared.clamp(min=CLOSEST).sqrt()


def are_similar(left: Tensor, right: Tensor) -> Tensor:
    """Return the boolean table of pairs with equal labels or with a shared concept."""
    if left.ndim == 1:
        return left[:, None] == right[None, :]
    return (left.float() @ right.float().T) > 0


def similarity_probabilities(probabilities: Tensor, *, exclusive: bool) -> Tensor:
    """Return the probability (m, m) that two rows share a label, from class probabilities (m, c).

    s_ij = Σ_c p_ic p_jc                  one class per row
    s_ij = 1 - Π_c (1 - p_ic p_jc)        independent concepts

    """
    if exclusive:
        return probabilities @ probabilities.T
    none = probabilities.new_ones(len(probabilities), len(probabilities))
    for p in probabilities.T:
        none.addcmul_(none, torch.outer(p, p), value=-1.0)
    return 1.0 - none


_SHIFTS = 4  # candidates for the dissimilar row of each similar pair


def triplet_loss(z: Tensor, targets: Tensor, *, margin: float) -> Tensor:
    """Return the mean loss of triplets: row i is similar to j and dissimilar to k. [Lai2015]

        L = mean of ½ max(0, m + d_ij - d_ik)²,    d_ij = ‖z_i - z_j‖

    with codes z (m, N) and targets (m, m), 1 for similar pairs and -1 for dissimilar ones. For
    each pair only k = j + 1 … j + 4 are used, a random choice because the rows of a batch are in
    random order. Without triplets the loss is zero.
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

"""Pairwise loss (Eq. 12), its expectation over class probabilities, and the triplet loss."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

CLOSEST = 1e-12  # squared distance, so that a root has a gradient

PairLoss = Callable[[Tensor, Tensor], Tensor]


def pairwise_loss(
    distance: Tensor, similar: Tensor, dissimilar: Tensor, margin: float, similar_weight: float
) -> Tensor:
    """Loss of pairs at the given distances, the mean over each kind of pair. [Wang2016, Eq. 12]

        L = w·½‖x - x⁺‖² + ½ max(0, m - ‖x - x⁻‖)²

    The sign of the second term is that of [Hadsell2006]: printed with a minus, as in the paper,
    minimising it would draw dissimilar pairs together.
    """
    pull = 0.5 * (distance.square() * similar).sum() / similar.sum().clamp(min=1)
    short = (margin - distance).clamp(min=0)
    push = 0.5 * (short.square() * dissimilar).sum() / dissimilar.sum().clamp(min=1)
    return similar_weight * pull + push


def expected_pairwise_loss(
    z: Tensor, similar: Tensor, margin: float, similar_weight: float
) -> Tensor:
    """Return Eq. 12 for all pairs of codes z (m, N), expected over who is similar.

        L = w·Σ s_ij ½d_ij² / Σ s_ij + Σ (1 - s_ij) ½ max(0, m - d_ij)² / Σ (1 - s_ij)

    with d_ij = ‖z_i - z_j‖, i ≠ j, and s_ij (m, m) the probability that a pair is similar. Where
    all s_ij are 0 or 1 it is `pairwise_loss` of all pairs. The diagonal of `similar` is set to 0.
    """
    loss: Tensor = _ExpectedLoss.apply(  # type: ignore[no-untyped-call]
        z, similar, margin, similar_weight
    )
    return loss


class _ExpectedLoss(torch.autograd.Function):
    """The loss with its gradient in closed form: half the time of the recorded operations.

    ∂L/∂d_ij² = g_ij = ½w s_ij / Σs - ½(1 - s_ij) max(0, m - d_ij) / (d_ij Σ(1 - s))
    ∂L/∂z_i   = 4 Σ_j g_ij (z_i - z_j)                  the pair occurs as ij and as ji
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
    """Return the mean of a loss of (codes, margin) over the first L entries of z and over all.

        mean of loss(z_1…z_L, m·√(L/N)),   L in nested, and N

    Distances of random codes grow with the root of their length, and so do the margins.
    """
    if not nested:
        return loss(z, margin)
    n_bits = z.shape[1]
    lengths = (*nested, n_bits)
    return torch.stack([loss(z[:, :n], margin * math.sqrt(n / n_bits)) for n in lengths]).mean()


def distance_of(squared: Tensor) -> Tensor:
    """Square root whose gradient at zero is finite: two equal codes do not push anywhere."""
    return squared.clamp(min=CLOSEST).sqrt()


def are_similar(left: Tensor, right: Tensor) -> Tensor:
    """Boolean table: equal labels, or at least one shared concept of multi-hot labels."""
    if left.ndim == 1:
        return left[:, None] == right[None, :]
    return (left.float() @ right.float().T) > 0


def probably_similar(beliefs: Tensor, *, exclusive: bool) -> Tensor:
    """Return the probability that two rows share a label, (m, m), given beliefs (m, c).

    s_ij = Σ_c p_ic p_jc                  one class per row
    s_ij = 1 - Π_c (1 - p_ic p_jc)        concepts, which are there or not by themselves

    """
    if exclusive:
        return beliefs @ beliefs.T
    none = beliefs.new_ones(len(beliefs), len(beliefs))
    for p in beliefs.T:
        none.addcmul_(none, torch.outer(p, p), value=-1.0)
    return 1.0 - none


def function_name(function: Callable[..., Any]) -> str:
    """Return a name that tells a function from others, with what was given to it beforehand."""
    if isinstance(function, partial):
        given = [*map(repr, function.args), *(f"{k}={v!r}" for k, v in function.keywords.items())]
        return f"{function_name(function.func)}({', '.join(given)})"
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


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

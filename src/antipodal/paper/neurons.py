"""The neurons: bounded, soft-thresholding and hard-thresholding linear units.

Each has a positive threshold θ per unit, learned as its logarithm, and is written as two
diagonal scalings around a neuron with threshold 1: θᵢ·f(uᵢ/θᵢ). [Wang2016, Sec. 3]
"""

import math
from abc import ABC, abstractmethod
from typing import TypeVar

import torch
from torch import Tensor, nn

Bound = TypeVar("Bound", float, Tensor)  # one for all units, or one for each


def clip(u: Tensor, bound: Bound, out: Tensor | None = None) -> Tensor:
    """Apply the box operator, B_λ(u)ᵢ = min(max(uᵢ, -λᵢ), λᵢ). [Wang2016, Eq. 10]"""
    return torch.clamp(u, -bound, bound, out=out)


def rectify(u: Tensor, threshold: float | Tensor, out: Tensor | None = None) -> Tensor:
    """Apply the one-sided soft threshold, max(u - θ, 0)."""
    return torch.sub(u, threshold, out=out).clamp_(min=0.0)


class ScaledNeuron(nn.Module, ABC):
    """θᵢ·f(uᵢ/θᵢ) for a neuron f with threshold 1 and learned θᵢ > 0."""

    def __init__(self, n_units: int, threshold: float = 1.0) -> None:
        super().__init__()
        if not 0 < threshold < math.inf:
            raise ValueError(f"the threshold must be positive and finite: got {threshold}")
        self.log_threshold = nn.Parameter(torch.full((n_units,), math.log(threshold)))

    @property
    def threshold(self) -> Tensor:
        """θ (n_units,), positive whatever was learned."""
        return self.log_threshold.exp()

    def forward(self, u: Tensor) -> Tensor:  # (…, n_units) -> (…, n_units)
        """Scale, apply the unit neuron, scale back."""
        theta = self.threshold
        return theta * self.unit(u / theta)

    @staticmethod
    @abstractmethod
    def unit(v: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the neuron with threshold 1, in `out` if given, which must not be v."""


class BLU(ScaledNeuron):
    """Bounded linear unit, B_λ(u) with one learned λᵢ per unit: caps large entries. [Wang2016]"""

    @staticmethod
    def unit(v: Tensor, out: Tensor | None = None) -> Tensor:
        """Clip to [-1, 1]."""
        return clip(v, 1.0, out)


class SHeLU(ScaledNeuron):
    """Soft-thresholding linear unit, sign(u)·max(|u| - θ, 0): shrinks all, drops small entries."""

    @staticmethod
    def unit(v: Tensor, out: Tensor | None = None) -> Tensor:
        """Move towards zero by 1."""
        return torch.sub(v, clip(v, 1.0, out), out=out)


class HELU(ScaledNeuron):
    """Hard-thresholding linear unit, u where |u| > θ and 0 elsewhere: drops small entries."""

    @staticmethod
    def unit(v: Tensor, out: Tensor | None = None) -> Tensor:
        """Keep what is larger than 1."""
        return torch.where(v.abs() > 1.0, v, torch.zeros_like(v), out=out)

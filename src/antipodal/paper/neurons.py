"""Neurons: bounded, soft-thresholding and hard-thresholding linear units.

Each has one learned threshold θᵢ > 0 per unit, stored as its logarithm, and consists of two
diagonal scalings around a neuron f with threshold 1: θᵢ·f(uᵢ/θᵢ). [Wang2016, Sec. 3]
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


def clip(u: Tensor, bound: float) -> Tensor:
    """Apply the box operator, B_λ(u)ᵢ = min(max(uᵢ, -λ), λ). [Wang2016, Eq. 10]"""
    return torch.clamp(u, -bound, bound)


def rectify(u: Tensor, threshold: float | Tensor) -> Tensor:
    """Apply the one-sided soft threshold, max(u - θ, 0)."""
    return torch.sub(u, threshold).clamp_(min=0.0)


class ScaledNeuron(nn.Module, ABC):
    """θᵢ·f(uᵢ/θᵢ) for a neuron f with threshold 1 and learned θᵢ > 0.

    Parameters
    ----------
    n_units : int
        Number of units, each with its own threshold.
    threshold : float
        Initial value of all θᵢ.
    """

    def __init__(self, n_units: int, threshold: float = 1.0) -> None:
        super().__init__()
        if not 0 < threshold < math.inf:
            raise ValueError(f"the threshold must be positive and finite: got {threshold}")
        self.log_threshold = nn.Parameter(torch.full((n_units,), math.log(threshold)))

    @property
    def threshold(self) -> Tensor:
        """Return θ (n_units,), which is always positive."""
        return self.log_threshold.exp()

    def forward(self, u: Tensor) -> Tensor:  # (…, n_units) -> (…, n_units)
        """Return θ·f(u/θ)."""
        theta = self.threshold
        return theta * self.unit(u / theta)

    @staticmethod
    @abstractmethod
    def unit(v: Tensor) -> Tensor:
        """Apply f, the neuron with threshold 1."""


class BLU(ScaledNeuron):
    """Bounded linear unit, B_λ(u) with one learned λᵢ per unit. [Wang2016, Eq. 10]

    Parameters
    ----------
    n_units : int
        Number of units, each with its own bound.
    threshold : float
        Initial value of all λᵢ.

    Examples
    --------
    >>> BLU(3)(torch.tensor([-2.0, 0.5, 3.0])).tolist()
    [-1.0, 0.5, 1.0]
    """

    @staticmethod
    def unit(v: Tensor) -> Tensor:
        """Clip to [-1, 1]."""
        return clip(v, 1.0)


class SHeLU(ScaledNeuron):
    """Soft-thresholding linear unit, sign(u)·max(|u| - θ, 0).

    Parameters
    ----------
    n_units : int
        Number of units, each with its own threshold.
    threshold : float
        Initial value of all θᵢ.

    Examples
    --------
    >>> SHeLU(3)(torch.tensor([-2.0, 0.5, 3.0])).tolist()
    [-1.0, 0.0, 2.0]
    """

    @staticmethod
    def unit(v: Tensor) -> Tensor:
        """Shrink towards zero by 1."""
        return v - clip(v, 1.0)


class HELU(ScaledNeuron):
    """Hard-thresholding linear unit, u where |u| > θ and 0 elsewhere.

    Parameters
    ----------
    n_units : int
        Number of units, each with its own threshold.
    threshold : float
        Initial value of all θᵢ.

    Examples
    --------
    >>> HELU(3)(torch.tensor([-2.0, 0.5, 3.0])).tolist()
    [-2.0, 0.0, 3.0]
    """

    @staticmethod
    def unit(v: Tensor) -> Tensor:
        """Set entries of at most 1 in magnitude to 0."""
        return torch.where(v.abs() > 1.0, v, torch.zeros_like(v))

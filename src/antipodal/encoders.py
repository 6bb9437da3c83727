"""The three encoders of the paper: deep l∞, LISTA, and a plain feed-forward network.

All have K + 1 layers with the same weights, W (N, n), S_k (N, N) and b_k (N,), and differ only
in their neuron and in whether the input reaches every layer:

    z⁰ = f(Wy),   zᵏ = f(Wy + S_k zᵏ⁻¹ + b_k),   k = 1 … K              [Wang2016, Eq. 11, Fig. 2]
"""

import math
from typing import Self

import torch
from torch import Tensor, nn

from antipodal.admm import admm_step, unfolded_bias, unfolded_weights
from antipodal.neurons import BLU, SHeLU


class Encoder(nn.Module):
    """K unfolded steps behind a first layer; subclasses choose the neuron.

    Parameters
    ----------
    n_features, n_bits : int
        Width of the input, n, and of the code, N.
    n_stages : int
        K, the number of unfolded iterations behind the first layer.
    tied : bool
        Whether all stages share one S and one b.
    generator : torch.Generator, optional
        Source of the random initial weights.
    """

    feeds_input_to_every_stage = True

    def __init__(
        self,
        n_features: int,
        n_bits: int,
        n_stages: int = 2,
        *,
        tied: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if n_features < 1 or n_bits < 1 or n_stages < 0:
            raise ValueError(
                "an encoder needs at least one feature, one bit and zero stages: "
                f"got {n_features}, {n_bits} and {n_stages}"
            )
        self.n_stages = n_stages
        n_weights = min(n_stages, 1) if tied else n_stages
        # Wy has the variance of the entries of y; S starts small, so that Wy is heard through it.
        self.W = nn.Parameter(torch.empty(n_bits, n_features))
        self.S = nn.Parameter(torch.empty(n_weights, n_bits, n_bits))
        self.b = nn.Parameter(torch.zeros(n_weights, n_bits))
        nn.init.normal_(self.W, std=1 / math.sqrt(n_features), generator=generator)
        nn.init.normal_(self.S, std=0.5 / math.sqrt(n_bits), generator=generator)

    def neuron(self, u: Tensor) -> Tensor:
        """Apply f of this encoder, entry by entry."""
        raise NotImplementedError

    def forward(self, y: Tensor) -> Tensor:  # (m, n) -> (m, N)
        """Encode each row of y."""
        return self.from_drive(y @ self.W.T)

    def from_drive(self, drive: Tensor) -> Tensor:
        """Go through all layers, given Wy."""
        z = self.neuron(drive)
        feed = drive if self.feeds_input_to_every_stage else torch.zeros_like(drive[:1])
        for k in range(self.n_stages):
            z, _ = admm_step(feed, z, *self.stage(k), self.neuron)
        return z

    def stage(self, k: int) -> tuple[Tensor, Tensor]:
        """Return S and b of stage k, which are always the same in a tied encoder."""
        shared = min(k, len(self.S) - 1)
        return self.S[shared], self.b[shared]


class LinfEncoder(Encoder):
    """The Deep l∞ Encoder: ADMM for Eq. 1 unfolded, with one learned bound a bit. [Wang2016]"""

    def __init__(
        self,
        n_features: int,
        n_bits: int,
        n_stages: int = 2,
        *,
        tied: bool = False,
        bound: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(n_features, n_bits, n_stages, tied=tied, generator=generator)
        self.blu = BLU(n_bits, bound)

    def neuron(self, u: Tensor) -> Tensor:
        """Clip each entry to its bound."""
        blu: Tensor = self.blu(u)
        return blu

    @classmethod
    def from_dictionary(
        cls,
        D: Tensor,
        bound: float,
        penalty: float = 0.6,
        n_stages: int = 2,
        multipliers: Tensor | None = None,
        *,
        tied: bool = False,
    ) -> Self:
        """Unfold K iterations of ADMM on the dictionary D (n, N). [Wang2016, Eq. 11]

        W = (DᵀD + βI)⁻¹Dᵀ,  S_k = β(DᵀD + βI)⁻¹,  b_k = [(DᵀD + βI)⁻¹ - I/β] p_k

        With the multipliers p₁ … p_K (K, N) that `admm_iterations` recorded for one sample the
        encoder maps that sample to the result of iteration K + 1: its first layer, z⁰, is the
        first iteration, which starts from zero. Without multipliers the biases are zero. A tied
        encoder takes the mean bias.
        """
        D = torch.as_tensor(D)
        if D.ndim != 2 or not D.is_floating_point():
            raise ValueError(
                f"D must be a real matrix, features × bits: got {D.dtype} of {tuple(D.shape)}"
            )
        n_features, n_bits = D.shape
        unused = torch.Generator()  # all weights are replaced: leave the global one alone
        encoder = cls(n_features, n_bits, n_stages, tied=tied, bound=bound, generator=unused).to(D)
        if multipliers is None:
            multipliers = D.new_zeros(n_stages, n_bits)
        multipliers = torch.as_tensor(multipliers)
        if multipliers.shape != (n_stages, n_bits):
            raise ValueError(
                f"multipliers must have a row per stage, {n_stages} × {n_bits}: "
                f"got {tuple(multipliers.shape)}. Take one sample's, or their mean over samples"
            )
        W, S = unfolded_weights(D, penalty)
        b = unfolded_bias(multipliers.to(D), S, penalty)
        with torch.no_grad():
            encoder.W.copy_(W)
            encoder.S.copy_(S.expand_as(encoder.S))
            encoder.b.copy_(b.mean(dim=0, keepdim=True) if tied and n_stages else b)
            encoder.blu.log_threshold.fill_(math.log(bound))  # to the full precision of D
        return encoder


class ListaEncoder(Encoder):
    """Learned ISTA: the encoder of sparse hashing, with soft thresholds. [Gregor2010, Masci2014]"""

    def __init__(
        self,
        n_features: int,
        n_bits: int,
        n_stages: int = 2,
        *,
        tied: bool = False,
        threshold: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(n_features, n_bits, n_stages, tied=tied, generator=generator)
        self.shelu = SHeLU(n_bits, threshold)

    def neuron(self, u: Tensor) -> Tensor:
        """Shrink each entry by its threshold."""
        shelu: Tensor = self.shelu(u)
        return shelu


class PlainEncoder(Encoder):
    """A feed-forward network with tanh: only its first layer sees the input. [Masci2014]"""

    feeds_input_to_every_stage = False

    def neuron(self, u: Tensor) -> Tensor:
        """Squash each entry."""
        return u.tanh()

"""Encoders: deep l∞, LISTA, and a plain feed-forward network.

All have K + 1 layers with weights W (N, n), S_k (N, N) and b_k (N,). They differ in the neuron f,
and in whether the input reaches every layer:

    z⁰ = f(Wy),   zᵏ = f(Wy + S_k zᵏ⁻¹ + b_k),   k = 1 … K              [Wang2016, Eq. 11, Fig. 2]
"""

import math
from typing import Self

import torch
from torch import Tensor, nn

from antipodal.paper.admm import admm_step, unfolded_bias, unfolded_weights
from antipodal.paper.neurons import BLU, ScaledNeuron, SHeLU, rectify


class Encoder(nn.Module):
    """First layer and K unfolded iterations; subclasses define the neuron.

    A custom encoder defines `neuron`, or returns a `ScaledNeuron` from `activation`. It may also
    define `readout` and the class attributes below, or override `forward`.

    Parameters
    ----------
    n_features, n_bits : int
        Width of the input, n, and of the code, N.
    n_stages : int
        K, the number of unfolded iterations after the first layer.
    generator : torch.Generator, optional
        Source of the random initial weights.

    Attributes
    ----------
    feeds_input_to_every_stage : bool
        Whether Wy is added in every layer.
    initial_gain : float
        Initial standard deviation of Sz for z of standard deviation 1; small, so that Wy dominates.
    """

    feeds_input_to_every_stage = True
    initial_gain = 0.5
    c: nn.Parameter | None

    def __init__(
        self,
        n_features: int,
        n_bits: int,
        n_stages: int = 2,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if n_features < 1 or n_bits < 1 or n_stages < 0:
            raise ValueError(
                "an encoder needs at least one feature, one bit and zero stages: "
                f"got {n_features}, {n_bits} and {n_stages}"
            )
        self.n_stages = n_stages
        # Wy has the same variance as y.
        self.W = nn.Parameter(torch.empty(n_bits, n_features))
        self.S = nn.Parameter(torch.empty(n_stages, n_bits, n_bits))
        self.b = nn.Parameter(torch.zeros(n_stages, n_bits))
        self.register_parameter("c", None)
        nn.init.normal_(self.W, std=1 / math.sqrt(n_features), generator=generator)
        nn.init.normal_(self.S, std=self.initial_gain / math.sqrt(n_bits), generator=generator)

    def add_offset(self) -> None:
        """Add a learned offset to the first layer, Wy + c, for its use as a hidden layer."""
        self.c = nn.Parameter(torch.zeros_like(self.W[:, 0]))

    @property
    def activation(self) -> ScaledNeuron | None:
        """Return the module of the neuron, θ·f₁(u/θ), if it is a `ScaledNeuron`."""
        return None

    def neuron(self, u: Tensor) -> Tensor:
        """Apply f to each entry."""
        if self.activation is None:
            raise NotImplementedError(f"{type(self).__name__} must define neuron(u)")
        z: Tensor = self.activation(u)
        return z

    @property
    def threshold(self) -> Tensor:
        """Return θ (N,), ones for a neuron without thresholds."""
        if self.activation is not None:
            return self.activation.threshold
        return torch.ones_like(self.W[:, 0])

    def readout(self, z: Tensor) -> Tensor:
        """Return the output of the encoder, given zᴷ: by default zᴷ itself."""
        return z

    def forward(self, y: Tensor) -> Tensor:  # (m, n) -> (m, N)
        """Encode each row of y."""
        drive = y @ self.W.T
        drive = drive if self.c is None else drive + self.c
        z = self.neuron(drive)
        feed = drive if self.feeds_input_to_every_stage else torch.zeros_like(drive)
        for k in range(self.n_stages):
            z, _ = admm_step(feed, z, self.S[k], self.b[k], self.neuron)
        return self.readout(z)


class LinfEncoder(Encoder):
    """Deep l∞ Encoder: unfolded ADMM for Eq. 1, with one learned bound per bit. [Wang2016]

    f = B_λ, the bounded linear unit.                                        [Wang2016, Eq. 10]

    Parameters
    ----------
    n_features, n_bits, n_stages, generator
        As for `Encoder`.
    bound : float
        Initial λ of every bit.

    Examples
    --------
    >>> encoder = LinfEncoder(16, 32, generator=torch.Generator().manual_seed(0))
    >>> codes = encoder(torch.ones(2, 16))
    >>> tuple(codes.shape), bool((codes.abs() <= 1).all())
    ((2, 32), True)
    """

    def __init__(
        self,
        n_features: int,
        n_bits: int,
        n_stages: int = 2,
        *,
        bound: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(n_features, n_bits, n_stages, generator=generator)
        self.blu = BLU(n_bits, bound)

    @property
    def activation(self) -> BLU:
        """Return the neuron, whose threshold is λ."""
        return self.blu

    @classmethod
    def from_dictionary(
        cls,
        D: Tensor,
        bound: float,
        penalty: float = 0.6,
        n_stages: int = 2,
        multipliers: Tensor | None = None,
    ) -> Self:
        """Unfold K iterations of ADMM on the dictionary D (n, N). [Wang2016, Eq. 11]

        W = (DᵀD + βI)⁻¹Dᵀ,  S_k = β(DᵀD + βI)⁻¹,  b_k = [(DᵀD + βI)⁻¹ - I/β] p_k

        With the multipliers p₁ … p_K (K, N) that `admm_iterations` recorded for one sample, the
        encoder maps that sample to the result of iteration K + 1. Its first layer, z⁰, is the
        first iteration, which starts from zero. Without multipliers the biases are zero.

        Parameters
        ----------
        D : (n, N)
            Dictionary, one atom per column. The encoder has its dtype and device.
        bound : float
            λ, the initial bound of every bit.
        penalty : float
            β.
        n_stages : int
            K.
        multipliers : (K, N), optional
            Those of one sample, or their mean over samples.

        Examples
        --------
        >>> D = torch.eye(4)
        >>> LinfEncoder.from_dictionary(D, bound=1.0, n_stages=0)(5 * torch.ones(1, 4)).tolist()
        [[1.0, 1.0, 1.0, 1.0]]
        """
        D = torch.as_tensor(D)
        if D.ndim != 2 or not D.is_floating_point():
            raise ValueError(
                f"D must be a real matrix, features × bits: got {D.dtype} of {tuple(D.shape)}"
            )
        n_features, n_bits = D.shape
        unused = torch.Generator()  # all weights are replaced: the global generator stays as it is
        encoder = cls(n_features, n_bits, n_stages, bound=bound, generator=unused).to(D)
        if multipliers is None:
            multipliers = D.new_zeros(n_stages, n_bits)
        multipliers = torch.as_tensor(multipliers)
        if multipliers.shape != (n_stages, n_bits):
            raise ValueError(
                f"multipliers must have a row per stage, {n_stages} × {n_bits}: got "
                f"{tuple(multipliers.shape)}. Pass those of one sample, or their mean over samples"
            )
        W, S = unfolded_weights(D, penalty)
        b = unfolded_bias(multipliers.to(D), S, penalty)
        with torch.no_grad():
            encoder.W.copy_(W)
            encoder.S.copy_(S.expand_as(encoder.S))
            encoder.b.copy_(b)
            encoder.blu.log_threshold.fill_(math.log(bound))  # in the precision of D
        return encoder


class ListaEncoder(Encoder):
    """Learned ISTA: the unfolded iteration of sparse coding, with soft thresholds. [Gregor2010]

    Parameters
    ----------
    n_features, n_bits, n_stages, generator
        As for `Encoder`.
    threshold : float
        Initial θ of every bit.
    """

    def __init__(
        self,
        n_features: int,
        n_bits: int,
        n_stages: int = 2,
        *,
        threshold: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(n_features, n_bits, n_stages, generator=generator)
        self.shelu = SHeLU(n_bits, threshold)

    @property
    def activation(self) -> SHeLU:
        """Return the neuron, a soft threshold."""
        return self.shelu


class SparseBitEncoder(ListaEncoder):
    """LISTA with an output that approximates bits: x = tanh(max(z, 0)/θ). [Masci2014]

    With `nonnegative` the neuron is the one-sided soft threshold, max(u - θ, 0).
    """

    def __init__(
        self,
        n_features: int,
        n_bits: int,
        n_stages: int = 2,
        *,
        threshold: float = 0.3,
        nonnegative: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(n_features, n_bits, n_stages, threshold=threshold, generator=generator)
        self.nonnegative = nonnegative

    def neuron(self, u: Tensor) -> Tensor:
        """Apply the one- or two-sided soft threshold θ."""
        return rectify(u, self.threshold) if self.nonnegative else super().neuron(u)

    def readout(self, z: Tensor) -> Tensor:
        """Return tanh(max(z, 0)/θ)."""
        return (z.clamp(min=0.0) / self.threshold).tanh()


class PlainEncoder(Encoder):
    """Feed-forward network with tanh: only the first layer receives the input. [Masci2014b]

    Its parameters are those of `Encoder`.
    """

    feeds_input_to_every_stage = False
    initial_gain = nn.init.calculate_gain("tanh")  # keeps the variance from layer to layer

    def neuron(self, u: Tensor) -> Tensor:
        """Apply tanh, which has no threshold."""
        return torch.tanh(u)

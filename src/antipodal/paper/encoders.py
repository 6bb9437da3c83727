"""The encoders of the paper: deep l∞, LISTA, and a plain feed-forward network.

All have K + 1 layers with the same weights, W (N, n), S_k (N, N) and b_k (N,), and differ only
in their neuron and in whether the input reaches every layer:

    z⁰ = f(Wy),   zᵏ = f(Wy + S_k zᵏ⁻¹ + b_k),   k = 1 … K              [Wang2016, Eq. 11, Fig. 2]
"""

import math
from collections.abc import Callable, Iterable
from typing import Self

import torch
from torch import Tensor, nn

from antipodal.paper.admm import admm_step, unfolded_bias, unfolded_weights
from antipodal.paper.neurons import BLU, SHeLU, rectify


class Encoder(nn.Module):
    """K unfolded steps behind a first layer; subclasses choose the neuron.

    An own encoder needs one hook, `neuron`. Others say more: `unit` and `threshold` how the neuron
    is computed fast, `readout` what becomes of the last layer, `feeds_input_to_every_stage`
    whether Wy reaches all layers, `initial_gain` how large S is at first. One that also overrides
    `forward`, `from_drive` or `layers` is still encoded with as it was trained, if more slowly.

    Parameters
    ----------
    n_features, n_bits : int
        Width of the input, n, and of the code, N.
    n_stages : int
        K, the number of unfolded iterations behind the first layer.
    generator : torch.Generator, optional
        Source of the random initial weights.
    """

    feeds_input_to_every_stage = True
    # Sz has this deviation for z of deviation 1, to begin with: small, so that Wy is heard.
    initial_gain = 0.5

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
        # Wy has the variance of the entries of y.
        self.W = nn.Parameter(torch.empty(n_bits, n_features))
        self.S = nn.Parameter(torch.empty(n_stages, n_bits, n_bits))
        self.b = nn.Parameter(torch.zeros(n_stages, n_bits))
        self.register_parameter("c", None)
        nn.init.normal_(self.W, std=1 / math.sqrt(n_features), generator=generator)
        nn.init.normal_(self.S, std=self.initial_gain / math.sqrt(n_bits), generator=generator)

    def add_offset(self) -> None:
        """Give the first layer an offset too, Wy + c, as a hidden layer of its own has."""
        self.c = nn.Parameter(torch.zeros_like(self.W[:, 0]))

    def neuron(self, u: Tensor) -> Tensor:
        """Apply f of this encoder, entry by entry: f(u) = θ·f₁(u/θ)."""
        raise NotImplementedError(f"{type(self).__name__} must have a neuron(u)")

    def unit(self, v: Tensor, out: Tensor | None = None) -> Tensor:
        """Apply f₁(v) = f(θv)/θ, the neuron with threshold 1; the result is in `out` if given.

        A subclass may do so without going through f.
        """
        theta = self.threshold
        result = self.neuron(v * theta) / theta
        return result if out is None else out.copy_(result)

    @property
    def threshold(self) -> Tensor:
        """θ (N,), ones where the neuron has none."""
        return torch.ones_like(self.W[:, 0])

    def readout(self, z: Tensor) -> Tensor:
        """Turn the last zᵏ into the output, which it is unless a subclass says otherwise."""
        return z

    c: nn.Parameter | None

    @property
    def is_plain_unfolding(self) -> bool:
        """Whether the layers are those of this class, so that there is a fast way through them."""
        own = type(self)
        hooks = ("forward", "from_drive", "layers")
        return all(getattr(own, name) is getattr(Encoder, name) for name in hooks)

    def forward(self, y: Tensor) -> Tensor:  # (m, n) -> (m, N)
        """Encode each row of y."""
        drive = y @ self.W.T
        return self.from_drive(drive if self.c is None else drive + self.c)

    def from_drive(self, drive: Tensor) -> Tensor:
        """Go through all layers, given Wy (and its offset)."""
        return self.readout(self.layers(drive, self.stages(), self.neuron))

    def layers(
        self,
        drive: Tensor,
        stages: Iterable[tuple[Tensor, Tensor]],
        neuron: Callable[[Tensor], Tensor],
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return zᴷ, given Wy, all (S_k, b_k) and f; `out` is memory for what goes into f."""
        z = neuron(drive)
        feed = (
            drive
            if self.feeds_input_to_every_stage
            else torch.zeros_like(drive[:1]).expand_as(drive)
        )
        for S, b in stages:
            z, _ = admm_step(feed, z, S, b, neuron, out=out)
        return z

    def stages(self) -> list[tuple[Tensor, Tensor]]:
        """Return S_k and b_k for k = 1 … K."""
        return [(self.S[k], self.b[k]) for k in range(self.n_stages)]


class LinfEncoder(Encoder):
    """The Deep l∞ Encoder: ADMM for Eq. 1 unfolded, with one learned bound a bit. [Wang2016]"""

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

    def neuron(self, u: Tensor) -> Tensor:
        """Clip each entry to its bound."""
        blu: Tensor = self.blu(u)
        return blu

    def unit(self, v: Tensor, out: Tensor | None = None) -> Tensor:
        """Clip to ±1."""
        return self.blu.unit(v, out)

    @property
    def threshold(self) -> Tensor:
        """λ (N,), one bound a bit."""
        return self.blu.threshold

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

        With the multipliers p₁ … p_K (K, N) that `admm_iterations` recorded for one sample the
        encoder maps that sample to the result of iteration K + 1: its first layer, z⁰, is the
        first iteration, which starts from zero. Without multipliers the biases are zero.
        """
        D = torch.as_tensor(D)
        if D.ndim != 2 or not D.is_floating_point():
            raise ValueError(
                f"D must be a real matrix, features × bits: got {D.dtype} of {tuple(D.shape)}"
            )
        n_features, n_bits = D.shape
        unused = torch.Generator()  # all weights are replaced: leave the global one alone
        encoder = cls(n_features, n_bits, n_stages, bound=bound, generator=unused).to(D)
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
            encoder.b.copy_(b)
            encoder.blu.log_threshold.fill_(math.log(bound))  # to the full precision of D
        return encoder


class ListaEncoder(Encoder):
    """Learned ISTA, the iteration of sparse coding unfolded, with soft thresholds. [Gregor2010]"""

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

    def neuron(self, u: Tensor) -> Tensor:
        """Shrink each entry by its threshold."""
        shelu: Tensor = self.shelu(u)
        return shelu

    def unit(self, v: Tensor, out: Tensor | None = None) -> Tensor:
        """Move towards zero by 1."""
        return self.shelu.unit(v, out)

    @property
    def threshold(self) -> Tensor:
        """θ (N,), what each entry is shrunk by."""
        return self.shelu.threshold


class SparseBitEncoder(ListaEncoder):
    """LISTA, and a last layer that approximates bits: x = tanh(max(z, 0)/θ). [Masci2014]

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
        """Shrink each entry by its threshold."""
        return rectify(u, self.threshold) if self.nonnegative else super().neuron(u)

    def unit(self, v: Tensor, out: Tensor | None = None) -> Tensor:
        """Shrink each entry by 1."""
        return rectify(v, 1.0, out) if self.nonnegative else super().unit(v, out)

    def readout(self, z: Tensor) -> Tensor:
        """Squash the positive entries: zero stays zero."""
        return (z.clamp(min=0.0) / self.threshold).tanh()


class PlainEncoder(Encoder):
    """A feed-forward network with tanh: only its first layer sees the input. [Masci2014b]"""

    feeds_input_to_every_stage = False
    initial_gain = nn.init.calculate_gain("tanh")  # else the signal would fade from layer to layer

    def neuron(self, u: Tensor) -> Tensor:
        """Squash each entry: tanh has no threshold."""
        return self.unit(u)

    def unit(self, v: Tensor, out: Tensor | None = None) -> Tensor:
        """Squash each entry."""
        return torch.tanh(v, out=out)

"""Encoding pipeline of a fitted network: scaling, feature map, encoder."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from antipodal.hashers.kernel_features import KernelFeatures, kernel_feature_rows, kernel_map
from antipodal.hashers.preprocessing import Inputs, linear_map, scale_map
from antipodal.paper.encoders import Encoder


class Network(NamedTuple):
    """A fitted network: scaling, feature map (hidden layer, kernel or none), encoder."""

    inputs: Inputs
    hidden: Encoder | None
    kernel: KernelFeatures | None
    encoder: Encoder

    @property
    def is_plain(self) -> bool:
        """Return whether no encoder overrides `forward`, so that the fast path applies."""
        hidden = self.hidden
        return self.encoder.is_plain_unfolding and (hidden is None or hidden.is_plain_unfolding)


def forward_map(network: Network, max_rows: int) -> Callable[[Tensor], Tensor]:
    """Return the function (m, n) -> (m, N) that computes z, for up to max_rows rows."""
    encoder = network.encoder
    if not network.is_plain:
        inputs = encoder_inputs(network)
        return lambda X: encoder(inputs(X))
    theta = encoder.threshold
    first_layer = _first_layer(network, encoder.W / theta[:, None], max_rows)
    stages = [(S * theta / theta[:, None], b / theta) for S, b in encoder.stages()]
    # Allocating memory for every block would take longer than the neurons.
    work = torch.empty(3, max_rows, len(theta))

    def forward(X: Tensor) -> Tensor:
        drive, v, u = work[:, : len(X)].unbind()
        drive = first_layer(X, drive)
        v = encoder.layers(drive, stages, partial(encoder.unit, out=v), out=u)
        return encoder.readout(v.mul_(theta))

    return forward


def encoder_inputs(network: Network) -> Callable[[Tensor], Tensor]:
    """Return the function that computes the input of the encoder: scaling and feature map."""
    scale, hidden, kernel = scale_map(network.inputs), network.hidden, network.kernel
    if kernel is not None:
        return lambda X: kernel_feature_rows(kernel, scale(X))
    return scale if hidden is None else lambda X: hidden(scale(X))


def _first_layer(network: Network, W: Tensor, max_rows: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function that writes Wy to a given tensor, y the input of the encoder."""
    inputs, hidden, kernel, _ = network
    if kernel is not None:
        scale, kernels = scale_map(inputs), kernel_map(kernel, max_rows)
        weights = torch.from_numpy(kernel.weight) @ W.T  # W(Lᵀk - c) as one product
        shift = -(W @ torch.from_numpy(kernel.offset))
        return lambda X, out: torch.addmm(shift, kernels(scale(X)), weights, out=out)
    if hidden is None:
        return linear_map(inputs, W, torch.zeros(len(W)))
    theta = hidden.threshold
    c = torch.zeros_like(theta) if hidden.c is None else hidden.c
    below = linear_map(inputs, hidden.W / theta[:, None], c / theta)
    work = torch.empty(2, max_rows, len(theta))

    def write(X: Tensor, out: Tensor) -> Tensor:
        u, v = work[:, : len(X)].unbind()
        h = hidden.readout(hidden.unit(below(X, u), out=v).mul_(theta))
        return torch.mm(h, W.T, out=out)

    return write

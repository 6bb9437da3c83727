"""Unfolding: the encoder is the iteration, and gradients pass through it."""

import numpy as np
import pytest
import torch

from antipodal import LinfEncoder, ListaEncoder, PlainEncoder
from antipodal.paper.admm import admm_iterations

ENCODERS = [LinfEncoder, ListaEncoder, PlainEncoder]


def problem(seed, n=12, N=8, m=3):
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.standard_normal((n, N))), torch.tensor(rng.standard_normal((m, n)))


@pytest.mark.parametrize("K", [0, 1, 2, 5])
@pytest.mark.parametrize(("n", "N"), [(12, 8), (6, 10)])
def test_with_one_samples_multipliers_the_encoder_is_the_iteration(K, n, N):
    D, Y = problem(K, n, N)
    bound, beta = 0.3, 0.6
    for y in Y:
        trace = admm_iterations(y[None], D, bound, penalty=beta, n_iter=K)
        encoder = LinfEncoder.from_dictionary(D, bound, beta, K, trace.multipliers[:, 0])
        expected = admm_iterations(y[None], D, bound, penalty=beta, n_iter=K + 1).codes
        torch.testing.assert_close(encoder(y[None]), expected, atol=1e-10, rtol=0)


def test_eq_11_in_numpy_gives_the_same_layers():
    D, Y = problem(1)
    d, y, beta, bound = D.numpy(), Y.numpy()[0], 0.6, 0.25
    inverse = np.linalg.inv(d.T @ d + beta * np.eye(8))
    p = np.random.default_rng(2).standard_normal((2, 8))
    z = np.clip(inverse @ d.T @ y, -bound, bound)
    for k in range(2):
        b = (inverse - np.eye(8) / beta) @ p[k]
        z = np.clip(inverse @ d.T @ y + beta * inverse @ z + b, -bound, bound)
    encoder = LinfEncoder.from_dictionary(D, bound, beta, 2, torch.tensor(p))
    np.testing.assert_allclose(encoder(Y)[0].detach(), z, atol=1e-12)


@pytest.mark.parametrize("kind", ENCODERS)
def test_gradients_are_those_of_finite_differences(kind):
    generator = torch.Generator().manual_seed(0)
    encoder = kind(5, 4, 2, generator=generator).double()
    names, weights = zip(*encoder.named_parameters(), strict=True)
    y = torch.randn(3, 5, dtype=torch.float64, generator=generator, requires_grad=True)

    def call(y, *weights):
        return torch.func.functional_call(encoder, dict(zip(names, weights, strict=True)), (y,))

    assert torch.autograd.gradcheck(call, (y, *weights))


def test_all_encoders_have_the_same_weights_and_depth():
    shapes = {
        kind: {name: tuple(getattr(kind(20, 6, 3), name).shape) for name in ("W", "S", "b")}
        for kind in ENCODERS
    }
    assert all(s == {"W": (6, 20), "S": (3, 6, 6), "b": (3, 6)} for s in shapes.values())


def test_outputs_stay_within_the_learned_bounds():
    encoder = LinfEncoder(20, 6, bound=0.4)
    z = encoder(100 * torch.randn(50, 20))
    assert (z.abs() <= encoder.blu.threshold + 1e-7).all()
    assert (z.abs() == z.abs().max()).float().mean() > 0.8  # large inputs give antipodal codes


def test_the_plain_network_sees_its_input_in_the_first_layer_only():
    encoder = PlainEncoder(3, 2, 1)
    with torch.no_grad():
        encoder.S.zero_()
        encoder.b.fill_(0.5)
    torch.testing.assert_close(encoder(torch.randn(4, 3)), torch.full((4, 2), 0.5).tanh())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"D": torch.ones(3, dtype=torch.int64)}, r"\bD\b.*\bint64\b"),
        ({"multipliers": torch.ones(1, 4)}, r"\bmultipliers\b.*\b2 × 4\b.*\(1, 4\)"),
        ({"bound": 0.0}, r"\b(bound|threshold)\b.*\b0\.0\b"),
        ({"n_stages": -1}, r"stages\b.*-1\b"),
    ],
)
def test_bad_input_is_named(arguments, message):
    given = {"D": torch.randn(6, 4), "bound": 1.0} | arguments
    with pytest.raises((ValueError, RuntimeError), match=message):
        LinfEncoder.from_dictionary(**given)

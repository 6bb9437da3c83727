"""Neurons against their definitions, and their gradients."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antipodal import BLU, HELU, SHeLU

values = st.lists(st.floats(-10, 10), min_size=1, max_size=8)


def definition(name, u, theta):
    return {
        "BLU": min(max(u, -theta), theta),
        "SHeLU": np.sign(u) * max(abs(u) - theta, 0),
        "HELU": u if abs(u) > theta else 0.0,
    }[name]


@pytest.mark.parametrize("neuron", [BLU, SHeLU, HELU])
@given(u=values, theta=st.floats(0.05, 5))
def test_a_neuron_is_its_definition(neuron, u, theta):
    u = [v for v in u if abs(abs(v) - theta) > 1e-9] or [0.0]  # HELU jumps at the threshold
    unit = neuron(len(u), theta).double()
    out = unit(torch.tensor(u, dtype=torch.float64)[None])[0]
    expected = [definition(neuron.__name__, v, theta) for v in u]
    np.testing.assert_allclose(out.detach(), expected, atol=1e-5)


@pytest.mark.parametrize("neuron", [BLU, SHeLU, HELU])
def test_the_unit_neuron_has_threshold_1(neuron):
    v = torch.tensor([-3.0, -1.0, -0.4, 0.0, 0.5, 2.0])
    expected = [definition(neuron.__name__, float(value), 1.0) for value in v]
    np.testing.assert_allclose(neuron.unit(v), expected)


@pytest.mark.parametrize("neuron", [BLU, SHeLU, HELU])
def test_gradients_reach_input_and_thresholds(neuron):
    unit = neuron(5, 0.7).double()
    u = torch.tensor([[-3.0, -0.4, 0.1, 0.5, 2.0]], dtype=torch.float64, requires_grad=True)

    def call(u, log_threshold):
        return torch.func.functional_call(unit, {"log_threshold": log_threshold}, (u,))

    assert torch.autograd.gradcheck(call, (u, unit.log_threshold))


def test_thresholds_are_always_positive():
    unit = BLU(3)
    with torch.no_grad():
        unit.log_threshold.copy_(torch.tensor([-50.0, 0.0, 3.0]))
    assert (unit.threshold > 0).all()


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_threshold_must_be_positive(bad):
    with pytest.raises(ValueError, match=rf"{bad}"):
        BLU(2, bad)

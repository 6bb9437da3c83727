"""Scaling by powers of two: exact, over the whole range of the dtype."""

import numpy as np
import pytest
import torch

from antipodal.paper.conditioning import Scaling, alike, times_two_to


@pytest.mark.parametrize(("dtype", "largest"), [(np.float32, 149), (np.float64, 1074)])
def test_powers_of_two_beyond_the_dtype_scale_exactly(dtype, largest):
    tiniest = np.ldexp(dtype(1), -largest)
    assert times_two_to(largest, torch.tensor([[tiniest]])).item() == 1
    powers = np.array([largest, 0, -3])
    scaled = times_two_to(powers, torch.tensor([[tiniest, dtype(0.1), dtype(8)]]))
    np.testing.assert_array_equal(scaled, [[1, dtype(0.1), 1]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_atoms_of_any_length_get_length_one(dtype):
    finfo = torch.finfo(dtype)
    D = torch.randn(6, 4, dtype=dtype)
    D[:, 0] *= finfo.smallest_normal
    D[:, 1] = finfo.max
    D[:, 2] = 0
    lengths = torch.linalg.vector_norm(Scaling(D, 1.0).atoms, dim=0)
    torch.testing.assert_close(lengths, torch.tensor([1, 1, 0, 1], dtype=dtype))


@pytest.mark.parametrize("bound", [1e-40, 1e-3, 1e38])
@pytest.mark.parametrize("exponent", [-128, 0, 128])
def test_the_walls_of_the_box_and_its_middle_come_back(bound, exponent):
    units = Scaling(torch.diag(torch.tensor([1e-30, 1.0, 1e30])), bound).units(exponent)
    assert (units.box > 0).all()
    assert torch.isfinite(units.box.square().double()).all()
    reached = units.reach == torch.tensor(bound)
    walls = units.leave(units.box)
    np.testing.assert_array_equal(walls[reached], np.float32(bound))
    assert (walls <= torch.tensor(bound)).all()
    assert (units.enter(torch.zeros(3)) == 0).all()
    torch.testing.assert_close(units.enter(walls)[reached], units.box[reached])


def test_blocks_hold_rows_of_one_order_and_each_row_once():
    sizes = 10.0 ** torch.arange(-300, 300, 7, dtype=torch.float64)
    Y = sizes[torch.randperm(len(sizes), generator=torch.Generator().manual_seed(0)), None]
    seen = []
    for exponent, block in alike(Y, rows=3):
        assert len(block) <= 3
        scaled = times_two_to(-exponent, Y[block])
        assert ((scaled > 2.0**-18) & (scaled < 2.0**16)).all()
        seen += block.tolist()
    assert sorted(seen) == list(range(len(Y)))

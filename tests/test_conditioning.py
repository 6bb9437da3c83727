"""Scaling by powers of two: exact, over the whole range of the dtype."""

import numpy as np
import pytest
import torch

from antipodal.paper.conditioning import Scaling, magnitude_blocks, scale_by_power_of_two


@pytest.mark.parametrize(("dtype", "largest"), [(np.float32, 149), (np.float64, 1074)])
def test_powers_of_two_beyond_the_dtype_scale_exactly(dtype, largest):
    smallest = np.ldexp(dtype(1), -largest)
    assert scale_by_power_of_two(torch.tensor([[smallest]]), largest).item() == 1
    powers = np.array([largest, 0, -3])
    scaled = scale_by_power_of_two(torch.tensor([[smallest, dtype(0.1), dtype(8)]]), powers)
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
def test_bounds_and_centre_of_the_box_convert_back(bound, exponent):
    units = Scaling(torch.diag(torch.tensor([1e-30, 1.0, 1e30])), bound).units(exponent)
    assert (units.box > 0).all()
    assert torch.isfinite(units.box.square().double()).all()
    reached = units.limit == torch.tensor(bound)
    bounds = units.to_x(units.box)
    np.testing.assert_array_equal(bounds[reached], np.float32(bound))
    assert (bounds <= torch.tensor(bound)).all()
    assert (units.from_x(torch.zeros(3)) == 0).all()
    torch.testing.assert_close(units.from_x(bounds)[reached], units.box[reached])


def test_blocks_have_rows_of_one_magnitude_and_each_row_once():
    sizes = 10.0 ** torch.arange(-300, 300, 7, dtype=torch.float64)
    Y = sizes[torch.randperm(len(sizes), generator=torch.Generator().manual_seed(0)), None]
    rows = []
    for exponent, block in magnitude_blocks(Y, rows=3):
        assert len(block) <= 3
        scaled = scale_by_power_of_two(Y[block], -exponent)
        assert ((scaled > 2.0**-18) & (scaled < 2.0**16)).all()
        rows += block.tolist()
    assert sorted(rows) == list(range(len(Y)))

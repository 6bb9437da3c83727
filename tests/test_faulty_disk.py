"""A loss of power, and a disk that is full or broken: short forms of two campaigns."""

import pytest

from faultydisk import IS_AVAILABLE
from ioerrors import break_disk
from powerloss import lose_power

pytestmark = pytest.mark.skipif(not IS_AVAILABLE, reason="needs Linux and a C compiler")


def test_acknowledged_writes_survive_a_power_loss_and_none_is_partial():
    found = lose_power(4, seed=0)
    assert not found["failures"]
    assert found["points"] > 20


def test_a_full_or_broken_disk_is_an_error_that_leaves_files_whole_and_usable():
    found = break_disk(5, seed=0, every=19)
    assert not found["failures"]
    assert len(found["messages"]) > 3
    assert found["outcomes"]["an error, and the files are as before"] > 20

"""Settings for all tests: one thread and the same examples, unless a test asks for others."""

import os

import numpy as np
import pytest
import torch
from hypothesis import settings

from browsers import chromium
from effort import CAMPAIGN

settings.register_profile("usual", derandomize=not CAMPAIGN, deadline=None, print_blob=True)
settings.load_profile("usual")
torch.set_num_threads(1)  # the problems are small, and the cores may have other work


@pytest.fixture
def two_threads():
    """Compute on two threads: what must not depend on their number is tried on more than one."""
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.fixture
def fresh_rng():
    """Return a generator with another seed every time, which a test that fails prints.

    ANTIPODAL_TEST_SEED repeats one.
    """
    seed = int(os.environ.get("ANTIPODAL_TEST_SEED") or np.random.SeedSequence().entropy % 2**32)
    print(f"ANTIPODAL_TEST_SEED={seed}")
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def browser():
    """Return a browser that a module's tests share."""
    with chromium() as browser:
        yield browser

"""Settings of all tests: one thread and reproducible examples; shared fixtures."""

import os

# The problems are small and tests run in parallel: on busy cores, the threads of OpenBLAS spend
# most of their time waiting for each other. It reads the variable when NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import random
import re
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from threadpoolctl import threadpool_limits

from browsers import chromium
from effort import CAMPAIGN
from processes import PRELOADED, processes

settings.register_profile("usual", derandomize=not CAMPAIGN, deadline=None, print_blob=True)
settings.load_profile("usual")
ORDER = os.environ.get("ANTIPODAL_TEST_ORDER")  # the seed of a random order of the tests

try:
    import torch
except ImportError:
    # As in `make test-without-torch`. Tests that train a network are skipped below.
    torch = None
    _NEEDS = re.compile(r"^(import|from) torch", re.MULTILINE)
    collect_ignore = [
        path.name
        for path in Path(__file__).parent.glob("test_*.py")
        if _NEEDS.search(path.read_text())
    ]
else:
    torch.set_num_threads(1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Skip a test that fails since PyTorch is not installed."""
    report = yield
    if torch is None and report.failed and _needs_torch(call.excinfo.value):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1], "Skipped: needs PyTorch")
    return report


def _needs_torch(error):
    """Return whether an exception, or one that it replaced, says that PyTorch is missing."""
    while error is not None:
        if re.search(r"\[train\]|No module named 'torch", str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Shuffle the modules, and the tests of each module, if there is a seed."""
    if ORDER:
        rng = random.Random(ORDER)
        modules = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
        rng.shuffle(modules)
        for tests in modules:
            rng.shuffle(tests)
        items[:] = [test for tests in modules for test in tests]


def pytest_terminal_summary(terminalreporter):
    if ORDER:
        terminalreporter.write_line(f"ANTIPODAL_TEST_ORDER={ORDER}")


def pytest_collection_finish():
    processes.set_forkserver_preload(PRELOADED)  # campaigns set shorter lists when imported


@pytest.fixture
def two_threads():
    """Compute on two threads, for results that must not depend on the number of threads."""
    if torch is not None:
        torch.set_num_threads(2)
    with threadpool_limits(2, "blas"):
        yield
    if torch is not None:
        torch.set_num_threads(1)


@pytest.fixture
def forked_workers(monkeypatch):
    """Fork the workers of benchmarks, since spawned ones spend seconds on imports."""
    monkeypatch.setattr("antipodal.bench.workers.multiprocessing.get_context", lambda *_: processes)


@pytest.fixture
def fresh_rng():
    """Return a generator with a new seed. pytest prints the seed if the test fails.

    ANTIPODAL_TEST_SEED sets the seed.
    """
    seed = int(os.environ.get("ANTIPODAL_TEST_SEED") or np.random.SeedSequence().entropy % 2**32)
    print(f"ANTIPODAL_TEST_SEED={seed}")
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def browser():
    """Yield a browser that the tests of a module share."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def pauses(monkeypatch):
    """Record the pauses between the retries of HTTP requests instead of waiting."""
    recorded = []
    monkeypatch.setattr("antipodal.http_transport.time.sleep", recorded.append)
    return recorded

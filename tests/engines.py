"""Real engines for the tests of the stores, started here and ended with the tests."""

import pytest

from servers import ENGINES, Engines

__all__ = ["ENGINES", "engines"]

_started: list[Engines] = []  # one for all test files, each of which has the fixture as its own


@pytest.fixture(scope="session")
def engines(tmp_path_factory):
    if not _started:
        _started.append(Engines(tmp_path_factory.mktemp("engines")))
    yield _started[0]
    _started[0].stop()

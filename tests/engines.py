"""Database engines for the store tests, started on first use and stopped at the end."""

import pytest

from servers import ENGINES, Engines

__all__ = ["ENGINES", "engines"]

_started: list[Engines] = []  # shared by all test files that define the fixture


@pytest.fixture(scope="session")
def engines(tmp_path_factory):
    if not _started:
        _started.append(Engines(tmp_path_factory.mktemp("engines")))
    yield _started[0]
    _started[0].stop()

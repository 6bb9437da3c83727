"""Database engines for the store tests, started on first use and stopped at the end."""

import pytest

from servers import ENGINES, Engines, running_engines

__all__ = ["ENGINES", "engines"]

_started: list[Engines] = []  # shared by all test files that import the fixture


@pytest.fixture(scope="session")
def engines():
    if _started:
        yield _started[0]
        return
    # Not in the folder of pytest: other sessions of root make its parent private, and PostgreSQL
    # runs as another user.
    with running_engines() as running:
        _started.append(running)
        yield running

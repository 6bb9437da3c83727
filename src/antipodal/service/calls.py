"""What the work of a request knows of it: whose key asked, and whether anybody still waits.

Both are context variables. The guard sets the caller; a pool gives each call to its thread, where
code far from the request asks `check_wanted()` between two steps, or names in `stopped_by` what
ends a long one.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

caller: ContextVar[bytes | None] = ContextVar("caller", default=None)  # the digest of a key


class UnwantedError(Exception):
    """Nobody waits for the answer any more."""


class Call:
    """A function that runs in a thread, for as long as somebody waits for what it returns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unwanted = False
        self._stop: Callable[[], object] | None = None

    def run(self, function: Callable[[], T]) -> T:
        """Call the function."""
        token = _current.set(self)
        try:
            self.check()
            return function()
        finally:
            _current.reset(token)

    def give_up(self) -> None:
        """Say that nobody waits: what runs is stopped if it can be."""
        with self._lock:
            self._unwanted = True
            if self._stop is not None:
                self._stop()

    def check(self) -> None:
        """Raise UnwantedError if nobody waits."""
        if self._unwanted:
            raise UnwantedError

    @contextmanager
    def stopped_by(self, stop: Callable[[], object]) -> Iterator[None]:
        """Call `stop` if the call is given up within the block."""
        with self._lock:
            self.check()
            self._stop = stop
        try:
            yield
        finally:
            with self._lock:
                self._stop = None


_current: ContextVar[Call | None] = ContextVar("current", default=None)


def check_wanted() -> None:
    """Raise UnwantedError if nobody waits for this thread's call; outside of a pool, do nothing."""
    call = _current.get()
    if call is not None:
        call.check()


@contextmanager
def stopped_by(stop: Callable[[], object]) -> Iterator[None]:
    """Let `stop` end what happens in the block, if nobody waits for it any more."""
    call = _current.get()
    if call is None:
        yield
        return
    with call.stopped_by(stop):
        yield
    call.check()

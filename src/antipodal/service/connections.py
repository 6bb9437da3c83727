"""Connections that ask nothing or take nothing: each has its time, and there are only so many.

uvicorn closes a connection that is idle after an answer. One that never sends a whole request, or a
byte at a time, or never reads its answer, it would keep for ever, and with it a descriptor.
"""

import asyncio
import logging
from collections import Counter
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from antipodal.service.gate import GONE

_log = logging.getLogger("antipodal.service")

HEADER_SECONDS = 10.0
UNREAD_SECONDS = 10.0  # in which some of an answer must be taken
MOST_CONNECTIONS = 1_000  # of one worker
MOST_OF_AN_ADDRESS = 500
MOST_UNREAD = 64 << 20  # bytes of answers that wait to be taken, in one worker
MOST_AFTER = 32 << 20  # bytes that are thrown away after an answer: the rest of a body

_of_hosts: Counter[str] = Counter()  # connections of this process

_Protocol: Any = AutoHTTPProtocol  # of httptools where that is installed, of h11 otherwise


class LimitedConnection(_Protocol):  # type: ignore[misc]
    """A connection that is closed if it sends or takes too slowly, or if there are too many."""

    _deadline: asyncio.TimerHandle | None = None  # for a whole request
    _stalled: asyncio.TimerHandle | None = None  # for taking some of an answer
    _running: Any = None
    _after = 0  # bytes since the last answer

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Take a connection, or close it at once."""
        super().connection_made(transport)
        _of_hosts[_host(self)] += 1
        n_same = _of_hosts[_host(self)]
        if len(self.connections) > MOST_CONNECTIONS or n_same > MOST_OF_AN_ADDRESS:
            self._drop("too many connections, %d from %s: one was closed", n_same)
            return
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take some bytes; those of a request that is not whole do not stop the clock."""
        super().data_received(data)
        self._watch()
        self._after = 0 if self._is_answering() else self._after + len(data)
        if self._after > MOST_AFTER:
            self._drop("%d bytes after an answer to %s: closed", self._after)

    def pause_writing(self) -> None:
        """Begin to wait for a caller who does not take an answer as fast as it is sent."""
        super().pause_writing()
        waiting = [other for other in self.connections if other._stalled is not None]
        self._wait_for_reader(self._n_unread())
        if sum(map(LimitedConnection._n_unread, [*waiting, self])) > MOST_UNREAD:
            worst = max([*waiting, self], key=LimitedConnection._n_unread)
            worst._drop("%d bytes of answers wait for %s, too many in all", worst._n_unread())

    def resume_writing(self) -> None:
        """Go on: most of the answer was taken."""
        super().resume_writing()
        self._stop_clock("_stalled")

    def eof_received(self) -> None:
        """Close the connection of a caller who has closed it."""
        self._tell()
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_clock("_deadline")
        self._stop_clock("_stalled")
        _of_hosts[_host(self)] -= 1
        if not _of_hosts[_host(self)]:
            del _of_hosts[_host(self)]
        self._tell()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Note which request is being answered: of several on their way, `cycle` is the last."""
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _tell(self) -> None:
        """Say it to all requests at once: uvicorn tells only who asks, and only later."""
        waiting = (cycle for cycle, _ in getattr(self, "pipeline", ()))
        for cycle in (self._running, self.cycle, *waiting):
            if cycle is not None and not cycle.response_complete:
                cycle.scope[GONE] = cycle.disconnected = True  # nothing is sent to it from now on
                cycle.message_event.set()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _watch(self) -> None:
        if self._is_answering():
            self._stop_clock("_deadline")
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self._close_late)

    def _close_late(self) -> None:
        self._deadline = None
        if not self._is_answering():
            _log.info("no whole request from %s in %g s: closed", _host(self), HEADER_SECONDS)
            self.transport.close()

    def _wait_for_reader(self, n_before: int) -> None:
        self._stalled = self.loop.call_later(UNREAD_SECONDS, self._check_reader, n_before)

    def _check_reader(self, n_before: int) -> None:
        n_unread = self._n_unread()
        if n_unread < n_before:
            self._wait_for_reader(n_unread)
        else:
            self._drop("%d bytes of an answer were not taken by %s: closed", n_unread)

    def _stop_clock(self, name: str) -> None:
        clock: asyncio.TimerHandle | None = getattr(self, name)
        if clock is not None:
            clock.cancel()
            setattr(self, name, None)

    def _n_unread(self) -> int:
        return int(self.transport.get_write_buffer_size())

    def _drop(self, why: str, number: int) -> None:
        _log.warning(why, number, _host(self))
        self._tell()
        self.transport.abort()


def _host(connection: Any) -> str:
    return str(connection.client[0]) if connection.client else ""

"""Connections that ask nothing: each has a time to send its headers, and there are only so many.

uvicorn closes a connection that is idle after an answer. One that never sends a whole request, or a
byte at a time, it would keep for ever, and with it a descriptor.
"""

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

_log = logging.getLogger("antipodal.service")

HEADER_SECONDS = 10.0
MOST_CONNECTIONS = 1_000  # of one worker
MOST_OF_AN_ADDRESS = 500

_Protocol: Any = AutoHTTPProtocol  # of httptools where that is installed, of h11 otherwise


class LimitedConnection(_Protocol):  # type: ignore[misc]
    """A connection that is closed if its headers take too long, or if there are too many."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Take a connection, or close it at once."""
        super().connection_made(transport)
        n_same = sum(_host(other) == _host(self) for other in self.connections)
        if len(self.connections) > MOST_CONNECTIONS or n_same > MOST_OF_AN_ADDRESS:
            _log.warning("too many connections, %d from %s: one was closed", n_same, _host(self))
            transport.abort()
            return
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take some bytes; those of a request that is not whole do not stop the clock."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_clock()
        super().connection_lost(exc)

    def _watch(self) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering:
            self._stop_clock()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self._close_late)

    def _close_late(self) -> None:
        self._deadline = None
        if self.cycle is None or self.cycle.response_complete:
            _log.info("no whole request from %s in %g s: closed", _host(self), HEADER_SECONDS)
            self.transport.close()

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _host(connection: Any) -> str:
    return str(connection.client[0]) if connection.client else ""

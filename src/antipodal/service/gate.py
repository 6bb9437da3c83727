"""Before a request reaches a route: the host it names, its body, its caller's patience."""

import asyncio
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antipodal.service.bodies import BINARY, media_type
from antipodal.service.limits import Limits
from antipodal.service.problems import problem
from antipodal.service.room import Room

GONE = "antipodal.gone"  # in a scope: the caller has closed the connection
_DRAINED = 4  # times the limit that is read, and thrown away, of a body that is too large
_SMALL = 64 << 10  # bytes of a body for which there is always room: a server reads as many unasked
_LARGE_BODIES = 2  # of the largest allowed, that are read or answered at a time
_CLOSE = {"Connection": "close"}  # what is left of the body is not worth reading
_PATIENCE = 0.05  # seconds that a request takes before its caller is watched


class Gate:
    """Let a request through to a route, which gets its body whole or not at all.

    The body is read when the route first asks for it, within the limits of size and time: a route
    that refuses a request for its key, or takes no body, has not read a byte. Large bodies wait,
    unread, until there is room for them. Who closes the connection takes the request back: the
    task that answers it is cancelled, and what it had waiting in a pool with it.

    `hosts`, if given, are the only ones that the Host header may name: a service on loopback
    without keys is otherwise open to every web page whose own name is made to resolve to 127.0.0.1.
    """

    def __init__(self, app: ASGIApp, limits: Limits, hosts: Collection[str] | None) -> None:
        self._app, self._limits, self._hosts = app, limits, hosts
        self._room = Room(_LARGE_BODIES * limits.binary_body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await asyncio.sleep(0)  # what the server has read of the connection, it handles now
        if scope.get(GONE, False):
            return
        headers = Headers(scope=scope)
        refusal = self._host(headers)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        body = _Body(scope, receive, self._limits, self._room)
        watch = _Watch(body, receive)

        async def send_unwatched(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                watch.end()  # after its last part an answer cannot be taken back
            await send(message)

        try:
            await self._app(scope, body.message, send_unwatched)
        except asyncio.CancelledError:
            if not watch.was_taken_back():
                raise
        finally:
            watch.end()
            body.forget()

    def _host(self, headers: Headers) -> Response | None:
        if self._hosts is None:
            return None
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name.lower() in self._hosts:
            return None
        return problem(421, "without keys this service answers to names of this machine only")


class _Body:
    """The body of a request, as an application asks for it."""

    def __init__(self, scope: Scope, receive: Receive, limits: Limits, room: Room) -> None:
        self._headers, self._receive = Headers(scope=scope), receive
        self._limits, self._room = limits, room
        is_binary = media_type(self._headers) in BINARY
        self._most = limits.binary_body if is_binary else limits.body
        self._taken, self._asked_for = 0, False
        # Before HTTP/2 a body that is not announced is not there.
        is_first = scope.get("http_version", "2") in ("1.0", "1.1")
        self.is_over = is_first and not has_body(self._headers)

    async def message(self) -> Message:
        """Return the whole body, and after it what the server says."""
        if self._asked_for:
            return await self._receive()
        self._asked_for = True
        body = b"" if self.is_over else await self._read()
        self.is_over = True
        return {"type": "http.request", "body": body, "more_body": False}

    def forget(self) -> None:
        """Give back the room that the body took."""
        self._room.give_back(self._taken)
        self._taken = 0

    async def _read(self) -> bytes:
        """Read the body, as far as the limits go; beyond them, raise what the caller is told."""
        parts: list[bytes] = []
        size, most = 0, self._most
        declared = self._headers.get("content-length", "")
        n_declared = int(declared[:20]) if declared.isdecimal() else most
        too_large = n_declared > most
        try:
            async with asyncio.timeout(self._limits.seconds):
                while True:
                    if size > _SMALL and not self._taken and not too_large:
                        await self._take(n_declared)
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise HTTPException(400, "the connection was closed within the body")
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    if too_large or size > most:
                        # Some of the rest is read, lest it collide with the answer on its way.
                        too_large = True
                        parts.clear()
                        if size > _DRAINED * most:
                            break
                    else:
                        parts.append(chunk)
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            if not too_large:
                raise HTTPException(
                    408, f"the body did not come within {self._limits.seconds:g} s", _CLOSE
                ) from None
        if too_large:
            raise HTTPException(413, f"a body may have at most {most:,} bytes", _CLOSE)
        return b"".join(parts)

    async def _take(self, size: int) -> None:
        try:
            async with asyncio.timeout(self._limits.seconds / 2):
                self._taken = await self._room.take(size)
        except TimeoutError:
            raise HTTPException(
                503, "too many large bodies at a time: try again", {"Retry-After": "1"}
            ) from None


def has_body(headers: Headers) -> bool:
    """Say whether a request announces a body."""
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


class _Watch:
    """Cancel the current task if its caller closes the connection; look after some time only."""

    def __init__(self, body: _Body, receive: Receive) -> None:
        self._body, self._receive = body, receive
        task = asyncio.current_task()
        assert task is not None
        self._task, self._loop = task, asyncio.get_running_loop()
        self._timer = self._loop.call_later(_PATIENCE, self._begin)
        self._watching: asyncio.Task[None] | None = None
        self._has_gone = False

    def was_taken_back(self) -> bool:
        """Say whether a cancellation was ours, and forget it."""
        return self._has_gone and self._task.uncancel() == 0

    def end(self) -> None:
        """Look no more."""
        self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()

    def _begin(self) -> None:
        if self._body.is_over:  # otherwise who reads it will be told
            self._watching = self._loop.create_task(self._wait())
        else:
            self._timer = self._loop.call_later(_PATIENCE, self._begin)

    async def _wait(self) -> None:
        for _ in range(2):  # the end of a body that nobody read may come first
            if (await self._receive())["type"] == "http.disconnect":
                self._has_gone = True
                self._task.cancel()
                return

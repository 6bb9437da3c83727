"""Before a request reaches a route: the host it names, and the size of its body."""

import asyncio
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antipodal.service.limits import Limits
from antipodal.service.problems import problem

_DRAINED = 4  # times the limit that is read, and thrown away, of a body that is too large


class Gate:
    """Let a request through to a route, which gets its body whole or not at all.

    The body is read when the route first asks for it, within the limits of size and time: a route
    that refuses a request for its key has not read a byte. `hosts`, if given, are the only ones
    that the Host header may name: a service on loopback without keys is otherwise open to every
    web page whose own name is made to resolve to 127.0.0.1.
    """

    def __init__(self, app: ASGIApp, limits: Limits, hosts: Collection[str] | None) -> None:
        self._app, self._limits, self._hosts = app, limits, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._host(headers)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        is_read = False

        async def whole() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            body = await self._body(headers, receive)
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, whole, send)

    def _host(self, headers: Headers) -> Response | None:
        if self._hosts is None:
            return None
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name.lower() in self._hosts:
            return None
        return problem(421, "without keys this service answers to names of this machine only")

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        """Read the body, as far as the limits go; beyond them, raise what the caller is told."""
        parts: list[bytes] = []
        size, most = 0, self._limits.body
        declared = headers.get("content-length", "0")
        too_large = declared.isdecimal() and int(declared[:20]) > most
        try:
            async with asyncio.timeout(self._limits.seconds):
                while True:
                    message = await receive()
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
                    408, f"the body did not come within {self._limits.seconds:g} s"
                ) from None
        if too_large:
            raise HTTPException(413, f"a body may have at most {most:,} bytes")
        return b"".join(parts)

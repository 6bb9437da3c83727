"""Before a request reaches a route: the host it names, its key, and the size of its body."""

import asyncio
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antipodal.service.keys import Keys, Role
from antipodal.service.limits import Limits
from antipodal.service.problems import problem

KEYED = ("/v1/", "/metrics")  # all else is the page and the signs of life
_WRITING = ("PUT", "DELETE", "PATCH")
_DRAINED = 4  # times the limit that is read, and thrown away, of a body that is too large
_ASK = {"WWW-Authenticate": "Bearer"}


class Gate:
    """Let a request through with its whole body in memory, or answer with a problem.

    Keys are looked at before a byte of the body is. `hosts`, if given, are the only ones that the
    Host header may name: a service on loopback without keys is otherwise open to every web page
    whose own name is made to resolve to 127.0.0.1.
    """

    def __init__(
        self, app: ASGIApp, keys: Keys | None, limits: Limits, hosts: Collection[str] | None
    ) -> None:
        self._app, self._keys, self._limits, self._hosts = app, keys, limits, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._host(headers) or self._key(scope, headers)
        body = b""
        if refusal is None:
            read = await self._body(headers, receive)
            if isinstance(read, bytes):
                body = read
            else:
                refusal = read
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, replay, send)

    def _host(self, headers: Headers) -> Response | None:
        if self._hosts is None:
            return None
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name.lower() in self._hosts:
            return None
        return problem(421, "without keys this service answers to names of this machine only")

    def _key(self, scope: Scope, headers: Headers) -> Response | None:
        if self._keys is None or not scope["path"].startswith(KEYED):
            return None
        role = self._role(headers)
        if role is None:
            return problem(
                401, "a key is needed: send Authorization: Bearer KEY, or X-API-Key: KEY", _ASK
            )
        if scope["method"] in _WRITING and role != "write":
            return problem(403, "this key may read: writing needs a key with the role write")
        return None

    def _role(self, headers: Headers) -> Role | None:
        assert self._keys is not None
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            key = headers.get("x-api-key", "")
        return self._keys.role(key.strip().encode("latin-1"))

    async def _body(self, headers: Headers, receive: Receive) -> bytes | Response:
        """Read the body, as far as the limits go."""
        parts: list[bytes] = []
        size, most = 0, self._limits.body
        declared = headers.get("content-length", "0")
        too_large = declared.isdecimal() and int(declared[:20]) > most
        try:
            async with asyncio.timeout(self._limits.seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return problem(400, "the connection was closed within the body")
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
                return problem(408, f"the body did not come within {self._limits.seconds:g} s")
        if too_large:
            return problem(413, f"a body may have at most {most:,} bytes")
        return b"".join(parts)

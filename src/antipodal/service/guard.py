"""Who may call a route: each names the role it needs, and its key is looked at before its body.

The role belongs to the route and not to a path, so that it holds wherever the application is
mounted. FastAPI reads a body before it solves dependencies: `GuardedRoute` asks the guard first,
and the dependency is what OpenAPI is written from.
"""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Request, Security
from fastapi.routing import APIRoute
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

from antipodal.service.bodies import media_type, media_types
from antipodal.service.calls import caller
from antipodal.service.gate import has_body
from antipodal.service.keys import Keys, Role, digest

_BEARER = HTTPBearer(
    scheme_name="bearer", description="A key of the service.", auto_error=False
)  # `auto_error` would ask for both ways of sending a key
_HEADER = APIKeyHeader(
    name="X-API-Key", scheme_name="header", description="The same.", auto_error=False
)
ASK_FOR_KEY = {"WWW-Authenticate": "Bearer"}


class Guard:
    """A dependency that lets a request pass if its key has the role, or if there are no keys."""

    def __init__(self, role: Role, keys: Keys | None) -> None:
        self.role, self._keys = role, keys

    async def __call__(
        self,
        bearer: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)],
        header: Annotated[str | None, Security(_HEADER)],
    ) -> None:
        """Raise 401 without a known key, 403 if the key may only read."""
        if self._keys is None:
            return
        role = self._keys.role(_key(bearer, header))
        if role is None:
            raise HTTPException(
                401,
                "a key is needed: send Authorization: Bearer KEY, or X-API-Key: KEY",
                ASK_FOR_KEY,
            )
        if self.role == "write" and role != "write":
            raise HTTPException(403, "this key may read: writing needs a key with the role write")

    async def check(self, request: Request) -> None:
        """Do the same with a request whose body was not read; let guesses wait for the answer."""
        bearer, header = await _BEARER(request), await _HEADER(request)
        key = _key(bearer, header)
        if self._keys is not None and key and self._keys.role(key) is None:
            await asyncio.sleep(self._keys.guesses.wait(request.client))
        await self(bearer, header)
        caller.set(digest(key) if self._keys is not None else None)


async def sent_key(request: Request) -> bytes:
    """Return the key that a request has, or nothing."""
    return _key(await _BEARER(request), await _HEADER(request))


def _key(bearer: HTTPAuthorizationCredentials | None, header: str | None) -> bytes:
    key = header or "" if bearer is None else bearer.credentials
    return key.strip().encode("latin-1")  # as HTTP has it: any byte


class GuardedRoute(APIRoute):
    """A route that asks its guards, and only then reads the body: strict JSON, or bytes.

    If it takes no body, it refuses to.
    """

    @property
    def guards(self) -> list[Guard]:
        """The guards among the dependencies."""
        asked = [dependency.dependency for dependency in self.dependencies]
        return [guard for guard in asked if isinstance(guard, Guard)]

    def get_route_handler(self) -> Callable[[Request], Any]:
        """Return what answers a request."""
        handle, guards = super().get_route_handler(), self.guards
        of_bytes = getattr(self.endpoint, "bytes_handler", None)
        kinds, takes_body = media_types(), self.body_field is not None

        async def guarded(request: Request) -> Response:
            for guard in guards:
                await guard.check(request)
            if not takes_body and has_body(request.headers):
                raise HTTPException(413, "this route takes no body: send none")
            if of_bytes is not None and media_type(request.headers) in kinds:
                answer: Response = await of_bytes(request)
                return answer
            response: Response = await handle(_StrictRequest(request.scope, request.receive))
            return response

        return guarded


class _StrictRequest(Request):
    """A request whose JSON is JSON: no NaN, no Infinity, nothing after the end."""

    async def json(self) -> Any:
        try:
            return from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise HTTPException(400, f"the body is not JSON: {error}") from None

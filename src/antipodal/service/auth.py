"""Authentication: API keys with roles, checked before the body of a request is read.

A key file has one key per line, after its role. A comment starts with a # at the beginning of a
line or after whitespace, so that a key may contain a #:

    read  3k2…    # the web site
    write 9xQ…    # the nightly import; may read as well

Only SHA-256 digests of the keys are kept in memory.
"""

import hashlib
import hmac
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from fastapi import Request, Security
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from antipodal.errors import AntipodalError
from antipodal.service.errors import problem

Role: TypeAlias = Literal["read", "write"]
VARIABLE = "ANTIPODAL_KEYS"
_MIN_LENGTH = 16  # characters of a key
_COMMENT = re.compile(r"(^|\s)#.*")
_LINE = re.compile(r"(read|write)[ \t]+([\x21-\x7e]+)")

# Without `auto_error=False`, FastAPI would require both headers.
_BEARER = HTTPBearer(scheme_name="bearer", description="An API key.", auto_error=False)
_HEADER = APIKeyHeader(
    name="X-API-Key", scheme_name="header", description="An API key.", auto_error=False
)
CHALLENGE = {"WWW-Authenticate": "Bearer"}
INVALID_KEY = {"WWW-Authenticate": 'Bearer error="invalid_token"'}  # RFC 6750


class Keys:
    """API keys and their roles."""

    def __init__(self, roles: dict[bytes, Role]) -> None:
        self._roles = roles  # by the digest of the key

    def __len__(self) -> int:
        return len(self._roles)

    @classmethod
    def parse(cls, text: str, source: str) -> Self:
        """Parse lines of role and key. Errors name the line, never its content."""
        roles: dict[bytes, Role] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            content = _COMMENT.sub("", line).strip()
            if not content:
                continue
            match = _LINE.fullmatch(content)
            if match is None:
                raise AntipodalError(
                    f"{source}, line {number}: expected `read KEY` or `write KEY`, with a key of "
                    "printable ASCII characters without spaces"
                )
            if len(match[2]) < _MIN_LENGTH:
                raise AntipodalError(
                    f"{source}, line {number}: a key must have at least {_MIN_LENGTH} characters, "
                    f"got {len(match[2])}. Generate one with Python's secrets.token_urlsafe(32)"
                )
            known = _digest(match[2].encode())
            if known in roles:
                raise AntipodalError(f"{source}, line {number}: duplicate key")
            roles[known] = "write" if match[1] == "write" else "read"
        if not roles:
            raise AntipodalError(f"{source} has no keys: expected lines such as `read KEY`")
        return cls(roles)

    @classmethod
    def find(cls, path: str | os.PathLike[str] | None) -> Self | None:
        """Return the keys of a file, or else of the variable ANTIPODAL_KEYS, or else None.

        In the variable, keys may be separated by commas.
        """
        if path is not None:
            try:
                text = Path(path).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
                raise AntipodalError(f"cannot read the keys in {path}: {reason}") from None
            return cls.parse(text, str(path))
        if VARIABLE in os.environ:
            return cls.parse(os.environ[VARIABLE].replace(",", "\n"), VARIABLE)
        return None

    def role(self, key: bytes) -> Role | None:
        """Return the role of a key, or None, in a time that does not depend on the key."""
        given, found = _digest(key), None
        for known, role in self._roles.items():  # no early exit
            if hmac.compare_digest(known, given):
                found = role
        return found


class Guard:
    """FastAPI dependency that requires a key with a role. Without keys it admits everyone.

    FastAPI reads the body before it resolves dependencies. `app.ServiceRoute` therefore calls
    `check` first, and the dependency documents the requirement in OpenAPI.
    """

    def __init__(self, role: Role, keys: Keys | None) -> None:
        self.role, self._keys = role, keys

    async def __call__(
        self,
        bearer: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)],
        header: Annotated[str | None, Security(_HEADER)],
    ) -> None:
        """Raise 401 without a valid key, 403 if its role does not suffice."""
        if self._keys is None:
            return
        key = _key(bearer, header)
        role = self._keys.role(key)
        if role is None and key:
            raise HTTPException(401, "this API key is not valid", INVALID_KEY)
        if role is None:
            raise HTTPException(
                401,
                "an API key is required: send Authorization: Bearer KEY, or X-API-Key: KEY",
                CHALLENGE,
            )
        if self.role == "write" and role != "write":
            raise HTTPException(403, "this key has the role read: writing needs the role write")

    async def check(self, request: Request) -> None:
        """Check a request whose body has not been read."""
        await self(await _BEARER(request), await _HEADER(request))


class AllowedHosts:
    """ASGI middleware that refuses other Host headers, against DNS rebinding.

    Without this check, a web page whose host name resolves to 127.0.0.1 could use a service without
    keys.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and self._hosts is not None:
            host = Headers(scope=scope).get("host", "")
            name = host if host.endswith("]") else host.rpartition(":")[0] or host
            if name.lower() not in self._hosts:
                refused = problem(421, "without keys, only local host names are accepted")
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _key(bearer: HTTPAuthorizationCredentials | None, header: str | None) -> bytes:
    key = header or "" if bearer is None else bearer.credentials
    return key.strip().encode("latin-1")  # HTTP headers may contain any byte


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()

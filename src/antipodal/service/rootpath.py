"""Behind a proxy that serves us under a prefix of its own, which it takes off the path or not."""

import re

from starlette.types import ASGIApp, Receive, Scope, Send

_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+")


class Prefix:
    """Give the application paths that begin with the prefix, whether they came with it or not."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app, self._prefix = app, prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http":
            path = scope["path"]
            if not f"{path}/".startswith(f"{self._prefix}/"):
                scope["path"] = self._prefix + path
            scope["root_path"] = self._prefix
        await self._app(scope, receive, send)


def check_prefix(prefix: str, names: frozenset[str]) -> None:
    """Refuse what is no prefix, or what begins as a path within the service does."""
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(f"--root-path must be such as /search, without a / at the end: {prefix!r}")
    first = prefix.split("/")[1]
    if first in names:
        raise ValueError(
            f"--root-path must not begin with /{first}: the service has paths that do, and could "
            "not tell whether the prefix was taken off"
        )

"""Several models behind one service: /NAME/… goes to the model that has the name at that moment.

A name is given another model by opening that first, beside the one before: requests that come then
go to the new one, those that run end with the old one, and then it is closed. None of them fails.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from antipodal.errors import AntipodalError
from antipodal.service.engine import Engine
from antipodal.service.keys import Keys
from antipodal.service.mounts import Mount, read_mounts

_log = logging.getLogger("antipodal.service")
LOOK_SECONDS = 1.0  # between looks at the file of mounts
RETRY_SECONDS = 10.0  # after a mount could not be opened


class Served(NamedTuple):
    """A model with its store, ready to answer."""

    mount: Mount
    engine: Engine
    keys: Keys | None
    app: ASGIApp


class Switchboard:
    """The models by their names; of one thread, that of the event loop."""

    def __init__(self, open_mount: Callable[[str, Mount], Served]) -> None:
        self._open = open_mount
        self._running: dict[int, int] = {}  # requests of each engine, by its id
        self.served: dict[str, Served] = {}

    def open_all(self, mounts: Mapping[str, Mount]) -> None:
        """Open what a service starts with."""
        for name, mount in mounts.items():
            self.served[name] = self._open(name, mount)

    async def change(self, mounts: Mapping[str, Mount]) -> bool:
        """Open what is new, then use it; say whether all of it could be opened.

        A mount that cannot be opened is not changed.
        """
        all_opened = True
        for name, mount in mounts.items():
            old = self.served.get(name)
            if old is not None and old.mount == mount:
                continue
            try:
                new = await asyncio.to_thread(self._open, name, mount)
            except (AntipodalError, OSError, TypeError, ValueError) as error:
                _log.error("mount not changed: %s", error, extra={"fields": {"mount": name}})
                all_opened = False
                continue
            self.served[name] = new
            _log.info("mount changed", extra={"fields": {"mount": name}})
            if old is not None:
                await self._end(old)
        for name in self.served.keys() - mounts.keys():
            _log.info("mount removed", extra={"fields": {"mount": name}})
            await self._end(self.served.pop(name))
        return all_opened

    async def follow(self, path: Path, seen: object) -> None:
        """Change what the file changes, for ever; `seen` is its stamp when it was read before."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = stamp(path)
            if now == seen:
                continue
            seen = now
            try:
                all_opened = await self.change(read_mounts(path))
            except AntipodalError as error:
                _log.error("mounts not changed: %s", error)
                continue
            if not all_opened:
                seen = None  # an engine may have been out of reach for a moment
                await asyncio.sleep(RETRY_SECONDS)

    async def answer(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a model answer; it is closed only after that."""
        served = self.served[name]
        number = id(served.engine)
        self._running[number] = self._running.get(number, 0) + 1
        try:
            await served.app(scope, receive, send)
        finally:
            self._running[number] -= 1
            if self.served.get(name) is not served:
                await self._end(served)

    def close(self) -> None:
        """Close all stores."""
        for served in self.served.values():
            served.engine.close()

    async def _end(self, served: Served) -> None:
        """Close a store that no name leads to, unless requests still use it."""
        if not self._running.get(id(served.engine)):
            self._running.pop(id(served.engine), None)
            await asyncio.to_thread(served.engine.close)


class Dispatch:
    """Take the name off the path of a request, and pass it to the model of that name."""

    def __init__(self, app: ASGIApp, switchboard: Switchboard) -> None:
        self._app, self._switchboard = app, switchboard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        name, slash = "", ""
        if scope["type"] == "http":
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            name, slash, _ = path.removeprefix("/").partition("/")
        if name not in self._switchboard.served:
            await self._app(scope, receive, send)
        elif not slash:  # from there, whatever proxies take off or put before it
            await RedirectResponse(f"{name}/", 308)(scope, receive, send)
        else:
            scope["root_path"] = f"{scope.get('root_path', '')}/{name}"
            scope["mount"] = name
            await self._switchboard.answer(name, scope, receive, send)


def stamp(path: Path) -> object:
    """Return what differs when another file was put there."""
    with suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns
    return None


def readable(served: Mapping[str, Served], key: bytes) -> Iterable[tuple[str, Served]]:
    """Yield the mounts that a key may read; none of them says that the others are there."""
    for name, one in sorted(served.items()):
        if one.keys is None or one.keys.role(key) is not None:
            yield name, one

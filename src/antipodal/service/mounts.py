"""Mounts: several models behind one service, each under /NAME/ and replaced without downtime.

The mounts are listed in a JSON file. `model`, for a store that does not contain its model,
`images`, `embed` and `scores` are optional:

    {"articles": {"store": "/data/articles.db"}}

Each worker polls the file, opens a changed mount next to the old one, and closes the old one after
its last request. It reports its progress in a folder next to the file, for `antipodal switch`.
"""

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from fastapi import FastAPI
from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from antipodal.errors import AntipodalError
from antipodal.io.atomic import locked_file, locked_files, make_folder, replacing
from antipodal.service import app as routes
from antipodal.service.auth import Keys
from antipodal.service.engine import Engine
from antipodal.service.limits import Limits, Pools
from antipodal.service.metrics import Metrics

_log = logging.getLogger("antipodal.service")
POLL_SECONDS = 1.0
_REPORT = ("worker-", ".json")  # prefix and suffix of the files in which workers report
RESERVED = frozenset(("docs", "healthz", "metrics", "readyz", "static", "v1", "openapi.json"))
AbsolutePath = Annotated[Path, AfterValidator(Path.absolute)]


def _check_name(name: str) -> str:
    if name in RESERVED or not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,62}", name):
        raise ValueError(
            f"a mount name must have only a-z, 0-9, - and _, and not be a route: got {name[:70]!r}"
        )
    return name


@validated(frozen=True, config=ConfigDict(extra="forbid"))
class Mount:
    """A collection: its path or URL, with the settings of this mount."""

    store: str = field(repr=False)  # may contain a password
    model: AbsolutePath | None = None  # of a store that does not contain it
    images: str | None = None
    embed: str | None = None
    scores: AbsolutePath | None = None


_FILE = TypeAdapter(dict[Annotated[str, AfterValidator(_check_name)], Mount])


def parse_mount(text: str) -> tuple[str, Mount]:
    """Parse `NAME=COLLECTION` or `NAME=MODEL,STORE`. Relative paths are resolved."""
    match = re.fullmatch("([^=]*)=(?:([^,]+),)?(.+)", text)
    if match is None:
        raise ValueError("a mount is NAME=COLLECTION, such as articles=articles.db")
    name, model, store = match.groups()
    return _check_name(name), Mount(absolute(store), None if model is None else Path(model))


def absolute(store: str) -> str:
    """Return the path or URL of a collection with an absolute path."""
    if "://" not in store:
        return os.path.abspath(store)
    return re.sub("^(sqlite|milvus):///(?!/)", rf"\1:///{quote(os.getcwd())}/", store)


def read_mounts(path: Path) -> dict[str, Mount]:
    """Read a file of mounts."""
    try:
        return _FILE.validate_json(path.read_bytes())
    except OSError as error:
        reason = error.strerror
    except ValidationError as error:  # its own text would show the password of a store
        first = error.errors(include_input=False, include_context=False)[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    raise AntipodalError(f"cannot read the mounts in {path}: {reason}")


def write_mounts(path: Path, mounts: dict[str, Mount]) -> None:
    """Replace the file. A new file is readable by its owner only: stores may have passwords."""
    with replacing(path, mode=0o600) as file:
        file.write(_FILE.dump_json(mounts, indent=1, exclude_none=True) + b"\n")


def wait_for_workers(path: Path, name: str, seconds: float) -> int:
    """Return the number of workers, once all of them serve the mount; or raise AntipodalError."""
    version, deadline = path.stat().st_mtime_ns, time.monotonic() + seconds
    while True:
        reports = [_read(report) for report in locked_files(Path(f"{path}.workers"), *_REPORT)]
        errors = [errors[name] for seen, errors in reports if seen == version and name in errors]
        n_late = sum(seen != version for seen, _ in reports)
        if errors or (n_late and time.monotonic() > deadline):
            late = f"{n_late} of {len(reports)} did not confirm within {seconds:g} s"
            reason = errors[0] if errors else late
            raise AntipodalError(f"{path} was written, but not all workers serve {name}: {reason}")
        if not n_late:
            return len(reports)
        time.sleep(0.1)


def _read(report: Path) -> tuple[int, dict[str, str]]:
    try:
        version, errors = json.loads(report.read_bytes())
    except (OSError, ValueError):  # the worker has stopped, or is writing
        return 0, {}
    return version, errors


@dataclass(eq=False)
class OpenMount:
    """A mount that answers requests. It is closed with its last user."""

    mount: Mount
    engine: Engine
    app: ASGIApp
    users: int = 1  # the table, and each running request

    async def release(self) -> None:
        """Release one use of the mount."""
        self.users -= 1
        if not self.users:
            await asyncio.to_thread(self.engine.close)


class MountTable(dict[str, OpenMount]):
    """The open mounts by name. Only the event loop changes it."""

    open_mount: Callable[[Mount], OpenMount]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request for /NAME/… to its mount."""
        name = scope["mount"] = scope["path_params"]["mount"]
        if name not in self:
            raise HTTPException(404)
        mount = self[name]
        mount.users += 1
        try:
            await mount.app(scope, receive, send)
        finally:
            await mount.release()

    async def change(self, mounts: Mapping[str, Mount]) -> dict[str, str]:
        """Replace, add and remove mounts; return the errors of those left unchanged, by name."""
        errors = {}
        for name in mounts.keys() | self.keys():
            old = self.get(name)
            if old is not None and old.mount == mounts.get(name):
                continue
            try:
                if name in mounts:
                    self[name] = await asyncio.to_thread(self.open_mount, mounts[name])
                else:
                    del self[name]
                _log.info("mount %s changed", name)
                if old is not None:
                    await old.release()
            except Exception as error:  # also MemoryError and RecursionError
                errors[name] = f"{type(error).__name__}: {error}"
                _log.error("mount %s not changed: %s", name, errors[name])
        return errors

    async def follow(self, file: Path, report: Path) -> None:
        """Apply the changes of a file of mounts, and report them, until the task is cancelled."""
        applied = 0
        while True:
            try:
                if (version := file.stat().st_mtime_ns) != applied:
                    applied = version
                    errors = await self.change(read_mounts(file))
                    report.write_text(json.dumps([version, errors]))
            except Exception as error:  # this task must survive any error
                _log.error("mounts not changed: %s", error)
            await asyncio.sleep(POLL_SECONDS)


def create_mounted_app(
    file: Path,
    open_engine: Callable[[Mount], Engine],
    limits: Limits,
    keys: Keys | None = None,
    hosts: Collection[str] | None = None,
) -> FastAPI:
    """Return the ASGI application of the mounts in a file, which is polled for changes."""
    pools, metrics, table = Pools(limits), Metrics(), MountTable()

    def engines() -> dict[str, Engine]:
        return {name: mount.engine for name, mount in sorted(table.items())}

    def open_mount(mount: Mount) -> OpenMount:
        engine, app = open_engine(mount), routes.base_app(limits)
        routes.add_model(app, engine, pools, keys)
        routes.add_mount_list(app, keys, engines)
        return OpenMount(mount, engine, app)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with locked_file(make_folder(f"{file}.workers"), *_REPORT, 0o600) as report:
            task = asyncio.create_task(table.follow(file, Path(report)))
            yield
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        pools.close()
        for engine in engines().values():
            engine.close()

    table.open_mount = open_mount
    table.update({name: open_mount(mount) for name, mount in read_mounts(file).items()})
    app = routes.base_app(limits, lifespan, routes.outer_layers(metrics, limits, hosts))
    routes.add_mount_list(app, keys, engines)
    routes.add_metrics(app, metrics, pools, keys, engines)
    routes.add_probes(app, pools, engines)
    routes.add_page(app, first="mounts.html")
    app.mount("/{mount}", table)
    app.router.redirect_slashes = True  # from /NAME to /NAME/
    return app

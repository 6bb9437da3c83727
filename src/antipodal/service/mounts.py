"""Mounts: several models behind one service, each under /NAME/ and replaced without downtime.

The mounts may be listed in a JSON file, with absolute paths. `keys`, `images` and `scores` are
optional:

    {"articles": {"model": "/data/v2.antipodal", "store": "sqlite:////data/v2.db",
                  "keys": "/run/secrets/articles"}}

Each worker polls the file. A changed mount is opened next to the old one; new requests go to the
new one, and the old one is closed after its last request. Each worker reports the state of its
mounts in a folder next to the file, for `antipodal switch`.
"""

import asyncio
import hashlib
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from fastapi import FastAPI, Request
from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from antipodal.errors import AntipodalError
from antipodal.io.atomic import alone_in, replacing
from antipodal.service import app as routes
from antipodal.service import schemas
from antipodal.service.auth import CHALLENGE, Keys, sent_key
from antipodal.service.bodies import json_response
from antipodal.service.engine import Engine
from antipodal.service.errors import problems
from antipodal.service.limits import Limits, Pools
from antipodal.service.metrics import Metrics

try:
    import fcntl
except ImportError:  # on Windows, where `antipodal switch` cannot wait for workers
    fcntl = None  # type: ignore[assignment]

_log = logging.getLogger("antipodal.service")
POLL_SECONDS = 1.0
RETRY_SECONDS = 10.0  # after a mount could not be opened
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
RESERVED = frozenset(("docs", "healthz", "metrics", "readyz", "static", "v1", "openapi.json"))


def check_name(name: str) -> str:
    """Return the name of a mount; raise ValueError if it cannot be one."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,62}", name):
        raise ValueError(f"a mount name has 1 to 63 of a-z, 0-9, - and _: got {name[:70]!r}")
    if name in RESERVED:
        raise ValueError(f"a mount must not be named {name}: the service has a route /{name}")
    return name


@validated(frozen=True, config=ConfigDict(extra="forbid"))
class Mount:
    """A model and its store, with the settings of this mount."""

    model: Path
    store: str = field(repr=False)  # may contain a password
    keys: Path | None = None
    images: str | None = None
    scores: Path | None = None

    def absolute(self) -> "Mount":
        """Return the mount with absolute paths."""
        paths = {"model": self.model, "keys": self.keys, "scores": self.scores}
        whole = {name: path and path.absolute() for name, path in paths.items()}
        return Mount(store=self.store, images=self.images, **whole)  # type: ignore[arg-type]

    def fingerprint(self) -> str:
        """Return a digest of the settings."""
        return hashlib.sha256(TypeAdapter(Mount).dump_json(self)).hexdigest()


_FILE = TypeAdapter(dict[Annotated[str, AfterValidator(check_name)], Mount])


def parse_mount(text: str) -> tuple[str, Mount]:
    """Parse `NAME=MODEL,STORE`. Relative paths are resolved."""
    name, equals, rest = text.partition("=")
    model, comma, store = rest.partition(",")
    if not (equals and comma and model and store):
        raise ValueError(
            "a mount is NAME=MODEL,STORE, such as articles=model.antipodal,sqlite:///codes.db"
        )
    scheme, colon, path = store.partition(":///")
    if scheme in ("sqlite", "milvus") and colon and not path.startswith("/"):
        store = f"{scheme}:///{quote(os.getcwd())}/{path}"
    return check_name(name), Mount(Path(model).absolute(), store)


def read_mounts(path: Path) -> dict[str, Mount]:
    """Read a file of mounts."""
    try:
        mounts = _FILE.validate_json(path.read_bytes(), strict=False)
    except OSError as error:
        raise AntipodalError(f"cannot read the mounts in {path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise AntipodalError(f"cannot read the mounts in {path}: {where}: {first['msg']}") from None
    for name, mount in mounts.items():
        if mount != mount.absolute():
            raise AntipodalError(f"cannot read the mounts in {path}: {name} has a relative path")
    return mounts


@contextmanager
def changing_mounts(path: Path) -> Iterator[dict[str, Mount]]:
    """Yield the mounts of a file, and write them back. Concurrent changes wait."""
    with alone_in(path.absolute().parent):
        mounts = read_mounts(path) if path.exists() else {}
        yield mounts
        write_mounts(path, mounts)


def write_mounts(path: Path, mounts: Mapping[str, Mount]) -> None:
    """Replace the file. A new file is readable by its owner only: stores may have passwords."""
    with suppress(OSError), open(os.open(path, _NEW_FILE, 0o600), "wb") as new:
        new.write(b"{}\n")  # other errors are reported by `replacing`
    whole = {name: mount.absolute() for name, mount in mounts.items()}
    with replacing(path) as file:
        file.write(_FILE.dump_json(whole, indent=1, exclude_none=True) + b"\n")


class WorkerReport:
    """The state of the mounts of one worker, in a file that is locked while the worker runs."""

    def __init__(self, mounts_file: Path) -> None:
        folder = _report_folder(mounts_file)
        folder.mkdir(mode=0o700, exist_ok=True)
        self._file = open(folder / f"{os.getpid()}-{os.urandom(4).hex()}", "w")  # noqa: SIM115
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def write(self, state: Mapping[str, Mapping[str, str | None]]) -> None:
        """Write the fingerprint and the error of each mount."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(json.dumps(state))
        self._file.flush()

    def close(self) -> None:
        """Remove the report."""
        os.unlink(self._file.name)
        self._file.close()


def read_reports(mounts_file: Path) -> list[dict[str, dict[str, str | None]]]:
    """Return the reports of running workers. Those of killed workers are removed."""
    reports = []
    for path in _report_folder(mounts_file).glob("*-*") if fcntl else ():
        with suppress(FileNotFoundError), open(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
            except BlockingIOError:  # locked by its worker
                text = file.read()
                reports.append(json.loads(text) if text.endswith("}") else {})
    return reports


def _report_folder(mounts_file: Path) -> Path:
    return Path(f"{mounts_file.absolute()}.workers")


@dataclass(eq=False)
class OpenMount:
    """A mount that answers requests. It is closed with its last user."""

    mount: Mount
    engine: Engine
    keys: Keys | None
    app: ASGIApp
    users: int = 1  # the table, and each running request

    async def release(self) -> None:
        """Give up one use."""
        self.users -= 1
        if not self.users:
            await asyncio.to_thread(self.engine.close)


class MountTable:
    """The open mounts by name. Only the event loop uses it."""

    def __init__(self, open_mount: Callable[[str, Mount], OpenMount]) -> None:
        self._open = open_mount
        self.mounts: dict[str, OpenMount] = {}

    def open_all(self, mounts: Mapping[str, Mount]) -> None:
        """Open the mounts at the start of the service."""
        for name, mount in mounts.items():
            self.mounts[name] = self._open(name, mount)

    async def change(self, mounts: Mapping[str, Mount]) -> dict[str, str]:
        """Open new and changed mounts, then close the old ones; return the errors by name.

        A mount that cannot be opened is left unchanged.
        """
        errors: dict[str, str] = {}
        for name in mounts.keys() | self.mounts.keys():
            old = self.mounts.get(name)
            if old is not None and old.mount == mounts.get(name):
                continue
            try:
                if name in mounts:
                    new = await asyncio.to_thread(self._open, name, mounts[name])
                    self.mounts[name] = new
                else:
                    del self.mounts[name]
                _log.info("mount changed", extra={"fields": {"mount": name}})
                if old is not None:
                    await old.release()
            except Exception as error:  # also MemoryError and RecursionError
                reason = f"{type(error).__name__}: {error}"
                _log.error("mount not changed: %s", reason, extra={"fields": {"mount": name}})
                errors[name] = reason
        return errors

    async def follow(self, path: Path) -> None:
        """Apply the changes of a file of mounts until the task is cancelled."""
        report = None
        try:
            report = WorkerReport(path) if fcntl else None
        except OSError as error:
            _log.warning("`antipodal switch` cannot wait for this worker: %s", error)
        seen: bytes | None = b"as opened"
        try:
            while True:
                pause = POLL_SECONDS
                try:
                    content = path.read_bytes() if path.exists() else b""
                    if content != seen:
                        seen = content
                        mounts = read_mounts(path)
                        errors = await self.change(mounts)
                        if report is not None:
                            report.write(
                                {
                                    name: {"mount": one.fingerprint(), "error": errors.get(name)}
                                    for name, one in mounts.items()
                                }
                            )
                        if errors:
                            seen, pause = None, RETRY_SECONDS
                except Exception as error:  # this task must survive any error
                    _log.error("mounts not changed: %s", error)
                await asyncio.sleep(pause)
        finally:
            if report is not None:
                report.close()


class Dispatch:
    """ASGI middleware that passes /NAME/… to the application of the mount."""

    def __init__(self, app: ASGIApp, table: MountTable) -> None:
        self._app, self._mounts = app, table.mounts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        name, slash = "", ""
        if scope["type"] == "http":
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            name, slash, _ = path.removeprefix("/").partition("/")
        mount = self._mounts.get(name)
        if mount is None:
            await self._app(scope, receive, send)
        elif not slash:  # relative, because a proxy may add a prefix
            await RedirectResponse(f"{name}/", 308)(scope, receive, send)
        else:
            scope["root_path"] = f"{scope.get('root_path', '')}/{name}"
            scope["mount"] = name
            mount.users += 1
            try:
                await mount.app(scope, receive, send)
            finally:
                await mount.release()


def create_mounted_app(
    mounts: Mapping[str, Mount] | Path,
    open_engine: Callable[[Mount], Engine],
    *,
    limits: Limits,
    keys: Keys | None = None,
    hosts: Collection[str] | None = None,
) -> FastAPI:
    """Return the ASGI application of several mounts.

    Parameters
    ----------
    mounts : mapping or Path
        The mounts by name, or a file of mounts that is polled for changes.
    open_engine : callable
        Opens the model and the store of a mount.
    keys : Keys, optional
        Keys of the mounts without keys of their own, and of the routes of the whole service.
    """
    pools, metrics = Pools(limits), Metrics()
    first = read_mounts(mounts) if isinstance(mounts, Path) else mounts
    has_keys = keys is not None or any(mount.keys for mount in first.values())

    def open_mount(name: str, mount: Mount) -> OpenMount:
        own = keys_of(name, mount, keys, has_keys)
        engine = open_engine(mount)
        app = routes.base_app(limits)
        routes.add_model(app, engine, pools, own)
        _add_mounts(app, table)
        return OpenMount(mount, engine, own, app)

    table = MountTable(open_mount)
    table.open_all(first)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        following = None
        if isinstance(mounts, Path):
            following = asyncio.create_task(table.follow(mounts))
        yield
        if following is not None:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
        pools.close()
        for mount in table.mounts.values():
            mount.engine.close()

    def check() -> None:
        for mount in list(table.mounts.values()):
            mount.engine.check()

    def n_items() -> dict[str, int]:
        return {name: one.engine.store.count() for name, one in list(table.mounts.items())}

    layers = routes.outer_layers(metrics, limits, hosts)
    app = routes.base_app(limits, lifespan, [*layers, Middleware(Dispatch, table=table)])
    _add_mounts(app, table)
    # If only single mounts have keys, no key opens the metrics of the whole service.
    routes.add_metrics(app, metrics, pools, keys if keys or not has_keys else Keys({}), n_items)
    routes.add_probes(app, pools, check)
    routes.add_page(app, first="mounts.html")
    return app


def keys_of(name: str, mount: Mount, common: Keys | None, has_keys: bool) -> Keys | None:
    """Return the keys of a mount: its own, or else the common ones."""
    own = common if mount.keys is None else Keys.find(mount.keys)
    if own is None and has_keys:
        raise AntipodalError(
            f"mount {name} has no keys, but others have: add keys to it, or use --keys"
        )
    return own


def _add_mounts(app: FastAPI, table: MountTable) -> None:
    @app.get("/v1/mounts", response_model=schemas.MountList, responses=problems(401))
    async def mounts(request: Request) -> Response:
        """List the mounts that the key may read."""
        key = await sent_key(request)
        found = [
            {
                "name": name,
                "n_bits": mount.engine.store.n_bits,
                "method": type(mount.engine.hasher).__name__,
            }
            for name, mount in sorted(table.mounts.items())
            if mount.keys is None or mount.keys.role(key) is not None
        ]
        if not found and table.mounts:
            raise HTTPException(401, "a key of one of the mounts is required", CHALLENGE)
        return json_response({"mounts": found})

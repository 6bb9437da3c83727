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
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from fastapi import FastAPI, Request
from pydantic import (
    AfterValidator,
    ConfigDict,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)
from pydantic.dataclasses import dataclass as validated
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from antipodal.errors import AntipodalError
from antipodal.io.atomic import alone_in, locked_file, locked_files, replacing
from antipodal.service import app as routes
from antipodal.service import schemas
from antipodal.service.auth import CHALLENGE, Keys, sent_key
from antipodal.service.bodies import json_response
from antipodal.service.engine import Engine
from antipodal.service.errors import problems
from antipodal.service.limits import Limits, Pools
from antipodal.service.metrics import Metrics

_log = logging.getLogger("antipodal.service")
POLL_SECONDS = 1.0
RETRY_SECONDS = 10.0  # after a mount could not be opened
_REPORT = ("worker-", ".json")  # prefix and suffix of the files in which workers report
RESERVED = frozenset(("docs", "healthz", "metrics", "readyz", "static", "v1", "openapi.json"))


def check_name(name: str) -> str:
    """Return the name of a mount; raise ValueError if it cannot be one."""
    if name in RESERVED or not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,62}", name):
        raise ValueError(
            "a mount name has 1 to 63 of a-z, 0-9, - and _, and is not a route of the service: "
            f"got {name[:70]!r}"
        )
    return name


def _check_absolute(path: Path, info: ValidationInfo) -> Path:
    if info.mode == "json" and not path.is_absolute():
        raise ValueError(f"the path must be absolute: got {path}")
    return path


# A path that is absolute in JSON. In memory it stays as given, for error messages.
AbsolutePath = Annotated[
    Path,
    AfterValidator(_check_absolute),
    PlainSerializer(lambda path: str(path.absolute()), when_used="json"),
]


@validated(frozen=True, config=ConfigDict(extra="forbid"))
class Mount:
    """A model and its store, with the settings of this mount."""

    model: AbsolutePath
    store: str = field(repr=False)  # may contain a password
    keys: AbsolutePath | None = None
    images: str | None = None
    scores: AbsolutePath | None = None

    def fingerprint(self) -> str:
        """Return a digest of the settings."""
        return hashlib.sha256(TypeAdapter(Mount).dump_json(self)).hexdigest()


_FILE = TypeAdapter(dict[Annotated[str, AfterValidator(check_name)], Mount])


def parse_mount(text: str) -> tuple[str, Mount]:
    """Parse `NAME=MODEL,STORE`. Relative paths are resolved."""
    name, _, rest = text.partition("=")
    model, _, store = rest.partition(",")
    if not (model and store):
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
        return _FILE.validate_json(path.read_bytes())
    except OSError as error:
        raise AntipodalError(f"cannot read the mounts in {path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise AntipodalError(f"cannot read the mounts in {path}: {where}: {first['msg']}") from None


def write_mounts(path: Path, mounts: dict[str, Mount]) -> None:
    """Replace the file. A new file is readable by its owner only: stores may have passwords."""
    with replacing(path, mode=0o600) as file:
        file.write(_FILE.dump_json(mounts, indent=1, exclude_none=True) + b"\n")


@contextmanager
def changing_mounts(path: Path) -> Iterator[dict[str, Mount]]:
    """Yield the mounts of a file, and write them back. Concurrent changes wait."""
    with alone_in(path.absolute().parent):
        mounts = read_mounts(path) if path.exists() else {}
        yield mounts
        write_mounts(path, mounts)


def read_reports(mounts_file: Path) -> list[dict[str, dict[str, str]]]:
    """Return the reports of running workers. An unfinished report is empty.

    A report has the fingerprints of the `mounts`, and the `errors` of those not opened, by name.
    """
    folder, reports = Path(f"{mounts_file}.workers"), []
    for path in locked_files(folder, *_REPORT) if folder.is_dir() else ():
        try:
            reports.append(json.loads(path.read_bytes()))
        except FileNotFoundError:
            pass  # the worker has stopped
        except ValueError:
            reports.append({})
    return reports


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


class MountTable(dict[str, OpenMount]):
    """The open mounts by name. Only the event loop changes it."""

    def __init__(self, open_mount: Callable[[str, Mount], OpenMount]) -> None:
        super().__init__()
        self._open = open_mount

    async def change(self, mounts: Mapping[str, Mount]) -> dict[str, str]:
        """Open new and changed mounts, then close the old ones; return the errors by name.

        A mount that cannot be opened is left unchanged.
        """
        errors: dict[str, str] = {}
        for name in mounts.keys() | self.keys():
            old = self.get(name)
            if old is not None and old.mount == mounts.get(name):
                continue
            try:
                if name in mounts:
                    self[name] = await asyncio.to_thread(self._open, name, mounts[name])
                else:
                    del self[name]
                _log.info("mount changed", extra={"fields": {"mount": name}})
                if old is not None:
                    await old.release()
            except Exception as error:  # also MemoryError and RecursionError
                errors[name] = f"{type(error).__name__}: {error}"
                _log.error("mount not changed: %s", errors[name], extra={"fields": {"mount": name}})
        return errors

    async def follow(self, path: Path) -> None:
        """Apply the changes of a file of mounts, and report them, until the task is cancelled."""
        with ExitStack() as stack:
            report, applied = None, None
            try:
                folder = Path(f"{path}.workers")
                folder.mkdir(mode=0o700, exist_ok=True)
                report = Path(stack.enter_context(locked_file(folder, *_REPORT, 0o600)))
            except OSError as error:
                _log.warning("`antipodal switch` cannot wait for this worker: %s", error)
            while True:
                errors: dict[str, str] = {}
                try:
                    content = path.read_bytes() if path.exists() else b""
                    if content != applied:
                        applied = content
                        mounts = read_mounts(path)
                        errors = await self.change(mounts)
                        digests = {name: one.fingerprint() for name, one in mounts.items()}
                        if report is not None:
                            report.write_text(json.dumps({"mounts": digests, "errors": errors}))
                except Exception as error:  # this task must survive any error
                    _log.error("mounts not changed: %s", error)
                if errors:
                    applied = None
                await asyncio.sleep(RETRY_SECONDS if errors else POLL_SECONDS)


def dispatch(app: ASGIApp, table: MountTable) -> ASGIApp:
    """Return an application that passes /NAME/… to the mount, and other paths to `app`."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        name, slash = "", ""
        if scope["type"] == "http":
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            name, slash, _ = path.removeprefix("/").partition("/")
        mount = table.get(name)
        if mount is None:
            await app(scope, receive, send)
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

    return handle


def create_mounted_app(
    mounts: Mapping[str, Mount] | Path,
    open_engine: Callable[[Mount], Engine],
    *,
    limits: Limits,
    keys: Keys | None = None,
    hosts: Collection[str] | None = None,
) -> FastAPI:
    """Return the ASGI application of several mounts, given by name or by a file to poll.

    `keys` are for the mounts without keys of their own, and for the metrics of the service.
    """
    pools, metrics = Pools(limits), Metrics()
    first = read_mounts(mounts) if isinstance(mounts, Path) else mounts
    has_keys = keys is not None or any(mount.keys for mount in first.values())

    def open_mount(name: str, mount: Mount) -> OpenMount:
        own = keys_of(name, mount, keys, has_keys)
        engine = open_engine(mount)
        app = routes.base_app(limits)
        routes.add_model(app, engine, pools, own)
        _add_list(app, table)
        return OpenMount(mount, engine, own, app)

    table = MountTable(open_mount)
    for name, mount in first.items():
        table[name] = open_mount(name, mount)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        tasks = []
        if isinstance(mounts, Path):
            tasks.append(asyncio.create_task(table.follow(mounts)))
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        pools.close()
        for mount in table.values():
            mount.engine.close()

    def check() -> None:
        for mount in list(table.values()):
            mount.engine.check()

    def n_items() -> dict[str, int]:
        return {name: mount.engine.store.count() for name, mount in list(table.items())}

    layers = routes.outer_layers(metrics, limits, hosts)
    app = routes.base_app(limits, lifespan, [*layers, Middleware(dispatch, table=table)])
    _add_list(app, table)
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


def _add_list(app: FastAPI, table: MountTable) -> None:
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
            for name, mount in sorted(table.items())
            if mount.keys is None or mount.keys.role(key) is not None
        ]
        if not found and table:
            raise HTTPException(401, "a key of one of the mounts is required", CHALLENGE)
        return json_response({"mounts": found})

"""The server: settings, worker processes and addresses."""

import errno
import gc
import ipaddress
import json
import os
import re
import socket
import sys
import tempfile
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, Self

import uvicorn
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass
from starlette.types import ASGIApp, Receive, Scope, Send

from antipodal.errors import AntipodalError
from antipodal.service.app import create_app
from antipodal.service.auth import Keys
from antipodal.service.engine import Engine
from antipodal.service.limits import Limits
from antipodal.service.metrics import LOG_CONFIG
from antipodal.service.mounts import (
    RESERVED,
    AbsolutePath,
    Mount,
    create_mounted_app,
    read_mounts,
)

_VARIABLE = "ANTIPODAL_SERVICE"
_LOCAL_NAMES = frozenset(("localhost", "127.0.0.1", "[::1]"))


@dataclass(frozen=True)
class Settings:
    """Settings of a worker process. They are passed in the environment and contain no keys.

    Parameters
    ----------
    mount : Mount, optional
        The model and store of a service with a single model.
    mounts_file : Path, optional
        A file of mounts that is polled for changes, instead of `mount`.
    proxies : tuple of str
        Addresses or networks of proxies whose X-Forwarded-For is trusted.
    prepare : int, optional
        Radius for which stores build their tables.
    """

    mount: Mount | None = None
    mounts_file: AbsolutePath | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    keys: AbsolutePath | None = None
    allow_anyone: bool = False
    read_only: bool = False
    root_path: str = ""
    proxies: tuple[str, ...] = ()
    prepare: int | None = None
    limits: Limits = field(default_factory=Limits)

    def mounts(self) -> dict[str, Mount]:
        """Return the current mounts. A single model has the name ""."""
        if self.mounts_file is not None:
            return read_mounts(self.mounts_file)
        return {} if self.mount is None else {"": self.mount}

    def to_json(self) -> str:
        """Return the settings as JSON, with absolute paths."""
        return TypeAdapter(Settings).dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the result of `to_json`."""
        return TypeAdapter(cls).validate_json(text)


def serve(settings: Settings) -> None:
    """Serve until a signal arrives, then finish the requests in progress."""
    if settings.root_path:
        check_root_path(settings.root_path, RESERVED | settings.mounts().keys())
    for address in settings.proxies:
        _check_network(address)
    if Keys.find(settings.keys) is None:
        check_host(settings.host, settings.allow_anyone)
    check_address(settings.host, settings.port)
    for mount in settings.mounts().values():
        _open(settings, mount).close()  # errors are reported once, before any worker starts
    # Worker processes read their settings, and the folder of shared metrics, from these.
    variables = {_VARIABLE: settings.to_json()}
    with ExitStack() as stack:
        if settings.workers > 1:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="antipodal-metrics-"))
            variables["PROMETHEUS_MULTIPROC_DIR"] = folder
        for name, value in variables.items():
            os.environ[name] = value
            stack.callback(os.environ.pop, name)
        uvicorn.run(
            "antipodal.service.server:worker",
            factory=True,
            host=settings.host,
            port=settings.port,
            workers=settings.workers,
            log_config=LOG_CONFIG,
            access_log=False,  # `Observe` logs requests
            proxy_headers=bool(settings.proxies),
            forwarded_allow_ips=list(settings.proxies),
            server_header=False,
            timeout_keep_alive=20,  # longer than the proxy's, so that the proxy closes first
            ws="none",
            # The time limit applies to the body and again to the response.
            timeout_graceful_shutdown=int(2 * settings.limits.seconds) + 5,
            timeout_worker_healthcheck=60,
        )


def worker() -> ASGIApp:
    """Return the application of one worker, with the settings in the environment."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)  # JSON creates many objects at once, and no cycles
    sys.setswitchinterval(5e-4)  # the event loop waits less for threads that search
    return application(Settings.from_json(os.environ[_VARIABLE]))


def application(settings: Settings) -> ASGIApp:
    """Return the ASGI application of the settings."""
    keys = Keys.find(settings.keys)
    known = keys is not None or settings.allow_anyone
    hosts = None if known else _LOCAL_NAMES | {_bracketed(settings.host)}
    open_ready = partial(_open_ready, settings)
    app: ASGIApp
    if settings.mounts_file is not None:
        app = create_mounted_app(
            settings.mounts_file, open_ready, settings.limits, keys=keys, hosts=hosts
        )
    else:
        (mount,) = settings.mounts().values()
        app = create_app(open_ready(mount), keys=keys, hosts=hosts)
    return _at_root_path(app, settings.root_path) if settings.root_path else app


def check_host(host: str, allow_anyone: bool) -> None:
    """Raise AntipodalError if other machines could use a service without keys."""
    if not allow_anyone and not is_loopback(host):
        raise AntipodalError(
            f"without keys, everyone who can reach {host or 'this machine'} may read and write "
            "the store: use --keys FILE, --host 127.0.0.1 or --allow-anyone"
        )


def check_address(host: str, port: int) -> None:
    """Raise AntipodalError if the address cannot be used, before the model is loaded."""
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                # As the server does: recently closed connections do not block the port.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
    except OSError as error:
        why = error.strerror or str(error)
        advice = ""
        if error.errno == errno.EADDRINUSE:
            advice = ". Is the service running already? Choose another --port, or 0 for a free one"
        raise AntipodalError(f"cannot listen on {host} port {port}: {why}{advice}") from None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to the address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may resolve to any address


def check_root_path(path: str, names: Collection[str]) -> None:
    """Raise ValueError if a path is not a prefix, or starts like a route or a mount."""
    if not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", path):
        raise ValueError(f"--root-path must be like /search, without a final slash: got {path!r}")
    first = path.split("/")[1]
    if first in names:
        raise ValueError(f"--root-path must not start with /{first}, a path of the service itself")


def _at_root_path(app: ASGIApp, root: str) -> ASGIApp:
    """Accept paths with and without the prefix, whether the proxy removes it or not."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if not f"{scope['path']}/".startswith(f"{root}/"):
                scope["path"] = root + scope["path"]
            scope["root_path"] = root
        await app(scope, receive, send)

    return wrapped


def _open(settings: Settings, mount: Mount) -> Engine:
    return Engine.open(
        mount.store,
        mount.model,
        images=mount.images,
        embed=mount.embed,
        scores=_read_scores(mount.scores),
        limits=settings.limits,
        read_only=settings.read_only,
    )


def _open_ready(settings: Settings, mount: Mount) -> Engine:
    engine = _open(settings, mount)
    try:
        engine.warm_up(settings.prepare)
    except BaseException:
        engine.close()
        raise
    return engine


def _check_network(address: str) -> None:
    try:
        ipaddress.ip_network(address)
    except ValueError:
        raise ValueError(
            f"a proxy must be an address, 10.0.0.7, or a network, 10.0.0.0/24: got {address!r}"
        ) from None


def _read_scores(path: Path | None) -> Mapping[str, Any] | None:
    if path is None:
        return None
    try:
        scores = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AntipodalError(f"cannot read the scores in {path}: {error}") from error
    if not isinstance(scores, dict):
        raise AntipodalError(f"{path} must be a JSON object, as from `antipodal evaluate --json`")
    return scores


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host

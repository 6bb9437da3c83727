"""Listen: from the options of `antipodal serve` to processes that answer."""

import errno
import gc
import ipaddress
import json
import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
import uvicorn
from starlette.types import ASGIApp

from antipodal.errors import AntipodalError
from antipodal.service.app import create_app
from antipodal.service.connections import LimitedConnection
from antipodal.service.engine import Engine
from antipodal.service.keys import Keys
from antipodal.service.limits import Limits
from antipodal.service.logs import CONFIG
from antipodal.service.mountedapp import create_mounted_app, keys_of
from antipodal.service.mounts import OUR_NAMES, Mount, read_mounts
from antipodal.service.rootpath import Prefix, check_prefix

_VARIABLE = "ANTIPODAL_SERVICE"
_LOCAL_NAMES = frozenset(("localhost", "127.0.0.1", "[::1]"))


@dataclass(frozen=True)
class Settings:
    """What a worker needs to know; it is sent to other processes, so it holds no keys.

    `mounts` are by their names, and a single model has none; `mounts_file` has them instead, and
    is followed. `proxies` are addresses whose word is taken for where a request came from.
    """

    mounts: dict[str, Mount] = field(default_factory=dict)
    mounts_file: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    keys: Path | None = None
    allow_anyone: bool = False
    read_only: bool = False
    root_path: str = ""
    proxies: tuple[str, ...] = ()
    prepare: int | None = None  # the radius that stores are made ready for
    limits: Limits = field(default_factory=Limits)

    def now(self) -> dict[str, Mount]:
        """Return the mounts as they are now."""
        return self.mounts if self.mounts_file is None else read_mounts(self.mounts_file)

    @property
    def is_guarded(self) -> bool:
        """Whether there are any keys; then every mount must have some."""
        return Keys.find(self.keys) is not None or any(one.keys for one in self.now().values())

    def to_json(self) -> str:
        """Return the settings as text, paths from the root."""
        mounts = {name: mount.fields() for name, mount in self.mounts.items()}
        values = asdict(self) | {"mounts": mounts}
        return json.dumps(values, default=lambda path: str(path.absolute()))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Undo `to_json`."""
        values = json.loads(text)
        for name in ("keys", "mounts_file"):
            values[name] = None if values[name] is None else Path(values[name])
        values["mounts"] = {
            name: Mount.from_fields(fields) for name, fields in values["mounts"].items()
        }
        values["proxies"] = tuple(values["proxies"])
        return cls(**values | {"limits": Limits(**values["limits"])})


def serve(settings: Settings) -> None:
    """Answer until a signal says to stop; then finish what was accepted."""
    if settings.root_path:
        check_prefix(settings.root_path, OUR_NAMES | settings.now().keys())
    for address in settings.proxies:
        _check_network(address)
    if not settings.is_guarded:
        check_host(settings.host, settings.allow_anyone)
    check_address(settings.host, settings.port)
    common = Keys.find(settings.keys)
    for name, mount in settings.now().items():
        # What is wrong is said once, before any worker starts.
        keys_of(name, mount, common, settings.is_guarded)
        _open(settings, mount).close()
    # Workers are processes of their own: they read this, and where to add up their metrics.
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
            log_config=CONFIG,
            access_log=False,  # the service has lines of its own
            proxy_headers=bool(settings.proxies),
            forwarded_allow_ips=list(settings.proxies),
            server_header=False,
            ws="none",
            http=LimitedConnection,
            # A request may take the time for its body and that for its answer.
            timeout_graceful_shutdown=int(2 * settings.limits.seconds) + 5,
            timeout_worker_healthcheck=60,
        )


def worker() -> ASGIApp:
    """Return the application of one worker, as the environment describes it."""
    settings = Settings.from_json(os.environ[_VARIABLE])
    torch.set_num_threads(1)  # requests are small, and run beside each other
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)  # large JSON makes many objects at once, and none in circles
    sys.setswitchinterval(5e-4)  # the loop that sends answers waits less for threads that search
    keys = Keys.find(settings.keys)
    known = settings.is_guarded or settings.allow_anyone
    hosts = None if known else _LOCAL_NAMES | {_bracketed(settings.host)}
    app: ASGIApp
    if settings.mounts.keys() == {""}:
        app = create_app(_open_ready(settings, settings.mounts[""]), keys=keys, hosts=hosts)
    else:
        app = create_mounted_app(
            settings.mounts_file or settings.mounts,
            partial(_open_ready, settings),
            limits=settings.limits,
            keys=keys,
            hosts=hosts,
        )
    return Prefix(app, settings.root_path) if settings.root_path else app


def check_host(host: str, allow_anyone: bool) -> None:
    """Refuse to listen without keys where other machines could reach the service."""
    if not allow_anyone and not is_loopback(host):
        raise AntipodalError(
            f"without keys anyone who reaches {host or 'this machine'} could read and write the "
            "store: give --keys FILE, listen on 127.0.0.1, or say --allow-anyone"
        )


def check_address(host: str, port: int) -> None:
    """Say in one line, before the model is read, that the address cannot be listened on."""
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                # As the server will: connections that ended lately do not count.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
    except OSError as error:
        why = error.strerror or str(error)
        advice = ""
        if error.errno == errno.EADDRINUSE:
            advice = ". Is it running already? --port takes another, 0 any that is free"
        raise AntipodalError(f"cannot listen on {host} port {port}: {why}{advice}") from None


def is_loopback(host: str) -> bool:
    """Say whether only this machine can connect to the address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may come to mean anything


def _open(settings: Settings, mount: Mount) -> Engine:
    return Engine.open(
        mount.model,
        mount.store,
        images=mount.images,
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
            f"a proxy is named by its address, 10.0.0.7, or its network, 10.0.0.0/24: {address!r}"
        ) from None


def _read_scores(path: Path | None) -> Mapping[str, Any] | None:
    if path is None:
        return None
    try:
        scores = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AntipodalError(f"cannot read the scores in {path}: {error}") from error
    if not isinstance(scores, dict):
        raise AntipodalError(f"{path} must hold one JSON object, as `antipodal evaluate --json`")
    return scores


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host

"""A service, and nginx in front of it, as processes for fault-injection tests."""

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

READ, WRITE = "r3ad-k3y-of-the-campaign", "wr1te-k3y-of-the-campaign"


class Answer(NamedTuple):
    """A response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the parsed body."""
        return json.loads(self.body)


class Service:
    """`antipodal serve` with keys, on a port that stays the same after a restart.

    The options name the model and store, or the mounts.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.options = folder, options
        self.port = free_port()
        (folder / "keys").write_text(f"read {READ}\nwrite {WRITE}\n")
        self.log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the service and wait until it is ready."""
        self.process = self.begin()
        while not self.is_ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"the service exited: {self.log.read_text()[-2_000:]}")
            time.sleep(0.1)

    def begin(self) -> "subprocess.Popen[bytes]":
        """Start the process."""
        command = [sys.executable, "-m", "antipodal", "serve", "--port", str(self.port)]
        command += ["--keys", str(self.folder / "keys"), *self.options]
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"}
            )

    def is_ready(self) -> bool:
        """Return whether the service is ready."""
        try:
            return self.ask("GET", "/readyz", seconds=30).status == 200
        except (OSError, http.client.HTTPException):
            return False

    def end(self, number: int = signal.SIGTERM) -> None:
        """Send a signal and wait until the process exits."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.send_signal(number)
            self.process.wait(120)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        key: str | None = None,
        seconds: float = 60,
        **headers: str,
    ) -> Answer:
        """Send one request over a new connection. A body other than bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            return ask(connection, method, path, body, key, **headers)
        finally:
            connection.close()

    def pids(self) -> list[int]:
        """Return the ids of the process and its children."""
        return family(self.process.pid) if self.process is not None else []

    def megabytes(self) -> float:
        """Return the memory of all processes.

        A child between fork and exec shares the memory of its parent, and is not counted.
        """
        pids = self.pids()
        programs = [pid for pid in pids[1:] if _command(pid) != _command(pids[0])]
        return sum(map(_megabytes, [*pids[:1], *programs]))

    def descriptors(self) -> int:
        """Return the number of open files and connections."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd")) if self.process is not None else 0

    def errors(self) -> list[str]:
        """Return the log lines that report an error."""
        lines = self.log.read_text().splitlines()
        errors = [line for line in lines if '"error"' in line or "Traceback" in line]
        return [line if len(line) < 2_000 else f"{line[:200]}…{line[-1_800:]}" for line in errors]


class Proxy:
    """nginx with deploy/nginx.conf, on a loopback port, in front of a service."""

    def __init__(self, folder: Path, service: Service) -> None:
        self.folder = folder
        self.port = free_port()
        tls = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
        ]
        subprocess.run(
            [*tls, "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
            check=True,
            capture_output=True,
        )
        replacements = {
            "user www-data;": "user root;" if os.getuid() == 0 else "",
            "pid /run/nginx.pid;": f"pid {folder}/nginx.pid;",
            "/var/log/nginx": str(folder),
            "http {\n": "http {\n" + _temporary_paths(folder),
            "server 127.0.0.1:8000;": f"server 127.0.0.1:{service.port};",
            "listen 80;": f"listen 127.0.0.1:{free_port()};",
            "listen 443 ssl http2;": f"listen 127.0.0.1:{self.port} ssl http2;",
            "/etc/ssl/antipodal/fullchain.pem": f"{folder}/cert.pem",
            "/etc/ssl/antipodal/privkey.pem": f"{folder}/key.pem",
        }
        text = (Path(__file__).parents[1] / "deploy" / "nginx.conf").read_text()
        for old, new in replacements.items():
            if old not in text:
                raise RuntimeError(f"deploy/nginx.conf has no {old!r}")
            text = text.replace(old, new)
        (folder / "nginx.conf").write_text(text)
        self.process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def is_available() -> bool:
        """Return whether nginx and openssl are installed."""
        return _nginx() is not None and shutil.which("openssl") is not None

    def start(self) -> None:
        """Start nginx and wait until it accepts connections."""
        command = [_nginx() or "nginx", "-p", self.folder, "-c", self.folder / "nginx.conf"]
        self.process = subprocess.Popen([*command, "-g", "daemon off;"])
        while True:
            try:
                self.connect().close()
                return
            except OSError:
                if self.process.poll() is not None:
                    raise RuntimeError("nginx exited") from None
                time.sleep(0.1)

    def end(self) -> None:
        """Stop nginx."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)

    def connect(self, source: str = "127.0.0.1", seconds: float = 30) -> ssl.SSLSocket:
        """Return a TLS connection from a loopback address."""
        plain = socket.create_connection(("127.0.0.1", self.port), seconds, (source, 0))
        try:
            return _UNVERIFIED.wrap_socket(plain)
        except OSError:
            plain.close()
            raise

    def ask(self, method: str, path: str, body: Any = None, **rest: Any) -> Answer:
        """Send one request over a new connection."""
        source = rest.pop("source", "127.0.0.1")
        connection = http.client.HTTPSConnection(
            "127.0.0.1",
            self.port,
            timeout=rest.pop("seconds", 60),
            source_address=(source, 0),
            context=_UNVERIFIED,
        )
        try:
            return ask(connection, method, path, body, **rest)
        finally:
            connection.close()


def _nginx() -> str | None:
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def _temporary_paths(folder: Path) -> str:
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    return "".join(f"    {kind}_temp_path {folder}/{kind};\n" for kind in kinds)


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


_UNVERIFIED = _unverified()  # the certificate is signed by itself


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
    key: str | None = None,
    **headers: str,
) -> Answer:
    """Send one request and read the whole response."""
    if key is not None:
        headers["X-API-Key"] = key
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    if body is not None:
        headers.setdefault("Content-Type", "application/json")
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    return Answer(response.status, dict(response.headers.items()), response.read())


def is_refused_well(answer: Answer) -> bool:
    """Return whether a response is below 500, or a 503 with Retry-After."""
    names = {name.lower() for name in answer.headers}
    return answer.status < 500 or (answer.status == 503 and "retry-after" in names)


def family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        texts = [Path(f"/proc/{pid}/task/{task}/children").read_text() for task in tasks]
    except OSError:
        return []
    return [pid, *(one for text in texts for child in text.split() for one in family(int(child)))]


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _megabytes(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6
    except OSError:
        return 0.0

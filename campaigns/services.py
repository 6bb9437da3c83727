"""A service as a process of its own, for campaigns: started, asked, measured, stopped or killed."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

READ, WRITE = "r3ad-k3y-of-the-campaign", "wr1te-k3y-of-the-campaign"


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body, parsed."""
        return json.loads(self.body)


class Service:
    """`antipodal serve` with keys, on a port that stays the same when it is started again.

    The options say which model and store it serves, or which mounts.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.options = folder, options
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        (folder / "keys").write_text(f"read {READ}\nwrite {WRITE}\n")
        self.log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        self.process = self.begin()
        while not self.is_ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"the service ended: {self.log.read_text()[-2_000:]}")
            time.sleep(0.1)

    def begin(self) -> "subprocess.Popen[bytes]":
        """Start it."""
        command = [sys.executable, "-m", "antipodal", "serve", "--port", str(self.port)]
        command += ["--keys", str(self.folder / "keys"), *self.options]
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"}
            )

    def is_ready(self) -> bool:
        """Ask once."""
        try:
            return self.ask("GET", "/readyz", seconds=30).status == 200
        except (OSError, http.client.HTTPException):
            return False

    def end(self, number: int = signal.SIGTERM) -> None:
        """Send a signal, and wait until the process has ended."""
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
        """Send one request over a connection of its own; a body that is not bytes is JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            return ask(connection, method, path, body, key, **headers)
        finally:
            connection.close()

    def pids(self) -> list[int]:
        """Return the process and those that it has started."""
        return family(self.process.pid) if self.process is not None else []

    def megabytes(self) -> float:
        """Return the memory of all of them together.

        A child that has not become a program of its own yet has the memory of its parent, and is
        not counted again.
        """
        pids = self.pids()
        programs = [pid for pid in pids[1:] if _command(pid) != _command(pids[0])]
        return sum(map(_megabytes, [*pids[:1], *programs]))

    def descriptors(self) -> int:
        """Return how many files and connections the process has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd")) if self.process is not None else 0

    def errors(self) -> list[str]:
        """Return the lines of the log that tell of a defect."""
        lines = self.log.read_text().splitlines()
        return [line[:1_000] for line in lines if '"error"' in line or "Traceback" in line]


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
    key: str | None = None,
    **headers: str,
) -> Answer:
    """Send one request and read the answer to its end."""
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
    """Say whether an answer is no defect: below 500, or 503 with a time to come back."""
    names = {name.lower() for name in answer.headers}
    return answer.status < 500 or (answer.status == 503 and "retry-after" in names)


def family(pid: int) -> list[int]:
    """Return a process and its children, and theirs."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        texts = [Path(f"/proc/{pid}/task/{task}/children").read_text() for task in tasks]
    except OSError:
        return []
    return [pid, *(one for text in texts for child in text.split() for one in family(int(child)))]


def is_alive(pid: int) -> bool:
    """Say whether there is such a process, other than one that only waits to be counted."""
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

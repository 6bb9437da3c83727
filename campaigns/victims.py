"""Who can be killed while a store is written: its writer, and the processes of its engine."""

import random
import signal
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import SubprocessError

import psutil

from servers import Engines

_PATIENCE = 120  # seconds that a server may take until it is up again


class Victims(ABC):
    """The processes of an engine."""

    is_atomic = True  # does it promise that an operation is done whole or not at all?

    @abstractmethod
    def url(self, name: str) -> str:
        """Return the address of a store that is not there yet."""

    @abstractmethod
    def kill(self, moments: random.Random, writer: BaseProcess) -> str:
        """Kill somebody, and say whom."""

    @abstractmethod
    def settle(self) -> None:
        """Have the engine up again, and nobody at the store."""


class SqliteVictims(Victims):
    """SQLite works in the process of the writer: there is nobody else."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def url(self, name: str) -> str:
        """Return the address of a store that is not there yet."""
        return f"sqlite:///{self._folder}/{name}.db"

    def kill(self, moments: random.Random, writer: BaseProcess) -> str:
        """Kill the writer."""
        writer.kill()
        return "writer"

    def settle(self) -> None:
        """Leave it to the next who opens the store."""


class PostgresVictims(Victims):
    """A server of PostgreSQL: the postmaster, and a backend for each connection."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def url(self, name: str) -> str:
        """Return the address of a store that is not there yet."""
        return self._engines.url("postgresql", name)

    def kill(self, moments: random.Random, writer: BaseProcess) -> str:
        """Kill the writer, a backend, the postmaster alone, or all of the server."""
        postmaster = psutil.Process(self._engines.postgres().get_pid())
        children = postmaster.children()
        backends = [one for one in children if "[local]" in " ".join(one.cmdline())]
        victim = moments.choice(["writer", "writer", "backend", "postmaster", "server"])
        if victim == "backend" and backends:
            _kill(*backends)
        elif victim == "postmaster":
            _kill(postmaster)
            psutil.wait_procs([postmaster, *children], timeout=_PATIENCE)
        elif victim == "server":
            postmaster.suspend()  # or it would see its children die
            _kill(*children, postmaster)
            psutil.wait_procs([postmaster, *children], timeout=_PATIENCE)
        else:
            victim = "writer"
            writer.kill()
        return victim

    def settle(self) -> None:
        """Start the server if it is not there, and wait until it answers."""
        server, last_moment = self._engines.postgres(), time.monotonic() + _PATIENCE
        while True:
            try:
                server.ensure_postgres_running()
                server.psql("SELECT 1")
                return
            except (AssertionError, SubprocessError):
                if time.monotonic() > last_moment:
                    raise
                time.sleep(0.1)


class MilvusVictims(Victims):
    """A server of Milvus Lite is a child of the process that has opened the file."""

    is_atomic = False

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def url(self, name: str) -> str:
        """Return the address of a store that is not there yet."""
        return self._engines.url("milvus", name)

    def kill(self, moments: random.Random, writer: BaseProcess) -> str:
        """Kill the writer, its server, or both."""
        server: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            server = psutil.Process(writer.pid).children()
        victim = moments.choice(["writer", "server", "both"]) if server else "writer"
        if victim != "writer":
            _kill(*server)
        if victim != "server":
            writer.kill()
        psutil.wait_procs(server, timeout=_PATIENCE)  # it ends with its writer
        return victim

    def settle(self) -> None:
        """Let go of the server of this process: the next writer starts its own."""
        from milvus_lite.server_manager import server_manager_instance

        server_manager_instance.release_all()


def _kill(*victims: psutil.Process) -> None:
    for one in victims:
        with suppress(psutil.NoSuchProcess):
            one.send_signal(signal.SIGKILL)

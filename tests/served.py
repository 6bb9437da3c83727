"""Stores behind a service: a server in a thread, and clients that keep the contract of stores."""

import socket
import threading

import numpy as np
import pytest
import uvicorn

from antipodal import LSH, Client, stores
from antipodal.service import Engine, Limits, create_app

PREFIX = "served:"  # before the URL of the store that is served


class Service:
    """A server with an application for each store that is opened by it."""

    def __init__(self) -> None:
        self._apps: dict[str, object] = {}
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        config = uvicorn.Config(self, log_config=None, ws="none", lifespan="off")
        self._server = uvicorn.Server(config)
        sockets = {"sockets": [self._listening]}
        self._thread = threading.Thread(target=self._server.run, kwargs=sockets)
        self._thread.start()

    async def __call__(self, scope, receive, send) -> None:
        name = scope["path"].split("/")[1]
        scope["root_path"] = f"/{name}"
        await self._apps[name](scope, receive, send)

    def open(self, url: str, n_bits: int | None, model: str | None) -> Client:
        """Open a store, serve it in small requests, and return a client of it."""
        store = stores.open_store(url, n_bits=n_bits, model=model)
        hasher = LSH(store.n_bits, random_state=0).fit(np.eye(4))
        limits = Limits(body=200_000, batch=700, k=20_000, results=3_000, found=60_000)
        name = f"store{len(self._apps)}"
        engine = Engine(hasher, store, identity=store.model or "", limits=limits)
        self._apps[name] = create_app(engine)
        client = Client(f"{self._url}/{name}")
        close = client.close

        def close_both() -> None:
            close()
            store.close()

        client.close = close_both
        return client

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()


_running: list[Service] = []  # one for all test files, each of which has the fixture as its own


@pytest.fixture(scope="session")
def service():
    if not _running:
        _running.append(Service())
    yield _running[0]
    _running[0].stop()


def open_store(url: str, *, n_bits: int | None = None, model: str | None = None, **options):
    """Open a store, or a client of one that is served."""
    if url.startswith(PREFIX):
        return _running[0].open(url.removeprefix(PREFIX), n_bits, model)
    return stores.open_store(url, n_bits=n_bits, model=model, **options)

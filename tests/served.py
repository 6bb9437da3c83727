"""Servers for tests: an application on a loopback port, and the items of service tests."""

import asyncio
import socket
import threading
import time
import warnings
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import uvicorn

from antipodal import LSH, Collection, stores
from antipodal.collection.drift import code_quality
from antipodal.collection.settings import Settings
from antipodal.service import Engine, Limits, create_app, limits
from antipodal.service.micro_batching import MicroBatcher

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Using `httpx` with `starlette.testclient`")
    from starlette.testclient import TestClient as TestClient

HANG = 600  # seconds that only a hang exceeds
limits._PROBE_SECONDS = HANG  # a busy machine may take longer than the limit of probes

# ----------------------------------------------------------------- the items of service tests

N_BITS, N_FEATURES, N_ITEMS = 20, 6, 200
LIMITS = Limits(
    body=100_000,
    binary_body=100_000,
    batch=50,
    k=100,
    results=30,
    found=3_200,
    histogram=1_000,
    seconds=600,
)
ROWS = np.random.default_rng(0).standard_normal((N_ITEMS, N_FEATURES)).astype(np.float32)
HASHER = LSH(N_BITS, random_state=0).fit(ROWS)
CODES = HASHER.encode(ROWS)
IDS = np.arange(N_ITEMS) * 3 - 50
VECTOR = [0.5] * N_FEATURES
READ, WRITE = "r3ad-k3y-of-the-web-site", "wr1te-k3y-of-the-import"
KEYS = f"# roles and keys\nread {READ}   # the site\n\nwrite\t{WRITE}\n"


def label(number):
    return int(number) % 4


def fill(store):
    store.upsert(IDS, CODES, [{"label": label(i), "title": f"item {i}"} for i in IDS])


def engine_of(store, hasher=HASHER, *, identity="", **options):
    """Return an engine of a store and the hasher that made its codes."""
    settings = Settings(quality=code_quality(HASHER, ROWS)) if hasher is HASHER else Settings()
    return Engine(Collection(store, hasher, settings, identity=identity), **options)


def contents(store):
    """Return the items of a store in a form that can be compared."""
    found = store.get(np.sort(store.radius(np.zeros((1, 3), np.uint8), N_BITS).ids))
    return found.ids.tolist(), found.codes.tolist(), found.metadata


def is_problem(response, *statuses):
    """Check an error response, and return its detail."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    body = response.json()
    assert set(body) == {"type", "title", "status", "detail"}
    assert body["status"] == response.status_code
    assert response.status_code in (statuses or range(400, 500)), response.text
    assert body["detail"]
    assert "Traceback" not in response.text
    assert ".py" not in response.text
    return body["detail"]


@pytest.fixture
def store(tmp_path):
    """A store of the items."""
    with stores.open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=N_BITS) as store:
        fill(store)
        yield store


@pytest.fixture
def client(store):
    with TestClient(create_app(engine_of(store, limits=LIMITS))) as client:
        yield client


@pytest.fixture(scope="module")
def kept_store(tmp_path_factory):
    """A store of the items for the tests of a module that leave it unchanged."""
    folder = tmp_path_factory.mktemp("kept")
    with stores.open_store(f"sqlite:///{folder}/codes.db", n_bits=N_BITS) as store:
        fill(store)
        yield store


@pytest.fixture(scope="module")
def reader(kept_store):
    with TestClient(create_app(engine_of(kept_store, limits=LIMITS))) as client:
        yield client


@pytest.fixture
def unchanged(reader, kept_store):
    """A client; after the test, the service is alive and the store as before."""
    before = contents(kept_store)
    yield reader
    assert reader.get("/healthz").json() == {"status": "alive"}
    assert reader.get("/readyz").json() == {"status": "ready"}
    assert contents(kept_store) == before


@pytest.fixture
def timeouts(monkeypatch):
    """The timeouts of calls in thread pools; they expire only when `expire` is called."""
    started = []

    def timeout(_):
        started.append(asyncio.Timeout(None))
        return started[-1]

    replaced = SimpleNamespace(**{**vars(asyncio), "timeout": timeout})
    monkeypatch.setattr("antipodal.service.limits.asyncio", replaced)
    return started


def expire(client, timeout):
    """Let a timeout expire in the event loop of a client."""
    client.portal.call(timeout.reschedule, 0)


def wait_until(condition):
    """Wait for a condition that only a hang delays for long."""
    deadline = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def search_at_once(engine, requests, monkeypatch):
    """Hold the only thread of a service until all searches are waiting.

    Returns the responses, and the requests of the engine.
    """
    held, release, arrived, calls = threading.Event(), threading.Event(), threading.Semaphore(0), []
    search, batched = engine.search, MicroBatcher.search

    def record(request):
        calls.append(request)
        return search(request)

    def hold(_):
        held.set()
        assert release.wait(HANG)
        return {"count": 0}

    async def arrive(self, request):
        asyncio.get_running_loop().call_soon(arrived.release)  # after it has joined a batch
        return await batched(self, request)

    monkeypatch.setattr(engine, "search", record)
    monkeypatch.setattr(engine, "count", hold)
    monkeypatch.setattr(MicroBatcher, "search", arrive)
    responses = [None] * len(requests)
    with TestClient(create_app(engine)) as client:

        def send(place):
            responses[place] = client.post("/v1/search", json=requests[place])

        holder = threading.Thread(target=client.post, args=("/v1/count",), kwargs={"json": {}})
        holder.start()
        assert held.wait(HANG)
        threads = [threading.Thread(target=send, args=(i,)) for i in range(len(requests))]
        for thread in threads:
            thread.start()
        for _ in requests:
            assert arrived.acquire(timeout=HANG)
        release.set()
        for thread in [holder, *threads]:
            thread.join()
    return responses, calls


# ------------------------------------------------------------------------------------ servers


@contextmanager
def listening(app, **options):
    """Run an application in a thread, and yield its port."""
    options = {"log_config": None, "ws": "none", "proxy_headers": False, **options}
    server = uvicorn.Server(uvicorn.Config(app, **options))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()

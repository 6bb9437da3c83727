"""Limits: bodies, batches, concurrency and time."""
# ruff: noqa: F811 (imported fixtures)

import asyncio
import dataclasses
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from antipodal.cli.serve import serve
from antipodal.service import Limits, create_app
from antipodal.service.errors import UnavailableError
from antipodal.service.limits import ConcurrencyLimit, Pool, Shared
from served import (  # noqa: F401
    HANG,
    HASHER,
    IDS,
    LIMITS,
    VECTOR,
    TestClient,
    engine_of,
    expire,
    is_problem,
    kept_store,
    label,
    reader,
    store,
    timeouts,
    unchanged,
    wait_until,
)

HUGE = {"vectors": [VECTOR] * 51}


def test_large_batches_are_refused(unchanged):
    items = [{"id": i, "code": "000000"} for i in range(51)]
    for method, path, body in [
        ("POST", "/v1/encode", HUGE),
        ("PUT", "/v1/items", {"items": items}),
        ("DELETE", "/v1/items", {"ids": list(range(51))}),
    ]:
        message = is_problem(unchanged.request(method, path, json=body), 422)
        assert "50" in message
        assert "51" in message
    assert "101" in is_problem(unchanged.get("/v1/items?limit=101"), 422)


def test_a_histogram_over_too_many_items_is_refused(store):
    client = TestClient(create_app(engine_of(store, limits=Limits(histogram=150))))
    request = {"code": "000000", "histogram": True}
    assert "150" in is_problem(client.post("/v1/search", json=request), 422)
    narrow = client.post("/v1/search", json=request | {"where": {"label": 1}})
    assert sum(narrow.json()["histogram"]) == sum(label(i) == 1 for i in IDS)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_a_413(unchanged, chunked):
    body = b'{"items": [' + b" " * LIMITS.body + b"]}"
    content = iter([body[i : i + 10_000] for i in range(0, len(body), 10_000)]) if chunked else body
    headers = {"Content-Type": "application/json"}
    response = unchanged.put("/v1/items", content=content, headers=headers)
    assert "100,000" in is_problem(response, 413)


def test_an_endless_body_is_refused_and_a_silent_one_times_out(store):
    def app(seconds):
        return create_app(engine_of(store, limits=Limits(body=1_000, seconds=seconds)))

    n_chunks = 0

    async def endless():
        nonlocal n_chunks
        n_chunks += 1
        return {"type": "http.request", "body": b"x" * 100, "more_body": True}

    async def silent():
        await asyncio.sleep(HANG)

    assert asyncio.run(status_of(app(HANG), endless)) == 413
    assert n_chunks == 11
    assert asyncio.run(asyncio.wait_for(status_of(app(0.1), silent), HANG / 2)) == 408


async def status_of(app, receive):
    scope = {
        "type": "http",
        "method": "PUT",
        "path": "/v1/items",
        "raw_path": b"/v1/items",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
    }
    sent = []

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"]


def test_requests_beyond_the_concurrency_limit_are_a_503_and_probes_are_exempt():
    release, answered = asyncio.Event(), []

    async def app(scope, receive, send):
        await release.wait()
        answered.append(scope["path"])

    async def story():
        limited = ConcurrencyLimit(app, Limits(requests=2))

        def ask(path, send=None):
            return limited({"type": "http", "path": path}, None, send)

        running = [asyncio.create_task(ask(path)) for path in ("/a", "/b", "/mount/readyz")]
        await asyncio.sleep(0)  # all of them have started
        refused = []

        async def send(message):
            refused.append(message)

        await ask("/c", send)
        assert refused[0]["status"] == 503
        assert (b"retry-after", b"1") in refused[0]["headers"]
        release.set()
        await asyncio.gather(*running)
        await ask("/d")

    asyncio.run(story())
    assert answered == ["/a", "/b", "/mount/readyz", "/d"]


def test_a_full_pool_is_an_error_and_a_finished_call_makes_room():
    release, running = threading.Event(), threading.Event()

    async def story():
        pool = Pool("test", 1, 2, HANG)

        def hold():
            running.set()
            return release.wait(HANG)

        calls = [asyncio.create_task(pool.run(hold)) for _ in range(2)]
        assert await asyncio.to_thread(running.wait, HANG)
        with pytest.raises(UnavailableError):
            await pool.run(hold)
        release.set()
        assert await asyncio.gather(*calls) == [True, True]
        assert await pool.run(hold) is True
        pool.close()

    asyncio.run(story())


def test_a_request_that_takes_too_long_is_a_503_that_tells_whether_it_was_started(
    store, monkeypatch, timeouts
):
    engine = engine_of(store, limits=Limits(threads=1))
    started, release = threading.Event(), threading.Event()

    def card():
        started.set()
        release.wait(HANG)
        return {}

    monkeypatch.setattr(engine, "card", card)
    answers = []
    with TestClient(create_app(engine)) as client, ThreadPoolExecutor(1) as asking:
        for number in range(2):
            answer = asking.submit(client.get, "/v1/model")
            wait_until(lambda number=number: len(timeouts) > number and started.is_set())
            expire(client, timeouts[number])
            answers.append(answer.result(HANG))
        assert client.get("/healthz").status_code == 200
        release.set()
    for answer, words in zip(answers, ("may still be carried out", "not started"), strict=True):
        assert words in is_problem(answer, 503)
        assert answer.headers["retry-after"] == "1"


def test_limits_must_be_positive_and_finite():
    for wrong in ({"k": 0}, {"seconds": float("inf")}, {"seconds": float("nan")}, {"body": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Limits(**wrong)


def test_the_options_of_serve_have_the_defaults_of_the_limits():
    options = inspect.signature(serve).parameters
    for field in dataclasses.fields(Limits):
        name = field.name if field.name in options else f"max_{field.name}"
        assert options[name].default == field.default


def test_readiness_does_not_wait_for_an_index_that_is_being_loaded(store, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(store._cache, "index", lambda *_: release.wait(HANG))
    with TestClient(create_app(engine_of(store))) as client:
        assert client.get("/readyz").json() == {"status": "ready"}
        release.set()


def test_concurrent_readiness_probes_share_one_check(store, monkeypatch):
    engine, n_checks = engine_of(store, limits=Limits(seconds=HANG)), [0]

    began, release, asked = threading.Event(), threading.Event(), threading.Semaphore(0)
    shared = Shared.__call__

    def check():
        n_checks[0] += 1
        began.set()
        assert release.wait(HANG)

    async def ask(self):
        asked.release()
        return await shared(self)

    monkeypatch.setattr(engine, "check", check)
    monkeypatch.setattr(Shared, "__call__", ask)
    statuses = []
    with TestClient(create_app(engine)) as client:
        callers = [
            threading.Thread(target=lambda: statuses.append(client.get("/readyz").status_code))
            for _ in range(20)
        ]
        for one in callers:
            one.start()
        for _ in callers:
            assert asked.acquire(timeout=HANG)
        release.set()
        for one in callers:
            one.join()
    assert statuses == [200] * 20
    assert n_checks[0] == 1

"""What a caller does not wait for is not done; who guesses keys, or sends too much, waits."""

import asyncio
import socket
import threading
import time

import pytest

from antipodal import open_store
from antipodal.service import Engine, Keys, Limits, create_app, guesses
from antipodal.service.gate import Gate
from antipodal.service.room import Room
from antipodal.service.searching import Search
from listening import listening
from test_service import HASHER, KEYS, N_BITS, READ, TestClient, fill


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=N_BITS) as store:
        fill(store)
        yield store


# ---------------------------------------------------------------------------------- aborted


def test_what_waits_for_a_caller_who_has_gone_is_not_done(store, monkeypatch):
    engine = Engine(HASHER, store, limits=Limits(threads=1))
    began, release, n_calls = threading.Semaphore(0), threading.Event(), [0]

    def slow():
        n_calls[0] += 1
        began.release()
        release.wait(20)
        return {}

    monkeypatch.setattr(engine, "card", slow)
    with listening(create_app(engine), lifespan="on") as port:
        callers = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
        for connection in callers:
            connection.sendall(b"GET /v1/model HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert began.acquire(timeout=10)
        time.sleep(0.2)
        for connection in callers[:-1]:
            connection.close()
        time.sleep(0.3)
        release.set()
        callers[-1].settimeout(10)
        assert callers[-1].recv(100).startswith(b"HTTP/1.1 200")  # who waits is answered
        callers[-1].close()
    assert n_calls[0] == 2  # the one that ran, and the one for who waited


def test_many_queries_are_not_searched_on_for_a_caller_who_has_gone(store, monkeypatch):
    engine = Engine(HASHER, store)
    n_parts, answers = [0], Search._answers

    def slow(*arguments):
        n_parts[0] += 1
        time.sleep(0.1)
        return answers(*arguments)

    monkeypatch.setattr(Search, "_answers", slow)
    body = b'{"codes": [' + b",".join([b'"000000"'] * 1_000) + b'], "radius": 1, "items": false}'
    head = f"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    with listening(create_app(engine), lifespan="on") as port:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
            while not n_parts[0]:
                time.sleep(0.01)
        time.sleep(1)
    assert n_parts[0] < 8  # of 63


# ----------------------------------------------------------------------------------- bodies


async def status_of(app, method, path, headers, receive):
    sent = []

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
    }
    await app(scope, receive, send)
    return sent[0]["status"]


@pytest.mark.parametrize(
    "announced", [(b"content-length", b"8000000"), (b"transfer-encoding", b"chunked")]
)
@pytest.mark.parametrize("path", ["/v1/model", "/v1/items", "/healthz", "/readyz", "/metrics"])
def test_a_body_for_a_route_that_takes_none_is_refused_unread(store, path, announced):
    app = create_app(Engine(HASHER, store))

    async def receive():
        pytest.fail("the body was asked for")

    assert asyncio.run(status_of(app, "GET", path, [announced], receive)) == 413


def test_large_bodies_wait_unread_until_there_is_room():
    reading, release = [], asyncio.Event()

    async def app(scope, receive, send):
        reading.append(scope["path"])
        assert len((await receive())["body"]) == 100_000
        reading.append(scope["path"] + " read")
        if scope["path"] != "/small":
            await release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def run():
        gate = Gate(app, Limits(body=100_000, binary_body=100_000), None)
        tasks = []
        for name in "abc":
            chunks = iter([b"x" * 70_000, b"x" * 30_000])

            async def receive(chunks=chunks):
                chunk = next(chunks, None)
                if chunk is None:
                    await asyncio.sleep(60)
                return {"type": "http.request", "body": chunk, "more_body": len(chunk) > 30_000}

            tasks.append(asyncio.create_task(status_of(gate, "PUT", f"/{name}", CHUNKED, receive)))
        await asyncio.sleep(0.2)
        assert {"/a read", "/b read", "/c"} <= set(reading)
        assert "/c read" not in reading
        release.set()
        assert await asyncio.gather(*tasks) == [200] * 3

    asyncio.run(run())


CHUNKED = [(b"transfer-encoding", b"chunked")]


def test_room_is_lent_in_order_and_given_back_by_who_no_longer_waits():
    async def run():
        room = Room(10)
        assert await room.take(25) == 10  # all there is
        first, second = asyncio.create_task(room.take(8)), asyncio.create_task(room.take(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        assert not second.done()
        room.give_back(10)
        assert await second == 2
        assert await room.take(8) == 8

    asyncio.run(run())


# ------------------------------------------------------------------------------ wrong keys


def test_guesses_of_an_address_are_answered_one_a_second_after_the_first():
    now = [0.0]
    wrong = guesses.Guesses(clock=lambda: now[0])
    assert [wrong.wait(("10.0.0.1", 1)) for _ in range(10)] == [0.0] * 10
    assert [wrong.wait(("10.0.0.1", 2)) for _ in range(3)] == [1.0, 2.0, 3.0]
    assert max(wrong.wait(("10.0.0.1", 3)) for _ in range(50)) == 10.0
    assert wrong.wait(("10.0.0.2", 1)) == 0.0  # another's
    now[0] += 30
    assert wrong.wait(("10.0.0.1", 1)) == 0.0  # forgiven
    first = [wrong.wait((f"2001:db8::{i:x}", 1)) for i in range(12)]
    assert first[-1] == 2.0  # who has one address of IPv6 has them all
    assert wrong.wait(("2001:db8:0:1::1", 1)) == 0.0


def test_guesses_are_remembered_of_so_many_addresses():
    wrong = guesses.Guesses(clock=lambda: 0.0)
    for number in range(guesses._MOST_ADDRESSES + 100):
        wrong.wait((f"address {number}", 1))
    assert len(wrong._due) == guesses._MOST_ADDRESSES


def test_wrong_keys_are_slowed_down_and_a_right_one_is_not(store, monkeypatch):
    monkeypatch.setattr(guesses, "_FREE", 3)
    monkeypatch.setattr(guesses, "_EVERY", 0.4)
    keys = Keys.parse(KEYS, "keys")
    keys.guesses = guesses.Guesses(clock=lambda: 0.0)  # nothing is forgiven meanwhile
    client = TestClient(create_app(Engine(HASHER, store), keys=keys))

    def seconds(key, status):
        began = time.monotonic()
        headers = {} if key is None else {"X-API-Key": key}
        assert client.get("/v1/items/1", headers=headers).status_code == status
        return time.monotonic() - began

    for number in range(3):
        seconds(f"wr0ng-k3y-number-{number}", 401)
    assert seconds("wr0ng-k3y-number-3", 401) > 0.15
    slow = [threading.Thread(target=seconds, args=(f"wr0ng-{i}", 401)) for i in range(10)]
    for one in slow:
        one.start()
    for _ in range(5):
        seconds(READ, 200)  # from the same address, meanwhile
        seconds(None, 401)  # no guess
    assert all(one.is_alive() for one in slow[-3:])  # they wait for 4 s
    for one in slow:
        one.join()


def test_one_key_takes_at_most_half_of_a_queue(store, monkeypatch):
    engine = Engine(HASHER, store, limits=Limits(threads=1, waiting=9))
    release = threading.Event()
    monkeypatch.setattr(engine, "card", lambda: release.wait(20) and {})
    other = "an0ther-k3y-of-somebody-else"
    keys = Keys.parse(f"{KEYS}\nread {other}\n", "keys")
    statuses = {READ: [], other: []}
    with TestClient(create_app(engine, keys=keys)) as client:

        def ask(key):
            response = client.get("/v1/model", headers={"X-API-Key": key})
            statuses[key].append(response.status_code)

        callers = [threading.Thread(target=ask, args=(READ,)) for _ in range(7)]
        for one in callers:
            one.start()
        while len(statuses[READ]) < 2:
            time.sleep(0.01)
        callers.append(threading.Thread(target=ask, args=(other,)))
        callers[-1].start()
        time.sleep(0.2)
        release.set()
        for one in callers:
            one.join()
    assert sorted(statuses[READ]) == [200] * 5 + [503] * 2
    assert statuses[other] == [200]


def test_readiness_does_not_wait_for_an_index_that_is_being_read(store, monkeypatch):
    """Health checks ask the store, not the copy in memory, which others may be bringing up."""
    release = threading.Event()
    monkeypatch.setattr(store._cache, "index", lambda *_: release.wait(20))
    with TestClient(create_app(Engine(HASHER, store))) as client:
        began = time.monotonic()
        assert client.get("/readyz").json() == {"status": "ready"}
        assert time.monotonic() - began < 5
        release.set()


def test_those_who_ask_at_the_same_time_whether_it_is_ready_share_an_answer(store, monkeypatch):
    engine, n_checks = Engine(HASHER, store), [0]

    def check():
        n_checks[0] += 1
        time.sleep(0.3)

    monkeypatch.setattr(engine, "check", check)
    statuses = []
    with TestClient(create_app(engine)) as client:
        callers = [
            threading.Thread(target=lambda: statuses.append(client.get("/readyz").status_code))
            for _ in range(20)
        ]
        for one in callers:
            one.start()
        for one in callers:
            one.join()
    assert statuses == [200] * 20
    assert n_checks[0] < 5


def test_searches_that_wait_together_are_not_done_when_all_have_gone_nor_refused_for_ever(
    store, monkeypatch
):
    engine = Engine(HASHER, store, limits=Limits(threads=1, waiting=1))
    began, release, searches, search = threading.Event(), threading.Event(), [], engine.search

    def slow(request):
        searches.append(request)
        began.set()
        release.wait(20)
        return search(request)

    monkeypatch.setattr(engine, "search", slow)
    monkeypatch.setattr(engine, "card", lambda: release.wait(20) and {})
    head = "POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    body = '{"code": "000000", "k": 3}'
    whole = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
    with listening(create_app(engine), lifespan="on") as port:

        def ask(data):
            connection = socket.create_connection(("127.0.0.1", port), timeout=20)
            connection.sendall(data)
            return connection

        running = ask(whole)
        assert began.wait(10)
        waiting = [ask(whole) for _ in range(5)]
        time.sleep(0.3)
        for connection in waiting:
            connection.close()
        time.sleep(0.3)
        model = ask(b"GET /v1/model HTTP/1.1\r\nHost: localhost\r\n\r\n")  # takes the last place
        time.sleep(0.3)
        refused = ask(whole)
        assert refused.recv(100).startswith(b"HTTP/1.1 503")
        release.set()
        for connection in (running, model):
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        again = ask(whole)
        assert again.recv(100).startswith(b"HTTP/1.1 200")
        for connection in (running, model, refused, again):
            connection.close()
    assert len(searches) == 2  # the first and the last

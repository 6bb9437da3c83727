"""The service as processes: signals, several workers and logs."""

import http.client
import json
import os
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager

import numpy as np
import pytest

from antipodal import LSH, open_store
from served import HANG, READ, WRITE

N_BITS = 32
HEADERS = {"Content-Type": "application/json"}
SEARCH = json.dumps({"code": "00000000"})


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model"
    LSH(N_BITS, random_state=0).fit(np.random.default_rng(0).standard_normal((50, 6))).save(path)
    return path


def command(model, folder, *options):
    url = f"sqlite:///{folder}/codes.db?timeout={HANG}"
    serve = [sys.executable, "-m", "antipodal", "serve"]
    return [*serve, "--model", str(model), "--store", url, *options]


def environment(**extra):
    plain = {name: value for name, value in os.environ.items() if name != "ANTIPODAL_KEYS"}
    return plain | {"OMP_NUM_THREADS": "1"} | extra


@contextmanager
def running(model, folder, *options, **variables):
    """Run the service within the block; yield its process and port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            command(model, folder, "--port", str(port), *options),
            stdout=log,
            stderr=log,
            env=environment(**variables),
        )
    try:
        wait_until(lambda: is_ready(process, port, folder))
        yield process, port
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(HANG)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def is_ready(process, port, folder):
    assert process.poll() is None, (folder / "log").read_text()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG)
        connection.request("GET", "/readyz")
        with connection.getresponse() as response:
            return response.status == 200
    except OSError:
        return False
    finally:
        connection.close()


def wait_until(condition):
    deadline = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ask(port, method, path, body=None, **headers):
    """Send one request over a new connection; return its status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG)
    try:
        connection.request(method, path, body, HEADERS | headers)
        response = connection.getresponse()
        text = response.read().decode()
        is_json = "json" in response.headers["content-type"]
        return response.status, json.loads(text) if is_json else text
    finally:
        connection.close()


def lines(folder):
    """Return the log records; an incomplete last line is ignored."""
    return [json.loads(line) for line in (folder / "log").read_text().split("\n")[:-1]]


def code_of(number, version=0):
    """Return the code of a version of an item."""
    mixed = (number * 0x9E3779B1 + version * 0x85EBCA6B + 12345) & 0xFFFFFFFF
    return f"{mixed ^ (mixed >> 15):08x}"


def distance(one, other):
    return (int(one, 16) ^ int(other, 16)).bit_count()


def run_all(targets):
    """Run functions concurrently; raise the first error."""
    errors = []

    def guarded(target):
        try:
            target()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_two_workers_share_a_store_and_no_result_is_wrong(model, tmp_path):
    """Readers compare the results with the latest acknowledged version of each item.

    Ids are each writer's own. A search for the code of an acknowledged version must find that
    item at distance 0, whichever worker answers, and everything it returns must be of a version
    that was sent, in the right order, at its true distance.
    """
    stop = threading.Event()
    acknowledged = {}  # id -> version
    sent = set()  # (id, code)
    n_checked, n_writes = [0, 0], [0, 0, 0]  # of each reader, of each writer

    def write(writer, port):
        rng = np.random.default_rng(writer)
        while not stop.is_set():
            turn = n_writes[writer]
            ids = 1_000 * writer + rng.choice(60, 5, replace=False)
            items = []
            for number in ids.tolist():
                code = code_of(number, turn)
                sent.add((number, code))
                items.append({"id": number, "code": code, "metadata": {"turn": turn}})
                acknowledged.pop(number, None)  # unknown while it is being written
            body = json.dumps({"items": items})
            status, answer = ask(port, "PUT", "/v1/items", body)
            assert (status, answer["upserted"]) == (200, 5)
            acknowledged.update((number, turn) for number in ids.tolist())
            n_writes[writer] += 1

    def read(reader, port):
        rng = np.random.default_rng(100 + reader)
        while n_checked[reader] < 50:
            known = list(acknowledged.items())
            if not known:
                continue
            number, version = known[rng.integers(len(known))]
            code = code_of(number, version)
            body = json.dumps({"code": code, "k": 20})
            _, answer = ask(port, "POST", "/v1/search", body)
            still = acknowledged.get(number) == version
            results = answer["results"]
            keys = [(hit["distance"], hit["id"]) for hit in results]
            assert keys == sorted(keys)
            assert len(set(keys)) == len(keys)
            for hit in results:
                assert (hit["id"], hit["code"]) in sent
                assert hit["code"] == code_of(hit["id"], hit["metadata"]["turn"])
                assert hit["distance"] == distance(hit["code"], code)
            if still:
                assert (0, number) in keys
                n_checked[reader] += 1

    with running(model, tmp_path, "--workers", "2") as (_, port):

        def both_have_started():
            ask(port, "GET", "/v1/store")
            return len({x["pid"] for x in lines(tmp_path) if "method" in x}) == 2

        wait_until(both_have_started)  # under load, the second one would take long

        def both_have_written():
            return len({x["pid"] for x in lines(tmp_path) if x.get("method") == "PUT"}) == 2

        def all_readers():
            try:
                run_all([lambda r=r: read(r, port) for r in range(2)])
                wait_until(both_have_written)
            finally:
                stop.set()

        run_all([all_readers, *(lambda w=w: write(w, port) for w in range(3))])
        # At the end every item has its last version, and searches match brute force.
        for query in ("00000000", "ffffffff", "1234abcd"):
            body = json.dumps({"code": query, "k": 50})
            _, answer = ask(port, "POST", "/v1/search", body)
            now = [
                (distance(code_of(number, version), query), number)
                for number, version in acknowledged.items()
            ]
            found = [(hit["distance"], hit["id"]) for hit in answer["results"]]
            assert found == sorted(now)[:50]
        _, text = ask(port, "GET", "/metrics")  # of both workers
        counted = f'{{method="PUT",route="/v1/items",status="200"}} {float(sum(n_writes))}'
        assert f"antipodal_requests_total{counted}\n" in text


def test_a_service_finishes_requests_in_progress_and_logs_no_key(model, tmp_path):
    """The test holds a lock, so that writes are in progress when the signal arrives."""
    keys = tmp_path / "keys"
    keys.write_text(f"read {READ}\nwrite {WRITE}\n")
    answers, refused = [], []
    reading = {"Authorization": f"Bearer {READ}"}
    options = ("--keys", str(keys), "--max-body", "100000")
    with running(model, tmp_path, *options) as (process, port):

        def put(number, key=WRITE):
            body = json.dumps({"items": [{"id": number, "code": code_of(number)}]})
            headers = {} if key is None else {"X-API-Key": key}
            return ask(port, "PUT", "/v1/items", body, **headers)

        assert [put(7, key)[0] for key in (None, "wrong-k3y", READ, WRITE)] == [401, 401, 403, 200]
        too_large = b" " * 300_000
        assert ask(port, "PUT", "/v1/items", too_large, **{"X-API-Key": WRITE})[0] == 413
        chunks = iter([too_large[:50_000]] * 6)
        assert ask(port, "PUT", "/v1/items", chunks, **{"X-API-Key": WRITE})[0] == 413

        def search():
            """Search until the connection is closed; every response is complete."""
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG)
            with closing(connection):
                while True:
                    try:
                        connection.request("POST", "/v1/search", SEARCH, HEADERS | reading)
                        response = connection.getresponse()
                    except (OSError, http.client.HTTPException) as error:
                        refused.append(error)
                        return
                    body = response.read()  # raises if it is incomplete
                    assert response.status == 200
                    assert json.loads(body)["results"][0]["id"] == 7

        lock = sqlite3.connect(tmp_path / "codes.db", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        writers = [lambda i=i: answers.append(put(i)) for i in range(5)]

        def stop():
            wait_until(lambda: in_progress(port, reading) >= 6)  # the writes, and this request
            process.send_signal(signal.SIGTERM)
            wait_until(lambda: is_refused(port))
            assert process.poll() is None  # it waits for the writes
            lock.execute("ROLLBACK")

        # The lock belongs to this thread.
        others = threading.Thread(target=run_all, args=([*writers, *[search] * 3],))
        others.start()
        stop()
        lock.close()
        others.join()
        process.wait(HANG)
    assert answers == [(200, {"upserted": 1, "replaced": 0})] * 5
    assert len(refused) == 3
    with open_store(f"sqlite:///{tmp_path}/codes.db") as store:
        assert store.get(range(5)).ids.tolist() == list(range(5))
    text = (tmp_path / "log").read_text()
    assert not any(key in text for key in ("wrong-k3y", READ, WRITE))
    puts = [line["status"] for line in lines(tmp_path) if line.get("method") == "PUT"]
    assert puts == [401, 401, 403, 200, 413, 413, *[200] * 5]


def test_a_client_that_disconnects_after_many_requests_at_once_causes_no_error(model, tmp_path):
    reset = struct.pack("ii", 1, 0)  # close without waiting for the responses
    with running(model, tmp_path) as (_, port):
        deadline, pause = time.monotonic() + HANG, 0.01
        # On a busy machine, the service may not begin to respond before the client disconnects.
        while 499 not in {record.get("status") for record in lines(tmp_path)}:
            assert time.monotonic() < deadline
            for factor in (1, 2, 5, 10, 20) * 3:
                with socket.create_connection(("127.0.0.1", port)) as client:
                    client.sendall(b"GET /v1/model HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)
                    time.sleep(factor * pause)
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            assert ask(port, "GET", "/v1/model")[0] == 200
            pause *= 2
    records = lines(tmp_path)
    assert [record for record in records if record["level"] == "error"] == []


def in_progress(port, headers):
    _, text = ask(port, "GET", "/metrics", **headers)
    return float(text.split("\nantipodal_requests_in_progress ")[1].split()[0])


def is_refused(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=HANG).close()
    except OSError:
        return True
    return False

"""Ask a service what it must refuse, all at once, while an honest user asks it, too.

Slow headers, endless bodies, answers that nobody reads, callers who go, guessed keys, tricks with
paths, images and JSON that are small only until they are read, bytes that are no HTTP; beside them
what schemathesis makes from the description of the API. Every answer is below 500, or 503 with
Retry-After; the service is ready within a second, stays under 1 GB with all its processes, keeps no
descriptor, and answers the honest user as brute force does.

The size is in seconds.
"""

import base64
import http.client
import io
import json
import multiprocessing
import random
import socket
import struct
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from campaign import Part, main
from services import READ, WRITE, Answer, Service, ask, is_alive, is_refused_well

N_BITS, N_ITEMS = 32, 20_000
FIRST_ID = 10**12  # schemathesis writes and deletes where it likes, which is elsewhere
MOST_SECONDS, MOST_MEGABYTES, MOST_NEW_DESCRIPTORS = 1.0, 1_000, 10
SHORT = 30  # seconds of a run without schemathesis, which has a test of its own
PATHS = [
    *("/v1/items", "//v1/items", "/v1//items", "/v1/items/", "/v1%2Fitems", "/%761/items"),
    *("/./v1/items", "/healthz/../v1/items", "/static/../v1/items", "/v1/items;/healthz"),
    *(
        "/v1/items%00",
        "/v1/items/1",
        "/metrics",
        "/static/..%2f..%2fkeys.py",
        "/v1/items?x=/healthz",
    ),
    *(
        "http://127.0.0.1/v1/items",
        "/static/%2e%2e/%2e%2e/keys.py",
        "/V1/ITEMS",
        "/v1/model/../items",
    ),
]

processes = multiprocessing.get_context("spawn")


class Campaign:
    """What the hostile callers share."""

    def __init__(self, service: Service, seed: int, last: float) -> None:
        self.service, self.last = service, last
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    def note(self, kind: str, answer: Answer, *expected: int) -> None:
        """Count an answer, and keep it if it is a defect."""
        self.counts[f"{kind} {answer.status}"] += 1
        if not is_refused_well(answer) or (expected and answer.status not in (*expected, 503)):
            self.failures.append(f"{kind}: {answer.status} {answer.body[:300]!r}")

    def ask(self, kind: str, method: str, path: str, body: Any = None, **rest: Any) -> None:
        """Ask, and note the answer; a connection may be closed on who sends too much."""
        expected = rest.pop("expected", ())
        try:
            self.note(kind, self.service.ask(method, path, body, **rest), *expected)
        except (OSError, http.client.HTTPException) as error:
            self.counts[f"{kind} {type(error).__name__}"] += 1

    def connect(self) -> socket.socket:
        """Return a connection on which anything may be sent."""
        return socket.create_connection(("127.0.0.1", self.service.port), timeout=30)

    def raw(self, kind: str, *parts: bytes) -> None:
        """Send bytes, and read until the other side closes or is silent for a second."""
        with suppress(OSError), self.connect() as connection:
            connection.settimeout(1)
            for part in parts:
                connection.sendall(part)
            data = b""
            with suppress(TimeoutError):
                while more := connection.recv(65536):
                    data += more
            status = data[9:12].decode("latin-1") if data.startswith(b"HTTP/1.1 ") else "closed"
            self.counts[f"{kind} {status}"] += 1
            if status.startswith("5") and status != "503":
                self.failures.append(f"{kind}: {data[:300]!r}")


# ------------------------------------------------------------------------- hostile callers


def slow_headers(run: Campaign) -> None:
    """Hold connections with half a request, a byte at a time, until they are closed."""
    held = []
    with suppress(OSError):
        held = [run.connect() for _ in range(40)]
    head = b"GET /v1/model HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
    for place in range(13):
        for connection in held:
            with suppress(OSError):
                connection.sendall(head[place : place + 1])
        time.sleep(1 if time.monotonic() < run.last else 0)
    for connection in held:
        connection.settimeout(5)
        try:
            closed = not connection.recv(100)
        except TimeoutError:
            closed = False
        except OSError:
            closed = True
        run.counts["slow headers closed" if closed else "slow headers kept"] += 1
        connection.close()


def endless_bodies(run: Campaign) -> None:
    """Send chunks until the connection is closed, with a key and without, where a body is taken."""
    key = run.random.choice([f"X-API-Key: {WRITE}\r\n", ""])
    head = f"PUT /v1/items HTTP/1.1\r\nHost: localhost\r\n{key}Transfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    sent = 0
    with suppress(OSError), run.connect() as connection:
        connection.sendall(head.encode())
        while sent < 200 << 20 and time.monotonic() < run.last + 5:
            connection.sendall(chunk)
            sent += len(chunk)
    run.counts[f"endless body {'read on' if sent >= 200 << 20 else 'closed'}"] += 1


def bodies_where_none_is_taken(run: Campaign) -> None:
    """Send 8 MB to routes that take nothing, from several connections."""
    path = run.random.choice(["/v1/model", "/healthz", "/readyz", "/metrics", "/", "/nowhere"])
    for _ in range(10):
        run.ask("body for nobody", run.random.choice(["GET", "POST"]), path, bytes(8 << 20))


def unread_answers(run: Campaign) -> None:
    """Ask for much, and do not read it."""
    body = json.dumps({"codes": ["00000000"] * 100, "k": 1_000}).encode()
    head = f"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {READ}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    held = []
    for _ in range(run.random.randrange(1, 6)):
        with suppress(OSError):
            held.append(run.connect())
            held[-1].sendall(head.encode() + body)
    time.sleep(run.random.choice([0.1, 2]))
    for connection in held:
        connection.close()
    run.counts["unread answers"] += len(held)


def aborted_requests(run: Campaign) -> None:
    """Ask, and go at once, many times."""
    body = json.dumps({"codes": ["0badc0de"] * 50, "radius": 32, "items": False}).encode()
    head = f"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {READ}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    for _ in range(100):
        with suppress(OSError), run.connect() as connection:
            connection.sendall(head.encode() + body[: run.random.choice([len(body), 20])])
    run.counts["aborted requests"] += 100


def guessed_keys(run: Campaign) -> None:
    """Guess keys over many connections for some seconds; count how many were answered."""
    last = min(time.monotonic() + 20, run.last)

    def guess() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", run.service.port, timeout=30)
        while time.monotonic() < last:
            with suppress(OSError, http.client.HTTPException):
                key = f"{run.random.getrandbits(128):x}"
                run.note("guessed key", ask(connection, "GET", "/v1/model", None, key), 401)
                continue
            connection.close()
        connection.close()

    guessers = [threading.Thread(target=guess) for _ in range(20)]
    for guesser in guessers:
        guesser.start()
    for guesser in guessers:
        guesser.join()


def paths_around_the_keys(run: Campaign) -> None:
    """Write paths in ways that might pass by the keys."""
    for path in PATHS:
        method = run.random.choice(["GET", "PUT", "DELETE", "POST", "HEAD", "OPTIONS"])
        run.ask("path", method, path, expected=(400, 401, 404, 405))


def bombs_of_pixels(run: Campaign) -> None:
    """Send images that are large when decoded, or break decoders."""
    image = run.random.choice(
        [
            [_png(4_000)] * 60,
            [_png(4_000)] * 4,
            [_png(50_000, whole=False)],
            [_png(3_000)[: run.random.randrange(20, 2_000)]],
            [_texts()] * 3,
            [_scrambled(_png(500), run.random)] * 5,
            [b"GIF89a" + bytes(30)] * 100,
        ]
    )
    body = {"images": [base64.b64encode(file).decode() for file in image]}
    run.ask("pixels", "POST", "/v1/encode", body, key=READ, expected=(200, 413, 422, 429))


def bombs_of_json(run: Campaign) -> None:
    """Send JSON that is small until it is read."""
    body = run.random.choice(
        [
            b'{"vectors": [' + b"[0]," * 2_000_000 + b"[0]]}",
            b'{"vectors": [[' + b"0," * 4_000_000 + b"0]]}",
            b'{"items": [' + b'{"id":1,"code":"00"},' * 390_000 + b"{}]}",
            b"[" * 8_000_000,
            b'{"a":' * 1_000_000,
            b'{"id": 1' + b"0" * 5_000_000 + b"}",
            b'{"code": "' + b"\\u0000" * 1_000_000 + b'"}',
            b'{"vector": [NaN, Infinity, -1e999]}',
            b'{"vector": [' + b"1e-999999999," * 600_000 + b"1]}",
            zlib.compress(b" " * 8_000_000),
        ]
    )
    path = run.random.choice(["/v1/encode", "/v1/search"])
    run.ask("json", "POST", path, body, key=READ, expected=(400, 408, 413, 422))


def no_http(run: Campaign) -> None:
    """Send what is no HTTP, or a strange one."""
    key = f"X-API-Key: {READ}\r\n".encode()
    start = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\n" + key
    for parts in (
        [run.random.randbytes(2_000)],
        [b"GET / HTTP/1.1\r\n" + b"A: " + b"b" * 500_000 + b"\r\n\r\n"],
        [b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 50_000 + b"\r\n"],
        [b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n"],
        [start + b"Content-Length: -1\r\n\r\n"],
        [start + b"Content-Length: 5\r\nContent-Length: 500\r\n\r\n12345"],
        [start + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"],
        [start + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"],
        [start + b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n"],
        [b"GET /v1/model HTTP/1.1\r\nHost: localhost\r\n" + key + b"\r\n"] * 50,
        [b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"],
        [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
        [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)],
    ):
        if time.monotonic() < run.last:
            run.raw("no http", *parts)


HOSTILE: tuple[Callable[[Campaign], None], ...] = (
    slow_headers,
    endless_bodies,
    bodies_where_none_is_taken,
    unread_answers,
    aborted_requests,
    guessed_keys,
    paths_around_the_keys,
    bombs_of_pixels,
    bombs_of_json,
    no_http,
)


def _png(side: int, whole: bool = True) -> bytes:
    file = io.BytesIO()
    Image.new("1", (side if whole else 1, side if whole else 1)).save(file, "PNG")
    data = bytearray(file.getvalue())
    data[16:24] = struct.pack(">II", side, side)
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)


def _texts() -> bytes:
    """Return a PNG with texts that are a thousand times larger than they look."""
    data = _png(10)
    text = b"zTXt" + b"a\x00\x00" + zlib.compress(bytes(1_000_000))
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    return data[:33] + chunk * 60 + data[33:]


def _scrambled(data: bytes, source: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(10):
        changed[source.randrange(8, len(changed))] = source.randrange(256)
    return bytes(changed)


# --------------------------------------------------------------------------------- others


def use_honestly(run: Campaign, codes: np.ndarray) -> None:
    """Search, and compare with brute force; a refusal is tried again."""
    source = np.random.default_rng(run.random.getrandbits(32))
    values = codes.view(">u4").ravel()
    while time.monotonic() < run.last:
        query = source.integers(0, 2**32, dtype=np.uint32)
        body = {"code": f"{query:08x}", "k": 10, "items": False, "where": {"campaign": True}}
        try:
            answer = run.service.ask("POST", "/v1/search", body, READ)
        except (OSError, http.client.HTTPException) as error:
            run.counts[f"honest {type(error).__name__}"] += 1
            continue
        run.note("honest", answer, 200)
        if answer.status == 200:
            distances = np.bitwise_count(values ^ query)
            nearest = np.lexsort((np.arange(len(values)), distances))[:10]
            expected = [(int(distances[i]), FIRST_ID + int(i)) for i in nearest]
            if [(hit["distance"], hit["id"]) for hit in answer.json()["results"]] != expected:
                run.failures.append(f"a wrong answer to {query:08x}: {answer.body[:300]!r}")
        time.sleep(0.05)


def follow_the_description(port: int, seed: int, seconds: float, results: Any) -> None:
    """Send what schemathesis makes of the description, good and bad, in a process of its own."""
    import requests
    import schemathesis
    from hypothesis import HealthCheck, given, settings
    from hypothesis import seed as with_seed
    from schemathesis import GenerationMode
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    checks = [status_code_conformance, content_type_conformance, response_schema_conformance]
    # Both, in place of what is made up: wrong keys have a campaign of their own, and wait.
    key = {"X-API-Key": WRITE, "Authorization": f"Bearer {WRITE}"}
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/openapi.json")
    operations = [one.ok() for one in schema.get_all_operations()]
    last, counts, failures = time.monotonic() + seconds, Counter[str](), []
    source = random.Random(seed)
    while time.monotonic() < last and len(failures) < 20:
        operation, mode = source.choice(operations), source.choice(list(GenerationMode))

        @with_seed(source.getrandbits(32))
        @settings(
            max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: Any) -> None:
            try:
                response = case.call(headers=key, timeout=60)
            except requests.RequestException as error:  # all may have been paused
                counts[f"schemathesis {type(error).__name__}"] += 1
                return
            counts[f"schemathesis {response.status_code}"] += 1
            if response.status_code == 503 and "retry-after" in response.headers:
                return
            case.validate_response(response, checks=checks)
            assert response.status_code < 500

        try:
            check()
        except Exception as error:
            text = f"schemathesis, {operation.label}: {error}"
            if "Unsatisfiable" not in type(error).__name__ and "NonInteractive" not in text:
                failures.append(text[:1_000])
    results.put((dict(counts), failures))


def answer_nothing(port: Any) -> None:
    """Be a server that does nothing: how long it takes to answer is the machine's, not ours."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port.put(server.getsockname()[1])
        while True:
            connection, _ = server.accept()
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            connection.close()


def watch_readiness(port: int, other: int, results: Any, began: Any, stop: Any) -> None:
    """Ask whether the service is ready, again and again, beside a server that does nothing.

    What is noted is how long each took, and the longest moment at which this process itself stood
    still meanwhile, because others had the cores or all was paused.
    """
    waits, failures = [], []
    pauses = _Pauses()
    while not stop.is_set() or not waits:
        (idle, _), _ = _seconds_to_answer(other), pauses.longest()
        (ready, problem), paused = _seconds_to_answer(port), pauses.longest()
        waits.append((ready, idle, paused))
        began.set()
        if problem and paused < MOST_SECONDS:
            failures.append(problem)
        if ready - max(idle, paused) > MOST_SECONDS:
            failures.append(
                f"/readyz took {ready:.2f} s, a server that does nothing {idle:.2f} s, and who "
                f"asked stood still for {paused:.2f} s"
            )
        time.sleep(0.1)
    results.put((waits, failures))


class _Pauses(threading.Thread):
    """A thread that wakes up all the time, and notes how much too late."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._longest = 0.0
        self.start()

    def run(self) -> None:
        """Wake up for ever."""
        while True:
            before = time.monotonic()
            time.sleep(0.02)
            self._longest = max(self._longest, time.monotonic() - before - 0.02)

    def longest(self) -> float:
        """Return the longest since the last call."""
        time.sleep(0.03)
        longest, self._longest = self._longest, 0.0
        return longest


def _seconds_to_answer(port: int) -> tuple[float, str]:
    problem = ""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    asked = time.monotonic()
    try:
        answer = ask(connection, "GET", "/readyz")
        if answer.status != 200:
            problem = f"/readyz: {answer.status} {answer.body!r}"
    except (OSError, http.client.HTTPException) as error:
        problem = f"/readyz: {type(error).__name__}: {error}"
    finally:
        connection.close()
    return time.monotonic() - asked, problem


def attack(size: int, seed: int) -> dict[str, Any]:
    """Attack a service for some seconds."""
    from antipodal import LSH, open_store  # not for the processes beside, which start sooner

    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        rows = np.random.default_rng(seed).uniform(0, 16, (200, 64))
        LSH(N_BITS, random_state=0).fit(rows).save(folder / "model")
        codes = np.random.default_rng(seed).integers(0, 256, (N_ITEMS, 4), dtype=np.uint8)
        url = f"sqlite:///{folder}/codes.db"
        what = ("--model", str(folder / "model"), "--store", url, "--images", "pixels:8x8")
        service = Service(folder, *what)
        service.start()
        stack.callback(service.end)
        with open_store(url) as store:
            store.upsert(FIRST_ID + np.arange(N_ITEMS), codes, [{"campaign": True}] * N_ITEMS)
        service.ask("POST", "/v1/search", {"code": "00000000"}, READ)
        service.ask("POST", "/v1/encode", {"images": [base64.b64encode(_png(8)).decode()]}, READ)
        began_with = service.descriptors()
        return _attack(service, seed, size, codes, began_with, stack)


def _attack(
    service: Service, seed: int, size: int, codes: np.ndarray, n_before: int, stack: ExitStack
) -> dict[str, Any]:
    results, times, ports = processes.Queue(), processes.Queue(), processes.Queue()
    began, stop = processes.Event(), processes.Event()
    idle = processes.Process(target=answer_nothing, args=(ports,), daemon=True)
    idle.start()
    stack.callback(idle.kill)
    arguments = (service.port, ports.get(), times, began, stop)
    others = [processes.Process(target=watch_readiness, args=arguments)]
    if size >= SHORT:
        described = (service.port, seed, size, results)
        others.append(processes.Process(target=follow_the_description, args=described))
    else:
        results.put(({}, []))
    for process in others:
        process.start()
    began.wait()
    run = Campaign(service, seed, time.monotonic() + size)
    orders = [random.Random(seed + place) for place in range(4)]

    def be_hostile(order: random.Random) -> None:
        while time.monotonic() < run.last:
            order.choice(HOSTILE)(run)

    threads = [threading.Thread(target=be_hostile, args=(order,)) for order in orders]
    threads.append(threading.Thread(target=use_honestly, args=(run, codes)))
    for thread in threads:
        thread.start()
    megabytes = 0.0
    while any(thread.is_alive() for thread in threads):
        megabytes = max(megabytes, service.megabytes())
        time.sleep(0.2)
    stop.set()
    (waits, slow), (counts, wrong) = times.get(), results.get()
    for process in others:
        process.join()
    time.sleep(min(15, size))  # connections that are left are closed by then
    n_after, pids = service.descriptors(), service.pids()
    service.end()
    left = [pid for pid in pids if is_alive(pid)]
    failures = [*run.failures, *slow, *wrong, *service.errors()]
    if megabytes > MOST_MEGABYTES:
        failures.append(f"it took {megabytes:.0f} MB")
    if n_after > n_before + MOST_NEW_DESCRIPTORS:
        failures.append(f"it had {n_before} descriptors open, and has {n_after}")
    if left:
        failures.append(f"processes are left: {left}")
    return {
        "readyz seconds, most": round(max(wait[0] for wait in waits), 3),
        "readyz seconds, 99 of 100": round(float(np.percentile([w[0] for w in waits], 99)), 3),
        "idle server seconds, most": round(max(wait[1] for wait in waits), 3),
        "who asked stood still, seconds, most": round(max(wait[2] for wait in waits), 3),
        "readyz asked": len(waits),
        "megabytes, most": round(megabytes),
        "descriptors": [n_before, n_after],
        "answers": dict(sorted((run.counts + Counter(counts)).items())),
        "failures": failures[:50],
    }


if __name__ == "__main__":
    main("hostile", {"service": Part(attack, 1_800)})

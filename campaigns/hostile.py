"""Hostile requests against a service, while an honest client checks its answers.

`direct` attacks the service itself with requests that are small until they are unpacked: zstd
Arrow, gzip, large and deep JSON, pixel bombs, wrong types, malformed HTTP, and requests that
schemathesis generates from the OpenAPI description. `proxy` attacks it through nginx with
deploy/nginx.conf: slow headers and bodies, too many connections, floods of requests and of wrong
keys, unread responses.

Every response is below 500, or 503 with Retry-After. The service stays ready and under 1 GB,
leaks no descriptors, and answers the honest client as brute force does. The size is in seconds.
"""

import base64
import gzip
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
import pyarrow as pa
from PIL import Image

from campaign import Part, main
from services import READ, WRITE, Answer, Proxy, Service, ask, is_alive, is_refused_well

N_BITS, N_ITEMS, N_FEATURES = 32, 20_000, 64
FIRST_ID = 10**12  # schemathesis writes and deletes items with smaller ids
MAX_READY_SECONDS, MAX_MEGABYTES, MAX_NEW_DESCRIPTORS = 1.0, 1_000, 10
MIN_SECONDS_OF_SCHEMATHESIS = 30  # a test of its own covers shorter runs
CLOSING_SECONDS = 300  # until idle connections are closed
HONEST = "127.0.0.2"  # address of the honest client: nginx limits each address separately
ARROW = "application/vnd.apache.arrow.stream"
PATHS = [
    *("/v1/items", "//v1/items", "/v1//items", "/v1/items/", "/v1%2Fitems", "/%761/items"),
    *("/./v1/items", "/healthz/../v1/items", "/static/../v1/items", "/v1/items;/healthz"),
    *("/v1/items%00", "/v1/items/1", "/metrics", "/static/..%2f..%2fauth.py"),
    *("/v1/items?x=/healthz", "http://127.0.0.1/v1/items", "/static/%2e%2e/%2e%2e/auth.py"),
    *("/V1/ITEMS", "/v1/model/../items"),
]

processes = multiprocessing.get_context("spawn")


class Campaign:
    """State that the attackers share: the target, counts of responses, and failures."""

    def __init__(self, service: Service, proxy: Proxy | None, seed: int, deadline: float) -> None:
        self.service, self.proxy, self.deadline = service, proxy, deadline
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    def note(self, kind: str, answer: Answer, *expected: int) -> None:
        """Count a response, and record a failure if it is not acceptable."""
        self.counts[f"{kind} {answer.status}"] += 1
        allowed = (*expected, 503, *((429,) if self.proxy else ()))
        if not is_refused_well(answer) or (expected and answer.status not in allowed):
            self.failures.append(f"{kind}: {answer.status} {answer.body[:300]!r}")

    def ask(self, kind: str, method: str, path: str, body: Any = None, **rest: Any) -> None:
        """Send a request and note the response. The server may close the connection."""
        expected = rest.pop("expected", ())
        try:
            self.note(kind, (self.proxy or self.service).ask(method, path, body, **rest), *expected)
        except (OSError, http.client.HTTPException) as error:
            self.counts[f"{kind} {type(error).__name__}"] += 1

    def connect(self) -> socket.socket:
        """Return a connection for raw bytes."""
        if self.proxy is not None:
            return self.proxy.connect()
        return socket.create_connection(("127.0.0.1", self.service.port), timeout=30)

    def raw(self, kind: str, *parts: bytes) -> None:
        """Send bytes, and read until the server closes or is silent for a second."""
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
            if status.startswith("5") and status not in ("501", "503", "505"):
                self.failures.append(f"{kind}: {data[:300]!r}")


# ---------------------------------------------------------- attacks that the proxy must stop


def slow_headers(run: Campaign) -> None:
    """Hold connections with a partial request, one byte per second."""
    head = b"GET /v1/model HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
    _send_slowly(run, "slow headers", b"", head)


def slow_bodies(run: Campaign) -> None:
    """Hold connections with a partial body, one byte per second, then silence."""
    head = f"PUT /v1/items HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {WRITE}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    _send_slowly(run, "slow bodies", head.encode(), b'{"items": [')


def _send_slowly(run: Campaign, kind: str, first: bytes, slow: bytes) -> None:
    held = []
    with suppress(OSError):
        for _ in range(40):
            held.append(run.connect())
            held[-1].sendall(first)
    for place in range(len(slow[:13])):
        for connection in held:
            with suppress(OSError):
                connection.sendall(slow[place : place + 1])
        time.sleep(1 if time.monotonic() < run.deadline else 0)
    for connection in held:
        connection.settimeout(15)
        try:
            while connection.recv(100_000):  # an error response, then the end
                pass
            closed = True
        except TimeoutError:
            closed = False
        except OSError:
            closed = True
        run.counts[f"{kind} closed" if closed else f"{kind} kept"] += 1
        connection.close()


def many_connections(run: Campaign) -> None:
    """Open hundreds of connections with requests, and keep them open."""
    head = f"GET /v1/model HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {READ}\r\n\r\n".encode()
    held = []
    with suppress(OSError):
        for _ in range(300):
            held.append(run.connect())
            held[-1].sendall(head)
    run.counts["connections held"] += len(held)
    time.sleep(2 if time.monotonic() < run.deadline else 0)
    for connection in held:
        connection.close()


def many_requests(run: Campaign) -> None:
    """Send searches as fast as possible over several connections."""
    body = {"codes": ["0badc0de"] * 20, "k": 100}
    _flood(run, "flood", lambda: ("POST", "/v1/search", body, READ), (200,))


def wrong_keys(run: Campaign) -> None:
    """Guess keys as fast as possible over several connections."""
    _flood(
        run,
        "wrong key",
        lambda: ("GET", "/v1/model", None, f"{run.random.getrandbits(128):x}"),
        (401,),
    )


def _flood(
    run: Campaign, kind: str, make: Callable[[], tuple[Any, ...]], expected: tuple[int, ...]
) -> None:
    deadline = min(time.monotonic() + 10, run.deadline)

    def send() -> None:
        while time.monotonic() < deadline:
            method, path, body, key = make()
            run.ask(kind, method, path, body, key=key, expected=expected)

    threads = [threading.Thread(target=send) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def endless_bodies(run: Campaign) -> None:
    """Send chunks until the connection is closed, with a key and without."""
    key = run.random.choice([f"X-API-Key: {WRITE}\r\n", ""])
    head = f"PUT /v1/items HTTP/1.1\r\nHost: localhost\r\n{key}Transfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    sent, status = 0, b"closed"
    with suppress(OSError), run.connect() as connection:
        connection.sendall(head.encode())
        with suppress(OSError):
            while sent < 50 << 20 and time.monotonic() < run.deadline + 5:
                connection.sendall(chunk)
                sent += len(chunk)
        status = connection.recv(12)[9:] or status
    run.counts[f"endless body {status.decode()}"] += 1


def unread_responses(run: Campaign) -> None:
    """Request large responses, and do not read them."""
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
    run.counts["unread responses"] += len(held)


# --------------------------------------------------------- attacks that the service must stop


def aborted_requests(run: Campaign) -> None:
    """Send whole, partial or many requests, and disconnect."""
    body = json.dumps({"codes": ["0badc0de"] * 50, "radius": 8, "items": False}).encode()
    head = f"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {READ}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    whole = head.encode() + body
    for _ in range(20):
        with suppress(OSError), run.connect() as connection:
            connection.sendall(run.random.choice([whole, whole[:-100], whole * 20]))
            time.sleep(run.random.choice([0, 0.05]))
            reset = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    run.counts["aborted requests"] += 20


def paths_around_the_keys(run: Campaign) -> None:
    """Request unusual spellings of paths without a key."""
    for path in PATHS:
        method = run.random.choice(["GET", "PUT", "DELETE", "POST", "HEAD", "OPTIONS"])
        run.ask("path", method, path, expected=(308, 400, 401, 403, 404, 405))


def pixel_bombs(run: Campaign) -> None:
    """Send images that are large when decoded, or malformed; in JSON and as binary bodies."""
    image = run.random.choice(
        [
            _png(4_000),
            _png(50_000, whole=False),
            _png(3_000)[: run.random.randrange(20, 2_000)],
            _png_with_compressed_texts(),
            _scrambled(_png(500), run.random),
            b"GIF89a" + bytes(30),
        ]
    )
    expected = (200, 413, 422)
    if run.random.random() < 0.5:
        kind = {"Content-Type": run.random.choice(["image/png", "IMAGE/PNG", "image/gif"])}
        run.ask("pixels", "POST", "/v1/encode", image, key=READ, expected=expected, **kind)
    else:
        images = [base64.b64encode(image).decode()] * run.random.choice([1, 1, 1, 50])
        run.ask("pixels", "POST", "/v1/encode", {"images": images}, key=READ, expected=expected)


def arrow_bombs(run: Campaign) -> None:
    """Send Arrow streams that unpack to gigabytes, or have types that expand."""
    body = run.random.choice(_ARROW_BOMBS)
    if run.random.random() < 0.3:
        body = _scrambled(body, run.random)
    run.ask(
        "arrow",
        "POST",
        "/v1/encode",
        body,
        key=READ,
        expected=(200, 413, 422),
        **{"Content-Type": run.random.choice([ARROW, ARROW.title(), f"{ARROW}; x=1"])},
    )


def json_bombs(run: Campaign) -> None:
    """Send JSON that is large, deep or of wrong types, with several spellings of its type."""
    body = run.random.choice(
        [
            b'{"vectors": [' + b"[0]," * 2_000_000 + b"[0]]}",
            b'{"vectors": [' + b"[0]," * 250_000 + b"[0]]}",
            b'{"vectors": [[' + b"0," * 500_000 + b"0]]}",
            b'{"items": [' + b'{"id":1,"code":"00"},' * 45_000 + b"{}]}",
            b"[" * 1_000_000,
            b'{"a":' * 200_000,
            b'{"id": 1' + b"0" * 1_000_000 + b"}",
            b'{"code": "' + b"\\u0000" * 150_000 + b'"}',
            b'{"vector": [NaN, Infinity, -1e999]}',
            b'{"vector": [' + b"1e-999999999," * 70_000 + b"1]}",
            b'{"vectors": "text", "codes": {}, "id": [[]]}',
            zlib.compress(b" " * 8_000_000),
        ]
    )
    kind = run.random.choice(
        ["application/json", "Application/JSON", "application/json; charset=utf-16", "text/json"]
    )
    path = run.random.choice(["/v1/encode", "/v1/search"])
    expected = (400, 408, 413, 422)
    run.ask("json", "POST", path, body, key=READ, expected=expected, **{"Content-Type": kind})


def gzip_bombs(run: Campaign) -> None:
    """Send compressed bodies with a Content-Encoding, which the service does not support."""
    body = gzip.compress(b'{"vectors": [' + b"[0]," * 3_000_000 + b"[0]]}", 1)
    encoding = {"Content-Encoding": run.random.choice(["gzip", "deflate", "zstd"])}
    expected = (400, 413, 415, 422)
    run.ask("gzip", "POST", "/v1/encode", body, key=READ, expected=expected, **encoding)


def malformed_http(run: Campaign) -> None:
    """Send bytes that are not HTTP, or unusual HTTP."""
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
        if time.monotonic() < run.deadline:
            run.raw("malformed http", *parts)


OF_SERVICE: tuple[Callable[[Campaign], None], ...] = (
    aborted_requests,
    paths_around_the_keys,
    pixel_bombs,
    arrow_bombs,
    json_bombs,
    gzip_bombs,
    malformed_http,
)
OF_PROXY = (
    slow_headers,
    slow_bodies,
    many_connections,
    many_requests,
    wrong_keys,
    endless_bodies,
    unread_responses,
    malformed_http,
    paths_around_the_keys,
)


def _png(side: int, whole: bool = True) -> bytes:
    file = io.BytesIO()
    Image.new("1", (side if whole else 1, side if whole else 1)).save(file, "PNG")
    data = bytearray(file.getvalue())
    data[16:24] = struct.pack(">II", side, side)
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)


def _png_with_compressed_texts() -> bytes:
    """Return a PNG with text chunks that expand by a factor of a thousand."""
    data = _png(10)
    text = b"zTXt" + b"a\x00\x00" + zlib.compress(bytes(1_000_000))
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    return data[:33] + chunk * 60 + data[33:]


def _arrow(column: Any, compression: str | None = None, repeats: int = 1) -> bytes:
    table = pa.table({"vector": column})
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        for _ in range(repeats):
            writer.write_table(table)
    return sink.getvalue()


def _zeros(n: int) -> Any:
    flat = pa.array(np.zeros(n * N_FEATURES, np.float32))
    return pa.FixedSizeListArray.from_arrays(flat, N_FEATURES)


def _scrambled(data: bytes, source: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(10):
        changed[source.randrange(8, len(changed))] = source.randrange(256)
    return bytes(changed)


_ARROW_BOMBS = (
    _arrow(_zeros(200_000), "zstd", repeats=40),  # 2 GB
    _arrow(_zeros(20_000), "lz4", repeats=40),
    _arrow(pa.nulls(10**9)),
    _arrow(pa.array([[0.0] * N_FEATURES] * 900, pa.list_view(pa.float32()))),
    _arrow(pa.array(["x"] * 900).dictionary_encode()),
    _arrow(_zeros(900)),  # valid
)

# ------------------------------------------------------------------------------- other clients


def use_honestly(run: Campaign, codes: np.ndarray) -> None:
    """Search, and compare the results with brute force. Refused requests are repeated."""
    source = np.random.default_rng(run.random.getrandbits(32))
    values = codes.view(">u4").ravel()
    while time.monotonic() < run.deadline or not run.counts["honest 200"]:
        query = source.integers(0, 2**32, dtype=np.uint32)
        body = {"code": f"{query:08x}", "k": 10, "items": False, "where": {"campaign": True}}
        try:
            if run.proxy is not None:
                answer = run.proxy.ask("POST", "/v1/search", body, key=READ, source=HONEST)
            else:
                answer = run.service.ask("POST", "/v1/search", body, READ)
        except (OSError, http.client.HTTPException) as error:
            run.counts[f"honest {type(error).__name__}"] += 1
            continue
        run.note("honest", answer, 200)
        if answer.status == 429:
            run.failures.append("the honest client was limited")
        if answer.status == 200:
            distances = np.bitwise_count(values ^ query)
            nearest = np.lexsort((np.arange(len(values)), distances))[:10]
            expected = [(int(distances[i]), FIRST_ID + int(i)) for i in nearest]
            if [(hit["distance"], hit["id"]) for hit in answer.json()["results"]] != expected:
                run.failures.append(f"wrong results for {query:08x}: {answer.body[:300]!r}")
        time.sleep(0.05)


def follow_the_description(port: int, seed: int, seconds: float, results: Any) -> None:
    """Send valid and invalid requests generated by schemathesis, in a separate process."""
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
    key = {"X-API-Key": WRITE, "Authorization": f"Bearer {WRITE}"}  # replaces generated keys
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/openapi.json")
    operations = [one.ok() for one in schema.get_all_operations()]
    deadline, counts, failures = time.monotonic() + seconds, Counter[str](), []
    source = random.Random(seed)
    while time.monotonic() < deadline and len(failures) < 20:
        operation, mode = source.choice(operations), source.choice(list(GenerationMode))

        @with_seed(source.getrandbits(32))
        @settings(
            max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: Any) -> None:
            try:
                response = case.call(headers=key, timeout=60)
            except requests.RequestException as error:
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


def run_idle_server(port: Any) -> None:
    """Answer every connection at once: its response time is that of the machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port.put(server.getsockname()[1])
        while True:
            connection, _ = server.accept()
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            connection.close()


def watch_readiness(
    service: tuple[int, int], idle_port: int, limit: float, results: Any, began: Any, stop: Any
) -> None:
    """Measure the response time of /readyz, and the share of it that is due to busy cores.

    That share is the largest of the response time of an idle server, the pauses of this process,
    and the time for which the event loop of the service was runnable but had no core.
    """
    pid, port = service
    waits, failures = [], []
    pauses = _Pauses()
    while not stop.is_set() or not waits:
        (idle, _), _ = _seconds_to_answer(idle_port), pauses.longest()
        ran, waited = _seconds_of_main_thread(pid)
        (ready, problem), paused = _seconds_to_answer(port), pauses.longest()
        ran, waited = np.subtract(_seconds_of_main_thread(pid), (ran, waited))
        paused = max(paused, waited)
        waits.append((ready, idle, float(paused)))
        began.set()
        if problem and paused < limit:
            failures.append(problem)
        if ready - max(idle, paused) > limit:
            failures.append(
                f"/readyz took {ready:.2f} s, an idle server {idle:.2f} s; the event loop ran for "
                f"{ran:.2f} s, and no core was free for {paused:.2f} s"
            )
        time.sleep(0.1)
    results.put((waits, failures))


def _seconds_of_main_thread(pid: int) -> tuple[float, float]:
    """Return the total times for which the main thread of a process ran and waited for a core."""
    ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


class _Pauses(threading.Thread):
    """A thread that wakes up regularly and records its longest delay."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._longest = 0.0
        self.start()

    def run(self) -> None:
        """Sleep and measure."""
        while True:
            before = time.monotonic()
            time.sleep(0.02)
            self._longest = max(self._longest, time.monotonic() - before - 0.02)

    def longest(self) -> float:
        """Return the longest delay since the last call."""
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


# ------------------------------------------------------------------------------------- attacks


def attack_directly(
    size: int, seed: int, max_ready_seconds: float = MAX_READY_SECONDS
) -> dict[str, Any]:
    """Attack a service for some seconds."""
    return _attack(size, seed, max_ready_seconds, OF_SERVICE, through_proxy=False)


def attack_proxy(
    size: int, seed: int, max_ready_seconds: float = MAX_READY_SECONDS
) -> dict[str, Any]:
    """Attack a service behind nginx for some seconds."""
    return _attack(size, seed, max_ready_seconds, OF_PROXY, through_proxy=True)


def _attack(
    size: int,
    seed: int,
    max_ready_seconds: float,
    attacks: tuple[Callable[[Campaign], None], ...],
    through_proxy: bool,
) -> dict[str, Any]:
    from antipodal import LSH, open_store  # not at the top: spawned processes start sooner

    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        rows = np.random.default_rng(seed).uniform(0, 16, (200, N_FEATURES))
        LSH(N_BITS, random_state=0).fit(rows).save(folder / "model")
        codes = np.random.default_rng(seed).integers(0, 256, (N_ITEMS, 4), dtype=np.uint8)
        url = f"sqlite:///{folder}/codes.db"
        what = ("--model", str(folder / "model"), "--store", url, "--images", "pixels:8x8")
        service = Service(folder, *what)
        service.start()
        stack.callback(service.end)
        proxy = None
        if through_proxy:
            proxy = Proxy(folder, service)
            proxy.start()
            stack.callback(proxy.end)
        with open_store(url) as store:
            store.upsert(FIRST_ID + np.arange(N_ITEMS), codes, [{"campaign": True}] * N_ITEMS)
        service.ask("POST", "/v1/search", {"code": "00000000"}, READ)
        service.ask("POST", "/v1/encode", {"images": [base64.b64encode(_png(8)).decode()]}, READ)
        n_before = service.descriptors()
        run = Campaign(service, proxy, seed, 0.0)
        found = _run(run, size, seed, max_ready_seconds, attacks, codes, stack)
        n_allowed = n_before + MAX_NEW_DESCRIPTORS + (32 if proxy else 0)  # kept alive by nginx
        deadline = time.monotonic() + CLOSING_SECONDS
        while (n_after := service.descriptors()) > n_allowed and time.monotonic() < deadline:
            time.sleep(0.2)
        pids = service.pids()
        service.end()
        failures = found["failures"] + service.errors()
        if n_after > n_allowed:
            failures.append(f"{n_before} descriptors were open before, {n_after} after")
        if left := [pid for pid in pids if is_alive(pid)]:
            failures.append(f"processes are left: {left}")
        return found | {"descriptors": [n_before, n_after], "failures": failures[:50]}


def _run(
    run: Campaign,
    size: int,
    seed: int,
    max_ready_seconds: float,
    attacks: tuple[Callable[[Campaign], None], ...],
    codes: np.ndarray,
    stack: ExitStack,
) -> dict[str, Any]:
    service = run.service
    results, times, ports = processes.Queue(), processes.Queue(), processes.Queue()
    began, stop = processes.Event(), processes.Event()
    idle = processes.Process(target=run_idle_server, args=(ports,), daemon=True)
    idle.start()
    stack.callback(idle.kill)
    watched = (service.pids()[0], service.port)
    arguments = (watched, ports.get(), max_ready_seconds, times, began, stop)
    others = [processes.Process(target=watch_readiness, args=arguments)]
    if size >= MIN_SECONDS_OF_SCHEMATHESIS and run.proxy is None:
        described = (service.port, seed, size, results)
        others.append(processes.Process(target=follow_the_description, args=described))
    else:
        results.put(({}, []))
    for process in others:
        process.start()
    began.wait()
    run.deadline = time.monotonic() + size
    orders = [random.Random(seed + place) for place in range(4)]

    def be_hostile(order: random.Random) -> None:
        while time.monotonic() < run.deadline:
            order.choice(attacks)(run)

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
    failures = [*run.failures, *slow, *wrong]
    if megabytes > MAX_MEGABYTES:
        failures.append(f"the service used {megabytes:.0f} MB")
    return {
        "readyz seconds, most": round(max(wait[0] for wait in waits), 3),
        "readyz seconds, 99 of 100": round(float(np.percentile([w[0] for w in waits], 99)), 3),
        "idle server seconds, most": round(max(wait[1] for wait in waits), 3),
        "without a core, seconds, most": round(max(wait[2] for wait in waits), 3),
        "readyz asked": len(waits),
        "megabytes, most": round(megabytes),
        "answers": dict(sorted((run.counts + Counter(counts)).items())),
        "failures": failures,
    }


if __name__ == "__main__":
    parts = {"direct": Part(attack_directly, 900), "proxy": Part(attack_proxy, 900)}
    if not Proxy.is_available():
        print("skipping the part proxy: nginx or openssl is not installed")
        del parts["proxy"]
    main("hostile", parts)

"""Throughput and latency of the service on loopback while items are written.

python benchmarks/service.py --json benchmarks/results/service.json

One worker, 100,000 codes of 64 bits in a SQLite store, a `DeepLinf` of 384 features with a hidden
layer. Clients in a separate process keep a fixed number of connections busy, with queries by code
and by vector. They then send 250 searches by vector per second at regular times; latency counts
from the scheduled time. A writer adds batches of items in the background.

Every response is compared with brute force. It must contain the nearest of the initial items in
order, and written items exactly as written. The same is done with many queries per request over two
connections. Encoding is timed with vectors in JSON and in binary.
"""

import argparse
import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import antipodal

N_BITS, K, N_FEATURES = 64, 10, 384
PACE = 250  # searches by vector per second in paced runs
MANY_CONNECTIONS = 2  # of clients that send many queries per request
FIRST_WRITTEN = 10**9  # first id of the items written during the run
HEADERS = {"Content-Type": "application/json"}


def random_codes(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, N_BITS // 8), dtype=np.uint8)


def written_codes(ids: np.ndarray) -> np.ndarray:
    """Return codes derived from the ids, so that every response can be verified."""
    mixed = (ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(0xD1B54A32D192ED03)
    return mixed.view(np.uint8).reshape(-1, N_BITS // 8)


def distances(codes: np.ndarray, query: np.ndarray) -> np.ndarray:
    return np.bitwise_count(codes ^ query).sum(axis=1, dtype=np.int64)


# ---------------------------------------------------------------------------------- clients


async def connection(
    port: int,
    bodies: list[bytes],
    stop: float,
    out: list[Any],
    path: str = "",
    pause: float = 0,
    delay: float = 0,
    stamped: bool = False,
) -> None:
    """Send searches sequentially over one connection until the time has elapsed.

    With a pause they are scheduled at regular times, the first after a delay. Stamped responses
    carry their time of arrival.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    turn, due = 0, time.perf_counter() + delay
    while time.perf_counter() < stop:
        number = turn % len(bodies)
        body, turn = bodies[number], turn + 1
        began = time.perf_counter()
        if pause:
            await asyncio.sleep(max(0, due - began))
            began, due = due, due + pause
        writer.write(
            path.encode().join((b"POST ", b"/v1/search HTTP/1.1"))
            + b"\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        answer = await reader.readexactly(length)
        status = int(head.split(b" ", 2)[1])
        ended = time.perf_counter()
        out.append((ended - began, number, status, answer, *([ended] if stamped else [])))
    writer.close()


def is_right(answer: dict[str, Any], query: np.ndarray, expected: tuple[Any, Any]) -> bool:
    """Compare with brute force over the initial items; written items follow from their ids."""
    ids = np.array([result["id"] for result in answer["results"]], np.int64)
    found = np.array([result["distance"] for result in answer["results"]])
    is_written = ids >= FIRST_WRITTEN
    order = np.lexsort((ids, found))
    n_first = int((~is_written).sum())
    return (
        len(ids) == K
        and bool((order == np.arange(K)).all())
        and np.array_equal(ids[~is_written], expected[0][:n_first])
        and np.array_equal(found[~is_written], expected[1][:n_first])
        and np.array_equal(found[is_written], distances(written_codes(ids[is_written]), query))
    )


def clients(
    port: int,
    n_connections: int,
    seconds: float,
    n_items: int,
    seed: int,
    at_once: int,
    items: bool,
    vectors: Path | None,
    rate: float,
) -> None:
    """Run the clients in this process and print their measurements."""
    codes, queries = random_codes(n_items, 0), random_codes(max(256, at_once), seed)
    texts = [query.tobytes().hex() for query in queries]
    if vectors is not None:
        known = np.load(vectors)
        queries = known["codes"]
        bodies = [json.dumps({"vector": row, "k": K}).encode() for row in known["rows"].tolist()]
    elif at_once == 1:
        bodies = [json.dumps({"code": text, "k": K}).encode() for text in texts]
    else:
        n_connections = MANY_CONNECTIONS
        bodies = [json.dumps({"codes": texts[:at_once], "k": K, "items": items}).encode()]
    out: list[Any] = []

    async def everyone() -> None:
        stop = time.perf_counter() + seconds
        shares = [bodies[i:] + bodies[:i] for i in range(n_connections)]
        lists: list[list[Any]] = [[] for _ in shares]
        pause = n_connections / rate if rate else 0.0
        await asyncio.gather(
            *(
                connection(port, share, stop, out, "", pause, n * pause / n_connections)
                for n, (share, out) in enumerate(zip(shares, lists, strict=True))
            )
        )
        for shift, answers in enumerate(lists):
            out.extend((t, (n + shift) % len(bodies), s, a) for t, n, s, a in answers)

    began = time.perf_counter()
    asyncio.run(everyone())
    taken = time.perf_counter() - began
    expected = []
    for query in queries:
        distance = distances(codes, query)
        nearest = np.lexsort((np.arange(n_items), distance))[:K]
        expected.append((nearest, distance[nearest]))
    failed = sum(status != 200 for _, _, status, _ in out)
    wrong = 0
    for _, number, status, answer in out:
        if status == 200:
            found = json.loads(answer)
            for place, one in enumerate(found.get("searches", [found])):
                wrong += not is_right(one, queries[number + place], expected[number + place])
    times = np.array([t for t, *_ in out]) * 1e3
    record = {
        "searches": len(out) * at_once,
        "searches_per_second": round(len(out) * at_once / taken, 1),
        "p50_ms": round(float(np.percentile(times, 50)), 2),
        "p99_ms": round(float(np.percentile(times, 99)), 2),
        "max_ms": round(float(times.max()), 2),
        "failed": failed,
        "wrong": wrong,
    }
    print(json.dumps(record))


# ----------------------------------------------------------------------- service and writer


def write(port: int, stop: threading.Event, batch: int, pause: float, done: list[int]) -> None:
    """Add batches of new items, and delete each a few batches later."""
    client = http.client.HTTPConnection("127.0.0.1", port)
    first = FIRST_WRITTEN
    while not stop.wait(pause):
        ids = np.arange(first, first + batch)
        codes = written_codes(ids)
        items = [
            {"id": int(i), "code": code.tobytes().hex(), "metadata": {"batch": first}}
            for i, code in zip(ids, codes, strict=True)
        ]
        client.request("PUT", "/v1/items", json.dumps({"items": items}), HEADERS)
        response = client.getresponse()
        response.read()
        done.append(response.status)
        if first >= FIRST_WRITTEN + 10 * batch:
            old = list(range(first - 10 * batch, first - 9 * batch))
            client.request("DELETE", "/v1/items", json.dumps({"ids": old}), HEADERS)
            response = client.getresponse()
            response.read()
            done.append(response.status)
        first += batch


def encoding(port: int, n_features: int, repeats: int = 15) -> dict[str, Any]:
    """Return vectors per second of the median request, in JSON and in binary."""
    rows = np.random.default_rng(1).standard_normal((1_000, n_features)).astype("<f4")
    few = rows[:100].astype(float).round(6).tolist()  # a body of JSON has at most 1 MiB
    bodies = {
        "json": (len(few), json.dumps({"vectors": few}), "application/json"),
        "bytes": (len(rows), rows.tobytes(), "application/octet-stream"),
    }
    client, rates = http.client.HTTPConnection("127.0.0.1", port), {}
    for name, (n_rows, body, kind) in bodies.items():
        times = []
        for _ in range(repeats):
            began = time.perf_counter()
            client.request("POST", "/v1/encode", body, {"Content-Type": kind})
            response = client.getresponse()
            response.read()
            times.append(time.perf_counter() - began)
            if response.status != 200:
                raise SystemExit(f"encoding failed: {response.status}")
        rates[name] = round(n_rows / float(np.median(times)))
    n_rows = {name: body[0] for name, body in bodies.items()}
    return {"vectors_a_request": n_rows, "features": n_features, "vectors_per_second": rates}


def fitted(seed: int) -> Any:
    """Return a default network with little training, which does not affect its speed."""
    from antipodal import DeepLinf, Training

    rng = np.random.default_rng(seed)
    y = rng.integers(0, 10, 2_000)
    X = rng.standard_normal((len(y), N_FEATURES)) + 3 * np.eye(10, N_FEATURES)[y]
    return DeepLinf(
        N_BITS, feature_map="hidden", training=Training(n_epochs=2), random_state=seed
    ).fit(X, y)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(folder: Path, port: int, log: Any) -> subprocess.Popen[bytes]:
    """Start `antipodal serve` and wait until it is ready."""
    command = [sys.executable, "-m", "antipodal", "serve", "--model", str(folder / "model")]
    command += ["--store", f"sqlite:///{folder}/codes.db", "--port", str(port)]
    process = subprocess.Popen(command, stderr=log)
    for _ in range(600):
        try:
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            client.request("GET", "/readyz")
            if client.getresponse().status == 200:
                return process
        except OSError:
            time.sleep(0.1)
        if process.poll() is not None:
            raise SystemExit("the service did not start")
    process.terminate()
    raise SystemExit("the service was not ready within a minute")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--batch", type=int, default=10, help="items per write")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between writes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=500, help="queries per batched request")
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--vectors", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--clients", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.clients is not None:
        clients(
            options.clients,
            options.connections,
            options.seconds,
            options.items,
            options.seed,
            options.at_once,
            not options.bare,
            options.vectors,
            options.rate,
        )
        return
    from antipodal import open_store

    ways = {
        "one by one": ["--at-once", "1"],
        "by vector": ["--at-once", "1", "--vectors", "VECTORS"],
        "by vector, paced": ["--at-once", "1", "--vectors", "VECTORS", "--rate", str(PACE)],
        "many": ["--at-once", str(options.at_once)],
        "many, ids and distances": ["--at-once", str(options.at_once), "--bare"],
    }
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    statuses: list[int] = []
    with tempfile.TemporaryDirectory() as name, open(Path(name) / "log", "wb") as log:
        folder = Path(name)
        hasher = fitted(0)
        hasher.save(folder / "model")
        rows = np.random.default_rng(2).standard_normal((256, N_FEATURES)).astype(np.float32)
        np.savez(folder / "vectors.npz", rows=rows.round(6), codes=hasher.encode(rows.round(6)))
        from antipodal.io.model_file import model_identity

        url, identity = f"sqlite:///{folder}/codes.db", model_identity(folder / "model")
        with open_store(url, n_bits=N_BITS, model=identity) as store:
            store.load(np.arange(options.items), random_codes(options.items, 0))
        port = free_port()
        process = start(folder, port, log)
        stop = threading.Event()
        try:
            writer = threading.Thread(
                target=write, args=(port, stop, options.batch, options.pause, statuses)
            )
            writer.start()
            for seed in range(1, options.repeats + 1):
                command = [sys.executable, __file__, "--clients", str(port), "--seed", str(seed)]
                for option in ("items", "seconds", "connections"):
                    command += [f"--{option}", str(getattr(options, option))]
                for way, more in ways.items():
                    known = {"VECTORS": str(folder / "vectors.npz")}
                    words = [*command, *(known.get(word, word) for word in more)]
                    done = subprocess.run(words, stdout=subprocess.PIPE, check=True)
                    runs[way].append(json.loads(done.stdout))
            encoded = encoding(port, N_FEATURES)
        finally:
            stop.set()
            writer.join()
            process.send_signal(signal.SIGTERM)
            process.wait(60)

    def middle(records: list[dict[str, Any]]) -> dict[str, Any]:
        return sorted(records, key=lambda run: run["searches_per_second"])[len(records) // 2]

    alone = runs.pop("one by one")
    one = middle(alone)
    by_vector = {
        name: {"median_run": middle(runs[way]), "runs": runs.pop(way)}
        for name, way in (("by_vector", "by vector"), ("paced", "by vector, paced"))
    }
    record = {
        "items": options.items,
        "bits": N_BITS,
        "k": K,
        "workers": 1,
        "connections": options.connections,
        "seconds": options.seconds,
        "cpus": os.cpu_count(),
        "version": antipodal.__version__,
        "writes": len(statuses),
        "failed_writes": sum(status != 200 for status in statuses),
        "items_a_write": options.batch,
        "median_run": one,
        "runs": alone,
        **by_vector,
        "queries_a_request": options.at_once,
        "many_in_a_request": {
            way: {
                "connections": MANY_CONNECTIONS,
                "times_one_by_one": round(
                    middle(records)["searches_per_second"] / one["searches_per_second"], 1
                ),
                "median_run": middle(records),
                "runs": records,
            }
            for way, records in runs.items()
        },
        "encode": encoded,
    }
    text = json.dumps(record, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()

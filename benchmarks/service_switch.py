"""Hot-swapping the model behind a mount of a running service, under load.

python benchmarks/service_switch.py --json benchmarks/results/service_switch.json

Two workers follow a mount file. Connections search by vector continuously; every few seconds
`antipodal switch` points the mount to the other of two models, each with its own store. A response
is correct if it is complete and equals that of one of the two models by brute force. The record
contains failed requests, wrong responses, and the delay between the return of the command and the
last response of the previous model.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from service import N_BITS, N_FEATURES, K, connection, distances, fitted, free_port, random_codes

import antipodal
from antipodal.io.model_file import model_identity


def nearest(codes: np.ndarray, query: np.ndarray) -> list[int]:
    return np.lexsort((np.arange(len(codes)), distances(codes, query)))[:K].tolist()


def antipodal_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "antipodal", *words]


async def ready(port: int) -> None:
    for _ in range(1_200):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
            if b" 200 " in answer[:20]:
                return
        except OSError:
            pass
        await asyncio.sleep(0.1)
    raise SystemExit("the service was not ready within two minutes")


async def run(options: Any, port: int, mounts: Path, sides: list[str], bodies: list[bytes]) -> Any:
    """Search and switch; return the responses with their times, and the times of the switches."""
    await ready(port)
    lists: list[list[Any]] = [[] for _ in range(options.connections)]
    began = time.perf_counter()
    stop = began + options.pause * (options.switches + 1)
    clients = [
        asyncio.create_task(connection(port, bodies, stop, out, "/articles", stamped=True))
        for out in lists
    ]
    switched = []
    for turn in range(1, options.switches + 1):
        await asyncio.sleep(max(0, began + turn * options.pause - time.perf_counter()))
        command = antipodal_command("switch", str(mounts), f"articles={sides[turn % 2]}")
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
        assert await process.wait() == 0
        switched.append((time.perf_counter(), turn % 2))
    await asyncio.gather(*clients)
    return [answer for out in lists for answer in out], switched


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--switches", type=int, default=6)
    parser.add_argument("--pause", type=float, default=8, help="seconds between switches")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = np.random.default_rng(2).standard_normal((64, N_FEATURES)).astype(np.float32).round(6)
    with tempfile.TemporaryDirectory() as name, open(Path(name) / "log", "wb") as log:
        folder, expected, sides = Path(name), [], []
        for side in range(2):
            hasher, model = fitted(side), folder / f"model{side}"
            hasher.save(model)
            codes, url = random_codes(options.items, side), f"sqlite:///{folder}/codes{side}.db"
            identity = model_identity(model)
            with antipodal.open_store(url, n_bits=N_BITS, model=identity) as store:
                store.load(np.arange(options.items), codes)
            expected.append([nearest(codes, query) for query in hasher.encode(rows)])
            sides.append(f"{model},{url}")
        mounts, port = folder / "mounts.json", free_port()
        first = antipodal_command("switch", str(mounts), f"articles={sides[0]}")
        subprocess.run(first, check=True, stdout=subprocess.DEVNULL)
        words = ["serve", "--mounts", str(mounts), "--port", str(port)]
        command = antipodal_command(*words, "--workers", str(options.workers))
        process = subprocess.Popen(command, stderr=log)
        try:
            bodies = [json.dumps({"vector": row, "k": K}).encode() for row in rows.tolist()]
            answers, switched = asyncio.run(run(options, port, mounts, sides, bodies))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    wrong, of_side = 0, []
    for seconds, number, status, answer, ended in answers:
        if status == 200:
            ids = [hit["id"] for hit in json.loads(answer)["results"]]
            sides_of = [side for side in range(2) if ids == expected[side][number]]
            wrong += not sides_of
            of_side += [(ended - seconds, ended, side) for side in sides_of]
    late = []
    for turn, (when, new) in enumerate(switched):
        end = switched[turn + 1][0] if turn + 1 < len(switched) else float("inf")
        old = [ended for began, ended, side in of_side if side != new and began < end]
        late.append(max(old, default=when) - when)
    record = {
        "version": antipodal.__version__,
        "cpus": os.cpu_count(),
        "items": options.items,
        "workers": options.workers,
        "connections": options.connections,
        "switches": options.switches,
        "searches": len(answers),
        "failed": sum(status != 200 for _, _, status, *_ in answers),
        "wrong": wrong,
        "seconds_until_the_last_old_answer": [round(max(0.0, seconds), 2) for seconds in late],
        "longest_search_ms": round(1e3 * max(seconds for seconds, *_ in answers), 1),
    }
    text = json.dumps(record, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()

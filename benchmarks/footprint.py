"""Start-up time, memory of an idle service, and the effect of busy cores on `encode`.

    python benchmarks/footprint.py --old SOURCE --json benchmarks/results/footprint.json

SOURCE is `src` of a checkout of version 0.6, which needs PyTorch. Programs run in turn, several
times, and the least CPU time of each is recorded. The service has 100,000 items of 384 bits.
`encode` of `DeepLinf` runs next to two busy loops, with the default number of threads and with one.

    PYTHON benchmarks/footprint.py --service --json benchmarks/results/footprint-service.json

measures the idle service only, in a new environment after `pip install '.[serve]'`. And

    python benchmarks/footprint.py --installed PYTHON --json benchmarks/results/installed.json

prints the size of each package that PYTHON imports, in MB, without pip and setuptools. PYTHON
belongs to a new environment after `pip install .`.
"""

import argparse
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from antipodal import AntipodalError, Client

N_FEATURES, N_BITS, N_ITEMS = 384, 384, 100_000

ENCODE_ONE = """
import sys
import numpy as np
import antipodal
antipodal.load(sys.argv[1]).encode(np.load(sys.argv[2])[:1])
"""
ENCODE_MANY = """
import json, os, sys, time
import numpy as np
import antipodal
hasher, n_repeats = antipodal.load(sys.argv[1]), int(sys.argv[2])
rows = np.random.default_rng(0).standard_normal((50_000, hasher.n_features_in_), np.float32)
hasher.encode(rows[:100])
seconds = {"default": [], "one": []}
for _ in range(n_repeats):
    for name, variable in (("default", ""), ("one", "1")):
        os.environ["OMP_NUM_THREADS"] = variable
        began = time.perf_counter()
        hasher.encode(rows)
        seconds[name].append(time.perf_counter() - began)
print(json.dumps(seconds))
"""
SIZES = """
import importlib.metadata, json, os
sizes, bytecode = {}, 0
for package in importlib.metadata.distributions():
    files = [file.locate() for file in package.files or []]
    found = {str(f): os.stat(f).st_size for f in files if os.path.exists(f)}
    sizes[package.metadata["Name"]] = sum(found.values())
    if package.metadata["Name"] not in ("pip", "setuptools"):
        bytecode += sum(size for name, size in found.items() if name.endswith(".pyc"))
print(json.dumps(sizes | {"bytecode": bytecode}))
"""


def cpu_seconds(command: list[str], **environment: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, env=os.environ | environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def startup(old: Path, repeats: int) -> dict[str, float]:
    """Return the CPU seconds of new processes that load a model and encode one row."""
    data = Path(__file__).parent.parent / "tests" / "data" / "0.6.1"
    arguments = [str(data / "DeepLinf.hidden.antipodal"), str(data / "rows.npy")]
    new = str(Path(__file__).parent.parent / "src")
    programs = {
        "version 0.6": ([ENCODE_ONE, *arguments], str(old)),
        "now": ([ENCODE_ONE, *arguments], new),
        "import sklearn.base": (["import sklearn.base"], ""),
        "import numpy": (["import numpy"], ""),
    }
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(repeats):
        for name, (program, source) in programs.items():
            command = [sys.executable, "-c", *program]
            seconds[name].append(cpu_seconds(command, PYTHONPATH=source))
    return {name: round(min(values), 3) for name, values in seconds.items()}


def idle_service() -> dict[str, dict[str, float]]:
    """Return the memory of a service after start-up and after the first search, in MB."""
    from antipodal import Collection

    rows = np.random.default_rng(0).standard_normal((N_ITEMS, N_FEATURES), dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        place = Path(folder) / "docs.db"
        Collection.create(place, rows, bytes=N_BITS // 8).close()
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        command = [sys.executable, "-m", "antipodal", "serve", str(place), "--port", str(port)]
        service = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            client = connected(f"http://127.0.0.1:{port}")
            started = megabytes(service.pid)
            client.search(rows[:1], k=10)
            time.sleep(1)
            return {"started": started, "after a search": megabytes(service.pid)}
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait()


def connected(url: str) -> Client:
    """Return a client of a service as soon as it answers."""
    for _ in range(600):
        try:
            return Client(url)
        except AntipodalError:
            time.sleep(0.5)
    raise TimeoutError(f"no answer from {url}")


def megabytes(pid: int) -> dict[str, float]:
    """Return the resident memory of a process, and its proportional share of it (Linux)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: int(size.split()[0]) for name, size in (line.split(":") for line in lines)}
    return {name: round(sizes[name] / 1024, 1) for name in ("Rss", "Pss")}


def busy_cores(repeats: int) -> dict[str, float]:
    """Return the seconds of `encode` next to two busy loops, by number of threads."""
    from antipodal import DeepLinf, Training

    rows = np.random.default_rng(0).standard_normal((2000, N_FEATURES), dtype=np.float32)
    hasher = DeepLinf(64, feature_map="hidden", training=Training(n_epochs=1), random_state=0)
    hasher.fit(rows, np.arange(2000) % 10)
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            hasher.save(f"{folder}/model")
            command = [sys.executable, "-c", ENCODE_MANY, f"{folder}/model", str(repeats)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    seconds = json.loads(done.stdout)
    medians = {name: round(float(np.median(values)), 3) for name, values in seconds.items()}
    return medians | {"ratio": round(medians["default"] / medians["one"], 3)}


def installed(python: str) -> dict[str, float]:
    """Return the size of each installed package and of all of them, in MB."""
    done = subprocess.run([python, "-c", SIZES], check=True, stdout=subprocess.PIPE)
    sizes = {k: v for k, v in json.loads(done.stdout).items() if k not in ("pip", "setuptools")}
    bytecode = sizes.pop("bytecode")
    ordered = sorted(sizes.items(), key=lambda entry: -entry[1])
    total = sum(sizes.values())
    return {
        "total": round(total / 1e6, 1),
        "total without bytecode": round((total - bytecode) / 1e6, 1),
    } | {name: round(size / 1e6, 1) for name, size in ordered if size > 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", type=Path, help="source directory of version 0.6")
    parser.add_argument("--installed", metavar="PYTHON", help="interpreter of a new environment")
    parser.add_argument("--service", action="store_true", help="measure the idle service only")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.installed:
        record: dict[str, object] = {"installed_megabytes": installed(options.installed)}
    elif options.service:
        record = {"idle_service_megabytes": idle_service()}
    else:
        record = {
            "encode_next_to_two_busy_loops_seconds": busy_cores(options.repeats),
            "idle_service_megabytes": idle_service(),
        }
        if options.old:
            record["encode_one_row_cpu_seconds"] = startup(options.old, options.repeats)
    print(json.dumps(record, indent=1))
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

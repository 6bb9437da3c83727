"""Throughput and memory of Parquet-to-Parquet encoding, and recovery after kills.

python benchmarks/bulk.py --rows 400000 --files 8 --json benchmarks/results/bulk.jsonl
python benchmarks/bulk.py --rows 100000 --kills 20 --json benchmarks/results/bulk-kills.jsonl

Rows have 384 dimensions of float32, an id and a title, all of which are kept. The model is a
`DeepLinf` of 64 bits with a hidden layer. Each variant runs several times in its own process:

- a plain loop over `pyarrow.dataset` with `hasher.encode`, on all threads and on one;
- `bulk.encode` locally;
- `bulk.encode` on Ray, with the start of the cluster timed separately.

Imports and the loading of the model are excluded, except on Ray, whose actors do both within the
run. Therefore two rates are reported: for the whole run, and from the start of the first
file (`first_file_seconds`, `rows_per_second_at_work`). Memory is measured before the run and at its
peak; for Ray it is the sum of the workers' peaks.

With --kills, a run is killed at random times and resumed each time. The final output is compared
with that of an uninterrupted run.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq

N_FEATURES, N_BITS, BLOCK = 384, 64, 16_384


def make_data(root: Path, n_rows: int, n_files: int) -> None:
    from antipodal import DeepLinf, Training

    rng = np.random.default_rng(0)
    (root / "in").mkdir()
    for number, part in enumerate(np.array_split(np.arange(n_rows), n_files)):
        path = root / "in" / f"part-{number:03}.parquet"
        with pq.ParquetWriter(path, _schema(), use_dictionary=["title"]) as writer:
            for start in range(0, len(part), BLOCK):
                ids = part[start : start + BLOCK]
                rows = rng.standard_normal((len(ids), N_FEATURES), np.float32)
                vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), N_FEATURES)
                titles = pa.array([f"item {i % 1000}" for i in ids])
                columns = [pa.array(ids), vectors, titles]
                writer.write_table(pa.Table.from_arrays(columns, schema=_schema()))
    rows = rng.standard_normal((2000, N_FEATURES), np.float32)
    hasher = DeepLinf(N_BITS, feature_map="hidden", training=Training(n_epochs=1), random_state=0)
    hasher.fit(rows, np.arange(2000) % 10).save(root / "model.antipodal")


def _schema() -> pa.Schema:
    vectors = pa.list_(pa.float32(), N_FEATURES)
    return pa.schema([("id", pa.int64()), ("vector", vectors), ("title", pa.string())])


def plain_loop(root: Path, target: Path) -> None:
    """Encode in a plain loop: no manifest, no resuming, one file at a time."""
    from antipodal import load

    hasher = load(root / "model.antipodal")
    target.mkdir()
    for path in sorted((root / "in").iterdir()):
        data = pa.dataset.dataset(path)
        schema = data.schema.append(pa.field("code", pa.binary(N_BITS // 8)))
        with pq.ParquetWriter(target / path.name, schema) as writer:
            for batch in data.to_batches(batch_size=BLOCK):
                rows = batch["vector"].flatten().to_numpy().reshape(-1, N_FEATURES)
                made = [None, pa.py_buffer(hasher.encode(rows))]
                codes = pa.Array.from_buffers(pa.binary(N_BITS // 8), len(rows), made)
                columns = [*batch.columns, codes]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def run(way: str, root: Path, target: Path) -> None:
    """Run once in this process and print the duration without imports."""
    from antipodal import bulk, load

    model, options = root / "model.antipodal", {}
    load(model)
    before = peak_megabytes()
    start = time.perf_counter()
    if way == "ray":
        from antipodal.bulk.run import connected

        cluster = connected(None)
        cluster.__enter__()
        options["engine"] = "ray"
    began = time.perf_counter()
    first_file = first_entry(target)
    if way.startswith("plain"):
        if way == "plain-one-thread":
            os.environ["OMP_NUM_THREADS"] = "1"
        plain_loop(root, target)
    else:
        bulk.encode(model, root / "in", target, resume=True, **options)
    seconds = time.perf_counter() - began
    record = {"seconds": round(seconds, 3), "start_seconds": round(began - start, 3)}
    record["first_file_seconds"] = round(first_file.result() - began, 3)
    record |= {"megabytes_before": before, "peak_megabytes": peak_megabytes()}
    if way == "ray":
        record["peak_megabytes_workers"] = _workers_megabytes()
        cluster.__exit__(None, None, None)
    print(json.dumps(record), flush=True)


def first_entry(folder: Path) -> Future[float]:
    """Return the start time of the first Parquet file, possibly under its temporary name."""

    def watch() -> float:
        while not any(".parquet" in path.name for path in folder.glob("*")):
            time.sleep(0.01)
        return time.perf_counter()

    return ThreadPoolExecutor(1).submit(watch)


def peak_megabytes() -> int:
    """Return the peak memory of this process; ru_maxrss would include that of its parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def _workers_megabytes() -> int:
    """Return the sum of the peak memory of the encoding Ray processes."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
            command = (status.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if command.startswith(b"ray::FileEncoder"):
            total += int(text.partition("VmHWM:")[2].split()[0])
    return total // 1024


def start(way: str, root: Path, target: Path) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--run", way, str(root), str(target)]
    environment = os.environ | {
        "RAY_worker_niceness": "0"
    }  # otherwise workers are scheduled after all other processes
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def measure(root: Path, n_rows: int, n_files: int, ways: list[str], rounds: int) -> list[dict]:
    records = []
    for number in range(rounds):
        for way in ways:
            target = root / f"{way}-{number}"
            child = start(way, root, target)
            output, _ = child.communicate()
            made = json.loads(output)
            rate = round(n_rows / made["seconds"])
            at_work = round(n_rows / (made["seconds"] - made["first_file_seconds"]))
            size = {"rows": n_rows, "features": N_FEATURES, "files": n_files}
            rates = {"rows_per_second": rate, "rows_per_second_at_work": at_work}
            records.append({"way": way, "round": number, **size, **rates, **made})
            print(json.dumps(records[-1]), flush=True)
            if way == "ray" and "local" in ways:
                assert digests(target) == digests(root / f"local-{number}")
            if way != "local":
                shutil.rmtree(target)
    return records


def kill(root: Path, n_kills: int) -> list[dict]:
    child = start("local", root, root / "undisturbed")
    seconds = json.loads(child.communicate()[0])["seconds"]
    expected = digests(root / "undisturbed")
    moments = random.Random(0)
    target, at_work, completed = root / "killed", 0, 0
    for _ in range(n_kills):
        child = start("local", root, target)
        while child.poll() is None and not (target / "_progress.jsonl").exists():
            time.sleep(0.01)
        time.sleep(moments.uniform(0, seconds / 4))
        at_work += child.poll() is None
        child.kill()
        child.communicate()
        whole = {name: d for name, d in digests(target).items() if name[0] not in "._"}
        assert whole.items() <= expected.items()
        if (target / "_manifest.json").exists() and not (target / "_progress.jsonl").exists():
            assert digests(target) == expected
            shutil.rmtree(target)
            completed += 1
    start("local", root, target).communicate()
    assert digests(target) == expected
    return [{"kills": n_kills, "at_work": at_work, "completed_between": completed, "equal": True}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default="plain,plain-one-thread,local,ray")
    parser.add_argument("--kills", type=int)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        way, root, target = arguments.run
        run(way, Path(root), Path(target))
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_data(root, arguments.rows, arguments.files)
        if arguments.kills:
            records = kill(root, arguments.kills)
        else:
            ways = arguments.ways.split(",")
            records = measure(root, arguments.rows, arguments.files, ways, arguments.rounds)
    for record in records:
        record["cores"] = os.cpu_count()
    lines = [json.dumps(record) for record in records]
    print("\n".join(lines))
    if arguments.json:
        arguments.json.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

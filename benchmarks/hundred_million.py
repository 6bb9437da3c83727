"""A hundred million codes of 64 bits on one machine: build, open, search, filter, change them.

    python benchmarks/hundred_million.py --rows 100000000

The codes have the statistics of real ones: a hasher is fitted on the digits of scikit-learn, and
each code is one of the codes of these images with bits flipped, each with a chance of 5 to 20 %
that is drawn for the code. So bits are as unbalanced and as correlated as real ones, and codes
crowd as real ones do. Queries are made in the same way.

Each part runs in a process of its own, so that what /proc/self/status calls its peak is that of the
part. Seconds are wall time: run it on a machine that has nothing else to do. A run adds a line to
benchmarks/results/hundred_million.jsonl.

    index       HammingIndex: add in parts of a million, prepare(radius=2), save
    file        open the file, exact 10 nearest and radius 2, one by one and at once, among 1 % and
                50 % of the items; remove and replace items while searching
    store       the SQLite store, up to --store-rows: load, open with the first search, search,
                filter on metadata, a changed item
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

N_BITS, K, RADIUS = 64, 10, 2
PART = 1_000_000
RECORD = Path(__file__).parent / "results" / "hundred_million.jsonl"


def real_codes() -> np.ndarray:
    from sklearn.datasets import load_digits

    from antipodal import ITQ

    rows = load_digits().data
    return ITQ(N_BITS, random_state=0).fit(rows).encode(rows)


def like(codes: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Flip bits of codes that are drawn from the given ones."""
    chance = rng.uniform(0.05, 0.2, (n, 1)).astype(np.float32)
    drawn = codes[rng.integers(0, len(codes), n)]
    for start in range(0, n, 50_000):
        part = slice(start, start + 50_000)
        flips = rng.random((len(drawn[part]), N_BITS), dtype=np.float32) < chance[part]
        drawn[part] ^= np.packbits(flips, axis=1)
    return drawn


def parts(n_rows: int) -> Iterator[np.ndarray]:
    """Yield n_rows codes, the same each time, a part at a time."""
    codes = real_codes()
    for number, start in enumerate(range(0, n_rows, PART)):
        yield like(codes, min(PART, n_rows - start), np.random.default_rng([1, number]))


def queries(n: int) -> np.ndarray:
    return like(real_codes(), n, np.random.default_rng(2))


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def per_second(call: Callable[[], object], n: int, repeats: int = 3) -> float:
    return round(n / min(seconds(call) for _ in range(repeats)), 1)


def peak_megabytes() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6, 1)


def measure_index(folder: Path, n_rows: int) -> dict[str, Any]:
    from antipodal.index import HammingIndex

    index, adding = HammingIndex(N_BITS), 0.0
    for codes in parts(n_rows):
        adding += seconds(lambda codes=codes: index.add(codes))
    record = {"add_seconds": round(adding, 2), "peak_megabytes_added": peak_megabytes()}
    record["prepare_seconds"] = round(seconds(lambda: index.prepare(RADIUS)), 2)
    record["save_seconds"] = round(seconds(lambda: index.save(folder / "index")), 2)
    record["file_megabytes"] = round((folder / "index").stat().st_size / 1e6, 1)
    return record


def check(index: Any, few: np.ndarray, n_rows: int) -> None:
    """Compare with plain NumPy, a part at a time."""
    found, ball = index.search(few, K), index.radius(few, RADIUS)
    best, near = [[] for _ in few], [[] for _ in few]
    for number, codes in enumerate(parts(n_rows)):
        words = codes.view(np.uint64)[:, 0]
        for i, query in enumerate(few.view(np.uint64)[:, 0]):
            distances = np.bitwise_count(words ^ query)
            first = np.argsort(distances, kind="stable")[:K]
            best[i] += zip(distances[first].tolist(), (first + number * PART).tolist(), strict=True)
            hits = np.flatnonzero(distances <= RADIUS)
            near[i] += zip(distances[hits].tolist(), (hits + number * PART).tolist(), strict=True)
    for i in range(len(few)):
        pairs = zip(found.distances[i].tolist(), found.ids[i].tolist(), strict=True)
        assert list(pairs) == sorted(best[i])[:K]
        block = slice(*ball.offsets[i : i + 2])
        pairs = zip(ball.distances[block].tolist(), ball.ids[block].tolist(), strict=True)
        assert list(pairs) == sorted(near[i])


def one_by_one(call: Callable[[np.ndarray], object], codes: np.ndarray) -> None:
    for i in range(len(codes)):
        call(codes[i : i + 1])


def measure_file(folder: Path, n_rows: int) -> dict[str, Any]:
    from antipodal.index import HammingIndex

    record: dict[str, Any] = {
        "open_seconds": round(seconds(lambda: HammingIndex.load(folder / "index")), 2)
    }
    index = HammingIndex.load(folder / "index")
    record["peak_megabytes_opened"] = peak_megabytes()
    asked = queries(10_000)
    few = asked[: max(4, min(64, 400_000_000 // n_rows))]
    check(index, few[:3], n_rows)
    record["queries_per_second"] = {
        "10 nearest, one by one": per_second(
            lambda: one_by_one(lambda q: index.search(q, K), few), len(few)
        ),
        "10 nearest, at once": per_second(lambda: index.search(few, K), len(few)),
        "radius 2, one by one": per_second(
            lambda: one_by_one(lambda q: index.radius(q, RADIUS), asked[:500]), 500
        ),
        "radius 2, at once": per_second(lambda: index.radius(asked, RADIUS), len(asked)),
    }
    ball = index.radius(asked, RADIUS)
    record["items_in_radius_2"] = round(len(ball.ids) / len(asked), 2)
    rng = np.random.default_rng(3)
    for name, share in (("1 %", 0.01), ("50 %", 0.5)):
        allowed = np.flatnonzero(rng.random(n_rows, dtype=np.float32) < share)
        record["queries_per_second"][f"10 nearest among {name}, at once"] = per_second(
            lambda allowed=allowed: index.search(few, K, allowed=allowed), len(few)
        )
    changes = []
    for start in range(0, min(20_000, n_rows // 2), 1_000):  # replaced while searching
        ids = np.arange(start, start + 1_000) * (n_rows // 20_000)
        new = index.codes(ids) ^ np.uint8(1)
        began = time.perf_counter()
        index.remove(ids)
        index.add(new, ids)
        changes.append(time.perf_counter() - began)
        assert (index.search(new[:1], K).distances[:, 0] == 0).all()
    record["milliseconds_to_replace_1000"] = {
        "median": round(1e3 * float(np.median(changes)), 2),
        "most": round(1e3 * max(changes), 2),
    }
    record["radius 2 after that, one by one"] = per_second(
        lambda: one_by_one(lambda q: index.radius(q, RADIUS), asked[:500]), 500
    )
    record["peak_megabytes"] = peak_megabytes()
    return record


def measure_store(folder: Path, n_rows: int) -> dict[str, Any]:
    from antipodal.stores import open_store

    url, loading, first = f"sqlite:///{folder}/codes.db", 0.0, 0
    with open_store(url, n_bits=N_BITS) as store:
        for codes in parts(n_rows):
            ids = np.arange(first, first + len(codes))
            fields = [{"label": i % 100} for i in ids.tolist()]
            loading += seconds(lambda i=ids, c=codes, f=fields: store.load(i, c, f))
            first += len(codes)
    record: dict[str, Any] = {
        "rows": n_rows,
        "load_rows_per_second": round(n_rows / loading),
        "file_megabytes": round((folder / "codes.db").stat().st_size / 1e6, 1),
    }
    asked = queries(64)
    with open_store(url) as store:
        record["open_and_first_search_seconds"] = round(
            seconds(lambda: store.search(asked[:1], K)), 2
        )
        record["first_use_of_a_filter_seconds"] = round(
            seconds(lambda: store.search(asked[:1], K, where={"label": 3})), 2
        )
        record["queries_per_second"] = {
            "10 nearest, at once": per_second(lambda: store.search(asked, K), len(asked)),
            "10 nearest where label = 3 (1 %), at once": per_second(
                lambda: store.search(asked, K, where={"label": 3}), len(asked)
            ),
            "radius 2, at once": per_second(lambda: store.radius(asked, RADIUS), len(asked)),
        }
        times = []
        for number in range(5):
            store.upsert([number * 7], asked[:1], [{"label": 3}])
            times.append(seconds(lambda: store.search(asked[:1], K)))
        record["search_after_one_changed_item_seconds"] = round(float(np.median(times)), 3)
    record["peak_megabytes"] = peak_megabytes()
    return record


MEASURES = {"index": measure_index, "file": measure_file, "store": measure_store}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--store-rows", type=int, default=10_000_000, help="at most, in SQLite")
    parser.add_argument("--folder", type=Path, help="for files of up to 60 bytes a row")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        part, folder = options.measure
        print(json.dumps(MEASURES[part](Path(folder), options.rows)))
        return
    record: dict[str, Any] = {"rows": options.rows, "bits": N_BITS, "cpus": os.cpu_count()}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for part in MEASURES:
            rows = min(options.rows, options.store_rows) if part == "store" else options.rows
            command = [sys.executable, __file__, "--measure", part, folder, "--rows", str(rows)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
            record[part] = json.loads(done.stdout)
            print(part, json.dumps(record[part], indent=1), flush=True)
    with open(RECORD, "a", encoding="utf-8") as lines:
        lines.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()

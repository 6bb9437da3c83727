"""A hundred million codes of 64 bits on one machine: build, open, search, filter, modify.

    python benchmarks/hundred_million.py --rows 100000000

Codes have realistic statistics. A hasher is fitted on scikit-learn's digits, and each code is the
code of a digit with bits flipped, at a rate of 5 to 20 % drawn per code. Balance, correlation and
clustering of the bits are therefore similar to real codes. Queries are generated in the same way.

Each part runs in its own process, so that its peak memory is measured separately. Rates are the
best of three turns, per second of CPU time on one core. Durations are given as wall time and CPU
time. A run appends a line to benchmarks/results/hundred_million.jsonl. With --folder, files and
measurements are kept: parts can be run separately and repeated, and the record contains the last of
each:

    codes       generate the codes; no record
    index       HammingIndex: add in blocks of a million, prepare(radius=2), save
    file        open the file; 10 nearest and radius 2, single and batched, among 1 % and 50 % of
                the items, verified against NumPy; replace items while searching
    store       SQLite store: load, with one metadata field
    opened      open the store, search, filter, prepare(radius=2), modify items
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
    """Return a random sample of the given codes with some bits flipped."""
    chance = rng.uniform(0.05, 0.2, (n, 1)).astype(np.float32)
    drawn = codes[rng.integers(0, len(codes), n)]
    for start in range(0, n, 50_000):
        part = slice(start, start + 50_000)
        flips = rng.random((len(drawn[part]), N_BITS), dtype=np.float32) < chance[part]
        drawn[part] ^= np.packbits(flips, axis=1)
    return drawn


def parts(n_rows: int) -> Iterator[np.ndarray]:
    """Yield n_rows reproducible codes in blocks."""
    codes = real_codes()
    for number, start in enumerate(range(0, n_rows, PART)):
        yield like(codes, min(PART, n_rows - start), np.random.default_rng([1, number]))


def queries(n: int) -> np.ndarray:
    return like(real_codes(), n, np.random.default_rng(2))


def stored(folder: Path) -> Iterator[np.ndarray]:
    """Yield all stored codes in blocks."""
    with open(folder / "codes", "rb") as file:
        while len(codes := np.fromfile(file, np.uint8, PART * N_BITS // 8)):
            yield codes.reshape(-1, N_BITS // 8)


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def both_clocks(call: Callable[[], object]) -> dict[str, float]:
    began = time.process_time()
    wall = seconds(call)
    return {"wall": round(wall, 2), "processor": round(time.process_time() - began, 2)}


def per_second(call: Callable[[], object], n: int, repeats: int = 3) -> float:
    return round(n / min(seconds(call) for _ in range(repeats)), 1)


def rate(call: Callable[[], object], n: int, repeats: int = 3) -> float:
    """Return the best rate per second of CPU time."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return round(n / max(min(times), 1e-9), 1)


def peak_megabytes() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6, 1)


def make_codes(folder: Path, n_rows: int) -> None:
    for part in MEASURES:  # measurements of the previous codes are invalid
        (folder / f"{part}.json").unlink(missing_ok=True)
    with open(folder / "codes", "wb") as file:
        for codes in parts(n_rows):
            codes.tofile(file)
    np.save(folder / "queries.npy", queries(10_000))


def measure_index(folder: Path, n_rows: int) -> dict[str, Any]:
    from antipodal.index import HammingIndex

    index = HammingIndex(N_BITS)

    def add() -> None:
        for codes in stored(folder):
            index.add(codes)

    record: dict[str, Any] = {"add_seconds": both_clocks(add), "megabytes_added": peak_megabytes()}
    record["prepare_seconds"] = both_clocks(lambda: index.prepare(RADIUS))
    record["peak_megabytes"] = peak_megabytes()
    record["save_seconds"] = both_clocks(lambda: index.save(folder / "index"))
    record["file_megabytes"] = round((folder / "index").stat().st_size / 1e6, 1)
    return record


def check(index: Any, few: np.ndarray, folder: Path) -> None:
    """Compare the results with NumPy, block by block."""
    found, ball = index.search(few, K), index.radius(few, RADIUS)
    best, near = [[] for _ in few], [[] for _ in few]
    for number, codes in enumerate(stored(folder)):
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

    opening = both_clocks(lambda: HammingIndex.load(folder / "index"))
    record: dict[str, Any] = {"open_seconds": opening}
    index = HammingIndex.load(folder / "index")
    record["megabytes_opened"] = peak_megabytes()
    asked = np.load(folder / "queries.npy")
    few = asked[: max(4, min(64, 400_000_000 // n_rows))]
    check(index, few[:3], folder)
    record["queries_per_processor_second"] = {
        "10 nearest, one by one": rate(
            lambda: one_by_one(lambda q: index.search(q, K), few), len(few)
        ),
        "10 nearest, at once": rate(lambda: index.search(few, K), len(few)),
        "radius 2, one by one": rate(
            lambda: one_by_one(lambda q: index.radius(q, RADIUS), asked[:500]), 500
        ),
        "radius 2, at once": rate(lambda: index.radius(asked, RADIUS), len(asked)),
    }
    ball = index.radius(asked, RADIUS)
    record["items_in_radius_2"] = round(len(ball.ids) / len(asked), 2)
    rng = np.random.default_rng(3)
    for name, share in (("1 %", 0.01), ("50 %", 0.5)):
        allowed = np.flatnonzero(rng.random(n_rows, dtype=np.float32) < share)
        record["queries_per_processor_second"][f"10 nearest among {name}, at once"] = rate(
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
    record["milliseconds_to_replace_1000"] = spread(changes)
    record["queries_per_processor_second"]["radius 2 after that, one by one"] = rate(
        lambda: one_by_one(lambda q: index.radius(q, RADIUS), asked[:500]), 500
    )
    # Exceed the limit of pending changes: the index is reorganised and its tables are rebuilt.
    many = np.arange(1, n_rows, 2)[: max(2**16, n_rows // 2**8)]
    record["seconds_to_put_in_order"] = both_clocks(lambda: index.remove(many))
    assert not index.contains(many).any()
    record["peak_megabytes"] = peak_megabytes()
    return record


def measure_store(folder: Path, n_rows: int) -> dict[str, Any]:
    from antipodal.stores import open_store

    with open_store(f"sqlite:///{folder}/codes.db", n_bits=N_BITS) as store:

        def load() -> None:
            for codes in stored(folder):
                store.load(None, codes, ({"label": i % 100} for i in range(len(codes))))

        record: dict[str, Any] = {"rows": n_rows, "load_seconds": both_clocks(load)}
    record["load_rows_per_second"] = round(n_rows / record["load_seconds"]["wall"])
    record["file_megabytes"] = round((folder / "codes.db").stat().st_size / 1e6, 1)
    return record


def measure_opened(folder: Path, n_rows: int) -> dict[str, Any]:
    from antipodal.stores import open_store

    asked, where = np.load(folder / "queries.npy")[:500], {"label": 3}
    few = asked[:16]
    with open_store(f"sqlite:///{folder}/codes.db") as store:
        record: dict[str, Any] = {
            "rows": n_rows,
            "first_search_seconds": both_clocks(lambda: store.search(asked[:1], K)),
            "megabytes_opened": peak_megabytes(),
            "first_use_of_a_filter_seconds": both_clocks(
                lambda: store.search(asked[:1], K, where=where)
            ),
        }
        rates = record["queries_per_processor_second"] = {
            "10 nearest, one by one": rate(
                lambda: one_by_one(lambda q: store.search(q, K), few), len(few)
            ),
            "10 nearest, at once": rate(lambda: store.search(few, K), len(few)),
            "10 nearest where label = 3 (1 %), at once": rate(
                lambda: store.search(few, K, where=where), len(few)
            ),
            "radius 2, one by one, not prepared": rate(
                lambda: one_by_one(lambda q: store.radius(q, RADIUS), few), len(few)
            ),
        }
        record["prepare_seconds"] = both_clocks(lambda: store.prepare(RADIUS))
        rates["radius 2, one by one, prepared"] = rate(
            lambda: one_by_one(lambda q: store.radius(q, RADIUS), asked), len(asked)
        )
        rates["radius 2, at once, prepared"] = rate(lambda: store.radius(asked, RADIUS), len(asked))
        check(store, few[:2], folder)
        writes, searches = [], []
        for number in range(20):
            ids = np.arange(50) + number * (n_rows // 20)
            new = np.repeat(few[:1], len(ids), axis=0)
            writes.append(seconds(lambda i=ids, c=new: store.upsert(i, c)))
            searches.append(seconds(lambda: store.radius(few[:1], RADIUS)))
            assert len(store.radius(few[:1], 0).ids) >= (number + 1) * len(ids)
        record["milliseconds_to_replace_50"] = spread(writes)
        record["milliseconds_of_the_search_after_it"] = spread(searches)
    record["peak_megabytes"] = peak_megabytes()
    return record


def spread(times: list[float]) -> dict[str, float]:
    return {"median": round(1e3 * float(np.median(times)), 2), "most": round(1e3 * max(times), 2)}


# ------------------------------------------------------------------------------- table


def _clocks(value: dict[str, float]) -> str:
    return f"{_seconds(value['wall'])} s ({_seconds(value['processor'])})"


def _seconds(value: float) -> str:
    return f"{value:,.1f}" if value >= 1 else f"{value:.2f}"


def _rate(value: float) -> str:
    return f"{value:,.0f} /s" if value >= 10 else f"{value:.1f} /s"


def _bytes(value: float) -> str:
    return f"{value:,.0f} MB" if value < 1000 else f"{value / 1000:.2f} GB"


def _spread(value: dict[str, float]) -> str:
    return f"{value['median']:.1f} ms, at most {value['most']:,.0f}"


Line = tuple[str, str, tuple[str, ...], Callable[[Any], str]]  # label, part, keys, formatter


def _searched(part: str, name: str) -> Line:
    label = name.replace("one by one", "single queries").replace("at once", "batched")
    return label, part, ("queries_per_processor_second", name), _rate


LINES: list[Line] = [
    ("**`HammingIndex`**: add", "index", ("add_seconds",), _clocks),
    ("`prepare(radius=2)`", "index", ("prepare_seconds",), _clocks),
    ("peak memory", "index", ("peak_megabytes",), _bytes),
    ("file, with tables", "index", ("file_megabytes",), _bytes),
    ("open, including checksum", "file", ("open_seconds",), _clocks),
    _searched("file", "10 nearest, one by one"),
    _searched("file", "10 nearest among 1 %, at once"),
    _searched("file", "radius 2, one by one"),
    _searched("file", "radius 2, at once"),
    ("replace 1,000 items while searching", "file", ("milliseconds_to_replace_1000",), _spread),
    ("reorganise the index", "file", ("seconds_to_put_in_order",), _clocks),
    ("**SQLite store**: load", "store", ("load_seconds",), _clocks),
    ("open and first search", "opened", ("first_search_seconds",), _clocks),
    ("memory after opening", "opened", ("megabytes_opened",), _bytes),
    ("first filtered search", "opened", ("first_use_of_a_filter_seconds",), _clocks),
    _searched("opened", "10 nearest, one by one"),
    _searched("opened", "10 nearest where label = 3 (1 %), at once"),
    _searched("opened", "radius 2, one by one, not prepared"),
    _searched("opened", "radius 2, one by one, prepared"),
    ("replace 50 items", "opened", ("milliseconds_to_replace_50",), _spread),
    ("peak memory", "opened", ("peak_megabytes",), _bytes),
]


def table(records: list[dict[str, Any]]) -> str:
    """Return the table of docs/guide/scaling.md: the last record of each number of rows."""
    last = {record["rows"]: record for record in records}
    columns = [last[rows] for rows in sorted(last)]
    sizes = [f"{record['rows'] // 10**6} million" for record in columns]
    lines = [f"| codes of 64 bits | {' | '.join(sizes)} |", "|---" * (len(sizes) + 1) + "|"]
    for label, part, path, shown in LINES:
        cells = []
        for record in columns:
            value = record[part]
            for key in path:
                value = value[key]
            cells.append(shown(value))
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


MEASURES = {
    "codes": make_codes,
    "index": measure_index,
    "file": measure_file,
    "store": measure_store,
    "opened": measure_opened,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument(
        "--parts", default=",".join(MEASURES), help="comma-separated parts, in this order"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="directory for the files, up to 80 bytes per row (default: temporary)",
    )
    parser.add_argument("--json", type=Path, default=RECORD, help="file to append the record to")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        part, folder = options.measure
        print(json.dumps(MEASURES[part](Path(folder), options.rows)))
        return
    record: dict[str, Any] = {"rows": options.rows, "bits": N_BITS, "cpus": os.cpu_count()}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or temporary
        for part in options.parts.split(","):
            command = [sys.executable, __file__, "--rows", str(options.rows)]
            done = subprocess.run(
                [*command, "--measure", part, folder], check=True, stdout=subprocess.PIPE
            )
            if part != "codes":
                (Path(folder) / f"{part}.json").write_bytes(done.stdout)
                print(part, json.dumps(json.loads(done.stdout), indent=1), flush=True)
        found = [Path(folder) / f"{part}.json" for part in MEASURES]
        record |= {path.stem: json.loads(path.read_text()) for path in found if path.exists()}
    if len(record) > 3:
        with open(options.json, "a", encoding="utf-8") as lines:
            lines.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()

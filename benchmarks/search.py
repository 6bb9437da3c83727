"""Exact search over a million codes: `HammingIndex` compared with Faiss, usearch and NumPy.

For 64 and 256 bits, random codes and codes clustered around 1,000 centres with 5 % of their bits
flipped, on one thread:

    k = 10      queries per second, batched and single. Faiss is IndexBinaryFlat, whose order among
                ties is undefined; ours are ordered by (distance, id), including ties cut by k, and
                are verified against a stable sort
    radius 2    range_search of the same Faiss index and of IndexBinaryMultiHash, whose 3 hashes of
                a third of the bits (at most 60) make radius 2 exact, verified to be equal; and 300
                queries on a prepared and on an unprepared index
    filter      k = 10 among 1 %, 10 % and 50 % of the items, compared with an unfiltered search
    open        seconds to open the saved index, including its checksum
    memory      10 million codes of 64 bits in a fresh process: growth of RssAnon (and RssFile for a
                loaded index) in /proc/self/status, compared with the size of the codes
    engines     recall and speed of approximate engines

Alternatives run in turn in the same process and are timed in CPU time, which depends less on other
load. Compare ratios, not seconds: those of the best turns, and medians over the turns.
`benchmarks/stores.py` times stores.

    pip install usearch
    python benchmarks/search.py --json benchmarks/results/search.json
"""

import os

THREADS = 1
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(THREADS)
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import argparse  # noqa: E402
import json  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

import faiss  # noqa: E402
import numpy as np  # noqa: E402
import usearch  # noqa: E402
from usearch.index import MetricKind  # noqa: E402
from usearch.index import search as usearch_search  # noqa: E402

from antipodal.index import HammingIndex  # noqa: E402

N_ITEMS, N_QUERIES, K, RADIUS = 1_000_000, 128, 10, 2
N_MEMORY = 10_000_000


def random_codes(rng, n, n_bits):
    return rng.integers(0, 256, (n, n_bits // 8), dtype=np.uint8)


def flipped(rng, codes):
    """Return the codes with 5 % of their bits flipped."""
    return codes ^ np.packbits(rng.random((len(codes), 8 * codes.shape[1])) < 0.05, axis=1)


def make_data(kind, n_bits):
    rng = np.random.default_rng(n_bits)
    if kind == "random":
        return random_codes(rng, N_ITEMS, n_bits), random_codes(rng, N_QUERIES, n_bits)
    centres = random_codes(rng, 1_000, n_bits)
    blocks = [flipped(rng, centres[rng.integers(0, 1_000, 100_000)]) for _ in range(10)]
    return np.concatenate(blocks), flipped(rng, centres[rng.integers(0, 1_000, N_QUERIES)])


def in_turns(runs, repeats, peer):
    """Time the runs in turn, each with its number of queries, relative to a reference."""
    seconds = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, (run, n_queries) in runs.items():
            began = time.process_time()
            run()
            if turn:  # warm-up
                seconds[name].append((time.process_time() - began) / n_queries)
    reference = np.array(seconds[peer])
    return {
        name: {
            "queries_per_second": round(1 / min(times), 1),
            f"times_{peer}": round(reference.min() / min(times), 3),
            f"times_{peer}_median": round(float(np.median(reference / times)), 3),
        }
        for name, times in seconds.items()
    }


def numpy_search(codes, queries):
    """Search with plain NumPy: XOR, bit count, partition."""
    words = codes.view(np.uint64)
    for query in queries.view(np.uint64):
        distances = np.bitwise_count(words ^ query).sum(axis=1, dtype=np.uint16)
        nearest = np.argpartition(distances, K)[:K]
        nearest[np.argsort(distances[nearest])]


def stable_order(codes, queries):
    """Sort all items and return the first K by (distance, id)."""
    words = codes.view(np.uint64)
    for query in queries.view(np.uint64):
        distances = np.bitwise_count(words ^ query).sum(axis=1, dtype=np.uint16)
        yield np.argsort(distances, kind="stable")[:K]


def wall(call):
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def one_by_one(search, queries):
    for i in range(len(queries)):
        search(queries[i : i + 1])


def nearest_neighbours(index, flat, codes, queries, repeats):
    few = queries[:32]
    expected = np.array(list(stable_order(codes, few)))
    assert np.array_equal(index.search(few, K).ids, expected)
    assert np.array_equal(index.search(queries, K).distances, flat.search(queries, K)[0])
    metric = {"metric": MetricKind.Hamming, "exact": True, "threads": THREADS}
    return {
        "at once": in_turns(
            {
                "faiss": (lambda: flat.search(queries, K), N_QUERIES),
                "antipodal": (lambda: index.search(queries, K), N_QUERIES),
                "usearch": (lambda: usearch_search(codes, few, K, **metric), len(few)),
                "numpy": (lambda: numpy_search(codes, few[:4]), 4),
            },
            repeats,
            "faiss",
        ),
        "one by one": in_turns(
            {
                "faiss": (lambda: one_by_one(lambda q: flat.search(q, K), few), len(few)),
                "antipodal": (lambda: one_by_one(lambda q: index.search(q, K), few), len(few)),
            },
            repeats,
            "faiss",
        ),
    }


def small_radius(index, flat, codes, repeats):
    rng = np.random.default_rng(0)
    near = codes[rng.integers(0, N_ITEMS, 2_000)]  # half are items, half are two bits away
    near[::2, 0] ^= 0b1001_0000
    few = near[:64]
    unprepared = HammingIndex(index.n_bits)
    unprepared.add(codes)
    seconds = {"300 queries, not prepared": wall(lambda: unprepared.radius(near[:300], RADIUS))}
    seconds["prepare"] = wall(lambda: index.prepare(RADIUS))
    seconds["300 queries, prepared"] = wall(lambda: index.radius(near[:300], RADIUS))
    n_bits = index.n_bits
    multihash = faiss.IndexBinaryMultiHash(n_bits, RADIUS + 1, min(n_bits // (RADIUS + 1), 60))
    seconds["multihash add"] = wall(lambda: multihash.add(codes))
    assert np.array_equal(
        multihash.range_search(near, RADIUS + 1)[0], index.radius(near, RADIUS).offsets
    )
    offsets, distances, ids = flat.range_search(few, RADIUS + 1)
    ball = index.radius(few, RADIUS)
    assert np.array_equal(ball.offsets, offsets)
    for i in range(len(few)):
        block = slice(*offsets[i : i + 2].astype(int))
        order = np.lexsort((ids[block], distances[block]))
        assert np.array_equal(ball.ids[block], ids[block][order])
        assert np.array_equal(ball.distances[block], distances[block][order])
        single = index.radius(few[i : i + 1], RADIUS)
        assert np.array_equal(single.ids, ball.ids[block])
    runs = {
        "faiss": (lambda: flat.range_search(few, RADIUS + 1), len(few)),
        "antipodal at once": (lambda: index.radius(near, RADIUS), len(near)),
        "antipodal one by one": (
            lambda: one_by_one(lambda q: index.radius(q, RADIUS), near),
            len(near),
        ),
        "multihash at once": (lambda: multihash.range_search(near, RADIUS + 1), len(near)),
        "multihash one by one": (
            lambda: one_by_one(lambda q: multihash.range_search(q, RADIUS + 1), near),
            len(near),
        ),
    }
    return {
        "items_found_per_query": round(ball.offsets[-1] / len(few), 2),
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
        "table_bytes_per_item": round(index.nbytes / N_ITEMS - codes.shape[1], 1),
        "runs": in_turns(runs, repeats, "faiss"),
    }


def filtered(index, queries, repeats):
    rng = np.random.default_rng(0)
    few = queries[:16]
    allowed = {
        share: rng.choice(N_ITEMS, int(share * N_ITEMS), replace=False)
        for share in (0.01, 0.1, 0.5)
    }
    for ids in allowed.values():
        found = index.search(few[:2], K, allowed=ids)
        everything = index.search(few[:2], N_ITEMS).ids
        for row, order in zip(found.ids, everything, strict=True):
            assert np.array_equal(row, order[np.isin(order, ids)][:K])
    record = {}
    for way, call in (
        ("at once", lambda **options: index.search(few, K, **options)),
        ("one by one", lambda **o: one_by_one(lambda q: index.search(q, K, **o), few)),
    ):
        runs = {"unfiltered": (call, len(few))}
        for share, ids in allowed.items():
            runs[f"{share:.0%}"] = (lambda ids=ids, call=call: call(allowed=ids), len(few))
        record[way] = in_turns(runs, repeats, "unfiltered")
    return record


def opening(index, repeats):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        index.save(path)
        seconds = []
        for _ in range(2 * repeats):
            began = time.perf_counter()
            HammingIndex.load(path)
            seconds.append(time.perf_counter() - began)
        return {
            "file_bytes": path.stat().st_size,
            "best_milliseconds": round(1000 * min(seconds), 2),
            "median_milliseconds": round(1000 * float(np.median(seconds)), 2),
        }


def engines(codes, queries):
    record = {}
    for engine in ("flat", "ivf", "hnsw"):
        n_items = (
            200_000 if engine == "hnsw" else N_ITEMS
        )  # building a graph of a million takes minutes
        index = HammingIndex(8 * codes.shape[1], engine=engine)
        index.add(codes[:n_items])
        began = time.perf_counter()
        index.search(queries[:1], K)
        made = time.perf_counter() - began
        seconds = []
        for _ in range(3):
            began = time.perf_counter()
            index.search(queries, K)
            seconds.append((time.perf_counter() - began) / len(queries))
        record[engine] = {
            "items": n_items,
            "seconds_to_make": round(made, 2),
            "queries_per_second": round(1 / min(seconds)),
            "recall_at_10": round(index.recall(queries, K), 4),
        }
    return record


def memory():
    """Measure each way of filling an index in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        command = [sys.executable, __file__, "--measure-memory"]
        ways = ("at once", "in parts", "loaded", "loaded, radius 2")
        record = {}
        for way in ways:  # the first writes the file that later ones load
            done = subprocess.run(
                [*command, way, str(path)], check=True, capture_output=True, text=True
            )
            record[way] = json.loads(done.stdout)
        return {"items": N_MEMORY, "code_megabytes": N_MEMORY * 8 / 1e6, "ways": record}


def measure_memory(way, path):
    def resident():
        lines = Path("/proc/self/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        names = {"anonymous": "RssAnon", "mapped": "RssFile"}
        return {name: int(fields[key].split()[0]) * 1024 / 1e6 for name, key in names.items()}

    rng = np.random.default_rng(0)
    queries = random_codes(rng, 4, 64)
    index = HammingIndex(64)
    index.add(queries)
    index.search(queries, 1)  # after Faiss has been loaded and used
    parts = 10 if way == "in parts" else 1
    before = resident()
    if way.startswith("loaded"):
        index = HammingIndex.load(path)
    else:
        index = HammingIndex(64)
        for _ in range(parts):
            index.add(random_codes(rng, N_MEMORY // parts, 64))  # freed afterwards
    index.search(queries, K)
    if way.endswith("radius 2"):
        index.radius(random_codes(rng, 1_000, 64), 2)
    after = resident()
    added = {name: round(after[name] - before[name], 1) for name in after}
    total = sum(added.values())
    print(json.dumps(added | {"times_codes": round(total / (N_MEMORY * 8 / 1e6), 3)}))
    if way == "at once":
        index.save(path)


def show(record, title):
    print(f"\n{title}")
    for name, row in record.items():
        print(f"  {name:24}", "  ".join(f"{key} {value}" for key, value in row.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="output file of the record")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--measure-memory", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure_memory:
        measure_memory(*arguments.measure_memory)
        return
    record = {
        "items": N_ITEMS,
        "k": K,
        "threads": THREADS,
        "repeats": arguments.repeats,
        "numpy": np.__version__,
        "faiss": faiss.__version__,
        "usearch": usearch.__version__,
    }
    print(json.dumps(record))
    for n_bits in (64, 256):
        for kind in ("random", "crowded"):
            codes, queries = make_data(kind, n_bits)
            index, flat = HammingIndex(n_bits), faiss.IndexBinaryFlat(n_bits)
            index.add(codes)
            flat.add(codes)
            title = f"{n_bits} bits, {kind}"
            part = record[title] = {
                "k = 10": nearest_neighbours(index, flat, codes, queries, arguments.repeats),
                "filter": filtered(index, queries, arguments.repeats),
                "open": opening(index, arguments.repeats),
                "radius 2": small_radius(index, flat, codes, arguments.repeats),
            }
            for way, rows in part["k = 10"].items():
                show(rows, f"{title}: {K} nearest, {way}")
            for way, rows in part["filter"].items():
                show(rows, f"{title}: {K} nearest, filtered, {way}")
            found = {key: value for key, value in part["radius 2"].items() if key != "runs"}
            show(part["radius 2"]["runs"], f"{title}: radius {RADIUS}, {json.dumps(found)}")
            print(f"\n{title}: open {json.dumps(part['open'])}")
            if n_bits == 64:
                part["engines"] = engines(codes, queries)
                show(part["engines"], f"{title}: engines")
    record["memory"] = memory()
    show(record["memory"]["ways"], f"memory of {N_MEMORY} codes of 64 bits, MB")
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Time and memory of `evaluate` compared with a loop that sorts the database for each query.

1,000 queries, a database of 59,000 codes of 64 bits. `evaluate` reports all scores: mAP for three
tie orders, the first 10 and the first 5,000 ranks, radii 0 and 2, and bit statistics. The loop
computes mAP alone, for the tie order of the sort. It is optimised NumPy: XOR and bitwise_count on
64-bit words, one byte per distance, and np.argsort, which is a radix sort on bytes with
kind="stable". It is timed with both kinds of sort and two final steps: "cumsum" is the common one,
"positions" only visits the relevant ranks.

All variants run on one thread, in turn, in the same process. Compare ratios, not seconds.

    python benchmarks/metrics.py --json benchmarks/results/metrics.json
"""

import os

THREADS = 1
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(THREADS)

import argparse  # noqa: E402
import json  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402

from antipodal.codes import pack  # noqa: E402
from antipodal.evaluation.metrics import evaluate  # noqa: E402

N_QUERIES, N_ITEMS, N_BITS, N_CLASSES, N_CONCEPTS = 1_000, 59_000, 64, 10, 21
SIDES = ("query_codes", "database_codes", "query_labels", "database_labels")
OPTIONS = {"n_bits": N_BITS, "radii": (0, 2), "top": (10, 5_000)}


def make_data(seed=0):
    """Return codes of noisy prototypes: signs of random projections of classes in 8 dimensions."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, N_CLASSES, N_QUERIES + N_ITEMS)
    # An item has the concept of its class and up to two more.
    concepts = np.eye(N_CONCEPTS, dtype=np.uint8)
    shown = concepts[labels] | concepts[rng.integers(0, N_CONCEPTS, len(labels))]
    shown |= concepts[np.minimum(rng.geometric(0.2, len(labels)), N_CONCEPTS) - 1]
    prototypes = rng.standard_normal((N_CLASSES, 8))
    features = prototypes[labels] + 0.7 * rng.standard_normal((len(labels), 8))
    codes = pack(features @ rng.standard_normal((8, N_BITS)) > 0)
    parts = [np.split(values, [N_QUERIES]) for values in (codes, labels, shown)]
    return [dict(zip(SIDES, [*parts[0], *parts[i]], strict=True)) for i in (1, 2)]


def mean_average_precision(data, *, kind, tail):
    """Sort the database for each query; ties are in arbitrary order."""
    queries, database = (data[side].view(np.uint64)[:, 0] for side in SIDES[:2])
    query_labels, labels = (data[side] for side in SIDES[2:])
    if labels.ndim == 2:  # concepts as the bits of one integer
        query_labels, labels = (y @ (1 << np.arange(N_CONCEPTS)) for y in (query_labels, labels))
    ranks = np.arange(1, len(database) + 1)
    total = 0.0
    for query, label in zip(queries, query_labels, strict=True):
        order = np.argsort(np.bitwise_count(query ^ database), kind=kind)
        is_relevant = labels == label if data["query_labels"].ndim == 1 else labels & label != 0
        relevant = is_relevant[order]
        if tail == "cumsum":
            total += (np.cumsum(relevant) / ranks)[relevant].mean()
        else:
            places = np.flatnonzero(relevant) + 1
            total += (np.arange(1, len(places) + 1) / places).mean()
    return 100 * total / len(queries)


def compare(data, repeats):
    def peer(kind, tail):
        return lambda: mean_average_precision(data, kind=kind, tail=tail)

    runs = {
        "evaluate": lambda: evaluate(**data, **OPTIONS).map,
        "loop, stable sort, cumsum": peer("stable", "cumsum"),
        "loop, default sort, cumsum": peer(None, "cumsum"),
        "loop, stable sort, positions": peer("stable", "positions"),
    }
    times = {name: [] for name in runs}
    maps = {}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter(), time.process_time()
            maps[name] = run()
            if repeat:  # the first turn is a warm-up
                times[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
    ours = np.array(times["evaluate"])
    record = {}
    for name, seconds in times.items():
        (wall, cpu), ratio = np.min(seconds, axis=0), np.median(seconds / ours, axis=0)
        record[name] = {
            "map": round(maps[name], 3),
            "wall_seconds": round(wall, 4),
            "cpu_seconds": round(cpu, 4),
            "times_evaluate_wall": round(wall / ours[:, 0].min(), 2),
            "times_evaluate_cpu": round(cpu / ours[:, 1].min(), 2),
            "times_evaluate_wall_median": round(ratio[0], 2),
            "times_evaluate_cpu_median": round(ratio[1], 2),
        }
    return record


def peak_memory(data):
    """Return the MB that one call adds to the peak of a fresh process with the data loaded."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        np.savez(path, **data)
        command = [sys.executable, __file__, "--measure-memory", str(path)]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure_memory(path):
    def status(name):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))

    data = dict(np.load(path))
    # ru_maxrss of getrusage would start at the peak of the parent process.
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    evaluate(**data, **OPTIONS)
    print(round(status("VmHWM") - before, 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="output file of the record")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--measure-memory", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure_memory:
        measure_memory(arguments.measure_memory)
        return
    record = {
        "queries": N_QUERIES,
        "database": N_ITEMS,
        "bits": N_BITS,
        "threads": THREADS,
        "repeats": arguments.repeats,
        "numpy": np.__version__,
    }
    print(json.dumps(record))
    for name, data in zip(("one label", "21 concepts"), make_data(), strict=True):
        rows = compare(data, arguments.repeats)
        record[name] = {"runs": rows, "peak_memory_mb": peak_memory(data)}
        print(f"\n{name}: peak memory of evaluate {record[name]['peak_memory_mb']} MB")
        print(f"{'':30}    mAP   seconds of the best turn   times evaluate")
        print(f"{'':30}            wall      CPU     wall      CPU   (medians of all turns)")
        for run, row in rows.items():
            print(
                "{:30} {:6.2f} {:8.3f} {:8.3f} {:8.2f} {:8.2f}   ({:.2f}, {:.2f})".format(
                    run, *row.values()
                )
            )
        record[name]["evaluation"] = evaluate(**data, **OPTIONS).to_dict()
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

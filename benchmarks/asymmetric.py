"""Speed of asymmetric search: `HammingIndex.search(vectors=…)` compared with alternatives.

The ten best codes for single queries and batches of 64, on one thread, for 100,000 and a million
codes of 384 and 768 bits:

    ours        byte lookup tables in Faiss, then exact scores, ordered by (score, id); verified
                against sums over unpacked bits
    product     codes unpacked to 0 and 1 in blocks of 2,048 and multiplied with the queries; a
                threshold test replaces the selection of the best, so this is a lower bound
    numpy       byte lookup tables in NumPy
    rabitq      RaBitQ of Faiss, one bit per dimension, with float queries (qb = 0)
    rabitq8     the same with queries quantised to 8 bits (qb = 8), which changes the results;
                both are timed on few queries

Alternatives run in turn in the same process and are timed in CPU time. Compare ratios.

    python benchmarks/asymmetric.py --json benchmarks/results/asymmetric.json
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import argparse  # noqa: E402
import json  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

import faiss  # noqa: E402
import numpy as np  # noqa: E402

from antipodal.index import HammingIndex  # noqa: E402

K, N_MANY, BLOCK = 10, 64, 2048
PATTERNS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float32)


def by_product(codes, z):
    """Compute Σ z·b = 2·Σ_{bits set} z - Σ z; the second sum does not affect the order."""
    threshold = None
    for start in range(0, len(codes), BLOCK):
        block = np.unpackbits(codes[start : start + BLOCK], axis=1).astype(np.float32)
        scores = z @ block.T
        if threshold is None:
            threshold = np.partition(scores, -K, axis=1)[:, -K, None]
        (scores >= threshold).any()


def by_numpy_tables(codes, z):
    for query in z:
        tables = query.reshape(-1, 8) @ PATTERNS.T
        for start in range(0, len(codes), 2 * BLOCK):
            columns = np.ascontiguousarray(codes[start : start + 2 * BLOCK].T)
            scores = tables[0].take(columns[0])
            for table, column in zip(tables[1:], columns[1:], strict=True):
                scores += table.take(column)
            np.argpartition(-scores, K)


def rabitq(n_bits, n_codes, rng):
    index = faiss.IndexRaBitQ(n_bits, faiss.METRIC_INNER_PRODUCT)
    rows = rng.standard_normal((10_000, n_bits)).astype(np.float32)
    index.train(rows)
    for _ in range(n_codes // len(rows)):
        index.add(rows)
    return index


def rabitq_search(index, queries, qb):
    index.qb = qb
    index.search(queries, K)


def check(index, codes, z):
    scores = np.concatenate(
        [z @ (2.0 * np.unpackbits(part, axis=1) - 1).T for part in np.array_split(codes, 50)],
        axis=1,
    )
    found = index.search(vectors=z, k=K)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :K]
    assert np.array_equal(found.ids, expected)
    assert np.allclose(found.scores, np.take_along_axis(scores, expected, axis=1))


def measure(n_bits, n_codes, repeats):
    rng = np.random.default_rng(n_bits)
    codes = rng.integers(0, 256, (n_codes, n_bits // 8), dtype=np.uint8)
    z = rng.standard_normal((N_MANY, n_bits)).astype(np.float32)
    index = HammingIndex(n_bits)
    index.add(codes)
    check(index, codes, z[:2].astype(np.float64))
    peer = rabitq(n_bits, n_codes, rng)
    records = []
    for n_queries in (1, N_MANY):
        queries = z[:n_queries]
        few = queries[:2]
        runs = {
            "ours": (lambda queries=queries: index.search(vectors=queries, k=K), n_queries),
            "product": (lambda queries=queries: by_product(codes, queries), n_queries),
            "numpy": (lambda few=few: by_numpy_tables(codes, few), len(few)),
            "rabitq": (lambda few=few: rabitq_search(peer, few, 0), len(few)),
            "rabitq8": (lambda few=few: rabitq_search(peer, few, 8), len(few)),
        }
        seconds = {name: [] for name in runs}
        for turn in range(repeats + 1):
            for name, (run, n) in runs.items():
                began = time.process_time()
                run()
                if turn or repeats == 0:  # warm-up
                    seconds[name].append((time.process_time() - began) / n)
        best = {name: min(times) for name, times in seconds.items()}
        records.append(
            {
                "bits": n_bits,
                "codes": n_codes,
                "queries_at_once": n_queries,
                "milliseconds_per_query": {n: round(1000 * s, 2) for n, s in best.items()},
                "times_faster_than": {
                    n: round(s / best["ours"], 2) for n, s in best.items() if n != "ours"
                },
            }
        )
        print(json.dumps(records[-1]), flush=True)
    return records


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="output file of the record")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--codes", default="100000,1000000")
    arguments = parser.parse_args()
    record = {
        "faiss": faiss.__version__,
        "threads": 1,
        "records": [
            entry
            for n_codes in map(int, arguments.codes.split(","))
            for n_bits in (384, 768)
            for entry in measure(n_bits, n_codes, arguments.repeats)
        ],
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")

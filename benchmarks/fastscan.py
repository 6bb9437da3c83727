"""Speed of asymmetric search: `HammingIndex.search(vectors=…)` compared with alternatives.

The ten best codes for single queries and batches of 64, on one thread, for a million codes:

    ours        FastScan, then exact scores, ordered by (score, id); verified against sums over
                unpacked bits
    bytes       byte tables in single precision, then exact scores: the search of version 0.7
    rabitqfs    RaBitQ of Faiss with FastScan, one bit per dimension
    rabitq8     RaBitQ of Faiss without FastScan, with queries quantised to 8 bits; timed on few
                queries

`--filters` measures searches among a random share of the items, with FastScan over all rows and
with byte tables over the allowed rows. `--ivf` compares `engine="ivf"` with the exhaustive search
of clustered codes, and `--ivf-data` their recall on real vectors, by the number of lists that a
query probes: 384 bits of `LinfHash.asymmetric`, 1,000 rows as queries. It also records the share of
these results that Faiss returns for the file of `to_faiss`. Alternatives run in turn in the same
process and are timed in CPU time. Compare ratios.

    python benchmarks/fastscan.py --json benchmarks/results/fastscan.json
    python benchmarks/fastscan.py --filters --json benchmarks/results/fastscan-filters.json
    python benchmarks/fastscan.py --ivf 4000000 --json benchmarks/results/fastscan-ivf.json
    python benchmarks/fastscan.py --json benchmarks/results/fastscan-ivf-data.json --ivf-data
        cifar_effnet.npz clinc150_minilm.npz banking77_minilm.npz
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import argparse  # noqa: E402
import json  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

import faiss  # noqa: E402
import numpy as np  # noqa: E402

from antipodal import LinfHash  # noqa: E402
from antipodal.index import HammingIndex, fastscan  # noqa: E402
from antipodal.index.asymmetric import best_rows  # noqa: E402

K, N_MANY = 10, 64


def fastest(runs, repeats):
    """Return the milliseconds per query of each run, (function, n_queries), best of some turns."""
    seconds = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, (run, n) in runs.items():
            began = time.process_time()
            run()
            if turn:  # the first turn is for warming up
                seconds[name].append((time.process_time() - began) / n)
    return {name: round(1000 * min(times), 3) for name, times in seconds.items()}


def check(index, codes, z):
    scores = np.concatenate(
        [z @ (2.0 * np.unpackbits(part, axis=1) - 1).T for part in np.array_split(codes, 50)],
        axis=1,
    )
    found = index.search(vectors=z, k=K)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :K]
    assert np.array_equal(found.ids, expected)
    assert np.allclose(found.scores, np.take_along_axis(scores, expected, axis=1))


def filled(index, n_codes, rng):
    rows = rng.standard_normal((10_000, index.d)).astype(np.float32)
    index.train(rows)
    for _ in range(n_codes // len(rows)):
        index.add(rows)
    return index


def packed_index(codes, z):
    index = HammingIndex(8 * codes.shape[1])
    index.add(codes)
    began = time.process_time()
    index.search(vectors=z[:N_MANY], k=K)
    return index, round(time.process_time() - began, 2)


def measure(n_bits, n_codes, repeats):
    rng = np.random.default_rng(n_bits)
    codes = rng.integers(0, 256, (n_codes, n_bits // 8), dtype=np.uint8)
    z = rng.standard_normal((N_MANY, n_bits)).astype(np.float32)
    index, first = packed_index(codes, z)
    check(index, codes, z[:2].astype(np.float64))
    fs = filled(faiss.IndexRaBitQFastScan(n_bits, faiss.METRIC_INNER_PRODUCT), n_codes, rng)
    plain = filled(faiss.IndexRaBitQ(n_bits, faiss.METRIC_INNER_PRODUCT), n_codes, rng)
    plain.qb = 8
    records = []
    for n in (1, N_MANY):
        few = z[: min(n, 4)]
        runs = {
            "ours": (lambda n=n: index.search(vectors=z[:n], k=K), n),
            "bytes": (lambda few=few: best_rows(few.astype(np.float64), codes, K), len(few)),
            "rabitqfs": (lambda n=n: fs.search(z[:n], K), n),
            "rabitq8": (lambda few=few: plain.search(few, K), len(few)),
        }
        best = fastest(runs, repeats)
        ratios = {m: round(best[m] / best["ours"], 2) for m in best if m != "ours"}
        records.append(
            {
                "bits": n_bits,
                "codes": n_codes,
                "queries_at_once": n,
                "milliseconds_per_query": best,
                "times_faster_than": ratios,
                "seconds_of_first_search": first,
            }
        )
        print(json.dumps(records[-1]), flush=True)
    return records


def measure_filters(n_codes, repeats):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (n_codes, 48), dtype=np.uint8)
    z = rng.standard_normal((N_MANY, 384))
    index, _ = packed_index(codes, z)
    records = []
    for share in (0.01, 0.05, 0.08, 0.1, 0.2, 0.5, 0.9):
        allowed = np.flatnonzero(rng.random(n_codes) < share)

        def run(divisor, allowed=allowed):
            fastscan._MIN_ALLOWED_SHARE = divisor
            index.search(vectors=z[:1], k=K, allowed=allowed)

        runs = {
            "fastscan": (lambda run=run: run(n_codes), 1),
            "bytes": (lambda run=run: run(0), 1),
        }
        best = fastest(runs, repeats)
        records.append({"share": share, "codes": n_codes, "milliseconds_per_query": best})
        print(json.dumps(records[-1]), flush=True)
    return records


def measure_ivf(n_codes, repeats):
    """Signs of 384 projections of vectors with 24 dimensions, in clusters of about 1,000."""
    rng = np.random.default_rng(1)
    centres = rng.standard_normal((n_codes // 1000, 24)).astype(np.float32)
    W = rng.standard_normal((24, 384)).astype(np.float32)

    def vectors(n):
        noise = rng.standard_normal((n, 24), dtype=np.float32)
        return (centres[rng.integers(0, len(centres), n)] + 0.5 * noise) @ W

    blocks = [min(100_000, n_codes - start) for start in range(0, n_codes, 100_000)]
    codes = np.concatenate([np.packbits(vectors(n) > 0, axis=1) for n in blocks])
    z = vectors(200).astype(np.float64)
    index = HammingIndex(384, engine="ivf")
    index.add(codes)
    began = time.process_time()
    index.search(vectors=z[:1], k=K)
    seconds = time.process_time() - began
    exhaustive = HammingIndex(384)
    exhaustive._segments, exhaustive._packed = index._segments, index._packed
    exact = exhaustive.search(vectors=z, k=K)
    lists = index._approximate._lists.index
    default, records = lists.nprobe, []
    for n_probed in (default // 2, default, 2 * default):
        index.n_probe = n_probed
        runs = {}
        for n in (1, N_MANY):
            runs[f"ivf, {n}"] = (lambda n=n: index.search(vectors=z[:n], k=K), n)
            runs[f"exhaustive, {n}"] = (lambda n=n: exhaustive.search(vectors=z[:n], k=K), n)
        best = fastest(runs, repeats)
        found = index.search(vectors=z, k=K)
        records.append(
            {
                "bits": 384,
                "codes": n_codes,
                "lists": lists.nlist,
                "probed": n_probed,
                "is_default": n_probed == default,
                "recall": round(float(np.mean(found.scores >= exact.scores[:, -1:])), 4),
                "seconds_to_build": round(seconds, 1),
                "milliseconds_per_query": best,
                "times_faster_than_exhaustive": {
                    n: round(best[f"exhaustive, {n}"] / best[f"ivf, {n}"], 2) for n in (1, N_MANY)
                },
            }
        )
        print(json.dumps(records[-1]), flush=True)
    return records


def measure_ivf_data(path):
    """Return the share of the exhaustive top 10 that IVF finds, by the number of probed lists."""
    X = np.load(path)["X"].astype(np.float32)
    X = X[np.random.default_rng(0).permutation(len(X))]
    queries, rows = X[:1000], X[1000:]
    hasher = LinfHash.asymmetric(384, random_state=0).fit(rows)
    codes, z = hasher.encode(rows), hasher.query(queries)
    exhaustive = HammingIndex(384)
    index = HammingIndex(384, engine="ivf", dictionary=hasher.dictionary_)
    for made in (exhaustive, index):
        made.add(codes)
        made.search(vectors=z[:1], k=K)
    exact = exhaustive.search(vectors=z, k=K)
    with tempfile.TemporaryDirectory() as folder:
        hasher.to_faiss(codes, Path(folder) / "items.faiss")
        _, ids = faiss.read_index(f"{folder}/items.faiss").search(queries, K)
    shared = [np.isin(*pair).mean() for pair in zip(exact.ids, ids, strict=True)]
    records = [{"data": Path(path).stem, "to_faiss_agreement": round(float(np.mean(shared)), 4)}]
    print(json.dumps(records[0]), flush=True)
    n_lists = index._approximate._lists.index.nlist
    for n_probed in (4, 8, 16, 24, 32, 48, 64):
        index.n_probe = n_probed
        found = index.search(vectors=z, k=K)
        records.append(
            {
                "data": Path(path).stem,
                "codes": len(codes),
                "lists": n_lists,
                "probed": n_probed,
                "recall": round(float(np.mean(found.scores >= exact.scores[:, -1:])), 4),
            }
        )
        print(json.dumps(records[-1]), flush=True)
    return records


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="output file of the record")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--codes", type=int, default=1_000_000)
    parser.add_argument("--filters", action="store_true")
    parser.add_argument("--ivf", type=int, metavar="CODES")
    parser.add_argument("--ivf-data", nargs="+", metavar="FILE", help=".npz files with vectors X")
    arguments = parser.parse_args()
    if arguments.ivf_data:
        entries = [entry for path in arguments.ivf_data for entry in measure_ivf_data(path)]
    elif arguments.ivf:
        entries = measure_ivf(arguments.ivf, arguments.repeats)
    elif arguments.filters:
        entries = measure_filters(arguments.codes, arguments.repeats)
    else:
        entries = [
            entry
            for n_bits in (384, 768)
            for entry in measure(n_bits, arguments.codes, arguments.repeats)
        ]
    record = {"faiss": faiss.__version__, "threads": 1, "records": entries}
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")

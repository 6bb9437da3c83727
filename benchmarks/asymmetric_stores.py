"""Asymmetric search in PostgreSQL and Milvus: times, and the recall of candidates in Milvus.

    python benchmarks/asymmetric_stores.py FILE.npz … --json RECORD.jsonl

postgresql  100,000 random codes of 384 bits: the first search, which reads all codes into memory,
            later single searches, the first search after another client has replaced 1,000 items,
            and searches with a filter that a tenth of the items match
milvus      rows of each file (X, scaled to length 1), without 500 queries, as codes of
            `LinfHash.asymmetric`: recall@10 against brute force with floats, of all codes scored
            (`HammingIndex`) and of the store, without and with a filter that a tenth of the items
            match, and the share of the former's items among the latter's; milliseconds per search

Milvus is Milvus Lite on the same machine. Times are medians of single queries. The record in
benchmarks/results is that of clinc150_minilm.npz, on whose queries the number of candidates was
chosen, and of cifar_effnet.npz, which was not used to choose it.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from antipodal import HammingIndex, LinfHash
from antipodal.stores import Store, open_store

sys.path.insert(0, str(Path(__file__).parents[1] / "campaigns"))
from servers import Engines, running_engines

K, N_QUERIES, N_ROWS, N_BITS, N_TIMED = 10, 500, 100_000, 384, 20
SOME = {"label": 3}


def milliseconds(call: Callable[[], object], n_times: int = 1) -> float:
    times = []
    for _ in range(n_times):
        began = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - began))
    return float(f"{median(times):.3g}")


def fill(store: Store, codes: Any) -> None:
    store.load(None, codes, [{"label": i % 10} for i in range(len(codes))])


def postgresql(engines: Engines) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (N_ROWS, N_BITS // 8), dtype=np.uint8)
    z = rng.standard_normal((1, N_BITS))
    url = engines.url("postgresql", "asymmetric")
    with open_store(url, n_bits=N_BITS) as other, open_store(url) as store:
        load = milliseconds(lambda: fill(other, codes))
        first = milliseconds(lambda: store.search(vectors=z, k=K))
        later = milliseconds(lambda: store.search(vectors=z, k=K), N_TIMED)
        first_filtered = milliseconds(lambda: store.search(vectors=z, k=K, where=SOME))
        filtered = milliseconds(lambda: store.search(vectors=z, k=K, where=SOME), N_TIMED)
        other.upsert(np.arange(1000), codes[1000:2000])
        changed = milliseconds(lambda: store.search(vectors=z, k=K))
        hamming = milliseconds(lambda: store.search(codes[:1], K), N_TIMED)
    return {
        "engine": "postgresql",
        "rows": N_ROWS,
        "bits": N_BITS,
        "load_ms": load,
        "first_ms": first,
        "later_ms": later,
        "first_filtered_ms": first_filtered,
        "later_filtered_ms": filtered,
        "after_1000_changes_ms": changed,
        "hamming_ms": hamming,
    }


def shared(found: Any, expected: Any) -> float:
    same = [np.isin(a, b).mean() for a, b in zip(found, expected, strict=True)]
    return round(float(np.mean(same)), 4)


def milvus(engines: Engines, X: Any, n_bits: int) -> dict[str, Any]:
    order = np.random.default_rng(0).permutation(len(X))
    queries, rows = X[order[:N_QUERIES]], X[order[N_QUERIES:]]
    hasher = LinfHash.asymmetric(n_bits, random_state=0).fit(rows[:5000])
    codes, z = hasher.encode(rows), hasher.query(queries)
    index = HammingIndex(n_bits)
    index.add(codes)
    some = np.arange(3, len(rows), 10)
    name = f"asymmetric_{len(rows)}_{n_bits}"
    with open_store(engines.url("milvus", name), n_bits=n_bits) as store:
        fill(store, codes)
        results = {}
        for name, where, allowed in (("all", None, np.arange(len(rows))), ("some", SOME, some)):
            true = allowed[np.argsort(-(queries @ rows[allowed].T), axis=1)[:, :K]]
            brute = index.search(vectors=z, k=K, allowed=allowed).ids
            found = store.search(vectors=z, k=K, where=where).ids
            results[name] = {
                "recall_index": shared(true, brute),
                "recall_milvus": shared(true, found),
                "recall_signs": shared(
                    true, store.search(np.packbits(z > 0, axis=1), K, where=where).ids
                ),
                "of_index": shared(brute, found),
                "ms": milliseconds(
                    lambda w=where: store.search(vectors=z[:1], k=K, where=w), N_TIMED
                ),
            }
        results["ms_40"] = milliseconds(lambda: store.search(vectors=z[:1], k=4 * K), N_TIMED)
    return {"engine": "milvus", "rows": len(rows), "bits": n_bits, **results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vectors", type=Path, nargs="+")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with running_engines() as engines:
        records = [postgresql(engines)]
        for path in arguments.vectors:
            X = np.load(path)["X"].astype(np.float32)
            X /= np.linalg.norm(X, axis=1, keepdims=True)
            for n_bits in (384, 768):
                records.append({"data": path.stem, **milvus(engines, X, n_bits)})
                print(json.dumps(records[-1]), flush=True)
    text = "\n".join(json.dumps(record) for record in records) + "\n"
    print(text, end="")
    if arguments.json:
        arguments.json.write_text(text)


if __name__ == "__main__":
    main()

"""Recall@10 through every route to a collection, next to brute force over the same codes.

    python benchmarks/routes.py FOLDER --json benchmarks/results/routes.json

FOLDER has clinc150_minilm.npz, whose rows are split into 22,000 items and 500 queries, and
scifact_minilm.npz, of which 500 queries are used. A collection is built by `antipodal build` from a
parquet file with string ids, with vectors kept as int8, and searched in Python, by the command
line, over HTTP (JSON, and `Client`), and by the ids of 500 items. PostgreSQL and Milvus Lite get
collections of the same model. Each route is run without and with rerank=4. Recall is measured
against brute force with floats; `codes` is that of brute force over the codes, in NumPy, and
`audit` that which `antipodal.audit` measures on the items alone.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import requests
from numpy.typing import NDArray

from antipodal import Client, Collection, __version__, audit

sys.path.insert(0, str(Path(__file__).parents[1] / "campaigns"))
from servers import running_engines

K, N_QUERIES, RERANK, BITS = 10, 500, 4, (384, 768)
PORT = 18_765
COMMAND = [sys.executable, "-m", "antipodal"]


def data_sets(folder: Path) -> Iterator[tuple[str, NDArray[Any], NDArray[Any]]]:
    """Yield the name, the items and the queries of each data set."""
    rows = np.load(folder / "clinc150_minilm.npz")["X"].astype(np.float32)
    order = np.random.default_rng(0).permutation(len(rows))
    yield "CLINC150", rows[order[N_QUERIES:]], rows[order[:N_QUERIES]]
    scifact = np.load(folder / "scifact_minilm.npz")
    items, queries = (scifact[name].astype(np.float32) for name in ("documents", "queries"))
    yield "SciFact", items, queries[:N_QUERIES]


def top(scores: NDArray[Any], k: int) -> NDArray[np.int64]:
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def recall(found: Any, true: NDArray[Any]) -> float:
    """Return the share of true neighbours found; ids are the rows, or strings of them."""
    rows = np.array([[int(str(i).removeprefix("row-")) for i in one] for one in found])
    shares = [np.isin(a, b).mean() for a, b in zip(true, rows, strict=True)]
    return round(float(np.mean(shares)), 4)


def normalised(rows: NDArray[Any]) -> NDArray[np.float64]:
    return rows / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)


def reranked(candidates: NDArray[Any], cosines: NDArray[Any]) -> NDArray[Any]:
    best = top(np.take_along_axis(cosines, candidates, axis=1), K)
    return np.take_along_axis(candidates, best, axis=1)


@contextmanager
def service(place: str) -> Iterator[str]:
    """Run `antipodal serve`, and yield its address."""
    url = f"http://127.0.0.1:{PORT}"
    process = subprocess.Popen([*COMMAND, "serve", place, "--port", str(PORT)])
    try:
        while True:
            try:
                requests.get(f"{url}/readyz", timeout=60).raise_for_status()
                break
            except requests.RequestException:
                if process.poll() is not None:
                    raise
                time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()


def by_command(place: str, queries: Path, rerank: int | None) -> list[list[str]]:
    options = [] if rerank is None else ["--rerank", str(rerank)]
    command = [*COMMAND, "search", place, str(queries), "-k", str(K), "--json", *options]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [json.loads(line)["ids"] for line in output.splitlines()]


def by_http(url: str, body: dict[str, Any], rerank: int | None) -> Any:
    request = {"k": K, "items": False, **body}
    if rerank is not None:
        request["rerank"] = rerank
    response = requests.post(f"{url}/v1/search", json=request, timeout=600)
    response.raise_for_status()
    return response.json()


def measure(
    name: str, items: NDArray[Any], queries: NDArray[Any], n_bits: int, folder: Path, engines: Any
) -> dict[str, Any]:
    """Return the record of one data set and code length."""
    ids = [f"row-{i}" for i in range(len(items))]
    source, asked = folder / f"{name}.parquet", folder / f"{name}-queries.npy"
    pq.write_table(pa.table({"id": ids, "embedding": list(items)}), source)
    np.save(asked, queries)
    place = str(folder / f"{name}-{n_bits}.db")
    build = ["build", f"{source}:embedding", "--id-column", "id", "--bits", str(n_bits)]
    keep = ["--keep-vectors", "int8", "--out", place]
    subprocess.run([*COMMAND, *build, *keep], check=True, stdout=subprocess.DEVNULL)

    unit = normalised(items)
    cosines = normalised(queries) @ unit.T
    of_items = unit[:N_QUERIES] @ unit.T
    np.fill_diagonal(of_items, -np.inf)  # an item is left out of its own results
    true, true_of_items = top(cosines, K), top(of_items, K)

    routes: dict[str, list[float | None]] = {}
    with Collection.open(place) as docs, service(place) as url, Client(url) as client:
        model = docs.model
        signs = np.where(np.unpackbits(model.encode(items), axis=1)[:, :n_bits], 1.0, -1.0)
        scores = model.query(queries) @ signs.T
        own = model.query(items[:N_QUERIES]) @ signs.T
        np.fill_diagonal(own, -np.inf)
        n_candidates = RERANK * K
        routes["codes"] = [
            recall(top(scores, K), true),
            recall(reranked(top(scores, n_candidates), cosines), true),
        ]
        routes["codes, by item"] = [
            recall(top(own, K), true_of_items),
            recall(reranked(top(own, n_candidates), of_items), true_of_items),
        ]
        searches: dict[str, Any] = {
            "Python": lambda r: docs.search(queries, K, rerank=r).ids,
            "command line": lambda r: by_command(place, asked, r),
            "HTTP": lambda r: [
                [hit["id"] for hit in one["results"]]
                for some in np.array_split(queries, 10)  # a JSON body has at most 1 MiB
                for one in by_http(url, {"vectors": some.tolist()}, r)["searches"]
            ],
            "Client": lambda r: client.search(queries, K, rerank=r).ids,
        }
        by_item: dict[str, Any] = {
            "Python, by item": lambda r: docs.search(ids=ids[:N_QUERIES], k=K, rerank=r).ids,
            "HTTP, by item": lambda r: [
                [hit["id"] for hit in by_http(url, {"id": i}, r)["results"]]
                for i in ids[:N_QUERIES]
            ],
        }
        for route, search in (searches | by_item).items():
            expected = true_of_items if route in by_item else true
            routes[route] = [recall(search(r), expected) for r in (None, RERANK)]
        table = f"{name}_{n_bits}".lower()
        options: dict[str, Any] = {"ids": ids, "model": model}
        with Collection.create(
            engines.url("postgresql", table), items, keep_vectors="int8", **options
        ) as other:
            routes["PostgreSQL"] = [
                recall(other.search(queries, K, rerank=r).ids, true) for r in (None, RERANK)
            ]
        with Collection.create(engines.url("milvus", table), items, **options) as other:
            routes["Milvus Lite"] = [recall(other.search(queries, K).ids, true), None]

    found = audit(items, [n_bits], methods=["LinfHash.asymmetric"], baselines="none")
    [promised] = [r for r in found.records() if r.get("search") == "asymmetric"]
    routes["audit"] = [round(promised["recall"], 4), round(promised["recall_x4"], 4)]
    return {"data": name, "items": len(items), "queries": len(queries), "bits": n_bits,
            "routes": routes}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    records = []
    with tempfile.TemporaryDirectory() as folder, running_engines() as engines:
        for name, items, queries in data_sets(arguments.folder):
            for n_bits in BITS:
                record = measure(name, items, queries, n_bits, Path(folder), engines)
                print(json.dumps(record), flush=True)
                records.append(record)
    content = {"version": __version__, "k": K, "rerank": RERANK, "runs": records}
    arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""`LinfHash.asymmetric` with other metrics, dictionaries of other texts, and vector prefixes.

    python benchmarks/code_variants.py --data DIR --json benchmarks/results/code_variants.jsonl

DIR has the files of the data sets, also those of embedding_sets.py. Recall@10, one seed:

    metric      codes of cifar_effnet for inner products and distances: of the vectors, of the
                vectors after `CosineReduction`, and product quantisation of the same size
    dictionary  codes of CLINC150 and banking77 with a dictionary of other texts (gcide-minilm),
                of 5,000 rows of the set, and of the searched rows
    prefix      codes of the first dimensions of WordLlama's vectors, which are trained for it;
                neighbours are those of all 256 dimensions

Recorded rows are not measured again. Without gcide-wordllama.npz there are no prefixes.
"""

import argparse
import json
from pathlib import Path

import faiss
import numpy as np
from descent import load, nearest, unit

from antipodal import CosineReduction, LinfHash, unpack
from antipodal.bench.records import appending

N_METRIC = 640


def recall(truth, found):
    return float(np.mean([np.isin(a, b).mean() for a, b in zip(truth, found, strict=True)]))


def search(hasher, Q, X):
    """Return the nearest rows by codes."""
    codes = 2 * unpack(hasher.encode(X), hasher.n_bits).astype(np.float32) - 1
    return nearest(hasher.query(Q) @ codes.T)


def fitted(n_bits, rows):
    return LinfHash.asymmetric(n_bits, random_state=0).fit(rows)


def metrics(data):
    X = np.load(data / "cifar_effnet.npz")["X"].astype(np.float32)
    X = X[np.random.default_rng(0).permutation(len(X))]
    Q, X = X[:1000], X[1000:]
    products = Q @ X.T
    squares = np.vecdot(X, X)
    truths = {
        "cosine": nearest(products / np.sqrt(squares)),
        "dot": nearest(products),
        "euclidean": nearest(2 * products - squares),
    }

    def plain():
        found = search(fitted(N_METRIC, X), Q, X)
        return {metric: recall(truth, found) for metric, truth in truths.items()}

    def reduced(metric):
        reduction = CosineReduction(metric).fit(X)
        items = reduction.items(X)
        return recall(truths[metric], search(fitted(N_METRIC, items), reduction.queries(Q), items))

    def quantised(metric):
        kind = faiss.METRIC_INNER_PRODUCT if metric == "dot" else faiss.METRIC_L2
        index = faiss.index_factory(X.shape[1], f"PQ{N_METRIC // 8}x8np", kind)
        index.train(X)
        index.add(X)
        return recall(truths[metric], index.search(Q, 10)[1])

    yield {"part": "metric", "code": "vectors"}, plain
    for metric in ("dot", "euclidean"):
        key = {"part": "metric", "metric": metric}
        yield {**key, "code": "reduced"}, lambda metric=metric: reduced(metric)
        yield {**key, "code": "PQ80"}, lambda metric=metric: quantised(metric)


def dictionaries(data):
    others = {}
    for n_bits in (192, 384):
        for name in ("clinc150", "banking77"):
            Q, X, train = load(data, name)
            truth = nearest(Q @ X.T)
            for source in ("other texts", "5,000 rows", "searched rows"):

                def run(Q=Q, X=X, train=train, truth=truth, n_bits=n_bits, source=source):
                    if source == "other texts":
                        if n_bits not in others:
                            rows = unit(np.load(data / "gcide-minilm.npz")["rows"])
                            others[n_bits] = fitted(n_bits, rows)
                        hasher = others[n_bits]
                    else:
                        hasher = fitted(n_bits, X if source == "searched rows" else train)
                    return recall(truth, search(hasher, Q, X))

                yield {"part": "dictionary", "data": name, "bits": n_bits, "fit": source}, run


def prefixes(data):
    path = data / "gcide-wordllama.npz"
    if not path.exists():
        return
    file = np.load(path)
    Q, X = unit(file["queries"]), unit(file["rows"][:30_000])
    truth = nearest(Q @ X.T)
    for n_dims in (64, 128, 256):
        rows, queries = unit(X[:, :n_dims]), unit(Q[:, :n_dims])
        key = {"part": "prefix", "dimensions": n_dims}
        yield (
            {**key, "bits": 32 * n_dims},
            lambda rows=rows, queries=queries: recall(truth, nearest(queries @ rows.T)),
        )
        for n_bits in (128, 256, 512):

            def run(rows=rows, queries=queries, n_bits=n_bits):
                return recall(truth, search(fitted(n_bits, rows), queries, rows))

            yield {**key, "bits": n_bits}, run


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    with appending(options.json) as file:
        done = [{k: v for k, v in record.items() if k != "recall"} for record in file.found]
        for part in (dictionaries, prefixes, metrics):
            for key, run in part(options.data):
                if key in done:
                    continue
                found = run()
                if isinstance(found, dict):
                    found = {metric: round(value, 4) for metric, value in found.items()}
                else:
                    found = round(found, 4)
                record = {**key, "recall": found}
                print(json.dumps(record), flush=True)
                file.append(record)


if __name__ == "__main__":
    main()

"""Cross-validation of settings on labelled rows that are not queries.

A fold is held out, a hasher is fitted on the others, and each half of the held-out rows retrieves
the other half. No row retrieves itself, which would favour codes that are all distinct. Settings
are methods with parameters, one per line, in the syntax of `antipodal bench --methods`. A fixed
number of rows per class is used. Rows of CIFAR-10 GIST are queries of no seed from 0 to 9 of the
paper's protocol.

With --unlabelled, methods that support it also learn from unlabelled rows. Per class, some rows are
queries and some have labels; all rows except the queries form the database, as in `antipodal
bench`.

python benchmarks/validation.py cifar10:DIR digits banking77_minilm.npz \
    --settings benchmarks/settings.txt > benchmarks/results/validation.jsonl
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold

from antipodal import evaluate
from antipodal.bench.runner import load_dataset
from antipodal.hashers.registry import make_hasher


def rows_of(source: str, per_class: int) -> tuple[str, np.ndarray, np.ndarray]:
    """Return name, X and y, with a limited number of rows per class drawn with a fixed seed."""
    name, _, directory = source.partition(":")
    if name in ("cifar10", "digits"):
        dataset = load_dataset(name, directory or None)
    else:
        dataset = load_dataset("arrays", source)
    X, y = np.asarray(dataset.features), dataset.labels
    allowed = np.ones(len(y), bool)
    for seed in range(10) if name == "cifar10" else ():
        allowed[dataset.split("paper", seed).query] = False
    rng = np.random.default_rng(0)
    chosen = [rng.permutation(np.flatnonzero(allowed & (y == c)))[:per_class] for c in np.unique(y)]
    rows = np.sort(np.concatenate(chosen))
    return dataset.name, X[rows], y[rows]


def scores(
    X: np.ndarray, y: np.ndarray, method: str, bits: int, folds: int, use: int
) -> Iterator[dict]:
    """Yield the scores of each held-out fold."""
    splitter = StratifiedKFold(folds, shuffle=True, random_state=0)
    for i, (train, held_out) in enumerate(splitter.split(X, y)):
        if i == use:
            return
        began = time.perf_counter()
        hasher = make_hasher(method, bits, i).fit(X[train], y[train])
        seconds = time.perf_counter() - began
        codes, labels = hasher.encode(X[held_out]), y[held_out]
        halves = StratifiedKFold(2, shuffle=True, random_state=i).split(codes, labels)
        results = [
            evaluate(codes[a], codes[b], labels[a], labels[b], n_bits=bits).to_dict()
            for a, b in halves
        ]
        yield {
            key: statistics.mean(result[key] for result in results)
            for key in ("map", "precision_r2", "recall_r2")
        } | {"seconds": seconds}


def scores_in_database(
    X: np.ndarray, y: np.ndarray, method: str, bits: int, per_class: tuple[int, int], use: int
) -> Iterator[dict]:
    """Yield the scores of several splits into queries, labelled and unlabelled rows."""
    n_train, n_query = per_class
    for seed in range(use):
        rng = np.random.default_rng(1000 + seed)
        cuts = [n_query, n_query + n_train]
        parts = [np.split(rng.permutation(np.flatnonzero(y == c)), cuts) for c in np.unique(y)]
        query, train, others = (np.sort(np.concatenate(part)) for part in zip(*parts, strict=True))
        hasher = make_hasher(method, bits, seed)
        options = {"unlabelled": X[others]} if hasher.uses_unlabelled else {}
        began = time.perf_counter()
        hasher.fit(X[train], y[train], **options)
        seconds = time.perf_counter() - began
        database = np.concatenate([train, others])
        found = evaluate(
            hasher.encode(X[query]), hasher.encode(X[database]), y[query], y[database], n_bits=bits
        ).to_dict()
        yield {key: found[key] for key in ("map", "precision_r2", "recall_r2")} | {
            "seconds": seconds
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="+", help="cifar10:DIR, digits, or .npz files")
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--per-class", type=int, default=200)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--use", type=int, default=3, help="number of folds to run")
    parser.add_argument(
        "--unlabelled", type=int, nargs=2, metavar=("LABELLED", "QUERIES"),
        help="labelled rows and queries per class; the rest, up to --per-class, is unlabelled",
    )  # fmt: skip
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = [rows_of(source, options.per_class) for source in options.sources]
    for method in options.settings.read_text().split():
        for name, X, y in data:
            if options.unlabelled:
                split = tuple(options.unlabelled)
                runs = list(scores_in_database(X, y, method, options.bits, split, options.use))
            else:
                runs = list(scores(X, y, method, options.bits, options.folds, options.use))
            means = {key: round(statistics.mean(r[key] for r in runs), 2) for key in runs[0]}
            spread = round(statistics.stdev(r["map"] for r in runs), 2) if len(runs) > 1 else 0.0
            record = {"data": name, "rows": len(y), "bits": options.bits, "method": method}
            if options.unlabelled:
                record |= {"labelled": split[0], "queries": split[1]}
            print(json.dumps(record | means | {"map_sd": spread}), flush=True)


if __name__ == "__main__":
    main()

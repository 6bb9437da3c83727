"""Compare settings of `DeepLinf` by cross-validation, on labelled rows that are not queries.

Each file holds training rows only, as X and y. A fold is held out, a hasher is fitted on the
others, and one half of the held-out rows retrieves the other, and the other way round: their
codes were not trained on, like nearly all of a real database, and no row finds itself, which
would favour codes that are all different. Settings are JSON objects, one a line.

python benchmarks/validation.py digits banking77.npz --settings settings.jsonl --bits 64
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import StratifiedKFold

from antipodal import DeepLinf, evaluate


def rows_of(source: str) -> tuple[np.ndarray, np.ndarray]:
    """Return X and y of a file, or of the digits that scikit-learn ships."""
    if source == "digits":
        return load_digits(return_X_y=True)
    with np.load(source) as data:
        return np.asarray(data["X"], np.float32), data["y"]


def scores(
    X: np.ndarray, y: np.ndarray, settings: dict, bits: int, folds: int, use: int
) -> Iterator[dict]:
    """Yield the scores of each held-out fold."""
    splitter = StratifiedKFold(folds, shuffle=True, random_state=0)
    for i, (train, held_out) in enumerate(splitter.split(X, y)):
        if i == use:
            return
        began = time.perf_counter()
        hasher = DeepLinf(bits, random_state=i, **settings).fit(X[train], y[train])
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="+", help="digits, or .npz files with X and y")
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--use", type=int, default=3, help="how many of the folds to run")
    options = parser.parse_args()
    for line in options.settings.read_text().splitlines():
        settings = json.loads(line)
        for source in options.sources:
            runs = list(
                scores(*rows_of(source), settings, options.bits, options.folds, options.use)
            )
            means = {k: round(statistics.mean(r[k] for r in runs), 2) for k in runs[0]}
            spread = round(statistics.stdev(r["map"] for r in runs), 2) if len(runs) > 1 else 0.0
            record = {"data": Path(source).stem, "bits": options.bits, "settings": settings}
            print(json.dumps(record | means | {"map_sd": spread}))
            sys.stdout.flush()


if __name__ == "__main__":
    main()

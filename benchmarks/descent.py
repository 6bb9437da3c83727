"""What the searches of `LinfHash.asymmetric` are worth.

    python benchmarks/descent.py --data DIR --json benchmarks/results/descent.jsonl

DIR has clinc150_minilm.npz, banking77_minilm.npz and scifact_minilm.npz. Recall@10 of cosine
neighbours, mean over two frames:

    descent     flips until no flip lowers the objective: the codes of version 0.7
    search      a tabu search of 0.75 flips per bit
    asymmetric  one in six of these flips for queries near the row, the default
    effort 3    the default with three flips per bit

and for long codes of CLINC150

    even levels  levels with one bit per feature: the codes of version 0.14

CLINC150 has 5,000 rows to fit, 10,000 others to search and 2,000 queries; banking77 has 2,000
queries and all other rows to search, 5,000 of them to fit; SciFact has all documents and its own
queries. Recorded rows are not measured again. Encoding is timed in CPU time, with Numba if it is
installed: compare ratios.
"""

import argparse
import json
import time
from functools import cache
from pathlib import Path

import numpy as np

from antipodal import LinfHash, unpack
from antipodal.bench.records import appending

SETTINGS = {
    "descent": {"effort": 0.0},
    "search": {"neighbours": False},
    "asymmetric": {},
    "effort 3": {"effort": 3.0},
}
EVEN = "even levels"
CASES = [
    ("clinc150", 96, 5000),
    ("clinc150", 192, 5000),
    ("clinc150", 288, 5000),
    ("clinc150", 384, 5000),
    ("clinc150", 384, 1000),
    ("clinc150", 768, 5000),
    ("scifact", 192, 5183),
    ("scifact", 384, 5183),
    ("scifact", 768, 5183),
    ("banking77", 192, 5000),
    ("banking77", 384, 5000),
    ("banking77", 768, 5000),
]
LONG_CASES = [("clinc150", bits, 5000) for bits in (480, 576, 672, 768, 1152, 1536)]
K = 10


def unit(X):
    X = X.astype(np.float32)
    return X / np.linalg.norm(X, axis=1, keepdims=True)


@cache
def load(data, name):
    """Return queries, rows to search and rows to fit."""
    file = np.load(data / f"{name}_minilm.npz")
    if name == "scifact":
        documents = unit(file["documents"])
        return unit(file["queries"]), documents, documents
    X = np.unique(unit(file["X"]), axis=0)
    X = X[np.random.default_rng(0).permutation(len(X))]
    Q, rest = X[:2000], X[2000:]
    return (Q, rest[5000:15000], rest[:5000]) if name == "clinc150" else (Q, rest, rest[:5000])


def nearest(scores):
    return np.argpartition(-scores, K, axis=1)[:, :K]


def measure(Q, X, train, bits, settings, seed):
    """Return the recall, the seconds to fit and the rows encoded per second."""
    hasher = LinfHash.asymmetric(bits, random_state=seed).set_params(**settings)
    began = time.process_time()
    hasher.fit(train)
    fitted = time.process_time()
    codes = hasher.encode(X)
    encoded = time.process_time()
    found = nearest(hasher.query(Q) @ (2 * unpack(codes, bits).astype(np.float32) - 1).T)
    truth = nearest(Q @ X.T)
    recall = np.mean([np.isin(a, b).mean() for a, b in zip(truth, found, strict=True)])
    return recall, fitted - began, len(X) / (encoded - fitted)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    with appending(options.json) as file:
        done = {(r["data"], r["bits"], r["rows_to_fit"], r["setting"]) for r in file.found}
        settings = [(*case, setting) for case in CASES for setting in SETTINGS]
        settings += [(*case, setting) for case in LONG_CASES for setting in ("asymmetric", EVEN)]
        settings = [key for key in dict.fromkeys(settings) if key not in done]
        if settings:  # compile before encoding is timed
            Q, X, train = load(options.data, settings[0][0])
            measure(Q, X, train[:500], 96, {}, 0)
        for key in settings:
            name, bits, n_fit, setting = key
            Q, X, train = load(options.data, name)
            parameters = SETTINGS.get(setting, {})
            if setting == EVEN:
                parameters = {"nested": tuple(range(X.shape[1], bits, X.shape[1]))}
            runs = [measure(Q, X, train[:n_fit], bits, parameters, seed) for seed in (0, 1)]
            recall, seconds, speed = np.mean(runs, axis=0)
            record = {
                **dict(zip(("data", "bits", "rows_to_fit", "setting"), key, strict=True)),
                "recall": round(float(recall), 4),
                "spread": round(float(np.ptp([run[0] for run in runs])), 4),
                "fit_seconds": round(float(seconds), 2),
                "rows_per_second": round(float(speed)),
            }
            print(json.dumps(record), flush=True)
            file.append(record)


if __name__ == "__main__":
    main()

"""Codes of embeddings without labels: the share of the ten nearest that is found, and its bytes.

Two sets of sentence vectors (MiniLM, 384-d). Of each, repeated rows are left out, 1,000 rows are
queries, 5,000 are fitted on and 4,000 others are searched: no row that is encoded or asked for was
seen by `fit`, or by `train` of Faiss, which gets the same rows. Every row of the record is a mean
over frames, that is seeds, with a 95 % interval over queries, by bootstrap, of their means over
frames. Bytes are those of one item with everything a search reads of it.

Settings of `LinfHash.asymmetric` were chosen on banking77; clinc150 was looked at afterwards.

    python benchmarks/unlabelled.py --data DIR --out benchmarks/results/unlabelled.jsonl
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse  # noqa: E402
import json  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

import faiss  # noqa: E402
import numpy as np  # noqa: E402
import scipy.linalg  # noqa: E402

from antipodal import ITQ, LSH, HammingIndex, LinfHash  # noqa: E402

SETS = ("banking77", "clinc150")
N_QUERIES, N_TRAIN, N_DATABASE, K = 1000, 5000, 4000, 10
FAISS = (
    "RR,RaBitQ",
    "RR,SQtqmse1",
    "PQ24x8",
    "PQ48x8",
    "OPQ48,PQ48x8",
    "RR,RaBitQ2",
    "RR,SQtqmse2",
    "PQ96x8",
    "RR,RaBitQ4",
    "RR,SQtqmse4",
    "PQ192x8",
)


def read(directory, name):
    X = np.unique(np.load(directory / f"{name}_minilm.npz")["X"], axis=0).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    X = X[np.random.default_rng(0).permutation(len(X))]
    queries, train, database = np.split(
        X[: N_QUERIES + N_TRAIN + N_DATABASE], [N_QUERIES, N_QUERIES + N_TRAIN]
    )
    nearest = np.argsort(-(queries @ database.T), axis=1, kind="stable")[:, :K]
    return queries, train, database, nearest


def shares(found, nearest):
    """Return the share of the ten nearest that each query finds."""
    return (found[:, :, None] == nearest[:, None]).any(axis=1).mean(axis=1)


def faiss_searches(name, seed, queries, train, database):
    index = faiss.index_factory(train.shape[1], name, faiss.METRIC_INNER_PRODUCT)
    if name.startswith("RR"):
        rotation = faiss.downcast_VectorTransform(index.chain.at(0))
        rotation.init(seed + 1)
    began = time.process_time()
    index.train(train)
    fitted = time.process_time()
    index.add(database)
    encoded = time.process_time()
    if "RaBitQ" in name:
        faiss.downcast_index(index.index).qb = 0  # queries stay real
    ids = index.search(queries, K)[1]
    yield "real query", index.sa_code_size(), ids, fitted - began, encoded - fitted


def hasher_searches(hasher, queries, train, database, ways, frame=None):
    began = time.process_time()
    hasher.fit(train)
    if frame is not None:
        hasher.dictionary_ = frame
    fitted = time.process_time()
    codes = hasher.encode(database)
    encoded = time.process_time()
    index = HammingIndex(hasher.n_bits)
    index.add(codes)
    for way in ways:
        if way == "Hamming":
            ids = index.search(hasher.encode(queries), K).ids
        elif way == "real query":
            ids = index.search(vectors=hasher.query(queries), k=K).ids
        else:
            ids = index.search(vectors=hasher.project(queries), k=K).ids
        yield way, codes.shape[1], ids, fitted - began, encoded - fitted


def hadamard_frame(seed, n_features, n_bits):
    """Rows of H₁₂ ⊗ H₆₄ with random signs: a tight frame whose product could be made fast."""
    squares = {i * i % 11 for i in range(1, 11)}
    core = np.array([[1 if (j - i) % 11 in squares else -1 for j in range(11)] for i in range(11)])
    np.fill_diagonal(core, -1)
    twelve = np.block([[np.ones((1, 1)), np.ones((1, 11))], [np.ones((11, 1)), core]])
    H = np.kron(twelve, scipy.linalg.hadamard(n_bits // 12))
    assert np.array_equal(H @ H.T, n_bits * np.eye(n_bits))
    rng = np.random.default_rng(seed)
    rows = rng.choice(n_bits, n_features, replace=False)
    signs = rng.choice([-1.0, 1.0], (n_features, 1))
    return (signs * H[rows] / np.sqrt(n_features)).astype(np.float32)


def searches(method, seed, data):
    queries, train, database, _ = data
    name, _, n_bits = method.partition(" ")
    if name not in ("LinfHash.asymmetric", "LinfHash", "LSH", "ITQ", "frame", "Hadamard"):
        yield from faiss_searches(method, seed, queries, train, database)
        return
    bits, both = int(n_bits), ("Hamming", "real query")
    few = ("real query",)
    rows = (queries, train, database)
    if name == "LinfHash.asymmetric":
        hasher = LinfHash.asymmetric(bits, random_state=seed)
        yield from hasher_searches(hasher, *rows, both)
    elif name == "LinfHash":
        hasher = LinfHash(bits, bound=0.7, random_state=seed)
        yield from hasher_searches(hasher, *rows, (*both, "project"))
    elif name in ("LSH", "ITQ"):
        hasher = {"LSH": LSH, "ITQ": ITQ}[name](bits, random_state=seed)
        yield from hasher_searches(hasher, *rows, both)
    else:  # bits flipped on a frame that is not fitted
        hasher = LinfHash.asymmetric(bits, random_state=seed).set_params(n_refits=0)
        frame = hadamard_frame(seed, train.shape[1], bits) if name == "Hadamard" else None
        yield from hasher_searches(hasher, *rows, few, frame)


def records(name, method, data, n_frames):
    """Average over frames; a 95 % interval over queries."""
    found = {}
    for seed in range(n_frames):
        for way, n_bytes, ids, fit, encode in searches(method, seed, data):
            found.setdefault((way, n_bytes), []).append((shares(ids, data[3]), fit, encode))
    for (way, n_bytes), runs in found.items():
        by_query = np.mean([run[0] for run in runs], axis=0)
        drawn = np.random.default_rng(0).integers(0, N_QUERIES, (2000, N_QUERIES))
        low, high = np.quantile(by_query[drawn].mean(axis=1), [0.025, 0.975])
        yield {
            "set": name,
            "method": method,
            "bytes": int(n_bytes),
            "search": way,
            "recall": round(float(by_query.mean()), 4),
            "recall_low": round(float(low), 4),
            "recall_high": round(float(high), 4),
            "recall_by_frame": [round(float(run[0].mean()), 4) for run in runs],
            "fit_seconds": round(float(np.median([run[1] for run in runs])), 2),
            "vectors_per_second": round(N_DATABASE / float(np.median([run[2] for run in runs]))),
        }


METHODS = (
    "LinfHash.asymmetric 192",
    "LinfHash.asymmetric 384",
    "LinfHash.asymmetric 768",
    *FAISS,
    "LSH 384",
    "ITQ 384",
    "LinfHash 384",
    "LinfHash 768",
    "frame 384",
    "frame 768",
    "Hadamard 768",
    "LinfHash.asymmetric 1536",
    "frame 1536",
)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="append records here, one JSON object per line")
    parser.add_argument("--frames", type=int, default=3)
    parser.add_argument("--methods", default=";".join(METHODS), help="separated by semicolons")
    parser.add_argument("--sets", default=",".join(SETS))
    arguments = parser.parse_args()
    for name in arguments.sets.split(","):
        data = read(arguments.data, name)
        for method in arguments.methods.split(";"):
            for record in records(name, method, data, arguments.frames):
                print(json.dumps(record), flush=True)
                if arguments.out:
                    with arguments.out.open("a") as file:
                        file.write(json.dumps(record) + "\n")

"""Recall@10 and size of codes for embeddings without labels.

Two data sets of sentence embeddings (MiniLM, 384-d). Duplicate rows are removed; 500 rows are
queries, 5,000 are for training and 4,000 others are searched. No query or searched row is seen by
`fit`, or by `train` of Faiss, which receives the same rows. Records are means over random frames
(seeds), with 95 % bootstrap intervals over queries. Bytes include everything that a search reads
per item.

Settings of `LinfHash.asymmetric` were chosen on banking77 with these queries; clinc150 is the
unbiased comparison. `make results` formats the records as tables.

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
import torch  # noqa: E402

from antipodal import ITQ, LSH, HammingIndex, LinfHash, pack  # noqa: E402
from antipodal.hashers.bit_descent import rescale_dictionary  # noqa: E402
from antipodal.hashers.bit_flips import BitFlips  # noqa: E402
from antipodal.paper.encoders import LinfEncoder  # noqa: E402

SETS = ("banking77", "clinc150")
N_QUERIES, N_TRAIN, N_DATABASE, K = 500, 5000, 4000, 10
FAISS = (
    "RR,RaBitQ",
    "RR,SQtqmse1",
    "PQ48x8np",  # np: without the slow permutation for Hamming distance
    "RR,RaBitQ2",
    "RR,SQtqmse2",
    "RR,RaBitQ4",
    "RR,SQtqmse4",
)


def read(directory, name):
    """Return queries, training rows, database and the true neighbours of the queries."""
    if name.startswith("gcide"):  # of embedding_sets.py, divided as `audit` does
        content = np.load(directory / f"{name}.npz")
        queries, database = content["queries"], content["rows"]
        train = database[np.random.default_rng(0).permutation(len(database))[:20_000]]
        return queries, train, database, neighbours(queries, database)
    X = np.unique(np.load(directory / f"{name}_minilm.npz")["X"], axis=0).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    X = X[np.random.default_rng(0).permutation(len(X))]
    queries, train, database = np.split(
        X[: N_QUERIES + N_TRAIN + N_DATABASE], [N_QUERIES, N_QUERIES + N_TRAIN]
    )
    return queries, train, database, neighbours(queries, database)


def neighbours(queries, database):
    """Return the K nearest rows of each query."""
    return np.argsort(-(queries @ database.T), axis=1, kind="stable")[:, :K]


def shares(found, nearest):
    """Return the recall@10 of each query."""
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
        faiss.downcast_index(index.index).qb = 0  # float queries
    ids = index.search(queries, K)[1]
    yield "real query", index.sa_code_size(), ids, fitted - began, encoded - fitted


def spherical_codes(Y, n_bits):
    """Return levels ±1, ±3, … of n_bits per value with the largest cosine to each row of Y.

    The best levels are those of rounding Y at some scale, so that scales are tried.
    """
    top = 2**n_bits - 1
    best, codes = np.full(len(Y), -np.inf), np.sign(Y) + (Y == 0)
    peaks = np.abs(Y).max(axis=1, keepdims=True)
    for scale in np.linspace(top / 2, 3 * top, 40 if n_bits > 1 else 1):
        V = np.clip(2 * np.floor(Y * (scale / (2 * peaks))) + 1, -top, top)
        cosines = np.einsum("ij,ij->i", V, Y) / np.linalg.norm(V, axis=1)
        better = cosines > best
        best[better], codes[better] = cosines[better], V[better]
    return codes.astype(np.float32)


def ash_searches(n_bytes, n_bits, n_centroids, seed, queries, train, database):
    """Use Asymmetric Scalar Hashing: learned projection, n_bits per dimension, scale and offset.

    [ASH2026], written from its published descriptions. Rows y = x - c are relative to the nearest
    centroid c, and W has orthonormal rows, as many as fit:

        v = argmax cos(v, Wy)                     levels of n_bits
        W = argmax Σ cos(v, Wy)                   Procrustes, from the principal components
        ⟨q, x⟩ ≈ ⟨q, c⟩ + s⟨Wq, v⟩ + o            s = ‖Wy‖² / ⟨Wy, v⟩, o = ⟨c, y⟩ - s⟨Wc, v⟩

    The descriptions do not define s: this is the best of four definitions on clinc150. Scale and
    offset take 2 bytes each, and the number of the centroid one if there are several.
    """
    began = time.process_time()
    n_dims = min(8 * (n_bytes - 4 - (n_centroids > 1)) // n_bits, train.shape[1])
    means = faiss.Kmeans(train.shape[1], n_centroids, seed=seed + 1, min_points_per_centroid=1)
    means.train(train)
    C = means.centroids

    def residuals(X):
        nearest = means.index.search(X, 1)[1][:, 0]
        return X - C[nearest], nearest

    Y = residuals(train)[0]
    Y /= np.linalg.norm(Y, axis=1, keepdims=True) + 1e-12
    W = np.linalg.eigh(Y.T @ Y)[1][:, ::-1][:, :n_dims].T
    rotation = np.linalg.qr(np.random.default_rng(seed).standard_normal((n_dims, n_dims)))[0]
    W = np.ascontiguousarray(rotation @ W, np.float32)
    for _ in range(20):
        V = spherical_codes(Y @ W.T, n_bits)
        U, _, Vt = np.linalg.svd((V / np.linalg.norm(V, axis=1, keepdims=True)).T @ Y, False)
        W = U @ Vt
    fitted = time.process_time()
    Y, nearest = residuals(database)
    P = Y @ W.T
    V = spherical_codes(P, n_bits)
    scales = (P**2).sum(axis=1) / (P * V).sum(axis=1)
    offsets = (C[nearest] * Y).sum(axis=1) - scales * ((C @ W.T)[nearest] * V).sum(axis=1)
    scales, offsets = (a.astype(np.float16).astype(np.float32) for a in (scales, offsets))
    encoded = time.process_time()
    scores = (queries @ C.T)[:, nearest] + scales * (queries @ W.T @ V.T) + offsets
    ids = np.argsort(-scores, axis=1, kind="stable")[:, :K]
    n_bytes = -(-n_dims * n_bits // 8) + 4 + (n_centroids > 1)
    yield "real query", n_bytes, ids, fitted - began, encoded - fitted


def hasher_searches(hasher, queries, train, database, ways, prefix=None):
    began = time.process_time()
    hasher.fit(train)
    if prefix is not None:
        hasher = hasher.prefix(prefix)
    fitted = time.process_time()
    codes = hasher.encode(database)
    encoded = time.process_time()
    index = HammingIndex(hasher.n_bits)
    index.add(codes)
    for way in ways:
        if way == "Hamming":
            ids = index.search(hasher.encode(queries), K).ids
        else:
            values = hasher.project(queries) if way == "project" else hasher.query(queries)
            ids = index.search(vectors=values, k=K).ids
        yield way, codes.shape[1], ids, fitted - began, encoded - fitted


def frame_searches(D, queries, train, database):
    """Use bit descent on a frame that is not fitted, from the l∞ solution, in one level."""
    began = time.process_time()
    hasher = LinfHash(D.shape[1], bound=0.7).fit(train)
    hasher.dictionary_ = D
    signs = [2 * hasher.transform(X).astype(np.float32) - 1 for X in (train, database)]
    D = rescale_dictionary(D, hasher.mean_, signs[0])
    fitted = time.process_time()
    found = BitFlips(D).run(database, hasher.mean_, signs[1])
    encoded = time.process_time()
    index = HammingIndex(D.shape[1])
    index.add(pack(found > 0))
    ids = index.search(vectors=queries @ D, k=K).ids
    yield "real query", D.shape[1] // 8, ids, fitted - began, encoded - fitted


def trained_searches(n_bits, seed, queries, train, database):
    """Encode with three unfolded stages, trained to reproduce fifty iterations."""
    began = time.process_time()
    hasher = LinfHash(n_bits, random_state=seed).fit(train)
    bound = hasher.bound / np.sqrt(n_bits)
    D, Y = torch.from_numpy(hasher.dictionary_), directions(train - hasher.mean_)
    X = torch.from_numpy(hasher.project(train))
    encoder = LinfEncoder.from_dictionary(D, bound, hasher.penalty, n_stages=3)
    optimiser = torch.optim.Adam(encoder.parameters(), lr=3e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 600)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(600):
        batch = torch.randint(len(Y), (256,), generator=generator)
        optimiser.zero_grad()
        torch.square((encoder(Y[batch]) - X[batch]) / bound).mean().backward()
        optimiser.step()
        schedule.step()
    fitted = time.process_time()
    with torch.inference_mode():
        codes = pack((encoder(directions(database - hasher.mean_)) > 0).numpy())
        encoded = time.process_time()
        asked = pack((encoder(directions(queries - hasher.mean_)) > 0).numpy())
    index = HammingIndex(n_bits)
    index.add(codes)
    yield "Hamming", codes.shape[1], index.search(asked, K).ids, fitted - began, encoded - fitted


def directions(rows):
    return torch.nn.functional.normalize(torch.from_numpy(rows))


def random_frame(seed, n_features, n_bits):
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((n_bits, n_features)))[0]
    return (np.sqrt(n_bits / n_features) * Q.T).astype(np.float32)


def hadamard_frame(seed, n_features, n_bits):
    """Return rows of H₁₂ ⊗ H₆₄ with random signs: a tight frame with a fast product."""
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
    """Yield each search: its name, bytes, result ids, seconds to fit and to encode."""
    *rows, _ = data
    name, _, n_bits = method.partition(" ")
    if name == "ASH":  # bytes, bits per dimension, centroids
        yield from ash_searches(*map(int, n_bits.split()), seed, *rows)
        return
    if not n_bits:
        yield from faiss_searches(method, seed, *rows)
        return
    bits, both = int(n_bits), ("Hamming", "real query")
    if name in ("frame", "Hadamard"):
        frame = {"frame": random_frame, "Hadamard": hadamard_frame}[name]
        yield from frame_searches(frame(seed, rows[0].shape[1], bits), *rows)
    elif name == "LinfHash.asymmetric":
        yield from hasher_searches(LinfHash.asymmetric(bits, random_state=seed), *rows, both)
    elif name == "prefix":  # the first bits of a 768-bit code
        hasher = LinfHash.asymmetric(768, nested=(192, 384), random_state=seed)
        ways = ("real query",)
        yield from hasher_searches(hasher, *rows, ways, bits if bits < 768 else None)
    elif name == "LinfHash":
        hasher = LinfHash(bits, bound=0.7, random_state=seed)
        yield from hasher_searches(hasher, *rows, (*both, "project"))
    elif name == "trained":
        yield from trained_searches(bits, seed, *rows)
    elif name in ("fifty", "quick"):
        make = LinfHash if name == "fifty" else LinfHash.quick
        yield from hasher_searches(make(bits, random_state=seed), *rows, ("Hamming",))
    else:
        hasher = {"LSH": LSH, "ITQ": ITQ}[name](bits, random_state=seed)
        yield from hasher_searches(hasher, *rows, both)


def records(name, method, data, n_frames):
    """Yield records: means over frames with 95 % intervals over queries."""
    found = {}
    for seed in range(1 if method.startswith("PQ") else n_frames):  # PQ has no random frame
        for way, n_bytes, ids, fit, encode in searches(method, seed, data):
            found.setdefault((way, n_bytes), []).append((shares(ids, data[3]), fit, encode))
    for (way, n_bytes), runs in found.items():
        by_query = np.mean([run[0] for run in runs], axis=0)
        drawn = np.random.default_rng(0).integers(0, len(by_query), (2000, len(by_query)))
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
            "vectors_per_second": round(len(data[2]) / float(np.median([run[2] for run in runs]))),
        }


METHODS = (
    "LinfHash.asymmetric 192",
    "LinfHash.asymmetric 384",
    "LinfHash.asymmetric 768",
    *FAISS,
    "LSH 384",
    "ITQ 384",
    "LinfHash 768",
    "fifty 768",
    "quick 768",
    "trained 768",
    "prefix 384",
    "prefix 768",
    "frame 384",
    "frame 768",
    "Hadamard 768",
    "LinfHash.asymmetric 1536",
)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument(
        "--out", type=Path, help="file to append records to, one JSON object per line"
    )
    parser.add_argument("--frames", type=int, default=3)
    parser.add_argument(
        "--methods",
        default=";".join(METHODS),
        help="semicolon-separated methods; also ASH BYTES BITS CENTROIDS",
    )
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

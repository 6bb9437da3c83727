"""Agreement of ONNX models with `encode`, and latency of single vectors.

python benchmarks/onnxmodels.py --cifar10 DIR --embeddings FILE.npz … --json results/onnx.jsonl

Each model is fitted on 2,000 rows and encodes all of them, with antipodal and with onnxruntime: the
60,000 GIST descriptors of CIFAR-10, and 384-d sentence embeddings from .npz files (every array of
that width). Differing bits are reported with the magnitude of their projections and the median
magnitude of all projections. Times are medians for one row, measured in turn on one thread each.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnxruntime

from antipodal import ITQ, KSH, LSH, SDH, DeepLinf, LinfHash, NNHash, SignHash, SparseHash, Training
from antipodal.datasets import cifar10
from antipodal.hashers.base import BaseHasher

N_FIT, WIDTH, BLOCK = 2000, 384, 4096
SEED = {"random_state": 0}
NETWORK = {"training": Training(n_epochs=30), **SEED}


def hashers() -> Iterator[tuple[str, BaseHasher]]:
    for kind in (DeepLinf, NNHash, SparseHash):
        for feature_map in ("none", "hidden", "kernel"):
            yield f"{kind.__name__} {feature_map}", kind(64, feature_map=feature_map, **NETWORK)
    nested = DeepLinf(64, feature_map="hidden", nested=(16,), **NETWORK)
    yield "DeepLinf hidden, prefix of 16", nested
    yield "KSH", KSH(64, **SEED)
    yield "SDH", SDH(64, **SEED)
    yield "LinfHash", LinfHash(64, **SEED)
    yield "LinfHash 512 bits", LinfHash(512, **SEED)
    yield "ITQ", ITQ(64, **SEED)
    yield "LSH", LSH(64, **SEED)
    yield "SignHash", SignHash(64, **SEED)


def sources(directory: Path, files: list[Path]) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the name, rows and labels of each data set."""
    data = cifar10(directory).with_gist()
    yield "CIFAR10 GIST", data.features, data.labels
    parts, labels = [], []
    for number, path in enumerate(files):
        with np.load(path, allow_pickle=False) as arrays:
            for name in arrays.files:
                if arrays[name].shape[1:] == (WIDTH,):
                    parts.append(arrays[name].astype(np.float32))
                    labels.append(np.full(len(parts[-1]), number))
    yield "sentence embeddings", np.concatenate(parts), np.concatenate(labels)


def compare(hasher: BaseHasher, session: onnxruntime.InferenceSession, X: np.ndarray) -> dict:
    ours, values = hasher.encode(X), hasher.project(X)
    differ = np.zeros(values.shape, bool)
    gap = 0.0
    for start in range(0, len(X), BLOCK):
        block = slice(start, start + BLOCK)
        code, projection = session.run(["code", "projection"], {"x": X[block]})
        bits = np.unpackbits(code ^ ours[block], axis=1, count=hasher.n_bits)
        differ[block] = bits.astype(bool)
        gap = max(gap, float(np.abs(projection - values[block]).max()))
    return {
        "rows": len(X),
        "bits": values.size,
        "bits_differ": int(differ.sum()),
        "rows_differ": int(differ.any(axis=1).sum()),
        "largest_where_differ": float(np.abs(values[differ]).max(initial=0)),
        "median_projection": float(np.median(np.abs(values))),
        "largest_gap": gap,
    }


def single(calls: dict[str, Callable[[np.ndarray], object]], X: np.ndarray) -> dict[str, float]:
    """Return the median microseconds per call with one row, in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for row in X[:600]:
        for name, call in calls.items():
            began = time.perf_counter()
            call(row[None])
            times[name].append(time.perf_counter() - began)
    return {name: round(1e6 * statistics.median(found[100:]), 1) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cifar10", type=Path, required=True)
    parser.add_argument("--embeddings", type=Path, nargs="+", required=True)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    lines = []
    for source, X, labels in sources(arguments.cifar10, arguments.embeddings):
        chosen = np.random.default_rng(0).permutation(len(X))[:N_FIT]
        for name, hasher in hashers():
            hasher.fit(X[chosen], labels[chosen])
            model = hasher.prefix(16) if "prefix" in name else hasher
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.onnx"
                model.to_onnx(path)
                size = path.stat().st_size
                session = onnxruntime.InferenceSession(path, options)
            record = {"data": source, "method": name, "file_bytes": size}
            record |= compare(model, session, X)
            calls = {
                "encode_us": model.encode,
                "onnxruntime_us": lambda x, run=session.run: run(["code"], {"x": x}),
            }
            record |= single(calls, X)
            record["onnxruntime"] = onnxruntime.__version__
            lines.append(json.dumps(record))
            print(lines[-1], flush=True)
    if arguments.json:
        arguments.json.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

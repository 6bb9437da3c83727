"""Encode time of the paper's network against its number of multiply-adds, nN + KN² per row.

OMP_NUM_THREADS=1 python benchmarks/complexity.py > benchmarks/results/complexity.jsonl
"""

import json
import time

import numpy as np

from antipodal import DeepLinf, Training

N_FEATURES, N_ROWS, REPEATS = 384, 1024, 40
SHAPES = [(bits, 2) for bits in (16, 32, 64, 128, 256, 512)] + [(256, k) for k in (0, 1, 3, 4)]


def fitted(n_bits: int, n_stages: int) -> DeepLinf:
    """Return a hasher of the given shape; the weights do not affect its speed."""
    rows = np.random.default_rng(0).standard_normal((64, N_FEATURES), dtype=np.float32)
    options = {"n_stages": n_stages, "feature_map": "none", "scaling": "each", "random_state": 0}
    hasher = DeepLinf(n_bits, training=Training(n_epochs=1), **options)
    return hasher.fit(rows, np.arange(64) % 4)


def seconds(call: object) -> float:
    began = time.thread_time()
    call()
    return time.thread_time() - began


def main() -> None:
    X = np.random.default_rng(1).standard_normal((N_ROWS, N_FEATURES), dtype=np.float32)
    hashers = {shape: fitted(*shape) for shape in SHAPES}
    best = dict.fromkeys(SHAPES, np.inf)
    product = dict.fromkeys(SHAPES, np.inf)
    for _ in range(REPEATS):  # in turn, under the same load; the least time has the least of it
        for shape, hasher in hashers.items():
            W = np.ascontiguousarray(hasher.weights_["encoder_.W"].T)
            best[shape] = min(best[shape], seconds(lambda h=hasher: h.encode(X)))
            product[shape] = min(product[shape], seconds(lambda W=W: X @ W))
    for n_bits, n_stages in SHAPES:
        shape = (n_bits, n_stages)
        record = {
            "features": N_FEATURES,
            "bits": n_bits,
            "stages": n_stages,
            "multiply_adds": N_FEATURES * n_bits + n_stages * n_bits**2,
            "microseconds": round(best[shape] / N_ROWS * 1e6, 3),
            "product_microseconds": round(product[shape] / N_ROWS * 1e6, 3),
        }
        print(json.dumps(record))


if __name__ == "__main__":
    main()

"""Speed of `encode` on many rows: `DeepLinf` relative to the bare product X·W, and `LinfHash`.

OMP_NUM_THREADS=1 python benchmarks/encode.py --json benchmarks/results/encode.json
OMP_NUM_THREADS=1 python benchmarks/encode.py --networks --json benchmarks/results/encode.json

The ratios are medians over repeats of the processor time relative to that of the product just
before it. --networks omits `LinfHash` and the memory, and keeps their values in the file.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np

from antipodal import BaseHasher, DeepLinf, LinfHash, Training
from antipodal.hashers import compiled, network
from antipodal.threads import one_blas_thread, usable_cores

N_FEATURES, N_BITS, BLOCK = 384, 64, 2048


def fitted(feature_map: str, scaling: str = "each", n_reduced: int = 0) -> DeepLinf:
    """Return a hasher of the given shape; the weights do not affect its speed."""
    rows = np.random.default_rng(0).standard_normal((2000, N_FEATURES), dtype=np.float32)
    hasher = DeepLinf(
        N_BITS,
        feature_map=feature_map,
        scaling=scaling,
        training=Training(n_epochs=1, n_reduced=n_reduced),
        random_state=0,
    )
    quick = partial(network.reduced_set, max_iter=1)
    with mock.patch.object(network, "reduced_set", quick):
        return hasher.fit(rows, np.arange(2000) % 10)


def bare_product(X: np.ndarray, W: np.ndarray) -> None:
    """Compute X·W on one thread in blocks, which is faster than at once; discard the result."""
    out = np.empty((BLOCK, N_BITS), np.float32)
    with one_blas_thread():
        for start in range(0, len(X), BLOCK):
            block = X[start : start + BLOCK]
            np.matmul(block, W, out=out[: len(block)])


def without_numba(hasher: BaseHasher, X: np.ndarray) -> None:
    with mock.patch.object(compiled, "_MIN_ROWS", len(X) * 1_000_000):
        hasher.encode(X)


def streaming_memory(hasher: DeepLinf) -> dict[str, float]:
    """Return the peak memory added by encoding two memory-mapped files, one four times longer.

    Cached pages of the mapping count as memory of the process, so they are released after each
    block, as the kernel does under memory pressure.
    """
    added = {}
    with tempfile.TemporaryDirectory() as directory:
        for n_rows in (250_000, 1_000_000):
            path = Path(directory) / f"{n_rows}.npy"
            rows = np.lib.format.open_memmap(path, "w+", np.float32, (n_rows, N_FEATURES))
            rows[:] = 1.0
            del rows
            before = anonymous_megabytes()
            peak = before
            for _ in hasher.encode_blocks(np.load(path, mmap_mode="r")):
                peak = max(peak, anonymous_megabytes())
            added[f"{n_rows} rows"] = round(peak - before, 1)
    return added


def anonymous_megabytes() -> float:
    """Return the current anonymous memory of the process (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--networks", action="store_true", help="measure networks only")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    hashers: dict[str, BaseHasher] = {name: fitted(name) for name in ("none", "hidden", "kernel")}
    hashers["hidden_with_roots"] = fitted("hidden", "root-each")
    for n_reduced in (256, 288, 320):
        name = f"kernel_reduced_to_{n_reduced}"
        hashers[name] = fitted("kernel", n_reduced=n_reduced)
        hashers[f"{name}_with_roots"] = fitted("kernel", "root-each", n_reduced)
    X = np.random.default_rng(1).standard_normal((options.rows, N_FEATURES), dtype=np.float32)
    calls = {}
    memory = {}
    if not options.networks:
        memory = {"streaming_added_megabytes": streaming_memory(hashers["hidden"])}
        for n_bits in (384, 768):
            name = f"asymmetric_{n_bits}"
            hashers[name] = LinfHash.asymmetric(n_bits, random_state=0).fit(X[:20_000])
            calls[f"{name}_without_numba"] = partial(without_numba, hashers[name], X)
    calls |= {name: partial(hasher.encode, X) for name, hasher in hashers.items()}
    W = np.ascontiguousarray(hashers["none"].weights_["encoder_.W"].T)
    product = partial(bare_product, X, W)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(options.repeats):
        for name, call in calls.items():
            times[name].append((seconds(product), seconds(call)))

    record = {
        "rows": options.rows,
        "features": N_FEATURES,
        "bits": N_BITS,
        "threads": usable_cores(),
        "product_seconds": round(statistics.median(p for t in times.values() for p, _ in t), 3),
        **{f"{name}_seconds": round(statistics.median(t for _, t in times[name]), 3)
           for name in calls},
        **{f"{name}_ratio": round(statistics.median(t / p for p, t in times[name]), 3)
           for name in calls},
        **{f"{name}_rows_per_second": round(options.rows / min(t for _, t in times[name]))
           for name in calls},
        **memory,
    }  # fmt: skip
    print(json.dumps(record, indent=2))
    if options.json:
        kept = json.loads(options.json.read_text()) if options.networks else {}
        options.json.write_text(json.dumps(kept | record, indent=2) + "\n")


def seconds(call: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    began = time.process_time()
    call()
    return time.process_time() - began


if __name__ == "__main__":
    main()

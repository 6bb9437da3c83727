"""Memory used by `fit` on a memory-mapped file of a million or more rows.

python benchmarks/memory.py --json benchmarks/results/memory.json
python benchmarks/memory.py --rows 10000000 --methods DeepLinf,DeepLinf-unlabelled,ITQ --json FILE

DeepLinf-unlabelled uses the first 10,000 rows with labels and the whole file without labels, opened
as by `antipodal fit --unlabelled`.

Each hasher is fitted in its own process. The peak is that of anonymous memory (RssAnon, Linux),
sampled continuously, including Python and its libraries. `added_megabytes` excludes the memory in
use after all imports with the file open.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from antipodal import ITQ, KSH, DeepLinf, Training, open_vectors
from antipodal.hashers.base import BaseHasher

N_FEATURES, N_BITS, N_CLASSES = 384, 64, 10
BLOCK = 10_000
N_EPOCHS = 2  # instead of 200 for DeepLinf: memory does not depend on it
HASHERS: dict[str, BaseHasher] = {
    "DeepLinf": DeepLinf(N_BITS, training=Training(n_epochs=N_EPOCHS), random_state=0),
    "KSH": KSH(N_BITS, random_state=0),
    "ITQ": ITQ(N_BITS, random_state=0),
    "DeepLinf-unlabelled": DeepLinf(N_BITS, training=Training(n_epochs=N_EPOCHS), random_state=0),
}
N_LABELLED = 10_000  # for DeepLinf-unlabelled; the other rows have no labels


def labels(n_rows: int) -> np.ndarray:
    return np.arange(n_rows) % N_CLASSES


def write_rows(path: Path, n_rows: int) -> None:
    """Write rows of ten overlapping classes."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((N_CLASSES, N_FEATURES), dtype=np.float32)
    y = labels(n_rows)
    rows = np.lib.format.open_memmap(path, "w+", np.float32, (n_rows, N_FEATURES))
    for start in range(0, n_rows, BLOCK):
        block = rows[start : start + BLOCK]
        block[:] = rng.standard_normal(block.shape, dtype=np.float32)
        block += centres[y[start : start + BLOCK]]
    rows.flush()


def anonymous_megabytes() -> float:
    """Return the current anonymous memory of the process (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status has no RssAnon: this benchmark requires Linux")


def measure(name: str, path: Path) -> dict[str, float | str]:
    """Fit one hasher to the file in this process."""
    rows = np.load(path, mmap_mode="r")
    y = labels(len(rows))
    before = peak = anonymous_megabytes()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, anonymous_megabytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    if name.endswith("-unlabelled"):
        few = slice(N_LABELLED)
        HASHERS[name].fit(rows[few], y[few], unlabelled=open_vectors(path))
    else:
        HASHERS[name].fit(rows, y)
    seconds = time.perf_counter() - began
    done.set()
    watcher.join()
    return {
        "method": name,
        "peak_megabytes": round(peak),
        "added_megabytes": round(peak - before),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="directory for the file (default: temporary)")
    parser.add_argument("--methods", default="DeepLinf,KSH,ITQ")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--method", choices=HASHERS, help=argparse.SUPPRESS)
    parser.add_argument(
        "--file", type=Path, help="existing file of rows, written by an earlier run"
    )
    options = parser.parse_args()
    if options.method:
        print(json.dumps(measure(options.method, options.file)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = options.file or Path(folder) / "rows.npy"
        if options.file is None:
            write_rows(path, options.rows)
        size = path.stat().st_size
        fits = []
        for name in options.methods.split(","):
            command = [sys.executable, __file__, "--method", name, "--file", str(path)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            fits.append(json.loads(output))
            print(output.decode(), flush=True)
    record = {
        "rows": options.rows,
        "features": N_FEATURES,
        "classes": N_CLASSES,
        "bits": N_BITS,
        "file_megabytes": round(size / 2**20),
        "deeplinf_epochs": N_EPOCHS,
        "fits": fits,
    }
    print(json.dumps(record, indent=2))
    if options.json:
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()

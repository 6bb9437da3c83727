"""Measure what `fit` holds beyond a memory-mapped file of a million rows, or of more.

python benchmarks/memory.py --json benchmarks/results/memory.json
python benchmarks/memory.py --rows 10000000 --methods DeepLinf,DeepLinf-unlabelled,ITQ --json FILE

DeepLinf-unlabelled learns from the first 10,000 rows with labels and from the file, as
`antipodal fit --unlabelled` opens it, without.

Each hasher is fitted in a process of its own, so that none is charged with what another left
behind. The peak is that of memory which is not a cached file (RssAnon, Linux), sampled all the
time: Python and its libraries are in it. `added_megabytes` is without what the process had when
everything was imported and the file was open.
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

from antipodal import ITQ, KSH, DeepLinf, open_vectors
from antipodal.hashers import BaseHasher

N_FEATURES, N_BITS, N_CLASSES = 384, 64, 10
BLOCK = 10_000
N_EPOCHS = 2  # of DeepLinf, which has 200: memory does not depend on them
HASHERS: dict[str, BaseHasher] = {
    "DeepLinf": DeepLinf(N_BITS, n_epochs=N_EPOCHS, random_state=0),
    "KSH": KSH(N_BITS, random_state=0),
    "ITQ": ITQ(N_BITS, random_state=0),
    "DeepLinf-unlabelled": DeepLinf(N_BITS, n_epochs=N_EPOCHS, random_state=0),
}
N_LABELLED = 10_000  # where the others have no labels


def labels(n_rows: int) -> np.ndarray:
    return np.arange(n_rows) % N_CLASSES


def write_rows(path: Path, n_rows: int) -> None:
    """Write rows of ten classes that overlap, as features do."""
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
    """Memory of the process that is not a cached file, now (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status does not tell RssAnon: this benchmark needs Linux")


def measure(name: str, path: Path) -> dict[str, float | str]:
    """Fit one hasher to the file, in this process."""
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
    parser.add_argument("--folder", type=Path, help="where to write the file; else a temporary one")
    parser.add_argument("--methods", default="DeepLinf,KSH,ITQ")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--method", choices=HASHERS, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help="of rows that an earlier run has written")
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

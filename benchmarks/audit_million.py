"""Time and memory of an audit of a million vectors.

Vectors are synthetic: rows around 2,000 centres in 384 dimensions whose variance falls as 1 / j,
similar to embeddings. The audit runs as the command `antipodal audit`.

python benchmarks/audit_million.py --json benchmarks/results/audit-million.json
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

N_FEATURES = 384
CENTRES = 2_000
BLOCK = 50_000


def write_rows(path: Path, n_rows: int) -> None:
    """Write n_rows rows of float32, one block at a time."""
    rng = np.random.default_rng(0)
    spread = (1 / np.sqrt(np.arange(1, N_FEATURES + 1))).astype(np.float32)
    rotation = np.linalg.qr(rng.standard_normal((N_FEATURES, N_FEATURES)))[0].astype(np.float32)
    centres = rng.standard_normal((CENTRES, N_FEATURES), dtype=np.float32) * spread
    rows = np.lib.format.open_memmap(path, "w+", np.float32, (n_rows, N_FEATURES))
    for start in range(0, n_rows, BLOCK):
        size = min(BLOCK, n_rows - start)
        noise = rng.standard_normal((size, N_FEATURES), dtype=np.float32) * spread
        rows[start : start + size] = (centres[rng.integers(0, CENTRES, size)] + noise) @ rotation
    rows.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--bits", default="64,128,384,768")
    parser.add_argument("--n-queries", default="1000")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--folder", type=Path, help="directory for the vectors (default: temporary)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "vectors.npy"
        write_rows(path, options.rows)
        asked = ["audit", str(path), "--bits", options.bits, "--n-queries", options.n_queries]
        began = time.perf_counter()
        ran = subprocess.run(
            [sys.executable, "-m", "antipodal", *asked, "--json"],
            check=True,
            stdout=subprocess.PIPE,
        )
        seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    settings = [json.loads(line) for line in ran.stdout.splitlines()]
    record = {"seconds": round(seconds, 1), "peak_gib": round(peak, 2), "settings": settings}
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{options.rows:,} rows: {seconds / 60:.1f} minutes, at most {peak:.2f} GiB")
    for s in settings:
        print(f"{s['method']:28} {s['bytes']:4} {s['search']:10} {s['recall']:.3f} "
              f"fit {s['fit_seconds']:6.1f} s, encoding {s['encoded_per_second']:9,.0f}/s, "
              f"searched {s['queries_per_second']:6,.0f}/s")  # fmt: skip


if __name__ == "__main__":
    main()

"""Create a collection of many rows: time, memory, and a kill that is resumed.

    python benchmarks/create.py --rows 1000000 --json benchmarks/results/create.json

The rows are float16 (n, 384), clustered, in a memory-mapped .npy file. `antipodal build` writes 48
bytes per row, with integer ids in one run, and with string ids and int8 vectors in another, which
is killed when a third of the rows are stored and then run again. The resumed collection must have
the codes and ids of the model's own encoding of 1,000 random rows.
"""

import argparse
import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from antipodal import Collection, __version__

N_FEATURES, N_BYTES, BLOCK = 384, 48, 10_000


def write_rows(path: Path, n_rows: int) -> None:
    """Write clustered unit vectors as float16."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((n_rows // 500 + 1, N_FEATURES)).astype(np.float32)
    rows = np.lib.format.open_memmap(path, "w+", np.float16, (n_rows, N_FEATURES))
    for start in range(0, n_rows, BLOCK):
        n = min(BLOCK, n_rows - start)
        noise = rng.standard_normal((n, N_FEATURES)).astype(np.float32)
        block = centres[rng.integers(len(centres), size=n)] + 0.7 * noise
        rows[start : start + n] = block / np.linalg.norm(block, axis=1, keepdims=True)
    rows.flush()


def build(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "antipodal", "build", str(folder / "rows.npy")]
    return subprocess.Popen(
        [*command, "--bytes", str(N_BYTES), *options], text=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def measured(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a build; return its time, and the largest memory of the builds so far."""
    began = time.perf_counter()
    _, errors = process.communicate()
    if process.returncode:
        raise SystemExit(errors)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": round(time.perf_counter() - began, 1),
        "peak_megabytes": round(usage.ru_maxrss / 1024),
    }


def kill_at(process: subprocess.Popen[str], share: float, n_rows: int) -> int:
    """Kill a build when it reports a share of its rows; return the number reported."""
    assert process.stderr is not None
    last = ""
    for line in process.stderr:
        last = line
        numbers = [part for part in line.replace(",", "").split() if "/" in part]
        done = int(numbers[0].split("/")[0]) if numbers and "encode" in line else 0
        if done >= share * n_rows:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return done
    raise SystemExit(f"the build ended before it was killed: {last}")


def check(place: Path, rows: Any, ids: list[str]) -> bool:
    """Return whether 1,000 random items have the codes of their rows."""
    chosen = np.random.default_rng(1).choice(len(rows), 1_000, replace=False)
    with Collection.open(place) as docs:
        items = docs.get([ids[i] for i in chosen])
        expected = docs.model.encode(np.asarray(rows[chosen], np.float32))
        return len(docs) == len(rows) and bool((items.codes == expected).all())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    record: dict[str, Any] = {"antipodal": __version__, "rows": options.rows, "bytes": N_BYTES}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder / "rows.npy", options.rows)
        rows = np.load(folder / "rows.npy", mmap_mode="r")
        record["integer ids"] = measured(build(folder, "--out", str(folder / "a.db")))
        record["integer ids"]["megabytes"] = (folder / "a.db").stat().st_size >> 20
        ids = [f"{i:08x}-{i * 2_654_435_761 % 2**32:08x}" for i in range(options.rows)]
        np.save(folder / "ids.npy", np.array(ids))
        more = ["--ids", str(folder / "ids.npy"), "--keep-vectors", "int8"]
        more += ["--out", str(folder / "b.db")]
        killed = kill_at(build(folder, *more), 1 / 3, options.rows)
        record["string ids, int8 vectors, resumed"] = {
            "killed_at": killed,
            **measured(build(folder, *more)),
            "megabytes": (folder / "b.db").stat().st_size >> 20,
            "equal": check(folder / "b.db", rows, ids),
        }
    options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Smoke test of an installed package: import, command line, fit, encode and search on digits.

    python tests/smoke.py

It needs the package and nothing else, no pytest and no optional extra. The workflows run it on
other operating systems and on the wheel in a clean environment.
"""

import os
import subprocess
import sysconfig
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import antipodal


def run_command(*arguments: str) -> str:
    """Run the installed `antipodal` script and return its output."""
    script = Path(sysconfig.get_path("scripts")) / "antipodal"
    environment = os.environ | {"PYTHONUTF8": "1"}  # Windows would use a legacy code page
    return subprocess.run(
        [script, *arguments], check=True, capture_output=True, encoding="utf-8", env=environment
    ).stdout


def check_command_line() -> None:
    """Check that the script starts and reports the version of the package."""
    assert "encode" in run_command("--help")
    assert antipodal.__version__ in run_command("--version")


def check_hasher(folder: Path) -> None:
    """Fit a supervised hasher, search its codes, and compare the results with brute force."""
    X, y = load_digits(return_X_y=True)
    hasher = antipodal.KSH(32, random_state=0).fit(X[:500], y[:500])
    codes = hasher.encode(X)
    assert codes.shape == (1797, 4)

    score = antipodal.evaluate(codes[1500:], codes[:1500], y[1500:], y[:1500], n_bits=32)
    assert score.map > score.chance + 30, score.map

    index = antipodal.HammingIndex(32)
    index.add(codes[:1500])
    results = index.search(codes[1500:1510], k=5)
    distances = np.bitwise_count(codes[1500:1510, None] ^ codes[None, :1500]).sum(axis=2)
    assert (results.ids == np.argsort(distances, axis=1, kind="stable")[:, :5]).all()

    hasher.save(folder / "model.antipodal")
    assert (antipodal.load(folder / "model.antipodal").encode(X) == codes).all()

    with antipodal.open_store(f"sqlite:///{(folder / 'items.db').as_posix()}", n_bits=32) as store:
        store.upsert(range(1500), codes[:1500], [{"digit": int(digit)} for digit in y[:1500]])
        assert (store.search(codes[1500:1510], k=5).ids == results.ids).all()


if __name__ == "__main__":
    check_command_line()
    with tempfile.TemporaryDirectory() as folder:
        check_hasher(Path(folder))
    print(f"antipodal {antipodal.__version__} works")

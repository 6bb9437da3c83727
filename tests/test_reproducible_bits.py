"""The bits of a row do not depend on other rows, blocks, threads or processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from antipodal import DeepLinf, LinfHash, load
from antipodal.hashers.bit_descent import BitDescent
from antipodal.hashers.network import NetworkHasher
from antipodal.hashers.operations import Operation
from antipodal.hashers.registry import built_in_hashers, make_hasher
from networks import network

X, Y = load_digits(return_X_y=True)
NAMES = [*built_in_hashers(), "LinfHash.asymmetric", "LinfHash.quick"]


def rows_like(X, n_rows):
    """Return random mixtures of rows: neighbouring values, but no repeated rows."""
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(3), n_rows)
    mixed = sum(w[:, None] * X[rng.integers(len(X), size=n_rows)] for w in weights.T)
    return mixed.astype(np.float32)


@pytest.fixture(scope="module", params=NAMES)
def hasher(request):
    name = request.param
    made = make_hasher(name, 40, 0)
    if isinstance(made, NetworkHasher):
        made = network(type(made), 40, n_epochs=1, n_anchors=50, random_state=0)
    return made.fit(X[:300], Y[:300])


def test_blocks_single_rows_and_order_do_not_change_bits(hasher, monkeypatch):
    rows = rows_like(X, 700)
    values, codes = hasher.project(rows), hasher.encode(rows)
    for size in (1, 31, 32, 100, 699):
        starts = range(0, 700 if size > 1 else 120, 3 * size)
        for start in starts:
            part = slice(start, min(start + size, 700))
            np.testing.assert_array_equal(hasher.project(rows[part]), values[part])
            np.testing.assert_array_equal(hasher.encode(rows[part]), codes[part])
    order = np.random.default_rng(1).permutation(700)
    np.testing.assert_array_equal(hasher.project(rows[order]), values[order])
    for block_rows in (7, 64, 333):
        for operation in (Operation, BitDescent):
            monkeypatch.setattr(operation, "block_rows", block_rows)
        np.testing.assert_array_equal(hasher.project(rows), values)
        monkeypatch.setattr("antipodal.hashers.base._BLOCKS", 3)
        np.testing.assert_array_equal(np.concatenate(list(hasher.encode_blocks(rows))), codes)


@pytest.mark.parametrize("n_bits", [24, 128])
def test_queries_and_reconstructions_do_not_depend_on_other_rows(n_bits):
    rows = rows_like(X, 100)
    hasher = LinfHash.asymmetric(n_bits, random_state=0).fit(X)
    codes = hasher.encode(rows)
    rebuilt, queries = hasher.reconstruct(codes), hasher.query(rows)
    for size in (1, 3, 33):
        for start in range(0, 100, 7):
            part = slice(start, start + size)
            np.testing.assert_array_equal(hasher.reconstruct(codes[part]), rebuilt[part])
            np.testing.assert_array_equal(hasher.query(rows[part]), queries[part])


def test_documentation_lists_the_operations(hasher):
    """Compare with the table of docs/reference/architecture.md."""
    page = Path(__file__).parent.parent / "docs" / "reference" / "architecture.md"
    rows = re.findall(r"^\| (.+) \| (.+) \|$", page.read_text(), re.MULTILINE)
    name = type(hasher).__name__
    listed = set()
    for hashers, operations in rows:
        is_network = isinstance(hasher, NetworkHasher) and hashers.startswith("the same")
        if is_network or f"`{name}`" in hashers or f"`{name}." in hashers:
            listed |= set(re.findall(r"`(\w+)", operations))
            if "as `ClassifierLSH`" in operations:
                listed |= {"Standardise", "GaussianKernel", "Affine", "Softmax"}
    assert {type(step).__name__ for step in hasher._pipeline().operations} <= listed


PROGRAM = """
import sys
import numpy as np
from antipodal import load
rows, *models = sys.argv[1:]
for model in models:
    np.save(f"{model}.npy", load(model).encode(np.load(rows)))
"""


def test_processes_with_other_numbers_of_threads_make_the_same_bits(tmp_path):
    rows = rows_like(X, 9000)
    np.save(tmp_path / "rows.npy", rows)
    expected = {}
    for hasher in (
        LinfHash.asymmetric(160, random_state=0),
        LinfHash(160, random_state=0),
        network(DeepLinf, 160, n_epochs=1, feature_map="hidden", random_state=0),
    ):
        model = tmp_path / f"model{len(expected)}"
        hasher.fit(X[:300], Y[:300]).save(model)
        expected[model] = load(model).encode(rows)
    for n_threads in ("2", "3"):  # this process has one
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        environment = os.environ | dict.fromkeys(names, n_threads)
        command = [sys.executable, "-c", PROGRAM, tmp_path / "rows.npy", *expected]
        subprocess.run(command, env=environment, check=True)
        for model, codes in expected.items():
            np.testing.assert_array_equal(np.load(f"{model}.npy"), codes)

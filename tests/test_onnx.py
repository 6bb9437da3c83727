"""Exported models, run by onnxruntime and in JavaScript, produce the codes of `encode`."""

import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from antipodal import (
    AGH,
    BRE,
    CSQ,
    ITQ,
    KSH,
    LSH,
    PSH,
    SDH,
    AntipodalError,
    BaseHasher,
    ClassifierLSH,
    DeepLinf,
    LDAHash,
    LinfHash,
    NNHash,
    OneHotHash,
    OrthoHash,
    SignHash,
    SparseHash,
    SpectralHash,
    load,
    pack,
)
from antipodal.cli import app
from antipodal.hashers.operations import Affine, FirstColumns, Rectify, Shrink
from antipodal.hashers.registry import built_in_hashers
from antipodal.io.model_file import model_identity
from antipodal.io.onnx import Graph, pack_signs
from networks import network

EXAMPLE = Path(__file__).parent.parent / "examples" / "onnx"
X, Y = load_digits(return_X_y=True)
X = X.astype(np.float32)
SEED = {"random_state": 0}
FAST = {"n_epochs": 2, "n_anchors": 100, **SEED}
EXPORTED = [
    network(DeepLinf, 20, feature_map="kernel", **FAST),
    network(DeepLinf, 20, feature_map="hidden", scaling="root-each", **FAST),
    network(DeepLinf, 20, feature_map="none", n_stages=3, **FAST),
    network(DeepLinf, 24, feature_map="hidden", nested=(9,), **FAST),
    network(NNHash, 20, feature_map="kernel", **FAST),
    network(NNHash, 20, feature_map="hidden", **FAST),
    network(NNHash, 20, feature_map="none", **FAST),
    network(SparseHash, 20, feature_map="kernel", **FAST),
    network(SparseHash, 20, feature_map="hidden", nonnegative=False, **FAST),
    network(SparseHash, 20, feature_map="none", n_stages=0, **FAST),
    network(OrthoHash, 20, **FAST),
    network(CSQ, 20, **FAST),
    KSH(20, n_anchors=100, **SEED),
    SDH(20, n_anchors=100, **SEED),
    AGH(20, n_anchors=50, **SEED),
    PSH(20, **SEED),
    LDAHash(20, **SEED),
    BRE(20, n_anchors=10, n_partners=10, n_sweeps=1, **SEED),
    OneHotHash(20, **SEED),
    ClassifierLSH(20, **SEED),
    LinfHash(20, **SEED),
    LinfHash(80, bound=0.6, **SEED),
    SignHash(20, **SEED),
    ITQ(20, **SEED),
    SpectralHash(20, **SEED),
    LSH(20, **SEED),
]


def run(path, rows):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(["code", "projection"], {"x": rows})


def check_same_codes(hasher, path):
    """Every bit is that of `encode`, unless its projection is within rounding of zero."""
    code, projection = run(path, X)
    values = hasher.project(X)
    differ = np.unpackbits(code ^ hasher.encode(X), axis=1, count=hasher.n_bits).astype(bool)
    rounding = 1e-4 * np.abs(values).max()
    far = np.abs(projection - values).max(axis=1) > rounding
    assert far.sum() <= (20 if isinstance(hasher, AGH) else 0)  # two anchors may be equally near
    assert np.abs(values[differ & ~far[:, None]]).max(initial=0) <= rounding
    assert differ.mean() < 0.004  # AGH has many projections of exactly zero


@pytest.mark.parametrize("hasher", EXPORTED, ids=repr)
def test_an_exported_model_makes_the_codes_of_encode(hasher, tmp_path):
    hasher.fit(X[:300], Y[:300])
    hasher.to_onnx(tmp_path / "model.onnx")
    check_same_codes(hasher, tmp_path / "model.onnx")


def test_every_hasher_is_exported():
    assert {type(hasher) for hasher in EXPORTED} == set(built_in_hashers().values())


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("network")
    hasher = network(DeepLinf, 20, feature_map="hidden", nested=(9,), **FAST).fit(X[:300], Y[:300])
    hasher.save(folder / "model.antipodal")
    hasher.to_onnx(folder / "model.onnx", licence="CC BY 4.0")
    return hasher, folder


def test_a_prefix_is_exported(exported, tmp_path):
    short = exported[0].prefix(9)
    short.to_onnx(tmp_path / "short.onnx")
    check_same_codes(short, tmp_path / "short.onnx")


def test_a_model_with_tied_stages_and_shrinkage_is_exported(tmp_path):
    folder = Path(__file__).parent / "data" / "0.6.1"
    hasher = load(folder / "DeepLinf.tied.antipodal")
    hasher.to_onnx(tmp_path / "tied.onnx")
    rows = np.load(folder / "rows.npy").astype(np.float32)
    code, projection = run(tmp_path / "tied.onnx", rows)
    np.testing.assert_array_equal(code, hasher.encode(rows))
    np.testing.assert_allclose(projection, hasher.project(rows), atol=1e-5)


def test_the_file_has_metadata_and_accepts_any_number_of_rows(exported):
    hasher, folder = exported
    model = onnx.load(folder / "model.onnx")
    about = {entry.key: entry.value for entry in model.metadata_props}
    assert about.pop("antipodal")
    assert about == {
        "class": "DeepLinf",
        "bits": "20",
        "features": "64",
        "model": model_identity(folder / "model.antipodal"),
        "data_licence": "CC BY 4.0",
    }
    for n_rows in (0, 1, 33):
        code, projection = run(folder / "model.onnx", X[:n_rows])
        np.testing.assert_array_equal(code, hasher.encode(X[:n_rows]))
        assert projection.shape == (n_rows, 20)
        assert (code.dtype, projection.dtype) == (np.uint8, np.float32)


def test_the_command_exports_and_says_what(exported, tmp_path):
    _, folder = exported
    arguments = [str(folder / "model.antipodal"), "--onnx", str(tmp_path / "model.onnx")]
    done = CliRunner().invoke(app, ["export", *arguments, "--licence", "CC BY 4.0", "--json"])
    record = json.loads(done.stdout)
    assert record["model"] == model_identity(folder / "model.antipodal")
    assert (record["method"], record["bits"], record["features"]) == ("DeepLinf", 20, 64)
    assert (tmp_path / "model.onnx").read_bytes() == (folder / "model.onnx").read_bytes()


@pytest.mark.parametrize("n_bits", [1, 7, 8, 9, 16, 70])
def test_bits_are_packed_as_codes_have_them(n_bits):
    values = np.random.default_rng(n_bits).standard_normal((5, n_bits)).astype(np.float32)
    values[0], values[1, 0] = 0, np.nan
    graph = Graph()
    made = pack_signs(graph, "x", n_bits)
    helper = onnx.helper
    model = helper.make_model(
        helper.make_graph(
            graph.operators,
            "pack",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [None, n_bits])],
            [helper.make_tensor_value_info(made, onnx.TensorProto.UINT8, None)],
            list(graph.constants.values()),
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=8,
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    np.testing.assert_array_equal(session.run(None, {"x": values})[0], pack(values > 0))


class OwnHash(BaseHasher):
    """A hasher from outside: how it computes is a parameter."""

    def __init__(self, n_bits=8, steps=(), random_state=None):
        self.n_bits, self.steps, self.random_state = n_bits, steps, random_state

    def fit(self, X, y=None):
        self.check_fit(X)
        return self

    def pipeline(self):
        return self.steps


def test_a_hasher_from_outside_is_exported(tmp_path):
    weight = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    own = OwnHash(steps=(Affine(weight, np.ones(8, np.float32)), Rectify(3.0), Shrink(2.0))).fit(X)
    own.to_onnx(tmp_path / "own.onnx")
    check_same_codes(own, tmp_path / "own.onnx")


class Wrong(Rectify):
    """An operation whose ONNX form differs."""

    def export(self, graph, x):
        return x


@pytest.mark.parametrize(
    ("step", "message"), [(lambda X: X[:, :8] - 1, "Function"), (Wrong(), "off by")]
)
def test_unsupported_steps_are_refused_and_nothing_is_written(tmp_path, step, message):
    own = OwnHash(steps=(FirstColumns(8), step)).fit(X)
    with pytest.raises(AntipodalError, match=f"OwnHash.*ONNX.*{message}"):
        own.to_onnx(tmp_path / "own.onnx")
    assert not list(tmp_path.iterdir())


def test_a_search_for_bits_is_no_arithmetic(tmp_path):
    hasher = LinfHash(16, descent=True, **SEED).fit(X[:300])
    with pytest.raises(AntipodalError, match=r"LinfHash.*ONNX"):
        hasher.to_onnx(tmp_path / "model.onnx")


def test_without_the_package_the_message_says_how_to_install_it(tmp_path, monkeypatch):
    hasher = LSH(8, **SEED).fit(X)
    monkeypatch.delitem(sys.modules, "antipodal.io.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(AntipodalError, match=r"\bonnx\b"):
        hasher.to_onnx(tmp_path / "model.onnx")


def test_javascript_makes_the_same_codes(tmp_path, monkeypatch):
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    if not (EXAMPLE / "node_modules" / "onnxruntime-node").is_dir():
        pytest.skip("onnxruntime-node is not installed: npm install in examples/onnx")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLE / "model.py"))
    done = subprocess.run(
        [node, EXAMPLE / "encode.js", "digits.onnx", "digits.json"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\b1297\b.*\b44\b.*\b129", done.stdout)

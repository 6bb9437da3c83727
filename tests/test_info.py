"""`antipodal info`: describes every file written by antipodal, and refuses other files."""

import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import antipodal
from antipodal import HammingIndex, Training, bulk, datasets, evaluate, open_store, pack
from antipodal.baselines.nnhash import NNHash
from antipodal.cli import app
from antipodal.evaluation.report import write_report
from antipodal.features import Vocabulary
from antipodal.io.model_file import model_identity
from antipodal.stores.transfer import back_up, export_items

X = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
Y = np.arange(40) % 2
VERSION = antipodal.__version__


def info(path, *options):
    return CliRunner().invoke(app, ["info", str(path), *options])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with a file of every kind, and the identity of their model."""
    folder = tmp_path_factory.mktemp("made")
    hasher = NNHash(12, training=Training(n_epochs=2), random_state=0).fit(
        X, Y, checkpoint=folder / "checkpoint"
    )
    hasher.save(folder / "model")
    identity = model_identity(folder / "model")
    codes = hasher.encode(X)
    np.save(folder / "codes.npy", codes)
    np.save(folder / "floats.npy", X)
    index = HammingIndex(12, model=identity)
    index.add(codes)
    index.save(folder / "index")
    with open_store(f"sqlite:///{folder}/store.db", n_bits=12, model=identity) as store:
        store.upsert(np.arange(40), codes)
        back_up(store, folder / "backup")
        export_items(store, folder / "export.parquet")
    vectors = pa.table({"vector": list(X)})
    pq.write_table(vectors, folder / "vectors.parquet")
    bulk.encode(folder / "model", folder / "vectors.parquet", folder / "bulk")
    hasher.to_onnx(folder / "model.onnx", licence="CC0")
    datasets.digits().split("paper", 0, n_train=2, n_query=2).save(folder / "split.npz")
    Vocabulary(np.eye(128)[:5]).save(folder / "words")
    data = codes, codes, Y, Y
    (folder / "run.json").write_text(json.dumps(evaluate(*data, n_bits=12).to_dict()) + "\n")
    write_report(folder / "report.html", *data, n_bits=12)
    cell = {"dataset": "digits", "antipodal": "0.3.0", "method": "LSH", "bits": 8, "map": 1.5}
    lines = [json.dumps(cell | {"seed": seed}) + "\n" for seed in (0, 1)]
    (folder / "records.jsonl").write_text("".join(lines))
    return folder, identity


EXPECTED = {
    "model": {"kind": "model", "method": "NNHash", "bits": 12, "features": 6, "model": "ID",
              "antipodal": VERSION},
    "checkpoint": {"kind": "checkpoint", "epochs": 2, "antipodal": VERSION},
    "index": {"kind": "index", "bits": 12, "items": 40, "engine": "flat", "model": "ID"},
    "store.db": {"kind": "store", "bits": 12, "items": 40, "model": "ID", "antipodal": VERSION},
    "backup": {"kind": "store", "bits": 12, "items": 40, "model": "ID", "antipodal": VERSION},
    "codes.npy": {"kind": "codes", "rows": 40, "bits": 16, "model": None},
    "floats.npy": {"kind": "array", "shape": [40, 6], "dtype": "float32"},
    "export.parquet": {"kind": "export", "bits": 12, "items": 40, "model": "ID",
                       "antipodal": VERSION},
    "bulk": {"kind": "folder of codes", "method": "NNHash", "bits": 12, "rows": 40, "files": 1,
             "finished": True, "missing_or_changed": [], "model": "ID", "antipodal": VERSION},
    "bulk/vectors.parquet": {"kind": "codes", "bits": 12, "rows": 40, "model": "ID"},
    "bulk/_manifest.json": {"kind": "folder of codes", "rows": 40},
    "model.onnx": {"kind": "ONNX model", "method": "NNHash", "bits": 12, "features": 6,
                   "model": "ID", "data_licence": "CC0", "antipodal": VERSION},
    "split.npz": {"kind": "split", "train": 20, "query": 20},
    "words": {"kind": "vocabulary", "words": [5, 128]},
    "run.json": {"kind": "records of `antipodal evaluate`", "records": 1},
    "records.jsonl": {"kind": "records of `antipodal bench`", "records": 2, "seed": [0, 1],
                      "bits": 8, "antipodal": "0.3.0"},
    "report.html": {"kind": "report", "title": "Retrieval report", "antipodal": VERSION},
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_info_describes_kind_version_and_model(made, name):
    folder, identity = made
    done = info(folder / name, "--json")
    assert done.exit_code == 0, done.exception
    facts = json.loads(done.stdout)
    for key, value in EXPECTED[name].items():
        assert facts[key] == (identity if value == "ID" else value), key
    shown = info(folder / name).stdout
    assert shown.splitlines()[0] == f"{folder / name}: {facts['kind']}"
    if EXPECTED[name].get("model") == "ID":
        assert identity in shown
    if "antipodal" in EXPECTED[name]:
        assert facts["antipodal"] in shown


def test_parameters_and_unknown_values_are_printed(made):
    folder, _ = made
    facts = json.loads(info(folder / "model", "--json").stdout)
    assert facts["parameters"]["training"]["n_epochs"] == 2
    assert re.search(r"\bn_epochs\b.*\b2\b", info(folder / "model").stdout)
    assert json.loads(info(folder / "codes.npy", "--json").stdout)["model"] is None
    assert re.search(r"\bmodel\b", info(folder / "codes.npy").stdout)


@pytest.mark.parametrize(
    "name", ["model", "checkpoint", "index", "backup", "codes.npy", "export.parquet", "model.onnx",
             "split.npz", "words", "run.json", "records.jsonl", "report.html"]
)  # fmt: skip
def test_truncated_file_is_an_error_of_one_line(made, tmp_path, name):
    whole = (made[0] / name).read_bytes()
    for share in (0.3, 0.9):
        (tmp_path / name).write_bytes(whole[: int(share * len(whole))])
        done = info(tmp_path / name)
        assert done.exit_code == 1
        assert isinstance(done.exception, antipodal.AntipodalError), (share, done.exception)
        assert name in str(done.exception)
        assert not done.stdout


def test_changed_bytes_and_missing_files_are_detected(made, tmp_path):
    for name in ("model", "checkpoint", "index", "words"):
        data = bytearray((made[0] / name).read_bytes())
        data[-3] ^= 4
        (tmp_path / name).write_bytes(data)
        assert "checksum" in str(info(tmp_path / name).exception)
    shutil.copytree(made[0] / "bulk", tmp_path / "bulk")
    (tmp_path / "bulk" / "vectors.parquet").unlink()
    facts = json.loads(info(tmp_path / "bulk", "--json").stdout)
    assert facts["missing_or_changed"] == ["vectors.parquet"]


def test_foreign_files_are_refused_in_one_line(made, tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("hello")
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "page.html").write_text("<!DOCTYPE html><html></html>")
    (tmp_path / "folder").mkdir()
    np.savez(tmp_path / "other.npz", a=pack([[1]]))
    key_values = {
        "other.parquet": "parquet",
        "empty": "empty",
        "text": "antipodal",
        "other.jsonl": "--json",
        "page.html": "HTML",
        "folder": "manifest",
        "other.npz": "train",
        "missing": "No such file",
    }
    for name, value in key_values.items():
        done = info(tmp_path / name)
        assert done.exit_code == 1
        assert isinstance(done.exception, antipodal.AntipodalError)
        message = str(done.exception)
        assert str(tmp_path / name) in message
        assert value in message.replace(str(tmp_path / name), ""), name
        assert len(message.splitlines()) == 1

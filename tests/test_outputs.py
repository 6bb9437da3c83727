"""Output files: a store is never overwritten by its own copy, nor a file by one of another kind."""

import json
import os
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from antipodal.cli import app, outputs
from antipodal.cli.app import print_table
from antipodal.cli.outputs import file_kind
from antipodal.errors import StoreError
from antipodal.stores import open_store
from antipodal.stores.transfer import back_up, copy_store, export_items, restore

N, N_BITS = 50, 16
CODES = np.random.default_rng(0).integers(0, 256, (N, 2), dtype=np.uint8)


def run(*arguments, code=0):
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == code, (done.output, done.exception)
    return f"{done.exception} {done.output}"


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Return a folder with a store, features, codes, a model, an index and a table."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("originals"))
        with open_store("sqlite:///items.db", n_bits=N_BITS) as store:
            store.add(CODES)
        np.save("X.npy", np.random.default_rng(1).standard_normal((N, 4)))
        np.save("codes.npy", CODES)
        run("fit", "X.npy", "--method", "LSH", "--bits", N_BITS, "--out", "model")
        run("index", "codes.npy", "--out", "index")
        run("export", "items.db", "--parquet", "items.parquet")
        return Path.cwd()


@pytest.fixture
def folder(originals, tmp_path, monkeypatch):
    """Return a copy of these files, with links to the store."""
    shutil.copytree(originals, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    os.symlink("items.db", "symbolic.db")
    os.link("items.db", "hard.db")
    return tmp_path


SELF = ["items.db", "./items.db", "symbolic.db", "hard.db", "items.db-wal", "items.db-shm",
        "items.db-journal", "link-to-wal"]  # fmt: skip


@pytest.fixture
def store(folder):
    """Yield the open store, with a write-ahead log."""
    with open_store("sqlite:///items.db") as opened:
        opened.upsert([7], CODES[:1])
        assert Path("items.db-wal").exists()
        os.symlink("items.db-wal", "link-to-wal")
        yield opened


@pytest.mark.parametrize("path", SELF)
def test_backups_exports_and_copies_to_the_store_itself_are_refused(store, path):
    before = {file: Path(file).read_bytes() for file in ("items.db", "items.db-wal")}
    for write in (
        lambda: back_up(store, path),
        lambda: export_items(store, path),
        lambda: copy_store(store, f"sqlite:///{path}"),
        lambda: copy_store(store, f"sqlite:///{path}", replace=True),
    ):
        with pytest.raises(StoreError, match=r"items\.db.*itself"):
            write()
    assert {file: Path(file).read_bytes() for file in before} == before
    store.add(CODES[:3])  # the store still writes to this file
    with open_store("sqlite:///items.db") as other:
        assert other.count() == N + 3


def test_store_opened_by_a_link_is_not_overwritten_by_its_name(store):
    with open_store("sqlite:///symbolic.db") as linked:
        for path in ("items.db", "items.db-wal"):
            with pytest.raises(StoreError, match="itself"):
                back_up(linked, path)


def test_store_is_not_restored_from_itself(folder):
    for path in ("items.db", "symbolic.db"):
        with pytest.raises(StoreError, match="itself"):
            restore(path, "sqlite:///items.db")


@pytest.mark.parametrize("force", [(), ("--force",)])
@pytest.mark.parametrize("path", SELF)
def test_commands_refuse_to_write_to_the_store_itself(store, path, force):
    assert "itself" in run("store", "backup", path, "--store", "sqlite:///items.db", *force, code=1)
    assert "itself" in run("export", "items.db", "--parquet", path, *force, code=1)
    for replace in ((), ("--replace",)):
        to = f"sqlite:///{path}"
        output = run("store", "copy", "--store", "sqlite:///items.db", "--to", to, *replace, code=1)
        assert "itself" in output
    assert store.count() == N


WRITERS = {
    outputs.MODEL: ("fit", "X.npy", "--method", "LSH", "--bits", 8, "--out"),
    outputs.ARRAY: ("encode", "model", "X.npy", "--out"),
    outputs.INDEX: ("index", "codes.npy", "--out"),
    outputs.STORE: ("store", "backup", "--store", "sqlite:///items.db"),
    outputs.PARQUET: ("export", "items.db", "--parquet"),
}


def write_other(path):
    """Write a store of other items."""
    with open_store(f"sqlite:///{path}", n_bits=8) as other:
        other.add(CODES[:, :1])


def write_foreign_database(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes (text)")
    connection.close()


EXISTING = {
    outputs.STORE: write_other,
    outputs.DATABASE: write_foreign_database,
    outputs.MODEL: lambda path: os.link("model", path),
    outputs.INDEX: lambda path: os.link("index", path),
    outputs.PARQUET: lambda path: pq.write_table(pa.table({"a": [1]}), path),
    outputs.ARRAY: lambda path: os.link("codes.npy", path),
    outputs.OTHER: lambda path: Path(path).write_text("notes"),
    outputs.RECORDS: lambda path: Path(path).write_text('{"a": 1}\n'),
    None: lambda path: Path(path).touch(),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("existing", EXISTING)
def test_file_of_another_kind_is_replaced_only_with_force(folder, writer, existing):
    EXISTING[existing]("out")
    assert file_kind("out") == existing
    before = Path("out").read_bytes()
    if existing not in (writer, None):
        output = run(*WRITERS[writer], "out", code=1)
        assert all(word in output for word in ("out", existing, writer, "--force"))
        assert Path("out").read_bytes() == before
        run(*WRITERS[writer], "out", "--force")
    else:
        run(*WRITERS[writer], "out")
    assert file_kind("out") == writer


def test_side_files_of_a_store_are_not_replaced_by_other_commands(store):
    for path in ("items.db-wal", "items.db-shm", "items.db-journal", "link-to-wal"):
        assert "SQLite side file" in run("index", "codes.npy", "--out", path, code=1)
    for path in ("symbolic.db", "hard.db"):
        assert "SQLite store" in run("index", "codes.npy", "--out", path, code=1)
    assert store.count() == N


def test_new_store_is_recognised_while_open(folder):
    with open_store("sqlite:///new.db", n_bits=8):
        assert file_kind("new.db") == outputs.STORE
        run("index", "codes.npy", "--out", "new.db", code=1)


def test_reports_records_and_onnx_models_do_not_replace_a_store(folder):
    labels = ("--query-labels", "y.npy", "--database-labels", "y.npy", "--bits", N_BITS)
    np.save("y.npy", np.arange(N) % 3)
    before = Path("items.db").read_bytes()
    for command in (
        ("evaluate", "codes.npy", "codes.npy", *labels, "--html"),
        ("audit", "X.npy", "--bits", 8, "--html"),
        ("export", "model", "--onnx"),
    ):
        assert outputs.STORE in run(*command, "items.db", code=1)
    assert "items.db" in run("bench", "digits", "--methods", "LSH", "--out", "items.db", code=1)
    assert Path("items.db").read_bytes() == before


def test_devices_pipes_and_missing_files_have_no_kind(folder):
    assert file_kind("/dev/null") is None
    assert file_kind("missing") is None
    run("encode", "model", "X.npy", "--out", "/dev/null")


def test_foreign_safetensors_files_are_not_models(folder):
    header = json.dumps({"__metadata__": {"format": "pt"}}).encode()
    Path("foreign").write_bytes(len(header).to_bytes(8, "little") + header)
    assert file_kind("foreign") == outputs.SAFETENSORS
    Path("text").write_text("12345678{ not a header")
    assert file_kind("text") == outputs.OTHER
    assert file_kind("model") == outputs.MODEL


def test_wide_tables_are_not_cut(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal
    values = [f"value-{i}" * 3 for i in range(12)]
    print_table("title", [f"heading {i}" for i in range(12)], [values])
    shown = capsys.readouterr().out
    assert all(value in shown for value in values)
    assert "…" not in shown

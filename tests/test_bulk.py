"""Bulk encoding of parquet files: complete files, also after kills and on a cluster."""

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from antipodal import LSH, AntipodalError, bulk, open_vectors
from antipodal.bulk import BatchEncoder, manifest
from antipodal.bulk import encoder as encoder_module
from antipodal.bulk.encoder import FileJob, encode_file
from antipodal.bulk.run import FileEncoder
from antipodal.cli import app
from antipodal.io.formats import find_format
from antipodal.io.model_file import model_identity
from antipodal.io.tables import ParquetTable
from effort import rounds
from processes import processes

WIDTH, N_BITS = 12, 20
HANG = 600  # seconds that only a hang exceeds
N_BATCHES = 97  # of 5,000 bytes
SIZES = {"a.parquet": 700, "b.parquet": 0, "sub/c.parquet": 3, "sub/d.parquet": 5000}


def table_of(n_rows, seed=0):
    rows = np.random.default_rng(seed).standard_normal((n_rows, WIDTH)).astype(np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), WIDTH)
    titles = [None if i % 5 == 0 else f"title {i % 7}" for i in range(n_rows)]
    ids, titles = pa.array(range(n_rows), pa.int64()), pa.array(titles, pa.string())
    return pa.table({"id": ids, "v": vectors, "title": titles})


def rows_of(table):
    return np.concatenate(
        [
            np.empty((0, WIDTH), np.float32),
            table["v"].combine_chunks().flatten().to_numpy().reshape(-1, WIDTH),
        ]
    )


def contents(folder):
    """Return the bytes of every file, including the manifest."""
    return {
        path.relative_to(folder): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    root = tmp_path_factory.mktemp("bulk")
    for seed, (name, n_rows) in enumerate(SIZES.items()):
        (root / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table_of(n_rows, seed), root / "in" / name, row_group_size=2000)
    hasher = LSH(N_BITS, random_state=0).fit(rows_of(table_of(100, 9)))
    hasher.save(root / "model.antipodal")
    LSH(N_BITS, random_state=1).fit(rows_of(table_of(100, 9))).save(root / "other.antipodal")
    return root, hasher


@pytest.fixture
def work(originals, tmp_path, monkeypatch):
    """Change to a folder with copies of the files and models; return the hasher."""
    root, hasher = originals
    for name in ("in", "model.antipodal", "other.antipodal"):
        subprocess.run(["cp", "-rp", root / name, tmp_path], check=True)
    monkeypatch.chdir(tmp_path)
    return hasher


def encode(source="in", target="out", model="model.antipodal", **options):
    return bulk.encode(model, source, target, **options)


def refused(message, **options):
    with pytest.raises(AntipodalError, match=message):
        encode(**options)


def test_every_file_gets_the_codes_of_its_rows(work, monkeypatch):
    monkeypatch.setattr(encoder_module, "BATCH_BYTES", 20_000)  # several batches
    calls = []
    report = encode(progress=lambda *counts: calls.append(counts))
    assert report == (4, 5703, 4, 5703)
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]
    for name in SIZES:
        before, after = pq.read_table(f"in/{name}"), pq.read_table(f"out/{name}")
        assert after.drop_columns("code").equals(before)
        assert after.schema.field("code").type == pa.binary(3)
        codes = np.frombuffer(b"".join(after["code"].to_pylist()), np.uint8).reshape(-1, 3)
        if len(before):
            np.testing.assert_array_equal(codes, work.encode(rows_of(before)))
    about = json.loads(Path("out/_manifest.json").read_text())
    assert about["model"] == model_identity("model.antipodal")
    assert (about["rows"], about["bits"], about["vectors"]) == (5703, N_BITS, ["v"])
    assert {file["name"]: file["rows"] for file in about["files"]} == SIZES
    for file in about["files"]:
        done = subprocess.run(["sha256sum", f"out/{file['name']}"], capture_output=True, text=True)
        assert done.stdout.split()[0] == file["sha256"]
        assert os.path.getsize(f"out/{file['name']}") == file["bytes"]
    vectors = open_vectors("out", "code")  # the manifest is skipped
    assert vectors.shape == (5703, 3)
    assert not list(Path("out").rglob(".*"))


def test_columns_are_kept_on_request_and_vectors_may_be_several_columns(work):
    table = table_of(50, 5)
    rows = rows_of(table)
    wide = {f"f{i}": rows[:, i] for i in range(WIDTH)}
    pq.write_table(pa.table({"id": table["id"], **wide}), "wide.parquet")
    encode("wide.parquet:f*", columns=["id"])
    encoded = pq.read_table("out/wide.parquet")
    assert encoded.column_names == ["id", "code"]
    assert encoded["code"].to_pylist() == [bytes(code) for code in work.encode(rows)]
    encode("in/sub/*.parquet", "codes", column="v", columns=[])
    assert sorted(path.name for path in Path("codes").glob("*.parquet")) == [
        "c.parquet",
        "d.parquet",
    ]
    assert pq.read_table("codes/d.parquet").column_names == ["code"]


def test_a_second_run_resumes_only_on_request_and_with_equal_options(work):
    encode(columns=["id"])
    before = contents("out")
    refused(r"\bout\b.*\bresume", columns=["id"])
    refused(r"\bout\b.*\bmodel\b", model="other.antipodal", resume=True)
    refused(r"\bout\b.*\bmodel\b", model="other.antipodal", columns=["id"])
    refused(r"\bout\b.*\bcolumns \['id'\].*\bNone\b", resume=True)
    refused(r"\ba\.parquet\b", source="in/sub", columns=["id"], resume=True)
    assert encode(columns=["id"], resume=True) == (4, 5703, 0, 0)
    assert contents("out") == before


def test_files_that_differ_from_their_record_are_encoded_again(work):
    encode()
    before = contents("out")
    Path("out/a.parquet").write_bytes(before[Path("a.parquet")][:-1] + b"?")  # of equal length
    Path("out/b.parquet").write_bytes(b"PAR1")
    Path("out/sub/c.parquet").unlink()
    assert encode(resume=True).files_encoded == 3
    assert contents("out") == before
    pq.write_table(table_of(8, 4), "in/sub/c.parquet")
    pq.write_table(table_of(9, 5), "in/new.parquet")
    assert encode(resume=True) == (5, 5717, 2, 17)
    assert len(pq.read_table("out/sub/c.parquet")) == 8


def test_a_target_inside_the_source_is_not_part_of_it(work):
    encode(target="in/codes")
    before = contents("in/codes")
    refused(r"\bin/codes\b.*\bresume", target="in/codes")
    (Path("in/codes") / "a.parquet").unlink()
    assert encode(target="in/codes", resume=True) == (4, 5703, 1, 700)
    assert contents("in/codes") == before


def test_columns_with_dots_in_their_names_are_read_in_batches(work):
    table = table_of(2000, 5)
    vectors = table["v"].combine_chunks()
    names = ["v", "v.w", "v.w.x", "id"]
    pq.write_table(
        pa.table([vectors.take(pa.array(range(1999, -1, -1))), vectors, table["id"], table["id"]],
                 names),
        "dots.parquet",
    )  # fmt: skip
    source = ParquetTable(find_format("dots.parquet"))
    batches = [batch for _, batch in source.record_batches(["v.w"], 20_000)]
    assert {tuple(batch.schema.names) for batch in batches} == {("v.w",)}
    assert max(map(len, batches)) <= 500  # about 48 bytes a row
    encode("dots.parquet", column="v.w", columns=["v"])
    encoded = pq.read_table("out/dots.parquet")
    assert encoded.column_names == ["v", "code"]
    assert encoded["code"].to_pylist() == [bytes(code) for code in work.encode(rows_of(table))]


def test_a_source_that_vanishes_is_named(work):
    with ThreadPoolExecutor(1) as pool:
        job = FileJob("d", "in/vanished.parquet", "out/d.parquet")
        with pytest.raises(AntipodalError, match=r"in/vanished\.parquet\b.*No such file"):
            encode_file(BatchEncoder(work), job, pool)


def test_bad_rows_are_named_and_the_other_files_are_kept(work):
    good = contents("in")[Path("sub/d.parquet")]
    bad = rows_of(table_of(10))
    bad[7, 0] = np.nan
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(bad.ravel()), WIDTH)
    pq.write_table(pa.table({"v": vectors}), "in/sub/d.parquet")
    refused(r"\bin/sub/d\.parquet\b.*\b10 rows\b.*\brow 0\b.*\brow 7\b")
    assert not Path("out/sub/d.parquet").exists()
    assert not Path("out/_manifest.json").exists()
    Path("in/sub/d.parquet").write_bytes(good)
    report = encode(resume=True)
    assert report.files == 4
    encode(target="again")
    assert {k: v for k, v in contents("out").items() if k.suffix == ".parquet"} == {
        k: v for k, v in contents("again").items() if k.suffix == ".parquet"
    }


def test_an_incomplete_progress_line_is_ignored(work):
    encode()
    before = contents("out")
    about = json.loads(before[Path("_manifest.json")])
    files = about.pop("files")
    lines = [json.dumps(about), json.dumps(files[0]), json.dumps(files[1])[:-20]]
    Path("out/_manifest.json").unlink()
    Path("out/_progress.jsonl").write_text("\n".join(lines))
    assert encode(resume=True).files_encoded == 3
    assert contents("out") == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "nowhere"}, r"\bnowhere\b.*No such file"),
        ({"source": "in:title"}, r"'title'"),
        ({"columns": ["nothing"]}, r"\.parquet\b.*'nothing'"),
        ({"target": "in"}, r"\bin/a\.parquet\b.*/in\b"),
        ({"target": "full"}, r"\bfull\b.*'file'"),
        ({"source": "coded.parquet", "column": "v"}, r"\bcoded\.parquet\b.*'code'"),
        ({"source": "rows.npy"}, r"\brows\.npy\b.*\bNumPy\b"),
    ],
)
def test_invalid_runs_are_refused_before_anything_is_written(work, options, message):
    Path("full").mkdir()
    Path("full/file").touch()
    np.save("rows.npy", np.zeros((2, WIDTH)))
    table = table_of(5)
    pq.write_table(table.append_column("code", table["id"]), "coded.parquet")
    refused(message, **options)
    assert not Path("out").exists()


def test_invalid_engines_raise_value_error(work):
    with pytest.raises(ValueError, match=r"\bengine\b.*'spark'"):
        encode(engine="spark")
    with pytest.raises(ValueError, match=r"\baddress\b.*\bRay\b"):
        encode(address="auto")


def test_two_runs_do_not_write_to_one_folder(work):
    with manifest.Manifest(Path("out"), {}).locked():
        refused(r"\bout\b")


def test_the_command_encodes_folders_and_reports_errors(work):
    def run(*arguments, code=0):
        done = CliRunner().invoke(app, ["encode", "model.antipodal", *arguments])
        assert done.exit_code == code, done.output
        return done

    done = run("in:v", "--out", "out/", "--columns", "id, title", "--json")
    record = json.loads(done.stdout)
    assert (record["files"], record["rows"], record["files_encoded"]) == (4, 5703, 4)
    assert pq.read_table("out/a.parquet").column_names == ["id", "title", "code"]
    done = run("in:v", "--out", "out", "--columns", "id,title", "--resume")
    assert re.search(r"\bout\b.*\b5,703 rows\b.*\b4 files\b.*\b0\b", done.stdout)
    run("in:v", "--out", "codes.npy", "--resume", code=2)
    run("in:v", "--out", "new/", "--address", "auto", code=2)
    run("in:v", "--out", "codes.npy")
    np.testing.assert_array_equal(np.load("codes.npy"), np.asarray(open_vectors("out", "code")))


def test_the_command_chooses_the_kind_of_output_by_input_and_name(work):
    def run(source, out, code=0):
        done = CliRunner().invoke(app, ["encode", "model.antipodal", source, "--out", out])
        assert done.exit_code == code, done.output
        return done

    encode(target="expected")
    for source, out in (("in", "a"), ("in:v", "b"), ("in/*.parquet", "c"), ("in/sub/**", "d")):
        run(source, out)
        assert Path(out, "_manifest.json").is_file()
    assert {k: v for k, v in contents("a").items() if k.suffix == ".parquet"} == {
        k: v for k, v in contents("expected").items() if k.suffix == ".parquet"
    }
    np.save("rows.npy", rows_of(table_of(9)))
    Path("arrays").mkdir()
    np.save("arrays/rows.npy", rows_of(table_of(9)))
    for source, out in (("in", "e.npy"), ("in/a.parquet", "f"), ("rows.npy", "g"), ("arrays", "h")):
        run(source, out)
        assert np.load(out).shape[1] == 3
    for source in ("in", "in/a.parquet", "rows.npy"):
        for out in ("codes.parquet", "codes.PQ", "codes.csv", "codes.npz", "codes.jsonl.gz"):
            run(source, out, code=2)
            assert not Path(out).exists()
    run("in", "codes.parquet/")
    assert Path("codes.parquet/a.parquet").is_file()
    assert isinstance(run("in", "rows.npy/", code=1).exception, AntipodalError)


def test_the_command_prints_progress_without_a_terminal(work):
    def run(*arguments):
        done = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert done.exit_code == 0, done.output
        return done

    done = run("encode", "model.antipodal", "in", "--out", "out", "--json")
    assert [line.split()[-1] for line in done.stderr.splitlines()] == ["1/4", "2/4", "3/4", "4/4"]
    json.loads(done.stdout)
    np.save("rows.npy", rows_of(table_of(5)))
    done = run("encode", "model.antipodal", "rows.npy", "--out", "codes.npy", "--json")
    assert done.stderr.split()[-1] == "5/5"
    done = run("fit", "rows.npy", "--method", "LSH", "--bits", 8, "--out", "m", "--json")
    assert re.search(r"\bLSH, 8 bits\b.*\b5 rows\b", done.stderr)
    assert json.loads(done.stdout)["rows"] == 5


def test_the_encoder_accepts_tables_and_batches_of_any_size(originals):
    _, hasher = originals
    table = table_of(1000, 3)
    whole = BatchEncoder(hasher, columns=["id"])(table)
    encoder = BatchEncoder(hasher, column="v", columns=["id"])
    parts = [encoder(batch) for batch in table.slice(7).to_batches(max_chunksize=37)]
    assert pa.Table.from_batches(parts).equals(whole.slice(7))
    assert encoder(table.slice(0, 0)).schema == whole.schema
    assert whole["code"].to_pylist() == [bytes(code) for code in hasher.encode(rows_of(table))]


def encode_until_blocked(root, target, n_batches):
    """Encode in small batches, and block before batch number `n_batches`."""
    encoder_module.BATCH_BYTES = 5_000
    numbers, encode_batch = itertools.count(1), encoder_module._encode

    def block(*arguments):
        if next(numbers) == n_batches:
            Path(root, "blocked").touch()
            time.sleep(HANG)
        return encode_batch(*arguments)

    encoder_module._encode = block
    bulk.encode(f"{root}/model.antipodal", f"{root}/in", target, resume=True)


def wait_until(condition):
    """Wait for a condition; fail if it takes so long that something hangs."""
    deadline = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_killed_runs_leave_complete_files_and_resume(work, tmp_path, monkeypatch):
    monkeypatch.setattr(encoder_module, "BATCH_BYTES", 5_000)
    encode(target="undisturbed")
    expected = contents("undisturbed")
    batches = random.Random(0)
    n_killed = 0
    for number in range(rounds(3, 100)):
        arguments = (str(tmp_path), str(tmp_path / "out"), batches.randint(1, N_BATCHES))
        child = processes.Process(target=encode_until_blocked, args=arguments)
        child.start()
        wait_until(lambda child=child: Path("blocked").exists() or not child.is_alive())
        n_killed += child.is_alive()
        child.kill()
        child.join()
        Path("blocked").unlink(missing_ok=True)
        finished = {k: v for k, v in contents("out").items() if k.name[0] not in "._"}
        assert finished.items() <= expected.items()
        if Path("out/_manifest.json").exists():  # finished: start again
            assert contents("out") == expected
            Path("out").rename(f"done{number}")
    assert n_killed
    encode(resume=True)
    assert contents("out") == expected


ON_CLUSTER = """
import os, time
from antipodal import bulk
from antipodal.bulk import run

class BlockingEncoder(bulk.BatchEncoder):
    # The first of all workers blocks at its first batch, until it is killed.
    def __call__(self, batch):
        try:
            with open(f"{folder}/worker", "x") as file:
                file.write(f"{os.getpid()}\\n")
        except FileExistsError:
            return super().__call__(batch)
        time.sleep(1e6)

class BlockingFileEncoder(run.FileEncoder):
    def __init__(self, model, identity, options):
        super().__init__(model, identity, options)
        self.encoder = BlockingEncoder(model, **options)

folder = os.getcwd()
with run.connected(None):
    run.FileEncoder = BlockingFileEncoder
    print(bulk.encode("model.antipodal", "in", "by-ray", engine="ray"), flush=True)
"""


def test_ray_writes_the_same_files_although_a_worker_is_killed(work, tmp_path):
    """`campaigns/test_ray.py` runs the example and Ray Data: starting Ray takes seconds."""
    pytest.importorskip("ray")
    encode(target="locally")
    child = subprocess.Popen(
        [sys.executable, "-c", ON_CLUSTER],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ
        | {"PYTHONPATH": str(Path(bulk.__file__).parents[2]), "RAY_worker_niceness": "0"},
    )  # fmt: skip
    try:
        worker = tmp_path / "worker"
        wait_until(
            lambda: (
                child.poll() is not None or (worker.exists() and worker.read_text()[-1:] == "\n")
            )
        )
        if child.poll() is None:
            assert list(Path("by-ray").rglob(".*.parquet.*"))  # the worker has begun a file
            os.kill(int(worker.read_text()), signal.SIGKILL)
        printed, errors = child.communicate(timeout=HANG)
    finally:
        child.kill()
    assert child.returncode == 0, errors
    assert "Report(files=4, rows=5703, files_encoded=4" in printed
    locally, by_ray = contents("locally"), contents("by-ray")
    assert {k: v for k, v in by_ray.items() if k.name[0] != "."} == locally


def test_a_worker_refuses_a_model_that_was_replaced(tmp_path):
    path = tmp_path / "model"
    LSH(8, random_state=0).fit(np.eye(4)).save(path)
    identity = model_identity(path)
    assert FileEncoder(str(path), identity, {}).encoder.identity == identity
    LSH(8, random_state=1).fit(np.eye(4)).save(path)
    with pytest.raises(AntipodalError, match="model"):
        FileEncoder(str(path), identity, {})

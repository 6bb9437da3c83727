"""Commands: files, output, exit codes, pipes and signals."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from io import BytesIO, TextIOWrapper
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from antipodal import KSH, LSH, Collection, HammingIndex, evaluate, load
from antipodal.bench.demo import _model, docstrings, embed
from antipodal.cli import app
from processes import run_command

X, Y = load_digits(return_X_y=True)
X, Y = X[:600].astype(np.float32), Y[:600]


def start(*arguments):
    """Run a command in a new process."""
    command = [sys.executable, "-m", "antipodal", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def run_here(*arguments):
    """Run a command in this process, since a new one would spend most of its time on imports."""
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with features, labels, and a model fitted by the command line."""
    folder = tmp_path_factory.mktemp("cli")
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", Y)
    np.savez(folder / "all.npz", X=X, y=Y)
    done = run_command(
        "fit", "all.npz:X", "--labels", "all.npz:y", "--bits", 24, "--out", "m", "--json",
        "--set", "n_epochs=20", "--set", "n_anchors=100", "--checkpoint", "state", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record.items() >= {"method": "DeepLinf", "bits": 24, "rows": 600, "features": 64}.items()
    assert len(re.findall(r"\b\d+/20\b", done.stderr)) == 10
    return folder


def test_fit_gives_the_hasher_of_the_python_api(folder):
    hasher = load(folder / "m")
    assert hasher.training.n_epochs == 20
    again = type(hasher)(**hasher.get_params(deep=False)).fit(X, Y)
    np.testing.assert_array_equal(again.encode(X), hasher.encode(X))
    assert (folder / "state").exists()


def test_encode_gives_the_codes_of_the_python_api(folder):
    done = run_command("encode", "m", "X.npy", "--out", "codes.npy", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bytes"] == 600 * 3
    np.testing.assert_array_equal(np.load(folder / "codes.npy"), load(folder / "m").encode(X))


def test_evaluate_gives_the_measures_of_the_python_api(folder):
    codes = load(folder / "m").encode(X)
    np.save(folder / "q.npy", codes[:100])
    np.save(folder / "qy.npy", Y[:100])
    np.save(folder / "d.npy", codes)
    arguments = ("evaluate", "q.npy", "d.npy", "--query-labels", "qy.npy", "--database-labels",
                 "y.npy", "--bits", 24, "--radius", 1, "--top", 10)  # fmt: skip
    done = run_command(*arguments, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    expected = evaluate(codes[:100], codes, Y[:100], Y, n_bits=24, radii=(1,), top=(10,))
    assert json.loads(done.stdout) == expected.to_dict()
    table = run_command(*arguments, cwd=folder)
    assert "precision_r1" in table.stdout


def test_fit_takes_pairs_and_other_methods(folder, monkeypatch):
    monkeypatch.chdir(folder)
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 600, (500, 2))
    similar = (Y[pairs[:, 0]] == Y[pairs[:, 1]]).astype(int)
    np.save(folder / "pairs.npy", np.column_stack([pairs, similar]))
    run_here("fit", "X.npy", "--pairs", "pairs.npy", "--bits", 8, "-o", "p",
                     "--set", "n_epochs=2", "--set", "feature_map=none")  # fmt: skip
    done = run_here("fit", "X.npy", "--method", "LSH", "--bits", 8, "-o", "l")
    assert re.search(r"\bLSH\b.*\b8 bits\b.*\b600 rows\b.*\b64 features\b", done.stdout)
    assert isinstance(load(folder / "l"), LSH)
    run_here("fit", "X.npy", "--labels", "y.npy", "--method", "KSH", "--bits", 8, "-o", "k",
                     "--set", "n_anchors=50")  # fmt: skip
    again = KSH(8, n_anchors=50, random_state=0).fit(X, Y)
    np.testing.assert_array_equal(load(folder / "k").encode(X), again.encode(X))


JOIN = "threading.Thread.join"
KEPT = ("shutil.copytree", JOIN)


def test_demo_shows_texts_and_digits(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("antipodal.bench.demo.METHODS", ("DeepLinf", "LSH"))
    # test_page.py has all texts and dimensions.
    some = [t for i, t in enumerate(docstrings()) if not i % 3 or t["title"] in KEPT]
    monkeypatch.setattr("antipodal.bench.demo.docstrings", lambda: some)
    monkeypatch.setattr("antipodal.bench.demo.N_FEATURES", 64)
    monkeypatch.setattr("antipodal.bench.demo._model", cache(_model.__wrapped__))
    done = run_here("demo", "--epochs", 2, "--bits", 16)
    for text in ("$ antipodal audit", "$ antipodal build", "$ antipodal search", "recall@10",
                 "shutil.copytree", "DeepLinf", "LSH", "query: 0", "██"):  # fmt: skip
        assert text in done.stdout
    # Captions and pictures fit a terminal.
    pictures = done.stdout[done.stdout.index("query: 0") :]
    assert max(map(len, pictures.splitlines())) <= 80
    folder = tmp_path / "antipodal-demo"
    assert load(folder / "digits.antipodal").n_bits == 16
    assert np.load(folder / "digits-codes.npy").shape == (1597, 2)
    with Collection.open(folder / "texts.db", embed="antipodal.bench.demo:embed") as texts:
        rows = [json.loads(line) for line in (folder / "texts.jsonl").read_text().splitlines()]
        assert texts.count() == len(rows) == len(some)
        found = texts.search(texts=["wait until the thread terminates"], k=1, rerank=4)
    # Also the nearest item by the exact cosine.
    query = embed(["wait until the thread terminates"])[0]
    best = max(rows, key=lambda row: float(np.dot(row["embedding"], query)))
    assert found.ids[0, 0] == best["title"] == JOIN
    # As JSON, embedded by the same model.
    done = run_here("demo", "--epochs", 2, "--bits", 16, "--json")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    scores = [r for r in records if "map" in r]
    assert [r["method"] for r in scores] == ["DeepLinf", "LSH"]
    assert all({"precision_r2", "fit_seconds", "seed"} <= r.keys() for r in scores)
    assert next(r["text"] for r in records if "ids" in r).startswith("copy a directory")


def test_demo_runs_without_pytorch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("antipodal.cli.demo.find_spec", lambda name: None)
    monkeypatch.setattr("antipodal.cli.demo._show_texts", lambda *options: None)
    monkeypatch.setattr("antipodal.bench.demo.WITHOUT_TORCH", ("LSH", "ITQ"))
    done = run_here("demo", "--bits", 16)
    assert "PyTorch" in done.stdout
    assert "DeepLinf" not in done.stdout
    assert isinstance(load(tmp_path / "antipodal-demo" / "digits.antipodal"), LSH)


def test_datasets_are_listed_and_existing_ones_not_downloaded_again(tmp_path):
    done = run_command("datasets", "--json")
    listed = {r["dataset"]: r["download"] for r in map(json.loads, done.stdout.splitlines())}
    assert listed["cifar10"] == "antipodal datasets cifar10"
    assert listed["nuswide"] is None
    assert "60,000" in run_command("datasets").stdout
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name in ("test_batch", *(f"data_batch_{i}" for i in range(1, 6))):
        with (folder / f"{name}.bin").open("wb") as file:
            file.truncate(30_730_000)  # a sparse file of the right size
    done = run_command("datasets", "cifar10", "--data", tmp_path, "--json")
    assert json.loads(done.stdout) == {"dataset": "cifar10", "path": str(folder)}
    done = run_command("datasets", "nuswide")
    assert done.returncode == 2
    assert "nuswide" in done.stderr


def test_help_does_not_import_torch_or_sklearn():
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom antipodal.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "assert 'torch' not in sys.modules and 'sklearn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_colours_are_only_used_on_terminals():
    assert "\x1b" not in start("--help").stdout
    reader, terminal = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"}
    command = [sys.executable, "-m", "antipodal", "--help"]
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, env=environment):
        os.close(terminal)
        assert b"\x1b[" in os.read(reader, 100)
        with suppress(OSError):  # the other end is closed
            while os.read(reader, 10_000):
                pass
    os.close(reader)


def test_shell_completes_commands():
    variables = {
        "_ANTIPODAL_COMPLETE": "complete_bash",
        "COMP_WORDS": "antipodal e",
        "COMP_CWORD": "1",
    }
    command = [str(Path(sys.executable).with_name("antipodal"))]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
    assert sorted(done.stdout.split()) == ["encode", "evaluate", "export"]


def test_version_is_printed():
    assert start("--version").stdout.startswith("antipodal 0.")


def test_arrays_can_be_piped(folder, monkeypatch):
    command = f"{sys.executable} -m antipodal"
    shell = (
        f"cat X.npy | {command} encode m - --out - | "
        f"{command} index - --out piped.index --bits 24 --json"
    )
    done = subprocess.run(shell, shell=True, capture_output=True, text=True, cwd=folder)
    assert json.loads(done.stdout)["items"] == 600, done.stderr
    index = HammingIndex.load(folder / "piped.index")
    np.testing.assert_array_equal(index.codes(range(600)), load(folder / "m").encode(X))
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"nonsense")))
    done = run_command("encode", "m", "-", "--out", "c.npy", cwd=folder)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert re.search(r"\bstandard input\b.*\bNumPy\b", done.stderr)
    assert not (folder / "c.npy").exists()


def test_interrupted_command_leaves_no_file(folder, tmp_path):
    rows = np.lib.format.open_memmap(tmp_path / "big.npy", "w+", np.float32, (4_000_000, 64))
    del rows  # a sparse file
    command = [sys.executable, "-m", "antipodal", "encode", str(folder / "m"), "big.npy", "--out"]
    process = subprocess.Popen(
        [*command, "c.npy"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        # A shell makes background processes ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 600
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)  # until the output file exists
    assert len(list(tmp_path.iterdir())) == 2
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert [path.name for path in tmp_path.iterdir()] == ["big.npy"]

"""What commands say when something is wrong: one line, an exit code, nothing left behind."""

import os
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from antipodal import LSH, HammingIndex, load
from antipodal.cli import hashing, main

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 8)).astype(np.float32)
Y = np.arange(60) % 3
TINY = ("--bits", 8, "--set", "front=none", "--set", "n_epochs=1")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Right files, and one of each kind of wrong ones."""
    folder = tmp_path_factory.mktemp("messages")
    hasher = LSH(8, random_state=0).fit(X)
    hasher.save(folder / "m")
    arrays = {
        "X": X,
        "y": Y,
        "short": Y[:3],
        "one": np.zeros(60, int),
        "wide": np.ones((5, 11)),
        "none": X[:0],
        "nan": np.where(np.arange(60)[:, None] == 7, np.nan, X),
        "late": np.where(np.arange(5000)[:, None] == 4500, np.nan, X[:1]),
        "words": np.full((60, 8), "a"),
        "codes": hasher.encode(X),
        "pairs": np.ones((4, 2), int),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.save(folder / "objects.npy", np.array([[{}]], object), allow_pickle=True)
    np.savez(folder / "all.npz", X=X, y=Y)
    np.savez(folder / "single.npz", X=X)
    np.savez(folder / "rare.npz", X=X, y=np.arange(60) // 2)
    (folder / "folder").mkdir()
    (folder / "x.npz.d").mkdir()
    (folder / "empty").touch()
    (folder / "text.npy").write_text("this is not an array")
    (folder / "truncated.npy").write_bytes((folder / "X.npy").read_bytes()[:-7])
    return folder


@pytest.fixture
def run(files, monkeypatch, capsys):
    """Run a command in the folder of files: its exit code, output and errors."""
    monkeypatch.chdir(files)
    monkeypatch.setenv("XDG_CACHE_HOME", str(files))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("ANTIPODAL_DATA", raising=False)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["antipodal", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return run


FIT = ("fit", "X.npy", "--labels", "y.npy", "-o", "n", *TINY)
ITQ = ("--method", "ITQ", "--bits", 8, "-o", "n")
EVALUATE = ("evaluate", "codes.npy", "codes.npy", "--bits", 8)
LABELS = ("--query-labels", "y.npy", "--database-labels", "y.npy")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        # settings
        ((*FIT, "--set", "n_epochs=abc"), 2, "n_epochs must be a whole number, or None: got 'abc'"),
        ((*FIT, "--set", "n_stages=1.5"), 2, "n_stages must be a whole number: got 1.5"),
        ((*FIT, "--set", "tied=maybe"), 2, "tied must be True or False: got 'maybe'"),
        ((*FIT, "--set", "n_bits=12"), 2, "'n_bits=12' is not a setting, use --bits"),
        ((*FIT, "--set", "random_state=1"), 2, "'random_state=1' is not a setting, use --seed"),
        ((*FIT, "--set", "device=foo"), 1, "device must be 'auto', 'cpu', or another"),
        ((*FIT, "--set", "device=meta"), 1, "got 'meta'"),
        ((*FIT, "--set", "bound=0"), 1, "bound must be positive"),
        ((*FIT, "--set", "x=1"), 2, "expected a setting NAME=VALUE with NAME one of batch_size"),
        ((*FIT, "--unlabelled", "nowhere.npy"), 1, "cannot read nowhere.npy: No such file"),
        ((*FIT, "--unlabelled", "y.npy"), 1, "must have a row per item and a column per feature"),
        (
            (*FIT, "--set", "n_unlabelled=0", "--unlabelled", "X.npy"), 2,
            "does not learn from rows without labels: leave --unlabelled out",
        ),
        (("fit", "X.npy", *ITQ, "--set", "n_iter=abc"), 2, "n_iter must be a whole number"),
        ((*FIT, "--bits", 0), 2, "'--bits'"),
        # what a method learns from
        (("fit", "X.npy", "-o", "n"), 2, "learns from --labels or from"),
        (("fit", "X.npy", "--method", "KSH", "-o", "n"), 2, "KSH learns from --labels"),
        (("fit", "X.npy", "--method", "Nothing", "-o", "n"), 2, "choose from DeepLinf"),
        (("fit", "X.npy", *ITQ, "--pairs", "pairs.npy"), 2, "ITQ does not learn from pairs"),
        (("fit", "X.npy", *ITQ, "--checkpoint", "c"), 2, "no training to resume"),
        (("fit", "X.npy", "--pairs", "pairs.npy", "-o", "n", *TINY), 1, "three columns"),
        ((*FIT, "--labels", "short.npy"), 1, "60 rows, 3 labels"),
        ((*FIT, "--labels", "one.npy"), 1, "at least two classes"),
        # arrays
        (("fit", "no.npy", *ITQ), 1, "cannot read no.npy: No such file or directory"),
        ((*FIT, "--labels", "no.npy"), 1, "cannot read no.npy: No such file or directory"),
        ((*FIT, "--labels", "all.npz"), 1, "several arrays (X, y): name one of them, as all.npz:X"),
        (("fit", "all.npz:Z", *ITQ), 1, "all.npz has no column 'Z': it has X, y"),
        (("fit", "objects.npy", *ITQ), 1, "objects.npy: it holds Python objects"),
        (("fit", "folder", *ITQ), 1, "cannot read folder: there is no file in this folder"),
        (("fit", "x.npz.d", *ITQ), 1, "cannot read x.npz.d: there is no file in this folder"),
        (("fit", "empty", *ITQ), 1, "cannot read empty: it is empty"),
        (("fit", "text.npy", *ITQ), 1, "cannot read text.npy: not a NumPy file"),
        (("fit", "truncated.npy", *ITQ), 1, "truncated.npy: it is truncated or damaged"),
        (("fit", "y.npy", *ITQ), 1, "y.npy must have a row per item and a column per feature: got"),
        (("fit", "nan.npy", *ITQ), 1, "first in row 7: features must be finite"),
        (("fit", "none.npy", *ITQ), 1, "minimum of 2 is required"),
        (("fit", "postgresql://u:pw@h/db", *ITQ), 1, "cannot read …: No such file or directory"),
        (("encode", "postgresql://u:pw@h/db", "X.npy", "-o", "n"), 1, "cannot read …: No such fil"),
        # where results go
        (("fit", "X.npy", *ITQ, "-o", "postgresql://u:pw@h/db"), 1, "cannot write …: there is no"),
        (("fit", "X.npy", *ITQ, "-o", "no/n"), 1, "cannot write no/n: there is no folder"),
        (("fit", "X.npy", *ITQ, "-o", "folder"), 1, "cannot write folder: it is a folder"),
        (("fit", "X.npy", *ITQ, "-o", "m/n"), 1, "cannot write m/n: Not a directory"),
        ((*FIT, "--checkpoint", "no/c"), 1, "cannot write no/c: there is no folder"),
        (("encode", "m", "X.npy", "-o", "no/n"), 1, "cannot write no/n: there is no folder"),
        ((*EVALUATE, *LABELS, "--html", "no/n"), 1, "cannot write no/n: there is no folder"),
        (("index", "codes.npy", "-o", "no/n"), 1, "cannot write no/n: there is no folder"),
        (("demo", "--out", "m"), 1, "cannot write m: File exists"),
        (("bench", "digits", "--out", "folder"), 1, "cannot write folder: Is a directory"),
        (("bench", "digits", "--out", "m/n"), 1, "cannot write m: File exists"),
        # models
        (("encode", "no", "X.npy", "-o", "n"), 1, "cannot read no: No such file or directory. Exp"),
        (("encode", "empty", "X.npy", "-o", "n"), 1, "cannot read empty: it is empty. Expected a"),
        (("encode", "X.npy", "X.npy", "-o", "n"), 1, "X.npy is not an antipodal file, but some"),
        (("encode", "folder", "X.npy", "-o", "n"), 1, "cannot read folder: Is a directory"),
        (("encode", "m", "y.npy", "-o", "n"), 1, "y.npy must have a row per item"),
        (("encode", "m", "wide.npy", "-o", "n"), 1, "has 11 features per row, and m was learned"),
        (("encode", "m", "wide.npy", "-o", "n"), 1, "learned from 8"),
        (("encode", "m", "late.npy", "-o", "n"), 1, "first in row 4500"),
        (("encode", "m", "words.npy", "-o", "n"), 1, "words.npy must hold numbers: got <U1"),
        # benchmarks
        (("bench", "cifar10"), 1, "no data directory: pass --data DIR, or set the environment"),
        (("bench", "cifar10", "--data", "no"), 1, "no is not a directory"),
        (("bench", "arrays", "rare.npz", "--methods", "LSH", "--bits", 8, "--out", "records"), 1,
         "class 0 has too few rows: 2, and 300 are needed (200 to train, 100 queries). Pass a "
         "smaller --train or --queries"),
        (("bench", "digits", "--methods", "LSH:n_bits=12"), 2, "use --bits"),
        (("bench", "arrays"), 2, "needs a FILE"),
        # the rest
        (("encode", "m"), 2, "Missing argument"),
        (("nonsense",), 2, "No such command"),
    ],
)  # fmt: skip
def test_bad_data_exits_with_1_and_bad_usage_with_2(run, files, arguments, code, message):
    before = set(files.iterdir())
    got, _, said = run(*arguments)
    assert got == code, said
    assert message in " ".join(said.replace("│", " ").split())
    assert "Traceback" not in said
    if code == 1:
        assert len(said.splitlines()) == 1
    (files / "records").unlink(missing_ok=True)
    assert set(files.iterdir()) == before


@pytest.fixture
def slow(monkeypatch):
    """Fail if a command begins to read or learn."""

    def too_late(*arguments, **options):
        raise AssertionError("it began to work")

    monkeypatch.setattr("antipodal.storage.arrays.np.load", too_late)


@pytest.mark.parametrize(
    "arguments",
    [
        ("fit", "X.npy", *ITQ, "-o", "no/n"),
        (*FIT, "--checkpoint", "no/c"),
        (*FIT, "--set", "n_epochs=abc"),
        ("encode", "m", "X.npy", "-o", "no/n"),
        (*EVALUATE, *LABELS, "--html", "no/n"),
        ("index", "codes.npy", "-o", "no/n"),
    ],
)
def test_what_cannot_be_written_is_said_before_anything_is_read(run, slow, arguments):
    code, _, said = run(*arguments)
    assert code in (1, 2)
    assert "cannot write no/" in said or "n_epochs must be" in said


def test_an_array_that_is_alone_in_its_file_needs_no_name(run, tmp_path):
    code, _, said = run("fit", "single.npz", *ITQ, "-o", tmp_path / "m")
    assert code == 0, said
    assert load(tmp_path / "m").n_features_in_ == 8


def test_settings_are_read_as_json_or_python_has_them(run, tmp_path):
    settings = ("--set", "tied=True", "--set", "n_hidden=9", "--set", "margin=None")
    code, _, said = run(*FIT, *settings, "-o", tmp_path / "m")
    assert code == 0, said
    hasher = load(tmp_path / "m")
    assert (hasher.tied, hasher.n_hidden, hasher.margin) == (True, 9, None)


def test_labels_that_a_method_does_not_use_are_said_to_be_unused(run, tmp_path):
    code, _, said = run("fit", "X.npy", *ITQ, "--labels", "y.npy", "-o", tmp_path / "with")
    assert code == 0
    assert said == "ITQ does not learn from labels: y.npy is not used\n"
    code, _, said = run("fit", "X.npy", *ITQ, "-o", tmp_path / "without")
    assert said == ""
    assert (load(tmp_path / "with").encode(X) == load(tmp_path / "without").encode(X)).all()


def test_no_rows_have_no_codes(run, tmp_path):
    code, said, _ = run("encode", "m", "none.npy", "-o", tmp_path / "c.npy")
    assert code == 0
    assert "0 codes of 8 bits" in said
    assert np.load(tmp_path / "c.npy").shape == (0, 1)


def test_signed_and_unsigned_labels_are_scored_alike(run, files, tmp_path):
    np.save(tmp_path / "u.npy", Y.astype(np.uint64))
    code, signed, said = run(*EVALUATE, *LABELS, "--json")
    assert code == 0, said
    code, mixed, said = run(*EVALUATE, *LABELS, "--query-labels", tmp_path / "u.npy", "--json")
    assert code == 0, said
    assert signed == mixed


@pytest.mark.parametrize(
    ("checkpoint", "epoch", "message"),
    [
        (None, 1, "and nothing was kept. With --checkpoint FILE the same command goes on where"),
        ("state", 1, "before there was a state to keep in state"),
        ("state", 11, "the state of the training is in state: the same command goes on from there"),
    ],
)
def test_an_interrupted_fit_says_where_its_state_is(
    run, files, tmp_path, monkeypatch, checkpoint, epoch, message
):
    @contextmanager
    def interrupting(title):
        def report(now):
            if now.number == epoch:
                raise KeyboardInterrupt

        yield report

    arguments = ["fit", files / "X.npy", "--labels", files / "y.npy", "-o", "m", *TINY]
    arguments += ["--set", "n_epochs=12"]
    arguments += [] if checkpoint is None else ["--checkpoint", checkpoint]
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(hashing, "training_progress", interrupting)
        code, _, said = run(*arguments)
    assert code == 130
    assert said.count("\n") == 1
    assert message in said
    assert not (tmp_path / "m").exists()
    if epoch == 11:
        code, _, said = run(*arguments)
        assert code == 0
        assert [line.split()[4] for line in said.splitlines()] == ["11/12,", "12/12,"]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(32, "Broken pipe"), 1, ""),
        (OSError("something odd"), 1, "antipodal: something odd\n"),
        (OSError(), 1, "antipodal: OSError\n"),
        (OSError(5, "Input/output error"), 1, "antipodal: Input/output error\n"),
        (PermissionError(13, "Permission denied", "f"), 1, "antipodal: f: Permission denied\n"),
        (MemoryError(), 1, "antipodal: not enough memory\n"),
        (MemoryError("7 GiB"), 1, "antipodal: not enough memory: 7 GiB\n"),
        (RuntimeError("can't allocate memory: 9"), 1, "antipodal: not enough memory: can't allo"),
        (ValueError("two\n lines"), 1, "antipodal: two lines\n"),
    ],
)
def test_what_happens_to_a_machine_is_one_line(run, monkeypatch, error, code, message):
    def fails(*arguments, **options):
        raise error

    monkeypatch.setattr("antipodal.reading.open_vectors", fails)
    got, _, said = run("fit", "X.npy", *ITQ)
    assert got == code
    assert said.startswith(message) if message else said == ""
    assert said.count("\n") == bool(message)


def test_faults_of_our_own_show_where_they_are(files, monkeypatch):
    def fails(*arguments, **options):
        raise RuntimeError("a fault")

    monkeypatch.chdir(files)
    monkeypatch.setattr("antipodal.reading.open_vectors", fails)
    monkeypatch.setattr(sys, "argv", ["antipodal", "fit", "X.npy", *map(str, ITQ)])
    with pytest.raises(RuntimeError, match="a fault"):
        main()


def test_output_that_nobody_reads_ends_in_silence(files, tmp_path):
    np.save(tmp_path / "c.npy", np.zeros((5000, 1), np.uint8))
    command = [sys.executable, "-m", "antipodal", "search", str(tmp_path / "c.npy")]
    index = HammingIndex(8)
    index.add(np.zeros((5000, 1), np.uint8))
    index.save(tmp_path / "i")
    process = subprocess.Popen(
        [*command, "--index", "i"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    os.read(process.stdout.fileno(), 10)
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 1
    assert said == b""

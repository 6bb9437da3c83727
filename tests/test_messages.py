"""Error messages of the commands: one line, an exit code, no files left behind."""

import os
import re
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from antipodal import LSH, HammingIndex, load
from antipodal.cli import main, models

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 8)).astype(np.float32)
Y = np.arange(60) % 3
TINY = ("--bits", 8, "--set", "feature_map=none", "--set", "n_epochs=1")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a folder with valid files and one invalid file of each kind."""
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
    """Return a function that runs a command: exit code, output, errors."""
    monkeypatch.chdir(files)
    monkeypatch.setenv("XDG_CACHE_HOME", str(files))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("ANTIPODAL_DATA", raising=False)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["antipodal", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return run


FIT = ("fit", "X.npy", "--labels", "y.npy", "-o", "n", *TINY)
ITQ = ("--method", "ITQ", "--bits", 8, "-o", "n")
EVALUATE = ("evaluate", "codes.npy", "codes.npy", "--bits", 8)
LABELS = ("--query-labels", "y.npy", "--database-labels", "y.npy")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        # settings
        ((*FIT, "--set", "n_epochs=abc"), 2, r"\bn_epochs\b.*'abc'"),
        ((*FIT, "--set", "n_stages=1.5"), 2, r"\bn_stages\b.*\b1\.5\b"),
        ((*FIT, "--set", "centres=maybe"), 2, r"\bcentres\b.*'maybe'"),
        ((*FIT, "--set", "n_bits=12"), 2, r"\bn_bits\b.*--bits\b"),
        ((*FIT, "--set", "random_state=1"), 2, r"\brandom_state\b.*--seed\b"),
        ((*FIT, "--set", "device=foo"), 1, r"\bdevice\b.*'cpu'.*'foo'"),
        ((*FIT, "--set", "device=meta"), 1, r"\bdevice\b.*'meta'"),
        ((*FIT, "--set", "bound=0"), 1, r"\bbound\b.*\b0\b"),
        ((*FIT, "--set", "x=1"), 2, r"\bNAME=VALUE\b.*\bbatch_size\b"),
        ((*FIT, "--unlabelled", "nowhere.npy"), 1, r"nowhere\.npy\b.*No such file"),
        ((*FIT, "--unlabelled", "y.npy"), 1, r"\by\.npy\b.*\(60,\)"),
        (
            (*FIT, "--set", "n_unlabelled=0", "--unlabelled", "X.npy"), 2,
            r"\bDeepLinf\b.*--unlabelled\b",
        ),
        (("fit", "X.npy", *ITQ, "--set", "n_iter=abc"), 2, r"\bn_iter\b.*'abc'"),
        ((*FIT, "--bits", 0), 2, r"--bits\b.*\b1\b"),
        # training data
        (("fit", "X.npy", "-o", "n"), 2, r"--labels\b.*--pairs\b"),
        (("fit", "X.npy", "--method", "KSH", "-o", "n"), 2, r"\bKSH\b.*--labels\b"),
        (("fit", "X.npy", "--method", "Nothing", "-o", "n"), 2, r"'Nothing'.*\bDeepLinf\b"),
        (("fit", "X.npy", *ITQ, "--pairs", "pairs.npy"), 2, r"\bITQ\b.*\bpairs\b"),
        (("fit", "X.npy", *ITQ, "--checkpoint", "c"), 2, r"\bITQ\b.*--checkpoint\b"),
        (("fit", "X.npy", "--pairs", "pairs.npy", "-o", "n", *TINY), 1, r"pairs\.npy\b.*\(4, 2\)"),
        ((*FIT, "--labels", "short.npy"), 1, r"\b60\b.*\b3\b"),
        ((*FIT, "--labels", "one.npy"), 1, r"\bclasses\b.*\[0\]"),
        # arrays
        (("fit", "no.npy", *ITQ), 1, r"\bno\.npy\b.*No such file"),
        ((*FIT, "--labels", "no.npy"), 1, r"\bno\.npy\b.*No such file"),
        ((*FIT, "--labels", "all.npz"), 1, r"\bX, y\b.*\ball\.npz:X\b"),
        (("fit", "all.npz:Z", *ITQ), 1, r"\ball\.npz\b.*'Z'.*\bX, y\b"),
        (("fit", "objects.npy", *ITQ), 1, r"\bobjects\.npy\b.*\bpickle\b"),
        (("fit", "folder", *ITQ), 1, r"\bfolder\b"),
        (("fit", "x.npz.d", *ITQ), 1, r"\bx\.npz\.d\b"),
        (("fit", "empty", *ITQ), 1, r"\bempty\b.*\bempty\b.*\.npy\b"),
        (("fit", "text.npy", *ITQ), 1, r"\btext\.npy\b.*\bNumPy\b"),
        (("fit", "truncated.npy", *ITQ), 1, r"\btruncated\.npy\b.*\btruncated\b"),
        (("fit", "y.npy", *ITQ), 1, r"\by\.npy\b.*\(60,\)"),
        (("fit", "nan.npy", *ITQ), 1, r"\bNaN\b.*\brow 7\b"),
        (("fit", "none.npy", *ITQ), 1, r"\(0, 8\).*\b2\b.*\bITQ\b"),
        (("fit", "postgresql://u:pw@h/db", *ITQ), 1, r"….*No such file"),
        (("encode", "postgresql://u:pw@h/db", "X.npy", "-o", "n"), 1, r"….*No such file"),
        # outputs
        (("fit", "X.npy", *ITQ, "-o", "postgresql://u:pw@h/db"), 1, r"….*/messages\d+/…"),
        (("fit", "X.npy", *ITQ, "-o", "no/n"), 1, r"\bno/n\b.*/no\b"),
        (("fit", "X.npy", *ITQ, "-o", "folder"), 1, r"\bfolder\b"),
        (("fit", "X.npy", *ITQ, "-o", "m/n"), 1, r"\bm/n\b.*Not a directory"),
        ((*FIT, "--checkpoint", "no/c"), 1, r"\bno/c\b.*/no\b"),
        (("encode", "m", "X.npy", "-o", "no/n"), 1, r"\bno/n\b.*/no\b"),
        ((*EVALUATE, *LABELS, "--html", "no/n"), 1, r"\bno/n\b.*/no\b"),
        (("index", "codes.npy", "-o", "no/n"), 1, r"\bno/n\b.*/no\b"),
        (("demo", "--out", "m"), 1, r"\bm\b.*File exists"),
        (("bench", "digits", "--out", "folder"), 1, r"\bfolder\b"),
        (("bench", "digits", "--out", "m/n"), 1, r"\bm\b.*File exists"),
        (("bench", "digits", "--seeds", "9-1"), 2, r"--seeds\b.*\b9-1\b.*\bascend\b"),
        # models
        (("encode", "no", "X.npy", "-o", "n"), 1, r"\bno\b.*No such file"),
        (("encode", "empty", "X.npy", "-o", "n"), 1, r"\bempty\b.*\bempty\b.*\bmodel file\b"),
        (("encode", "X.npy", "X.npy", "-o", "n"), 1, r"\bX\.npy\b.*\bmodel file\b"),
        (("encode", "folder", "X.npy", "-o", "n"), 1, r"\bfolder\b.*Is a directory"),
        (("encode", "m", "y.npy", "-o", "n"), 1, r"\by\.npy\b.*\(60,\)"),
        (("encode", "m", "wide.npy", "-o", "n"), 1, r"\bwide\.npy\b.*\b11\b.*\bm\b.*\b8\b"),
        (("encode", "m", "late.npy", "-o", "n"), 1, r"\bNaN\b.*\brow 4500\b"),
        (("encode", "m", "words.npy", "-o", "n"), 1, r"\bwords\.npy\b.*<U1"),
        # benchmarks
        (("bench", "cifar10"), 1, r"--data\b.*\bANTIPODAL_DATA\b"),
        (("bench", "cifar10", "--data", "no"), 1, r": no\b.*\bdirectory\b"),
        (("bench", "arrays", "rare.npz", "--methods", "LSH", "--bits", 8, "--out", "records"), 1,
         r"\bclass 0\b.*\b2\b.*\b300\b.*\b200\b.*\b100\b.*--train\b.*--queries\b"),
        (("bench", "digits", "--methods", "LSH:n_bits=12"), 2, r"\bn_bits\b.*--bits\b"),
        (("bench", "arrays"), 2, r"\barrays\b.*\bFILE\b"),
        # usage
        (("encode", "m"), 2, "'features'"),
        (("nonsense",), 2, "'nonsense'"),
    ],
)  # fmt: skip
def test_bad_data_exits_with_1_and_bad_usage_with_2(run, files, arguments, code, message):
    before = set(files.iterdir())
    got, _, errors = run(*arguments)
    assert got == code, errors
    assert re.search(message, errors), errors
    assert "Traceback" not in errors
    progress = re.compile(r"^.*(: fitting on .*|: [\d,]+/[\d,]+)\n", re.MULTILINE)
    assert len(progress.sub("", errors).splitlines()) == 1
    (files / "records").unlink(missing_ok=True)
    assert set(files.iterdir()) == before


@pytest.fixture
def no_reading(monkeypatch):
    """Fail if a command reads an array."""

    def read(*arguments, **options):
        raise AssertionError("an array was read")

    monkeypatch.setattr("antipodal.io.numpy_files.np.load", read)


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
def test_unwritable_outputs_and_bad_settings_are_reported_before_reading(
    run, no_reading, arguments
):
    code, _, errors = run(*arguments)
    assert code in (1, 2)
    assert re.search(r"\bno/[nc]\b|\bn_epochs\b", errors)


def test_single_array_of_an_archive_needs_no_name(run, tmp_path):
    code, _, errors = run("fit", "single.npz", *ITQ, "-o", tmp_path / "m")
    assert code == 0, errors
    assert load(tmp_path / "m").n_features_in_ == 8


def test_settings_are_parsed_as_json_or_python_literals(run, tmp_path):
    settings = ("--set", "centres=False", "--set", "n_hidden=9", "--set", "margin=None")
    code, _, errors = run(*FIT, *settings, "-o", tmp_path / "m")
    assert code == 0, errors
    hasher = load(tmp_path / "m")
    training = hasher.training
    assert (training.centres, hasher.n_hidden, training.margin) == (False, 9, None)


def test_unused_labels_are_reported(run, tmp_path):
    code, _, errors = run("fit", "X.npy", *ITQ, "--labels", "y.npy", "-o", tmp_path / "with")
    assert code == 0
    assert re.match(r".*\bITQ\b.*\by\.npy\b.*\n", errors)
    code, _, errors = run("fit", "X.npy", *ITQ, "-o", tmp_path / "without")
    assert "labels" not in errors
    assert (load(tmp_path / "with").encode(X) == load(tmp_path / "without").encode(X)).all()


def test_empty_input_gives_empty_codes(run, tmp_path):
    code, errors, _ = run("encode", "m", "none.npy", "-o", tmp_path / "c.npy")
    assert code == 0
    assert re.search(r"\b0 codes\b.*\b8 bits\b", errors)
    assert np.load(tmp_path / "c.npy").shape == (0, 1)


def test_signed_and_unsigned_labels_give_the_same_scores(run, files, tmp_path):
    np.save(tmp_path / "u.npy", Y.astype(np.uint64))
    code, signed, errors = run(*EVALUATE, *LABELS, "--json")
    assert code == 0, errors
    code, mixed, errors = run(*EVALUATE, *LABELS, "--query-labels", tmp_path / "u.npy", "--json")
    assert code == 0, errors
    assert signed == mixed


@pytest.mark.parametrize(
    ("checkpoint", "epoch", "message"),
    [
        (None, 1, r"--checkpoint\b"),
        ("kept.state", 1, r"\bkept\.state\b"),
        ("kept.state", 11, r"\bkept\.state\b"),
    ],
)
def test_interrupted_fit_names_its_checkpoint(
    run, files, tmp_path, monkeypatch, checkpoint, epoch, message
):
    pytest.importorskip("torch")

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
        patched.setattr(models, "training_progress", interrupting)
        code, _, errors = run(*arguments)
    assert code == 130
    assert errors.count("\n") == 1
    assert re.search(message, errors)
    assert (tmp_path / "kept.state").exists() == (epoch == 11)
    assert not (tmp_path / "m").exists()
    if epoch == 11:
        code, _, errors = run(*arguments)
        assert code == 0
        assert [line.split()[4] for line in errors.splitlines()] == ["11/12,", "12/12,"]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(32, "Broken pipe"), 1, ""),
        (OSError("something odd"), 1, r"something odd\n"),
        (OSError(), 1, r"OSError\n"),
        (OSError(5, "Input/output error"), 1, r"Input/output error\n"),
        (PermissionError(13, "Permission denied", "f"), 1, r"f: Permission denied\n"),
        (MemoryError(), 1, r"\bmemory\b"),
        (MemoryError("7 GiB"), 1, r"\bmemory\b.*\b7 GiB\n"),
        (RuntimeError("can't allocate memory: 9"), 1, r"\bmemory\b.*allocate memory: 9\n"),
        (ValueError("two\n lines"), 1, r"two lines\n"),
    ],
)
def test_expected_errors_are_one_line(run, monkeypatch, error, code, message):
    def fails(*arguments, **options):
        raise error

    monkeypatch.setattr("antipodal.io.vectors.open_vectors", fails)
    got, _, errors = run("fit", "X.npy", *ITQ)
    assert got == code
    assert re.match(f"antipodal: .*{message}", errors) if message else errors == ""
    assert errors.count("\n") == bool(message)


def test_bugs_keep_their_traceback(files, monkeypatch):
    def fails(*arguments, **options):
        raise RuntimeError("a bug")

    monkeypatch.chdir(files)
    monkeypatch.setattr("antipodal.io.vectors.open_vectors", fails)
    monkeypatch.setattr(sys, "argv", ["antipodal", "fit", "X.npy", *map(str, ITQ)])
    with pytest.raises(RuntimeError, match="a bug"):
        main()


def test_closed_pipe_ends_silently(files, tmp_path):
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
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 1
    assert errors == b""

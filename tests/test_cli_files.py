"""Commands with files of all formats give the results of arrays."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from antipodal import load, open_store
from antipodal.cli import app

X, Y = load_digits(return_X_y=True)
X, Y = X[:300].astype(np.float32), Y[:300]
WORDS = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
TINY = ("--bits", 16, "--set", "n_epochs=1", "--set", "n_pairs=200", "--set", "n_anchors=20")


def run(*arguments, code=0):
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == code, (done.output, done.exception)
    return done


def error_of(*arguments, code=1):
    done = run(*arguments, code=code)
    return " ".join(f"{done.exception} {done.output}".replace("│", " ").split())


def lists(rows):
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with equal rows and labels in all formats, and a model fitted to arrays."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("made"))
        make_files()
        return Path.cwd()


def make_files():
    np.save("X.npy", X)
    np.save("y.npy", Y)
    np.save("gaps.npy", np.where(np.arange(300) % 100 == 99, np.nan, Y))
    np.save("zeros.npy", np.zeros((300, 1), np.uint8))
    words = [None if i == 100 else word for i, word in enumerate(WORDS[Y].tolist())]
    parquet.write_table(pa.table({"word": words}), "gaps.parquet")
    data = pa.table({"id": np.arange(300) * 2, "vector": lists(X), "digit": Y, "word": WORDS[Y]})
    parquet.write_table(data, "X.parquet", row_group_size=70)
    os.mkdir("parts")
    for part in range(3):
        rows = data.slice(100 * part, 100)
        parquet.write_table(rows, f"parts/{part}.parquet", row_group_size=30)
    np.savetxt("rows.csv", X, delimiter=",", fmt="%d")
    with open("X.csv", "w") as file:
        file.write(",".join(["digit", *(f"p{i}" for i in range(64))]) + "\n")
        file.writelines(f"{y},{','.join(map(str, x))}\n" for x, y in zip(X, Y, strict=True))
    with open("X.jsonl", "w") as file:
        for i, (x, y) in enumerate(zip(X.tolist(), Y.tolist(), strict=True)):
            file.write(json.dumps({"id": 2 * i, "digit": y, "vector": x}) + "\n")
    run("fit", "X.npy", "--labels", "y.npy", "-o", "m", *TINY)
    run("encode", "m", "X.npy", "-o", "c.npy")
    codes = np.load("c.npy")
    fixed = pa.array([code.tobytes() for code in codes], pa.binary(2))
    columns = {"id": np.arange(300) * 2, "code": fixed, "digit": Y, "word": WORDS[Y]}
    parquet.write_table(pa.table(columns), "c.parquet", row_group_size=70)


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """Change to a copy of the files; return the codes of the rows."""
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "files"))
    return np.load("c.npy")


FEATURES = ["X.parquet", "X.parquet:vector", "parts", "parts/*.parquet:vector", "X.csv:p*",
            "rows.csv", "X.jsonl"]  # fmt: skip


@pytest.mark.parametrize("source", FEATURES)
def test_encode_gives_the_codes_of_the_array(folder, source):
    (record,) = [json.loads(run("encode", "m", source, "-o", "n.npy", "--json").stdout)]
    assert record["rows"] == 300
    np.testing.assert_array_equal(np.load("n.npy"), folder)


@pytest.mark.parametrize("source", ["X.parquet", "parts", "X.csv", "X.jsonl"])
def test_fit_with_a_label_column_gives_the_hasher_of_arrays(folder, source):
    run("fit", source, "--labels-column", "digit", "-o", "n", *TINY)
    assert load("n").n_features_in_ == 64
    expected = folder
    if source in ("X.csv", "X.jsonl"):  # numbers in text files are read as float64
        np.save("doubles.npy", X.astype(np.float64))
        run("fit", "doubles.npy", "--labels", "y.npy", "-o", "o", *TINY)
        expected = load("o").encode(X)
    np.testing.assert_array_equal(load("n").encode(X), expected)


def test_fit_reads_labels_pairs_and_unlabelled_rows_from_files(folder):
    run("fit", "X.npy", "--labels", "X.parquet:word", "-o", "n", *TINY)
    run("fit", "X.npy", "--labels", "X.jsonl:digit", "-o", "o", *TINY)
    np.testing.assert_array_equal(load("o").encode(X), folder)
    pairs = np.stack([np.arange(200), np.arange(100, 300), Y[:200] == Y[100:]], axis=1)
    np.save("pairs.npy", pairs)
    np.savetxt("pairs.csv", pairs, delimiter=",", fmt="%d", header="i,j,similar", comments="")
    run("fit", "X.npy", "--pairs", "pairs.npy", "-o", "a", *TINY)
    run("fit", "X.npy", "--pairs", "pairs.csv", "-o", "b", *TINY)
    np.testing.assert_array_equal(load("a").encode(X), load("b").encode(X))
    run("fit", "X.npy", "--labels", "y.npy", "--unlabelled", "X.npy", "-o", "a", *TINY)
    run("fit", "X.npy", "--labels", "y.npy", "--unlabelled", "X.jsonl", "-o", "b", *TINY)
    np.testing.assert_array_equal(load("a").encode(X), load("b").encode(X))


def test_evaluate_gives_the_same_scores_for_columns_and_arrays(folder):
    labels = ("--query-labels", "y.npy", "--database-labels", "y.npy")
    expected = run("evaluate", "c.npy", "c.npy", *labels, "--bits", 16, "--json").stdout
    for column in ("digit", "word"):
        command = ("evaluate", "c.parquet", "c.parquet:code", "--labels-column", column)
        assert run(*command, "--bits", 16, "--json").stdout == expected
    command = ("evaluate", "c.npy", "c.parquet", "--bits", 16)
    assert "--labels-column" in error_of(*command, "--query-labels", "y.npy", code=2)
    assert "--labels-column" in error_of(*command, *labels, "--labels-column", "digit", code=2)


def test_index_reads_ids_and_metadata_from_columns_and_resumes(folder):
    url = "sqlite:///items.db"
    index = ("index", "c.parquet", "--store", url, "--id-column", "id", "--json",
             "--metadata-columns", "digit, word", "--bits", 16)  # fmt: skip
    assert json.loads(run(*index).stdout)["added"] == 300
    with open_store(url) as store:
        items = store.get(np.arange(300) * 2)
        np.testing.assert_array_equal(items.codes, folder)
        assert items.metadata == [{"digit": int(y), "word": WORDS[y]} for y in Y]
        store.delete(np.arange(100, 200) * 2)
    assert re.search(r"\bitems\.db\b.*\b0, 2, 4\b.*--resume\b", error_of(*index))
    record = json.loads(run(*index, "--resume").stdout)
    assert (record["added"], record["unchanged"], record["items"]) == (100, 200, 300)
    changed = pa.table({"id": np.arange(300) * 2, "code": [c.tobytes() for c in folder],
                        "digit": Y + 1, "word": WORDS[Y]})  # fmt: skip
    parquet.write_table(changed, "c.parquet")
    message = error_of(*index, "--resume")
    assert re.search(r"\bitems\.db\b.*\b0, 2, 4\b.*--replace\b", message)
    assert "--resume" not in message
    assert json.loads(run(*index, "--resume", "--replace").stdout)["replaced"] == 300


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--id-column", "no"), 1, r"\bc\.parquet\b.*'no'.*\bid, code, digit, word\b"),
        (("--metadata-columns", "digit,no"), 1, r"\bc\.parquet\b.*'no'"),
        (("--id-column", "word"), 1, r"\bunique\b.*\bzero\b"),
        (("--id-column", "digit"), 1, r"\bids\b.*\b0\b"),
        (("--id-column", "id", "--ids", "y.npy"), 2, r"--ids\b.*--id-column\b"),
        (
            ("--metadata-columns", "id", "--metadata", "y.npy"),
            2,
            r"--metadata .*--metadata-columns\b",
        ),
    ],
)
def test_wrong_column_creates_no_store(folder, options, code, message):
    before = sorted(os.listdir())
    index = ("index", "c.parquet:code", "--store", "sqlite:///items.db", "--bits", 16)
    assert re.search(message, error_of(*index, *options, code=code))
    assert sorted(os.listdir()) == before


def test_invalid_metadata_are_reported_with_their_row(folder):
    values = [*([1.0] * 299), float("inf")]
    codes = [code.tobytes() for code in folder]
    parquet.write_table(pa.table({"code": codes, "value": values}), "c.parquet", row_group_size=70)
    index = ("index", "c.parquet", "--store", "sqlite:///n.db", "--metadata-columns", "value")
    assert re.search(r"\bc\.parquet\b.*\brow 299\b.*\binf\b", error_of(*index))
    assert not os.path.exists("n.db")


def test_search_reads_queries_and_vectors_of_all_formats(folder):
    run("index", "c.npy", "-o", "i", "--bits", 16)
    coded = run("search", "c.npy", "--index", "i", "--json").stdout
    assert run("search", "c.parquet", "--index", "i", "--json").stdout == coded
    command = ("--index", "i", "--model", "m", "--json", "-k", 5)
    expected = run("search", "X.npy", *command).stdout
    rescored = run("search", "X.npy", *command, "--vectors", "X.npy").stdout
    for source in FEATURES:
        assert run("search", source, *command).stdout == expected
    assert run("search", "X.jsonl", *command, "--vectors", "parts").stdout == rescored
    with open("codes.jsonl", "w") as file:
        file.writelines(json.dumps({"code": code}) + "\n" for code in folder.tolist())
    assert run("search", "codes.jsonl", "--index", "i", "--json").stdout == coded
    assert re.search(r"\bX\.parquet\b.*--model\b", error_of("search", "X.parquet", "--index", "i"))


def test_bench_reads_features_and_labels_of_all_formats(folder):
    labelled = X.astype(int).tolist()
    with open("custom.jsonl", "w") as file:
        for x, y in zip(labelled, Y.tolist(), strict=True):
            file.write(json.dumps({"x": x, "class": y}) + "\n")
    np.savez("custom.npz", X=X, y=Y)
    data = pa.table({"a": lists(X), "b": lists(X[:, :2]), "y": Y})
    parquet.write_table(data, "custom.parquet")
    options = ("--methods", "LSH", "--bits", 16, "--train", 5, "--queries", 2, "--json",
               "--processes", 1)  # fmt: skip
    scores = [
        json.loads(run("bench", "arrays", *source, *options, "--out", f"{number}.jsonl").stdout)
        for number, source in enumerate(
            (["custom.npz"], ["custom.jsonl", "--labels-column", "class"], ["custom.parquet:a"])
        )
    ]
    assert {score["dataset"] for score in scores} == {"custom"}
    assert len({score["map"] for score in scores}) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("fit", "X.parquet", "--labels-column", "no", "-o", "n"), 1, r"\bX\.parquet\b.*'no'"),
        (("fit", "X.csv:digit", "--labels-column", "digit", "-o", "n"), 1, r"X\.csv\b.*'digit'"),
        (
            ("fit", "X.npy", "--labels", "y.npy", "--labels-column", "y", "-o", "n"),
            2,
            "--labels-column",
        ),
        (("fit", "X.npy", "--labels-column", "y", "-o", "n"), 1, r"\bX\.npy\b.*'y'"),
        (("fit", "X.npy", "--labels", "gaps.npy", "-o", "n"), 1, r"\b3 of 300\b"),
        (("fit", "X.npy", "--labels", "gaps.parquet", "-o", "n"), 1, r"\brow 100\b"),
        (
            (
                "evaluate",
                "zeros.npy",
                "zeros.npy",
                "--query-labels",
                "gaps.npy",
                "--database-labels",
                "y.npy",
                "--bits",
                8,
            ),
            1,
            r"\bquery_labels\b.*\b3 of 300\b",
        ),
        (("encode", "m", "X.csv", "-o", "n.npy"), 1, r"X\.csv\b.*\b65\b.*\bm\b.*\b64\b"),
        (("encode", "m", "X.parquet:word", "-o", "n.npy"), 1, r"\bX\.parquet\b.*'word'"),
        (("index", "X.parquet", "-o", "n"), 1, r"\bX\.parquet\b.*\buint8\b.*\bfloat32\b"),
    ],
)
def test_invalid_input_is_reported_and_nothing_is_written(folder, arguments, code, message):
    before = sorted(os.listdir())
    assert re.search(message, error_of(*arguments, code=code))
    assert sorted(os.listdir()) == before

"""`antipodal build`, `search`, `add`, `get`, `delete` and `export` of collections."""

import json
import shlex
import sqlite3
import sys
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet
from typer.testing import CliRunner

from antipodal import Client, Collection, LinfHash, load, open_store
from antipodal.cli import app, main
from antipodal.collection import create
from antipodal.service import Engine, create_app
from antipodal.stores.sqlite import SqliteStore
from served import listening

RNG = np.random.default_rng(0)
N, WIDTH = 400, 24
X = (RNG.standard_normal((20, WIDTH))[RNG.integers(0, 20, N)] * 2).astype(np.float32)
X += RNG.standard_normal(X.shape).astype(np.float32)
Q = X[:30] + 0.3 * RNG.standard_normal((30, WIDTH)).astype(np.float32)
KEYS = [f"doc/{row:03}" for row in range(N)]
EMBEDDER = "def embed(texts):\n    return [[float(len(text))] * 24 for text in texts]\n"


def run(*arguments, code=0):
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == code, (arguments, done.output, done.exception)
    return done


def lines(*arguments):
    return [json.loads(line) for line in run(*arguments, "--json").stdout.splitlines()]


def true_neighbours(queries, k):
    unit = X / np.linalg.norm(X, axis=1)[:, None]
    return np.argsort(-(queries @ unit.T), axis=1, kind="stable")[:, :k]


def recall(records, k=10):
    truth = true_neighbours(Q, k)
    found = [[KEYS.index(i) if isinstance(i, str) else i for i in r["ids"]] for r in records]
    return np.mean([np.isin(t, f).mean() for t, f in zip(truth, found, strict=True)])


def write_rows(path, ids, rows, **columns):
    vectors = pa.FixedSizeListArray.from_arrays(rows.ravel(), WIDTH)
    parquet.write_table(pa.table({"id": ids, **columns, "embedding": vectors}), path)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with a collection of string ids that keeps its vectors."""
    folder = tmp_path_factory.mktemp("made")
    write_rows(folder / "v.parquet", KEYS, X, title=[f"t{i}" for i in range(N)], year=range(N))
    np.save(folder / "q.npy", Q)
    np.save(folder / "x.npy", X)
    (folder / "embedder.py").write_text(EMBEDDER)
    run(
        "build", f"{folder}/v.parquet:embedding", "--id-column", "id", "--metadata-columns",
        "title,year", "--bytes", 12, "--keep-vectors", "int8", "--out", folder / "docs.db",
    )  # fmt: skip
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """Return the working directory, with a copy of the files of `made`."""
    monkeypatch.chdir(tmp_path)
    for path in made.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_built_collection_is_that_of_the_library(folder):
    (record,) = lines("build", "x.npy", "--bytes", 12, "--out", "ints.db", "--seed", 3)
    Collection.create("same.db", X, bytes=12, random_state=3).close()
    with Collection.open("ints.db") as ints, Collection.open("same.db") as same:
        assert ints.identity == same.identity == record["model"]
        assert (ints.id_type, ints.count(), ints.keep_vectors) == ("int64", N, None)
        assert ints.search(Q, 5).ids.tolist() == same.search(Q, 5).ids.tolist()
    assert (record["items"], record["bits"], record["bytes_per_vector"]) == (N, 96, 12)
    assert record["scoring"] == "asymmetric"
    with Collection.open("docs.db") as docs:
        assert (docs.id_type, docs.count(), docs.keep_vectors) == ("string", N, "int8")
        assert docs.get([KEYS[7]]).metadata == [{"title": "t7", "year": 7}]


def test_every_form_of_search_follows_the_scoring_of_the_model(folder):
    run("fit", "x.npy", "--method", "LinfHash.asymmetric", "--bits", 96, "--out", "m")
    run("encode", "m", "x.npy", "--out", "codes.npy")
    run("index", "codes.npy", "--store", "sqlite:///codes.db", "--model", "m")
    run("index", "codes.npy", "--out", "codes.index", "--model", "m")
    hasher = load("m")
    signs = np.where(np.unpackbits(hasher.encode(X), axis=1)[:, :96], 1.0, -1.0)
    scores = hasher.query(Q) @ signs.T
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :10].tolist()
    for form in (
        ("search", "codes.db", "q.npy"),
        ("search", "q.npy", "--store", "sqlite:///codes.db"),
        ("search", "q.npy", "--store", "sqlite:///codes.db", "--model", "m"),
        ("search", "q.npy", "--index", "codes.index", "--model", "m"),
    ):
        found = lines(*form)
        assert [record["ids"] for record in found] == expected
        assert all("distances" not in record for record in found)
        # scores estimate the cosine with the query
        unit = Q / np.linalg.norm(Q, axis=1)[:, None]
        cosines = unit @ (X / np.linalg.norm(X, axis=1)[:, None]).T
        errors = [r["scores"][0] - cosines[i, r["ids"][0]] for i, r in enumerate(found)]
        assert np.abs(errors).mean() < 0.15
        with pytest.warns(UserWarning, match=r"\basymmetric\b"):
            by_distance = lines(*form, "--scoring", "hamming")
        assert recall(found) > recall(by_distance) + 0.1


def test_reranking_reads_kept_vectors(folder):
    plain, reranked = (lines("search", "docs.db", "q.npy", *o) for o in ((), ("--rerank", 4)))
    assert recall(reranked) > max(recall(plain), 0.97)
    run("build", "x.npy", "--bytes", 12, "--out", "ints.db")
    by_file = lines("search", "ints.db", "q.npy", "--vectors", "x.npy", "--rerank", 4)
    assert recall(by_file) > 0.97
    refused = run("search", "ints.db", "q.npy", "--rerank", 4, code=1)
    assert isinstance(refused.exception, ValueError)


def test_filters_restrict_results_and_metadata_are_printed(folder):
    found = lines(
        "search", "docs.db", "q.npy", "-k", 3, "--where", '{"year": {"lt": 50}}', "--metadata"
    )
    for record in found:
        rows = [KEYS.index(key) for key in record["ids"]]
        assert max(rows) < 50
        assert record["metadata"] == [{"title": f"t{row}", "year": row} for row in rows]


def test_search_by_item_leaves_the_item_out(folder):
    (record,) = lines("search", "docs.db", "--id", KEYS[3], "-k", 5)
    assert record["id"] == KEYS[3]
    truth = [KEYS[row] for row in true_neighbours(X[3:4], 6)[0] if row != 3]
    assert KEYS[3] not in record["ids"]
    assert len(set(record["ids"]) & set(truth)) >= 3
    unknown = run("search", "docs.db", "--id", "nothing", code=1)
    assert "nothing" in str(unknown.exception)


def test_typed_queries_are_embedded(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    texts = ("--text", "four", "--text", "seventeen letters")
    found = lines("search", "docs.db", *texts, "--embed", "embedder:embed", "-k", 4)
    with Collection.open("docs.db") as docs:
        expected = docs.search(np.full((2, WIDTH), [[4.0], [17.0]]), 4).ids.tolist()
    assert [record["ids"] for record in found] == expected
    assert [record["text"] for record in found] == ["four", "seventeen letters"]
    assert "--embed" in run("search", "docs.db", "--text", "a", code=2).stderr


def test_image_files_are_queries(folder):
    pixels = np.random.default_rng(0).integers(0, 256, (60, 8, 8), np.uint8)
    vectors = pixels.reshape(60, 64).astype(np.float32) * np.float32(16 / 255)
    fields = [{"thumbnail": "data:image/png;base64," + "A" * 5000}] * 60
    Collection.create("pictures.db", vectors, bytes=8, metadata=fields).close()
    for row in (3, 5):
        Image.fromarray(pixels[row]).save(f"{row}.png")
    files = ("--image", "3.png", "--image", "5.png")
    found = lines("search", "pictures.db", *files, "--images", "pixels:8x8", "-k", 4)
    with Collection.open("pictures.db") as pictures:
        expected = pictures.search(vectors[[3, 5]], 4).ids.tolist()
    assert [record["ids"] for record in found] == expected
    assert [record["image"] for record in found] == ["3.png", "5.png"]
    shown = run("search", "pictures.db", *files, "--images", "pixels:8x8", "--metadata").stdout
    assert max(map(len, shown.splitlines())) < 100
    run("search", "pictures.db", "--image", "3.png", code=2)
    run("search", "pictures.db", "--images", "gist", "--id", "3", code=2)
    run("search", "pictures.db", "--image", "3.png", "--images", "pixels:4x4", code=1)
    run("search", "pictures.db", "--image", "pictures.db", "--images", "pixels:8x8", code=1)
    run("search", "pictures.db", "--image", "none.png", "--images", "pixels:8x8", code=1)


def test_radius_search_prints_all_items_within_the_distance(folder):
    run("build", "x.npy", "--method", "ITQ", "--bytes", 2, "--out", "itq.db")
    with Collection.open("itq.db") as docs:
        expected = docs.radius(Q, 2).by_query()
    found = lines("search", "itq.db", "q.npy", "--radius", 2)
    assert [record["ids"] for record in found] == [hits.ids.tolist() for hits in expected]
    assert [record["distances"] for record in found] == [h.distances.tolist() for h in expected]


def test_adding_a_file_again_changes_nothing(folder):
    ids = [*KEYS[390:], *(f"new/{row}" for row in range(40))]
    rows = np.concatenate([X[390:], Q, Q[:10]])
    write_rows("more.parquet", ids, rows, title=["added"] * 50)
    command = ("add", "docs.db", "more.parquet:embedding", "--id-column", "id",
               "--metadata-columns", "title")  # fmt: skip
    (record,) = lines(*command)
    assert (record["added"], record["replaced"], record["items"]) == (40, 10, N + 40)
    (record,) = lines(*command)
    assert (record["added"], record["replaced"], record["items"]) == (0, 50, N + 40)
    (record,) = lines("search", "docs.db", "--id", "new/0", "-k", 1, "--rerank", 4)
    assert record["ids"] == ["new/30"]  # the same vector
    shown = lines("get", "docs.db", "new/0", KEYS[0])
    assert [item["metadata"] for item in shown] == [{"title": "added"}, {"title": "t0", "year": 0}]
    missing = run("get", "docs.db", KEYS[0], "nothing", code=1)
    assert "nothing" in str(missing.exception)
    (record,) = lines("delete", "docs.db", "new/0", "nothing")
    assert (record["deleted"], record["items"]) == (1, N + 39)


def test_items_without_ids_are_appended(folder):
    run("build", "x.npy", "--bytes", 4, "--out", "ints.db")
    assert lines("add", "ints.db", "q.npy")[0]["items"] == N + 30
    assert [item["id"] for item in lines("get", "ints.db", N, N + 29)] == [N, N + 29]
    assert run("get", "ints.db", "x", code=1).exception is not None
    assert "--id-column" in run("add", "docs.db", "q.npy", code=2).stderr


def test_the_same_commands_work_with_a_service(folder):
    engine = Engine.open("docs.db")
    write_rows("more.parquet", ["new/0"], Q[:1])
    with listening(create_app(engine)) as port:
        url = f"http://127.0.0.1:{port}"
        local, remote = (
            lines("search", place, "q.npy", "--rerank", 4) for place in ("docs.db", url)
        )
        assert [record["ids"] for record in remote] == [record["ids"] for record in local]
        by_option = lines("search", "q.npy", "--store", url)
        assert [r["ids"] for r in by_option] == [r["ids"] for r in lines("search", url, "q.npy")]
        (record,) = lines("add", url, "more.parquet:embedding", "--id-column", "id")
        assert (record["added"], record["items"]) == (1, N + 1)
        assert lines("get", url, "new/0")[0]["metadata"] == {}
        assert lines("delete", url, "new/0")[0]["deleted"] == 1
        with Client(url) as docs:
            assert docs.count() == N
    engine.close()


def test_exported_files_contain_all_items(folder):
    run("export", "docs.db", "--parquet", "out.parquet", "--metadata-columns", "year")
    table = parquet.read_table("out.parquet")
    assert table["id"].to_pylist() == KEYS
    assert table["year"].to_pylist() == list(range(N))
    assert "$id" not in table["metadata"][0].as_py()
    assert "integers" in str(run("export", "docs.db", "--faiss", "f", code=1).exception)
    run("build", "x.npy", "--method", "ITQ", "--bytes", 2, "--out", "itq.db")
    run("export", "itq.db", "--faiss", "itq.faiss")
    run("export", "itq.db", "--onnx", "itq.onnx")
    assert Path("itq.onnx").stat().st_size > 0
    index = faiss.read_index_binary("itq.faiss")
    with Collection.open("itq.db") as docs:
        assert index.ntotal == N
        distances, _ = index.search(docs.model.encode(Q), 5)
        np.testing.assert_array_equal(distances, docs.search(Q, 5).distances)
    assert "--parquet" in run("export", "itq.db", code=2).stderr


def test_info_describes_a_collection(folder):
    (facts,) = lines("info", "docs.db")
    assert facts["kind"] == "collection"
    assert (facts["method"], facts["bits"], facts["scoring"]) == ("LinfHash", 96, "asymmetric")
    assert (facts["items"], facts["id_type"], facts["keep_vectors"]) == (N, "string", "int8")
    assert facts["bytes_per_vector"] == 12 + 4 + WIDTH
    assert "asymmetric" in run("info", "docs.db").stdout


def test_info_shows_a_collection_without_kept_vectors_as_such(folder):
    run("build", "x.npy", "--bytes", 8, "--out", "plain.db")
    (line,) = (line for line in run("info", "plain.db").stdout.splitlines() if "kept" in line)
    assert line.split()[-1] == "none"
    assert lines("info", "plain.db")[0]["keep_vectors"] is None


def test_attached_model_makes_a_store_a_collection(folder):
    hasher = LinfHash.asymmetric(64, random_state=0).fit(X)
    hasher.save("m")
    with open_store("sqlite:///plain.db", n_bits=64) as store:
        store.add(hasher.encode(X))
    assert "attach" in str(run("add", "plain.db", "q.npy", code=1).exception)
    (record,) = lines("store", "attach", "m", "--store", "sqlite:///plain.db")
    assert record["items"] == N
    with Collection.open("plain.db") as docs:
        expected = docs.search(Q).ids.tolist()
    assert [record["ids"] for record in lines("search", "plain.db", "q.npy")] == expected
    LinfHash.asymmetric(32, random_state=0).fit(X).save("other")
    wrong = run("store", "attach", "other", "--store", "sqlite:///plain.db", code=1)
    assert "32" in str(wrong.exception)


def test_interrupted_build_resumes(folder, monkeypatch):
    monkeypatch.setattr(create, "_BATCH_ROWS", 100)
    command = ("build", "v.parquet:embedding", "--id-column", "id", "--bytes", 12, "--out", "n.db")
    add, calls = SqliteStore.add, []

    def stop(self, *arguments, **options):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return add(self, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(SqliteStore, "add", stop)
        assert "resume" in run(*command, code=130).stderr
    assert "interrupted" in str(run("search", "n.db", "q.npy", code=1).exception)
    other = run("build", "x.npy", "--bytes", 12, "--out", "n.db", code=1)
    assert "interrupted" in str(other.exception)
    run(*command)
    run("build", "v.parquet:embedding", "--id-column", "id", "--bytes", 12, "--out", "whole.db")
    found = [lines("search", name, "q.npy") for name in ("n.db", "whole.db")]
    assert found[0] == found[1]
    assert len(found[0]) == 30


@pytest.mark.parametrize("queries", [["--queries", "q.npy"], []], ids=["queries", "no queries"])
@pytest.mark.parametrize("ids", [["--id-column", "id"], []], ids=["ids", "no ids"])
def test_advised_commands_of_an_audit_run_as_printed(folder, queries, ids):
    shown = run(
        "audit", "v.parquet:embedding", *queries, *ids, "--bits", "48,96", "--methods",
        "LinfHash.asymmetric", "--baselines", "none", "--recall", 0.9,
    ).stdout  # fmt: skip
    start = shown.index("Next: antipodal build")
    build, search = (line.strip() for line in shown[start:].removeprefix("Next: ").splitlines()[:2])
    Path("docs.db").unlink()
    run(*shlex.split(build)[1:])
    found = lines(*shlex.split(search)[1:])
    assert isinstance(found[0]["ids"][0], str if ids else int)
    if queries and ids:
        assert recall(found) > 0.8
    elif not queries:
        assert len(found) == 1  # the neighbours of the first item
        assert len(found[0]["ids"]) == 10


def write_bad_files(folder):
    rows = [[float(v) for v in row] for row in X[:3]]
    ids = {"mixed": [1, "a", 3], "twice": ["a", "b", "a"], "long": ["a", "x" * 600, "c"]}
    for name, some in ids.items():
        records = [{"id": i, "v": row} for i, row in zip(some, rows, strict=True)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    bad = X.copy()
    bad[300, 2] = np.nan
    np.save(folder / "nan.npy", bad)
    np.save(folder / "wide.npy", np.ones((5, WIDTH + 1), np.float32))
    with sqlite3.connect(folder / "foreign.db") as connection:
        connection.execute("CREATE TABLE notes (text)")
    connection.close()
    LinfHash.asymmetric(8, random_state=0).fit(X[:, :10]).save(folder / "narrow")


NEW = ("--bytes", 4, "--out", "new.db")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("build", "missing.npy", *NEW), ["missing.npy"]),
        (("build", "v.parquet:nothing", *NEW), ["nothing", "embedding"]),
        (("build", "v.parquet:embedding", "--id-column", "nothing", *NEW), ["nothing"]),
        (("build", "mixed.jsonl", "--id-column", "id", *NEW), ["mixed.jsonl", "'a'"]),
        (("build", "twice.jsonl", "--id-column", "id", *NEW), ["unique", "'a'"]),
        (("build", "long.jsonl", "--id-column", "id", *NEW), ["512", "600"]),
        (("build", "nan.npy", *NEW), ["300", "NaN"]),
        (("build", "x.npy", "--model", "narrow", "--out", "new.db"), ["10", str(WIDTH)]),
        (("build", "x.npy", "--out", "docs.db"), ["docs.db", "exists"]),
        (("build", "x.npy", "--out", "foreign.db"), ["foreign.db"]),
        (("build", "x.npy", "--out", "no/folder.db"), ["no"]),
        (("search", "foreign.db", "q.npy"), ["foreign.db"]),
        (("search", "missing.db", "q.npy"), ["missing.db", "antipodal build"]),
        (("search", "docs.db", "wide.npy"), ["wide.npy", str(WIDTH)]),
        (("search", "docs.db", "nan.npy"), ["nan.npy", "300"]),
        (("search", "docs.db", "q.npy", "--model", "narrow"), ["docs.db", "narrow"]),
        (("search", "docs.db", "--text", "a", "--embed", "http://127.0.0.1:9/v1"), ["127.0.0.1:9"]),
        (("add", "docs.db", "wide.npy", "--ids", "wide.npy"), ["wide.npy"]),
        (("add", "docs.db", "nan.npy", "--ids", "v.parquet:id"), ["nan.npy", "300"]),
        (("add", "docs.db", "x.npy", "--ids", "v.parquet:year"), ["strings"]),
        (("store", "attach", "narrow", "--store", "sqlite:///docs.db"), ["docs.db", "narrow"]),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(folder, monkeypatch, capsys, arguments, words):
    write_bad_files(folder)
    monkeypatch.setattr("antipodal.http_transport.time.sleep", lambda seconds: None, raising=False)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(sys, "argv", ["antipodal", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert ended.value.code == 1
    errors = [line for line in shown.err.splitlines() if line.startswith("antipodal: ")]
    assert len(errors) == 1
    assert all(word in errors[0] for word in words), errors
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--bytes", 4, "--bits", 8), ["--bytes", "--bits"]),
        (("--recall", 2), ["--recall"]),
        (("--method", "KSH"), ["KSH", "labels"]),
        (("--method", "Nothing"), ["Nothing"]),
        (("--keep-vectors", "int4"), ["int4"]),
        (("--ids", "a", "--id-column", "b"), ["--ids", "--id-column"]),
    ],
)
def test_bad_usage_exits_with_2(folder, arguments, words):
    shown = run("build", "x.npy", "--out", "new.db", *arguments, code=2).stderr
    assert all(word in shown for word in words)
    assert not Path("new.db").exists()

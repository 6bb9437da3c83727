"""`antipodal index` and `search`, compared with brute force."""

import json
import os
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from typer.testing import CliRunner

from antipodal import LSH, open_store, unpack
from antipodal.cli import app, index
from antipodal.errors import AntipodalError, StoreError
from antipodal.index import HammingIndex
from antipodal.io.model_file import model_identity
from antipodal.stores.sqlite import SqliteStore

RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 20)).astype(np.float32)


def run(*arguments, code=0):
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == code, (done.output, done.exception)
    return done


def lines(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def brute_force(queries, codes, n_bits):
    """Return distances bit by bit, and the rows of each query ordered by (distance, row)."""
    bits, others = unpack(queries, n_bits), unpack(codes, n_bits)
    distances = (bits[:, None] != others[None]).sum(axis=2)
    return distances, np.argsort(distances, axis=1, kind="stable")


@pytest.fixture
def files(tmp_path):
    hasher = LSH(12, random_state=0).fit(X)
    hasher.save(tmp_path / "model")
    codes = hasher.encode(X)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "codes.npy", codes)
    np.save(tmp_path / "ids.npy", np.arange(300) * 3 + 5)
    records = [json.dumps({"parity": i % 2, "name": f"item {i}"}) for i in range(300)]
    (tmp_path / "meta.jsonl").write_text("\n".join(records) + "\n")
    return tmp_path, codes


@pytest.fixture
def store(files):
    folder, _ = files
    url = f"sqlite:///{folder}/items.db"
    done = run(
        "index", folder / "codes.npy", "--store", url, "--ids", folder / "ids.npy",
        "--metadata", folder / "meta.jsonl", "--model", folder / "model", "--json",
    )  # fmt: skip
    (record,) = lines(done)
    assert record["items"] == record["added"] == 300
    assert record["bits"] == 12
    return url


def test_neighbours_match_brute_force(files, store):
    folder, codes = files
    done = run("search", folder / "X.npy", "--store", store, "--model", folder / "model",
               "-k", 7, "--json")  # fmt: skip
    distances, order = brute_force(codes, codes, 12)
    found = lines(done)
    assert [record["query"] for record in found] == list(range(300))
    for row, record in enumerate(found):
        assert record["ids"] == (order[row, :7] * 3 + 5).tolist()
        assert record["distances"] == distances[row, order[row, :7]].tolist()


def test_filtered_radius_search_matches_brute_force(files, store):
    folder, codes = files
    done = run("search", folder / "codes.npy", "--store", store, "--radius", 2, "--json",
               "--where", '{"parity": 1}', "--metadata")  # fmt: skip
    distances, order = brute_force(codes, codes, 12)
    for row, record in enumerate(lines(done)):
        expected = [i for i in order[row] if i % 2 and distances[row, i] <= 2]
        assert record["ids"] == [3 * i + 5 for i in expected]
        assert record["metadata"] == [{"parity": 1, "name": f"item {i}"} for i in expected]


def test_index_file_and_store_give_the_same_results(files, store):
    folder, _ = files
    (record,) = lines(run("index", folder / "codes.npy", "--out", folder / "items.index", "--bits",
                          12, "--ids", folder / "ids.npy", "--stats", "--json"))  # fmt: skip
    assert (record["engine"], record["recall"]) == ("flat", 100.0)
    assert len(HammingIndex.load(folder / "items.index")) == 300
    command = ("search", folder / "X.npy", "--model", folder / "model", "--json")
    assert (
        run(*command, "--index", folder / "items.index").stdout
        == run(*command, "--store", store).stdout
    )


def test_reranking_by_a_file_of_vectors_uses_four_times_oversampling(files):
    folder, codes = files
    url = f"sqlite:///{folder}/rows.db"
    run("index", folder / "codes.npy", "--store", url, "--model", folder / "model")
    done = run("search", folder / "X.npy", "--store", url, "-k", 5,
               "--model", folder / "model", "--vectors", folder / "X.npy", "--json")  # fmt: skip
    _, order = brute_force(codes, codes, 12)
    unit = X.astype(np.float64) / np.linalg.norm(X.astype(np.float64), axis=1)[:, None]
    scores = unit @ unit.T
    for row, record in enumerate(lines(done)):
        candidates = np.sort(order[row, :20])
        best = candidates[np.argsort(-scores[row, candidates], kind="stable")[:5]]
        np.testing.assert_allclose(record["scores"], scores[row, best], atol=2e-6)


def test_explicit_asymmetric_search_matches_brute_force(files):
    folder, codes = files
    url = f"sqlite:///{folder}/asymmetric.db"
    run("index", folder / "codes.npy", "--store", url, "--model", folder / "model")
    command = ("search", folder / "X.npy", "--store", url, "--model", folder / "model", "-k", 5)
    Z = LSH(12, random_state=0).fit(X).project(X).astype(np.float64)
    scores = -np.sort(-(Z @ np.where(unpack(codes, 12) > 0, 1.0, -1.0).T), axis=1)[:, :5]
    command = (*command, "--scoring", "asymmetric")
    found = [record["scores"] for record in lines(run(*command, "--json"))]
    np.testing.assert_allclose(found, scores, atol=1e-4)
    wrong = run(*command, "--radius", 2, code=2)
    assert "--scoring" in wrong.stderr


def items_of(url):
    """Return the items of a store: id to code and metadata."""
    with open_store(url) as store:
        items = store.get(np.arange(2000))
        assert len(items.ids) == store.count()
    return {
        number: (bytes(code), fields)
        for number, code, fields in zip(
            items.ids.tolist(), items.codes, items.metadata, strict=True
        )
    }


def failed(*arguments):
    """Run a command that must fail, and return its message."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 1
    assert isinstance(done.exception, (AntipodalError, ValueError, TypeError)), done.exception
    return str(done.exception)


def test_ids_continue_after_the_largest(files, store):
    folder, codes = files
    before = items_of(store)
    np.save(folder / "more.npy", codes[:200])
    (record,) = lines(run("index", folder / "more.npy", "--store", store, "--json"))
    assert (record["items"], record["added"], record["replaced"]) == (500, 200, 0)
    assert (record["first_id"], record["bits"]) == (903, 12)  # the length of the store
    after = items_of(store)
    assert {number: after[number] for number in before} == before
    assert [after[903 + row][0] for row in range(200)] == [bytes(code) for code in codes[:200]]


def test_existing_id_is_an_error_that_changes_nothing(files, store, monkeypatch):
    folder, _ = files
    monkeypatch.setattr(index, "_BATCH", 100)
    before = items_of(store)
    ids = np.arange(300) + 1000
    ids[299] = 5  # in the last of three batches
    np.save(folder / "ids2.npy", ids)
    message = failed("index", folder / "codes.npy", "--store", store, "--ids", folder / "ids2.npy")
    assert re.search(r"\bitems\.db\b.*\b5\b.*--replace\b.*--resume\b", message)
    assert items_of(store) == before


def test_replace_keeps_metadata_unless_dropped(files, store):
    folder, codes = files
    np.save(folder / "other.npy", codes[:100][::-1])
    ids = np.arange(100) * 6 + 5
    np.save(folder / "ids2.npy", ids)
    before = {number: fields for number, (_, fields) in items_of(store).items()}
    options = ("index", folder / "other.npy", "--store", store, "--ids", folder / "ids2.npy",
               "--replace", "--json")  # fmt: skip
    (record,) = lines(run(*options))
    assert (record["items"], record["added"], record["replaced"]) == (300, 0, 100)
    np.save(folder / "ids2.npy", ids + 3 * (np.arange(100) % 2) * 300)  # half of them are new
    (record,) = lines(run(*options))
    assert (record["items"], record["added"], record["replaced"]) == (350, 50, 50)
    after = items_of(store)
    assert all(after[number][1] == fields for number, fields in before.items())
    assert after[911][1] == {}
    assert after[5][0] == bytes(codes[99])
    run(*options, "--drop-metadata")
    assert items_of(store)[5] == (bytes(codes[99]), {})


def test_resume_compares_single_items(files, monkeypatch):
    folder, codes = files
    monkeypatch.setattr(index, "_BATCH", 100)
    url = f"sqlite:///{folder}/items.db"
    fields = [json.loads(line) for line in (folder / "meta.jsonl").read_text().splitlines()]
    with open_store(url, n_bits=12) as store:  # the last item of a batch, but not the others
        store.upsert([99, 150], codes[[99, 150]], [fields[99], fields[150]])
    options = ("index", folder / "codes.npy", "--store", url, "--bits", 12,
               "--metadata", folder / "meta.jsonl", "--json")  # fmt: skip
    (record,) = lines(run(*options, "--resume"))
    assert (record["added"], record["replaced"], record["unchanged"]) == (298, 0, 2)
    assert items_of(url) == {row: (bytes(codes[row]), fields[row]) for row in range(300)}


def test_resume_refuses_different_items_without_replace(files):
    folder, codes = files
    url = f"sqlite:///{folder}/items.db"
    with open_store(url, n_bits=12) as store:
        store.upsert([7, 8], codes[[7, 9]], [{"parity": True, "name": "item 7"}, {}])
    options = ("index", folder / "codes.npy", "--store", url, "--bits", 12, "--json")
    assert re.search(r"\bids 8\b.*--replace\b", failed(*options, "--resume"))
    metadata = ("--metadata", folder / "meta.jsonl")  # contain 1 instead of true
    assert re.search(r"\bids 7, 8\b.*--replace\b", failed(*options, *metadata, "--resume"))
    assert len(items_of(url)) == 2
    (record,) = lines(run(*options, "--resume", "--replace"))
    assert (record["added"], record["replaced"], record["unchanged"]) == (298, 1, 1)
    assert items_of(url)[7] == (bytes(codes[7]), {"parity": True, "name": "item 7"})
    (record,) = lines(run(*options, *metadata, "--resume", "--replace"))
    assert (record["added"], record["replaced"], record["unchanged"]) == (0, 300, 0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"codes.npy": np.zeros((300, 2), np.float32)}, r"codes\.npy\b.*\buint8\b.*\bfloat32\b"),
        ({"codes.npy": np.full((300, 2), 255, np.uint8)}, r"\b4\b.*\b12 bits\b.*\bn_bits\b"),
        ({"codes.npy": np.zeros((300, 3), np.uint8)}, r"\b2 bytes\b.*codes\.npy\b.*\b3\b"),
        ({"ids.npy": np.zeros(300, np.float64)}, r"\bids\b.*\bfloat64\b"),
        ({"ids.npy": np.arange(300) % 299}, r"\bids\b.*\b0\b"),
        ({"ids.npy": np.arange(299)}, r"ids\.npy\b.*\b300\b.*\(299,\)"),
        ({"ids.npy": None}, r"ids\.npy\b.*No such file"),
        ({"meta.jsonl": "{}\n" * 299}, r"\bmetadata\b.*\b300\b.*\b299\b"),
        ({"meta.jsonl": "{}\n" * 301}, r"\bmetadata\b.*\b300\b.*\b301\b"),
        ({"meta.jsonl": "{}\n" * 299 + '{"a": NaN}\n'}, r"meta\.jsonl\b.*\bline 300\b.*\bnan\b"),
        ({"model": "no model"}, r"/model\b.*\bbytes\b"),
    ],
)
def test_failed_index_creates_no_store(files, change, problem):
    folder, _ = files
    for name, content in change.items():
        (folder / name).unlink()
        if isinstance(content, str):
            (folder / name).write_text(content)
        elif content is not None:
            np.save(folder / name, content)
    before = sorted(os.listdir(folder))
    message = failed("index", folder / "codes.npy", "--store", f"sqlite:///{folder}/items.db",
                     "--ids", folder / "ids.npy", "--metadata", folder / "meta.jsonl",
                     "--model", folder / "model")  # fmt: skip
    assert re.search(problem, message), message
    assert sorted(os.listdir(folder)) == before


def test_metadata_can_be_piped(files):
    folder, _ = files
    os.mkfifo(folder / "pipe")
    text = (folder / "meta.jsonl").read_text()
    writer = threading.Thread(target=(folder / "pipe").write_text, args=(text,))
    writer.start()
    url = f"sqlite:///{folder}/items.db"
    run("index", folder / "codes.npy", "--store", url, "--bits", 12, "--metadata", folder / "pipe")
    writer.join()
    assert items_of(url)[299][1] == {"parity": 1, "name": "item 299"}


def test_store_url_of_the_environment_is_used_and_not_printed(files):
    folder, _ = files
    url = f"sqlite:///{folder}/environment.db"
    runner = CliRunner(env={"ANTIPODAL_STORE": url})
    done = runner.invoke(app, ["index", f"{folder}/codes.npy", "--bits", "12"])
    assert done.exit_code == 0, done.exception
    done = runner.invoke(app, ["search", f"{folder}/codes.npy", "-k", "1", "--json"])
    assert len(lines(done)) == 300
    # An index file takes precedence.
    file = f"{folder}/items.index"
    assert runner.invoke(app, ["index", f"{folder}/codes.npy", "--out", file]).exit_code == 0
    assert runner.invoke(app, ["search", f"{folder}/codes.npy", "--index", file]).exit_code == 0
    assert len(items_of(url)) == 300
    for command in ("index", "search", "serve"):
        done = runner.invoke(app, [command, "--help"])
        assert "ANTIPODAL_STORE" in done.output
        assert "environment.db" not in done.output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("X.npy", "--index", "FILE"), r"\bX\.npy\b.*\buint8\b.*\bfloat32\b.*--model\b"),
        (("wide.npy", "--index", "FILE"), r"\bwide\.npy\b.*\b2 bytes\b.*\b12 bits\b.*\(4, 3\)"),
        (("wide.npy", "--store", "STORE"), r"\bwide\.npy\b.*\b3\b.*\bitems\.db\b.*\b20\b"),
        (("codes.npy", "--store", "sqlite:///no.db"), r"\bno\.db\b.*`antipodal build\b"),
        (("codes.npy", "--store", "no.db"), r"\bno\.db\b.*`antipodal build\b"),
        (("codes.npy", "--store", "sqlit:///no.db"), r"\bsqlite://"),
    ],
)
def test_failed_search_suggests_a_fix(files, store, monkeypatch, arguments, problem):
    folder, _ = files
    monkeypatch.chdir(folder)
    np.save("wide.npy", np.zeros((4, 3), np.uint8))
    run("index", "codes.npy", "--out", "FILE", "--bits", 12)
    message = failed("search", *[store if word == "STORE" else word for word in arguments])
    assert re.search(problem, message), message
    assert "n_bits" not in message
    assert not os.path.exists("no.db")


def test_codes_of_another_width_are_refused(files, store):
    folder, _ = files
    np.save(folder / "wide.npy", np.zeros((4, 3), np.uint8))
    before = items_of(store)
    message = failed("index", folder / "wide.npy", "--store", store)
    assert re.search(r"\b12 bits\b.*\b2 bytes\b.*\bwide\.npy\b.*\b3\b", message)
    message = failed("index", folder / "wide.npy", "--store", store, "--bits", 24)
    assert re.search(r"\b12\b.*\b24\b", message)
    assert items_of(store) == before


def test_index_with_a_model_does_not_import_pytorch(files):
    folder, _ = files
    code = (
        "import sys; from antipodal.cli import app; app(sys.argv[1:], standalone_mode=False); "
        "sys.exit('torch' in sys.modules)"
    )
    options = ["--store", f"sqlite:///{folder}/items.db", "--model", f"{folder}/model"]
    command = [sys.executable, "-c", code, "index", f"{folder}/codes.npy", *options]
    assert subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0
    with open_store(f"sqlite:///{folder}/items.db") as store:
        assert store.n_bits == 12


def test_codes_of_another_model_are_refused(files, store):
    folder, _ = files
    LSH(12, random_state=1).fit(X).save(folder / "other")
    LSH(16, random_state=1).fit(X).save(folder / "longer")
    for model in ("other", "longer"):
        done = CliRunner().invoke(
            app, ["search", f"{folder}/X.npy", "--store", store, "--model", f"{folder}/{model}"]
        )
        assert isinstance(done.exception, AntipodalError)
        assert re.search(rf"\bitems\.db\b.*\bmodel\b.*/{model}\b", str(done.exception))
    done = CliRunner().invoke(
        app, ["index", f"{folder}/codes.npy", "--store", store, "--model", f"{folder}/other"]
    )
    assert isinstance(done.exception, StoreError)
    identities = [model_identity(folder / name) for name in ("model", "other")]
    assert all(identity in str(done.exception) for identity in identities)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("index", "codes.npy"), r"--store\b.*--out\b"),
        (("index", "codes.npy", "--out", "i", "--resume"), r"--resume\b.*\bstores\b"),
        (("index", "codes.npy", "--out", "i", "--replace"), r"--replace\b.*\bstores\b"),
        (
            ("index", "codes.npy", "--store", "sqlite:///s", "--drop-metadata"),
            r"--drop-metadata\b.*--replace\b",
        ),
        (("index", "codes.npy", "--store", "sqlite:///s", "--stats"), r"--stats\b.*\bindex\b"),
        (("search", "X.npy"), r"\bqueries\b.*--text\b"),
        (("search",), r"\bcollection\b"),
        (("search", "docs.db", "X.npy", "--store", "sqlite:///s"), r"\bqueries\b"),
        (("search", "X.npy", "--index", "i", "--store", "sqlite:///s"), r"--store\b.*--index\b"),
        (("search", "X.npy", "--index", "i", "--where", "{}"), r"--where\b.*\bindex\b"),
        (("search", "X.npy", "--store", "sqlite:///s", "--where", "{"), r"--where\b.*\bJSON\b"),
        (("search", "docs.db", "--text", "a", "--id", "b"), r"--text\b.*--id\b"),
        (("search", "docs.db", "X.npy", "--radius", 2, "--rerank", 4), r"--radius\b.*--rerank\b"),
    ],
)
def test_bad_usage_exits_with_2(arguments, problem):
    done = run(*arguments, code=2)
    assert re.search(problem, " ".join(done.stderr.replace("│", " ").split()))


@pytest.mark.parametrize(("line", "problem"), [("[1]", r"\bJSON\b.*\[1\]"), ("{", r"\bJSON\b")])
def test_bad_line_of_metadata_is_named_and_no_store_created(files, line, problem):
    folder, _ = files
    good = (folder / "meta.jsonl").read_text().splitlines()
    (folder / "meta.jsonl").write_text("\n".join([*good[:250], line, *good[251:]]))
    url = f"sqlite:///{folder}/items.db"
    done = CliRunner().invoke(
        app,
        ["index", f"{folder}/codes.npy", "--store", url, "--bits", "12",
         "--metadata", f"{folder}/meta.jsonl"],
    )  # fmt: skip
    assert "meta.jsonl, line 251" in str(done.exception)
    assert re.search(problem, str(done.exception))
    assert not (folder / "items.db").exists()


def test_index_file_refuses_queries_of_another_model(files):
    folder, _ = files
    index = folder / "items.index"
    run("index", folder / "codes.npy", "--out", index, "--model", folder / "model")
    run("search", folder / "X.npy", "--index", index, "--model", folder / "model")
    LSH(12, random_state=1).fit(X).save(folder / "other")
    command = ("search", folder / "X.npy", "--index", index, "--model", folder / "other")
    done = run(*command, code=1)
    assert isinstance(done.exception, AntipodalError)
    assert re.search(r"\bitems\.index\b.*\bmodel\b.*/other\b", str(done.exception))
    assert run(
        "search", folder / "codes.npy", "--index", index
    ).stdout  # queries given as codes have no model
    HammingIndex(12).save(index)
    run(*command)  # an index without a model identity
    np.save(folder / "long.npy", RNG.integers(0, 256, (5_000, 8), dtype=np.uint8))
    run("index", folder / "long.npy", "--out", index, "--prepare", 2)
    assert HammingIndex.load(index).nbytes > 5_000 * 20  # codes and tables
    run("index", folder / "codes.npy", "--out", index, "--prepare", 9, code=1)


def test_interrupted_index_of_a_parquet_folder_resumes(files, monkeypatch):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder, codes = files
    (folder / "codes").mkdir()
    for part in range(3):
        rows = range(100 * part, 100 * part + 100)
        columns = {
            "code": pa.array([codes[i].tobytes() for i in rows], pa.binary(2)),
            "id": pa.array([7 * i for i in rows]),
            "word": pa.array([f"w{i % 5}" for i in rows]),
        }
        parquet.write_table(pa.table(columns), folder / "codes" / f"part-{part}.parquet")
    url = f"sqlite:///{folder}/parquet.db"
    command = ("index", folder / "codes", "--store", url, "--model", folder / "model", "--json")
    command += ("--id-column", "id", "--metadata-columns", "word")
    monkeypatch.setattr(index, "_BATCH", 70)
    put, n_puts = SqliteStore._put, 0

    def stop(*arguments, **options):
        nonlocal n_puts
        n_puts += 1
        if n_puts == 3:
            raise KeyboardInterrupt
        return put(*arguments, **options)

    monkeypatch.setattr(SqliteStore, "_put", stop)
    CliRunner().invoke(app, list(map(str, command)))
    with open_store(url) as store:
        assert store.count() == 140  # two complete batches
    (record,) = lines(run(*command, "--resume"))
    assert (record["items"], record["added"], record["unchanged"]) == (300, 160, 140)
    with open_store(url) as store:
        items = store.get(np.arange(300) * 7)
        np.testing.assert_array_equal(items.codes, codes)
        assert items.metadata == [{"word": f"w{i % 5}"} for i in range(300)]

"""`antipodal index` and `search`: what was put in is found, as brute force finds it."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from antipodal import LSH, open_store, unpack
from antipodal.cli import app, searching
from antipodal.index import HammingIndex

RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 20)).astype(np.float32)


def run(*arguments, code=0):
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == code, (done.output, done.exception)
    return done


def lines(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def brute_force(queries, codes, n_bits):
    """Distances by comparing bits one by one, and for each query the order (distance, row)."""
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


def test_neighbours_are_those_of_brute_force(files, store):
    folder, codes = files
    done = run("search", folder / "X.npy", "--store", store, "--model", folder / "model",
               "-k", 7, "--json")  # fmt: skip
    distances, order = brute_force(codes, codes, 12)
    found = lines(done)
    assert [record["query"] for record in found] == list(range(300))
    for row, record in enumerate(found):
        assert record["ids"] == (order[row, :7] * 3 + 5).tolist()
        assert record["distances"] == distances[row, order[row, :7]].tolist()


def test_radius_and_filter_are_those_of_brute_force(files, store):
    folder, codes = files
    done = run("search", folder / "codes.npy", "--store", store, "--radius", 2, "--json",
               "--where", '{"parity": 1}', "--metadata")  # fmt: skip
    distances, order = brute_force(codes, codes, 12)
    for row, record in enumerate(lines(done)):
        expected = [i for i in order[row] if i % 2 and distances[row, i] <= 2]
        assert record["ids"] == [3 * i + 5 for i in expected]
        assert record["metadata"] == [{"parity": 1, "name": f"item {i}"} for i in expected]


def test_an_index_file_gives_what_the_store_gives(files, store):
    folder, _ = files
    (record,) = lines(run("index", folder / "codes.npy", "--out", folder / "items.index", "--bits",
                          12, "--ids", folder / "ids.npy", "--stats", "--json"))  # fmt: skip
    assert (record["engine"], record["recall"]) == ("flat", 100.0)
    assert len(HammingIndex.load(folder / "items.index")) == 300
    asked = ("search", folder / "X.npy", "--model", folder / "model", "--json")
    assert (
        run(*asked, "--index", folder / "items.index").stdout
        == run(*asked, "--store", store).stdout
    )


@pytest.mark.parametrize("rescore", ["project", "vectors"])
def test_rescored_results_are_the_best_of_four_times_as_many(files, rescore):
    folder, codes = files
    url = f"sqlite:///{folder}/rows.db"
    run("index", folder / "codes.npy", "--store", url, "--model", folder / "model")
    given = "project" if rescore == "project" else folder / "X.npy"
    done = run("search", folder / "X.npy", "--store", url, "--model", folder / "model", "-k", 5,
               "--rescore", given, "--json")  # fmt: skip
    _, order = brute_force(codes, codes, 12)
    if rescore == "project":
        Z = LSH(12, random_state=0).fit(X).project(X).astype(np.float64)
        scores = Z @ np.where(unpack(codes, 12) > 0, 1.0, -1.0).T
    else:
        unit = X.astype(np.float64) / np.linalg.norm(X.astype(np.float64), axis=1)[:, None]
        scores = unit @ unit.T
    for row, record in enumerate(lines(done)):
        candidates = np.sort(order[row, :20])
        best = candidates[np.argsort(-scores[row, candidates], kind="stable")[:5]]
        np.testing.assert_allclose(record["scores"], scores[row, best], atol=2e-6)


def test_an_interrupted_load_goes_on_where_it_was(files, monkeypatch):
    folder, codes = files
    monkeypatch.setattr(searching, "_BATCH", 100)
    url = f"sqlite:///{folder}/items.db"
    with open_store(url, n_bits=12) as store:
        store.upsert(np.arange(100), codes[:100], [{"old": True}] * 100)
    options = ("index", folder / "codes.npy", "--store", url, "--bits", 12,
               "--metadata", folder / "meta.jsonl")  # fmt: skip
    run(*options, "--resume")
    with open_store(url) as store:
        assert store.count() == 300
        assert store.count({"old": True}) == 100
        assert store.get([150]).metadata == [{"parity": 0, "name": "item 150"}]
    run(*options)  # without it all is written again
    with open_store(url) as store:
        assert store.count({"old": True}) == 0


def test_codes_of_another_model_are_refused(files, store):
    folder, _ = files
    LSH(12, random_state=1).fit(X).save(folder / "other")
    LSH(16, random_state=1).fit(X).save(folder / "longer")
    for model, problem in (("other", "another model"), ("longer", "another model")):
        done = CliRunner().invoke(
            app, ["search", f"{folder}/X.npy", "--store", store, "--model", f"{folder}/{model}"]
        )
        assert problem in str(done.exception)
    done = CliRunner().invoke(
        app, ["index", f"{folder}/codes.npy", "--store", store, "--model", f"{folder}/other"]
    )
    assert "cannot be opened for model" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("index", "codes.npy"), "give --store URL or --out FILE"),
        (("index", "codes.npy", "--out", "i", "--resume"), "are for stores"),
        (("index", "codes.npy", "--store", "sqlite:///s", "--stats"), "are for index files"),
        (("search", "X.npy"), "give --store URL or --index FILE"),
        (("search", "X.npy", "--index", "i", "--where", "{}"), "are for stores"),
        (("search", "X.npy", "--store", "sqlite:///s", "--where", "{"), "must be JSON"),
        (("search", "X.npy", "--store", "sqlite:///s", "--rescore", "project"), "needs --model"),
    ],
)
def test_bad_usage_is_said_and_exits_with_2(arguments, problem):
    done = run(*arguments, code=2)
    assert problem in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("line", "problem"), [("[1]", "must be a JSON object"), ("{", "is not JSON")]
)
def test_a_bad_line_of_metadata_is_named_and_whole_batches_before_it_stay(files, line, problem):
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
    assert problem in str(done.exception)
    with open_store(url) as store:
        assert store.count() == 0

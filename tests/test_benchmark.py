"""Benchmarks: records equal values computed by hand; interrupted runs resume."""

import json
import re
import signal
import time
from functools import partial
from statistics import mean, stdev

import numpy as np
import pytest
from sklearn.metrics import average_precision_score
from sklearn.metrics.pairwise import cosine_similarity

import antipodal
from antipodal import (
    ITQ,
    KSH,
    LSH,
    ClassifierLSH,
    DeepLinf,
    NNHash,
    Training,
    datasets,
    evaluate,
    gist,
    pack,
)
from antipodal.bench.records import read_records
from antipodal.bench.runner import (
    Benchmark,
    Cell,
    grid,
    load_dataset,
    parameters,
    run_cell,
    run_cells,
)
from antipodal.bench.tables import PUBLISHED, published_scores, spread, table
from antipodal.hashers.registry import built_in_hashers, make_hasher
from processes import run_command, start_command

DIGITS = datasets.digits()
SMALL = {"n_train": 20, "n_query": 10}
# Keys of every record.
KEYS = {
    "method", "bits", "seed", "map", "map_worst", "map_best", "precision_r0", "recall_r0", "f1_r0",
    "precision_r2", "recall_r2", "f1_r2", "empty_r0", "empty_r2", "fit_seconds",
}  # fmt: skip


def concepts(n=600, seed=0):
    """Multi-label rows: noisy sums of one direction per concept."""
    rng = np.random.default_rng(seed)
    labels = rng.random((n, 6)) < 0.3
    labels[np.arange(n), rng.integers(6, size=n)] = True
    X = labels @ rng.standard_normal((6, 12)) + 0.3 * rng.standard_normal((n, 12))
    return datasets.Dataset("concepts", X.astype(np.float32), labels)


@pytest.mark.parametrize(
    ("method", "hasher", "learned_from"),
    [
        ("LSH", LSH(16, random_state=3), "database"),
        ("ITQ:n_iter=2", ITQ(16, n_iter=2, random_state=3), "database"),
        ("KSH:n_anchors=50", KSH(16, n_anchors=50, random_state=3), "labels"),
        (
            "DeepLinf:n_epochs=5:n_unlabelled=0",
            DeepLinf(16, training=Training(n_epochs=5, n_unlabelled=0), random_state=3),
            "labels",
        ),
        (
            "DeepLinf:n_epochs=5",
            DeepLinf(16, training=Training(n_epochs=5), random_state=3),
            "labels and database",
        ),
    ],
)
def test_a_record_equals_fitting_and_scoring_by_hand(method, hasher, learned_from):
    X, y = DIGITS.features, DIGITS.labels
    rows = DIGITS.split("paper", 3, **SMALL)
    others = np.setdiff1d(rows.database, rows.train)
    if learned_from == "database":
        hasher.fit(X[rows.database])
    elif learned_from == "labels":
        hasher.fit(X[rows.train], y[rows.train])
    else:
        hasher.fit(X[rows.train], y[rows.train], unlabelled=X[others])
    queries = hasher.encode(X[rows.query]), y[rows.query]

    def score(found):
        codes, labels = hasher.encode(X[found]), y[found]
        return evaluate(queries[0], codes, queries[1], labels, n_bits=16).to_dict()

    record = run_cell(Benchmark(DIGITS, **SMALL), Cell(method, 16, 3))
    assert record.keys() >= KEYS
    assert record["learned_from"] == learned_from
    for name, value in score(rows.database).items():
        assert record[name] == pytest.approx(value, abs=1e-6), name
    assert record["map_without_training"] == pytest.approx(score(others)["map"], abs=1e-6)
    json.dumps(record, allow_nan=False)


def test_multilabel_data_is_scored_on_the_most_frequent_concepts():
    data = concepts()
    benchmark = Benchmark(data, n_train=200, n_query=10, n_concepts=3)
    record = run_cell(benchmark, Cell("DeepLinf:n_epochs=5", 8, 0))
    rows = data.split("paper", 0, n_train=200, n_query=10, n_concepts=3, n_pairs=0)
    y = data.labels[:, rows.concepts]
    others = np.setdiff1d(rows.database, rows.train)
    hasher = DeepLinf(8, training=Training(n_epochs=5), random_state=0)
    hasher.fit(data.features[rows.train], y[rows.train], unlabelled=data.features[others])
    by_hand = evaluate(
        hasher.encode(data.features[rows.query]), hasher.encode(data.features[rows.database]),
        y[rows.query], y[rows.database], n_bits=8, top=(10, 5000),
    ).to_dict()  # fmt: skip
    for name in ("map_at_10", "mp_at_5000", "map", "chance"):
        assert record[name] == pytest.approx(by_hand[name], abs=1e-6)


def test_the_papers_networks_learn_from_the_pairs_of_the_multilabel_protocol():
    data = concepts()
    benchmark = Benchmark(data, n_train=200, n_query=10, n_concepts=3)
    record = run_cell(benchmark, Cell("NNHash.paper:n_epochs=1:n_pairs=400", 8, 0))
    rows = data.split("paper", 0, n_train=200, n_query=10, n_concepts=3, n_pairs=400)
    hasher = NNHash.paper(8, n_epochs=1, random_state=0)
    hasher.fit_pairs(data.features[rows.train], rows.pairs, rows.similar)
    y = data.labels[:, rows.concepts]
    codes = (hasher.encode(data.features[part]) for part in (rows.query, rows.database))
    by_hand = evaluate(*codes, y[rows.query], y[rows.database], n_bits=8)
    assert record["map"] == pytest.approx(by_hand.map, abs=1e-6)


def test_several_processes_give_the_same_scores():
    cells = grid(["LSH", "ITQ:n_iter=3"], [8], [0])
    benchmark = Benchmark(DIGITS, **SMALL)
    inline, spread_out = (dict(run_cells(benchmark, cells, n)) for n in (1, 2))
    assert inline.keys() == spread_out.keys() == set(cells)
    for cell in cells:
        assert inline[cell]["map"] == pytest.approx(spread_out[cell]["map"], abs=0.5)


def test_the_upper_bound_ranks_uncompressed_class_probabilities():
    cells = grid(["Ceiling", "ClassifierLSH"], [16, 32], [0])
    assert [cell for cell in cells if cell.method == "Ceiling"] == [Cell("Ceiling", 0, 0)]
    found = dict(run_cells(Benchmark(DIGITS, **SMALL), cells))
    bound = found[Cell("Ceiling", 0, 0)]
    assert bound["map"] > found[Cell("ClassifierLSH", 32, 0)]["map"]
    assert bound["map"] > found[Cell("ClassifierLSH", 16, 0)]["map"]
    rows = DIGITS.split("paper", 0, **SMALL)
    X, y = DIGITS.features, DIGITS.labels
    svm = ClassifierLSH(random_state=0).fit(X[rows.train], y[rows.train])
    products = svm.class_probabilities(X[rows.query]) @ svm.class_probabilities(X[rows.database]).T
    by_hand = [
        average_precision_score(y[rows.database] == label, row)
        for label, row in zip(y[rows.query], products, strict=True)
    ]
    assert bound["map"] == pytest.approx(100 * np.mean(by_hand), abs=0.01)
    assert table([bound])[1][:2] == ["Ceiling", "–"]


@pytest.mark.parametrize("centred", [False, True])
def test_uncompressed_vectors_are_ranked_by_cosine(centred):
    cell = Cell("CentredCosine" if centred else "Cosine", 0, 0)
    record = run_cell(Benchmark(DIGITS, **SMALL), cell)
    rows = DIGITS.split("paper", 0, **SMALL)
    X, y = DIGITS.features.astype(np.float64), DIGITS.labels
    items, queries = X[rows.database], X[rows.query]
    mean = items.mean(axis=0) if centred else 0
    cosines = cosine_similarity(queries - mean, items - mean)
    by_hand = [
        average_precision_score(y[rows.database] == label, row)
        for label, row in zip(y[rows.query], cosines, strict=True)
    ]
    assert record["map"] == pytest.approx(100 * np.mean(by_hand), abs=0.01)
    assert record["learned_from"] == ("database" if centred else "nothing")


@pytest.mark.parametrize(
    "method", ["KSH:n_anchors=50", "LSH"]
)  # more anchors would amplify rounding
def test_mirrored_methods_learn_from_both_views_and_average_them(method):
    data = DIGITS.with_gist(orientations=(4,), grid=2)
    record = run_cell(Benchmark(data, **SMALL, mirrored=True), Cell(method, 8, 0))
    rows, y = data.split("paper", 0, **SMALL), data.labels
    other = gist(data.images[:, :, ::-1], orientations=(4,), grid=2)  # of the flipped images
    learned = rows.database if method == "LSH" else rows.train
    hasher = make_hasher(method, 8, 0)
    hasher.fit(np.concatenate([data.features[learned], other[learned]]), np.tile(y[learned], 2))
    codes = pack(hasher.project(data.features) + hasher.project(other) > 0)
    by_hand = evaluate(codes[rows.query], codes[rows.database], y[rows.query], y[rows.database],
                       n_bits=8)  # fmt: skip
    assert record["mirrored"]
    assert record["map"] == pytest.approx(by_hand.map, abs=0.2)  # flipping rounds differently


def test_mirrored_and_plain_records_are_distinct():
    data, cell = DIGITS.with_gist(orientations=(4,), grid=2), Cell("LSH", 8, 0)
    plain, mirrored = Benchmark(data, **SMALL), Benchmark(data, **SMALL, mirrored=True)
    record = run_cell(mirrored, cell)
    assert mirrored.matching([cell], [record]) == {cell: record}
    assert plain.matching([cell], [record]) == {}


def test_without_other_rows_there_is_no_score_without_training_rows():
    rows = DIGITS.split("paper", 0, **SMALL)
    all_trained = datasets.Split(rows.database, rows.query, rows.database)
    record = run_cell(Benchmark(DIGITS, split=all_trained), Cell("LSH", 8, 0))
    assert "map_without_training" not in record
    unseen = run_cell(Benchmark(DIGITS, protocol="unseen", **SMALL), Cell("LSH", 8, 0))
    assert unseen["map_without_training"] == unseen["map"]


def test_mirroring_requires_a_mirror_order_of_features():
    with pytest.raises(ValueError, match=r"\bdigits\b.*\bmirror"):
        Benchmark(DIGITS, mirrored=True)


def test_a_failing_cell_does_not_stop_the_others():
    outcomes = dict(run_cells(Benchmark(DIGITS, **SMALL), grid(["ITQ", "LSH"], [65], [0])))
    assert isinstance(outcomes[Cell("ITQ", 65, 0)], ValueError)
    assert outcomes[Cell("LSH", 65, 0)]["map"] > 20


def test_records_match_only_the_same_data_protocol_and_cell():
    cell = Cell("LSH", 8, 0)
    benchmark = Benchmark(DIGITS, **SMALL)
    record = run_cell(benchmark, cell)
    assert benchmark.matching([cell], [record]) == {cell: record}
    changed = DIGITS.features.copy()
    changed[0, 0] += 1
    for other in (
        Benchmark(DIGITS, n_train=21, n_query=10),
        Benchmark(DIGITS, protocol="unseen", **SMALL),
        Benchmark(datasets.Dataset(DIGITS.name, changed, DIGITS.labels), **SMALL),
        Benchmark(DIGITS, split=DIGITS.split("paper", 0, **SMALL)),
    ):
        assert other.matching([cell], [record]) == {}
    assert benchmark.matching([Cell("LSH", 8, 1)], [record]) == {}


def test_a_record_has_all_parameters_as_json_values():
    record = run_cell(Benchmark(DIGITS, **SMALL), Cell("ITQ:n_iter=2", 8, 0))
    expected = ITQ(8, n_iter=2).get_params()
    del expected["n_bits"], expected["random_state"]
    assert record["parameters"] == expected
    assert json.loads(json.dumps(record)) == record
    bound = Benchmark(DIGITS, **SMALL).identify(Cell("Ceiling", 0, 0))["parameters"]
    assert bound == {"C": 5.0, "gamma": None, "n_samples": 8000, "scaling": "auto"}


def test_records_of_other_defaults_or_versions_do_not_match(monkeypatch):
    cell, benchmark = Cell("ITQ", 8, 0), Benchmark(DIGITS, **SMALL)
    record = json.loads(json.dumps(run_cell(benchmark, cell)))
    assert benchmark.matching([cell], [record]) == {cell: record}
    # a record of a version without parameters
    old = {name: value for name, value in record.items() if name != "parameters"}
    assert benchmark.matching([cell], [old]) == {}
    monkeypatch.setitem(
        built_in_hashers(), "ITQ", partial(ITQ, n_iter=3)
    )  # its default in a later version
    assert benchmark.matching([cell], [record]) == {}
    again = run_cell(benchmark, cell)
    assert benchmark.matching([cell], [record, again]) == {cell: again}
    monkeypatch.undo()
    monkeypatch.setattr(antipodal, "__version__", "99.0")
    assert Benchmark(DIGITS, **SMALL).matching([cell], [record]) == {}


class Shifted(LSH):
    """A custom hasher with parameters that are not JSON values."""

    def __init__(self, n_bits=8, *, shift=np.negative, start=None, reach=np.inf, random_state=None):
        super().__init__(n_bits, random_state=random_state)
        self.shift, self.start, self.reach = shift, start, reach


def double(x):
    return 2 * x


def test_parameters_of_a_custom_hasher_are_named_or_hashed():
    first = parameters(Shifted(shift=double, start=np.arange(3.0)))
    assert first["shift"] == f"{__name__}.double"
    assert first["reach"] == "inf"
    assert json.loads(json.dumps(first, allow_nan=False)) == first
    assert first == parameters(Shifted(16, shift=double, start=np.arange(3.0), random_state=1))
    assert first != parameters(Shifted(shift=double, start=np.arange(4.0)))
    assert first != parameters(Shifted(shift=concepts, start=np.arange(3.0)))


def test_a_given_split_is_used_for_every_seed():
    rows = DIGITS.split("paper", 5, **SMALL)
    given = run_cell(Benchmark(DIGITS, split=rows), Cell("LSH", 8, 5))
    drawn = run_cell(Benchmark(DIGITS, **SMALL), Cell("LSH", 8, 5))
    assert given["map"] == drawn["map"]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("Nothing", r"'Nothing'.*\bDeepLinf\b"),
        ("ITQ:colour=red", r"\bNAME\b.*\bn_iter\b"),
        ("ITQ:n_iter", r"\bNAME=VALUE\b"),
    ],
)
def test_a_misspelt_method_is_rejected_before_the_run(method, message):
    with pytest.raises(ValueError, match=message):
        grid([method], [8], [0])


def test_the_setting_of_the_paper_has_a_name():
    ours = make_hasher("DeepLinf.paper:n_epochs=2", 16, 7).get_params()
    assert ours == DeepLinf.paper(16, n_epochs=2, random_state=7).get_params()


def test_a_table_has_mean_deviation_and_the_value_of_the_paper():
    base = {"dataset": "cifar10-gist", "protocol": "paper", "n_train": 200, "n_query": 100}
    maps = [34.0, 35.0, 37.5]
    records = [
        base | {"method": "KSH", "bits": 48, "seed": s, "map": m, "chance": 10}
        for s, m in enumerate(maps)
    ]
    headings, row = table(records)
    assert headings == ["method", "bits", "seeds", "mAP", "chance"]
    assert row == ["KSH", "48", "3", f"{mean(maps):.1f} ± {stdev(maps):.1f} (31.1)", "10.0 ± 0.0"]
    assert published_scores(records[0] | {"n_train": 100}) == {}
    assert published_scores(records[0] | {"dataset": "coco"}) == {}
    assert spread([0.0012]) == "0.001"


def test_f1_of_the_published_tables_is_consistent():
    """F1 is the harmonic mean of precision and recall, except for known misprints."""
    known = {("AGH2", 48), ("LDAHash", 48), ("LDAHash", 64), ("PSH", 64)}
    for scores in PUBLISHED.values():
        assert len(scores) == 16
        for key, row in scores.items():
            p, r = row["precision_r2"], row["recall_r2"]
            if key not in known:
                assert row["f1_r2"] == pytest.approx(2 * p * r / (p + r), rel=0.08), key


def test_a_dataset_without_features_is_refused():
    images = np.zeros((4, 8, 8), np.uint8)
    with pytest.raises(ValueError, match=r"\bimages\b.*\bfeatures\b"):
        Benchmark(datasets.Dataset("images", None, np.arange(4), images))


def test_the_name_of_a_dataset_includes_its_features(tmp_path):
    plain, described = load_dataset("digits"), load_dataset("digits", features="gist")
    np.testing.assert_array_equal(plain.features, DIGITS.features)
    np.testing.assert_array_equal(described.features, DIGITS.with_gist().features)
    assert (plain.name, described.name) == ("digits", "digits-gist")
    data = concepts()
    np.savez(tmp_path / "c.npz", X=data.features, Y=data.labels)
    rare = load_dataset("multilabel", tmp_path / "c.npz", skip_concepts=2)
    assert rare.name == "c-without-top-2"
    kept = sorted(range(6), key=lambda c: data.labels[:, c].sum())[:4]
    np.testing.assert_array_equal(rare.labels, data.labels[:, sorted(kept)])
    np.savez(tmp_path / "one.npz", X=data.features, y=np.arange(600) % 3)
    for arguments, options, message in (
        (("nothing",), {}, r"\bname\b.*'nothing'"),
        (("digits",), {"features": "words"}, r"\bfeatures\b.*'words'"),
        (("arrays",), {}, r"\barrays\b.*\bpath\b"),
        (("arrays", tmp_path / "c.npz"), {"features": "gist"}, r"\bc\b.*\bimages\b"),
        (
            ("multilabel", tmp_path / "one.npz"),
            {},
            r"`antipodal bench arrays\b",
        ),
        (("digits",), {"skip_concepts": 1}, r"\bskip_concepts\b|\b1\b.*\bconcepts\b"),
    ):
        with pytest.raises(ValueError, match=message):
            load_dataset(*arguments, **options)


# The command.


def bench(*arguments, cwd):
    return run_command("bench", *arguments, "--processes", 1, cwd=cwd)


QUICK = (
    "digits",
    "--methods",
    "LSH,ITQ:n_iter=2",
    "--bits",
    "8,16",
    "--train",
    20,
    "--queries",
    10,
)


def test_the_command_prints_and_stores_one_record_per_cell(tmp_path):
    done = bench(*QUICK, "--seeds", "0-1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    cells = {(r["method"], r["bits"], r["seed"]) for r in printed}
    assert cells == {(m, b, s) for m in ("LSH", "ITQ:n_iter=2") for b in (8, 16) for s in (0, 1)}
    assert all(r.keys() >= KEYS for r in printed)
    assert "8/8" in done.stderr
    kept = read_records(tmp_path / "antipodal-bench-digits.jsonl")
    assert kept == printed
    again = bench(*QUICK, "--seeds", "0-2", cwd=tmp_path)
    assert re.search(r"\b8\b.*\b12\b.*\bantipodal-bench-digits\.jsonl\b", again.stderr)
    assert "4/4" in again.stderr
    assert read_records(tmp_path / "antipodal-bench-digits.jsonl")[:8] == kept
    assert "mAP" in again.stdout
    assert " ± " in again.stdout


def test_a_killed_run_resumes(tmp_path):
    options = ("--bits", 8, "--train", 100, "--queries", 10, "--out", "r.jsonl", "--json")
    slow = ("digits", "--methods", "LSH,ITQ:n_iter=1000000", "--processes", 1, *options)
    process = start_command("bench", *slow, cwd=tmp_path, files=[tmp_path / "printed"] * 2)
    deadline = time.monotonic() + 600
    while not read_records(tmp_path / "r.jsonl") and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    first = read_records(tmp_path / "r.jsonl")
    assert [r["method"] for r in first] == ["LSH"]
    done = bench("digits", "--methods", "LSH", *options, cwd=tmp_path)
    assert re.search(r"\b1\b.*\b1\b.*\br\.jsonl\b", done.stderr)
    assert json.loads(done.stdout) == first[0]
    assert read_records(tmp_path / "r.jsonl") == first


def test_multilabel_files_use_the_protocol_of_nus_wide(tmp_path):
    data = concepts(1500)
    np.savez(tmp_path / "flowers.npz", X=data.features, Y=data.labels.astype(np.uint8))
    options = ("--methods", "LSH", "--bits", 8, "--concepts", 4, "--queries", 20, "--json")
    done = bench("multilabel", "flowers.npz", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["dataset"] == "flowers"
    assert record.keys() >= KEYS | {"map_at_10", "mp_at_5000", "chance"}
    done = bench("multilabel", "flowers.npz", *options, "--skip-concepts", 1, cwd=tmp_path)
    without = json.loads(done.stdout)
    assert without["dataset"] == "flowers-without-top-1"
    assert without["chance"] < record["chance"]


def test_nus_wide_is_benchmarked_with_the_pairs_of_its_protocol(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.random((60, 3)) < 0.5
    for folder in ("Low_Level_Features", "ConceptsList", "Groundtruth/AllLabels"):
        (tmp_path / folder).mkdir(parents=True)
    np.savetxt(tmp_path / "Low_Level_Features/BoW_int.dat", rng.integers(0, 9, (60, 500)), "%d")
    (tmp_path / "ConceptsList/Concepts81.txt").write_text("a\nb\nc\n")
    for name, column in zip("abc", labels.T, strict=True):
        np.savetxt(tmp_path / f"Groundtruth/AllLabels/Labels_{name}.txt", column, "%d")
    options = ("--methods", "NNHash.paper:n_epochs=1", "--bits", 8, "--concepts", 2)
    options += ("--queries", 5, "--train", 30, "--json")
    done = bench("nuswide", "--data", tmp_path, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["parameters"]["n_pairs"] == 100_000
    assert (record["train"], record["n_concepts"]) == (30, 2)
    assert record["map_at_10"] > 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("digits", "--bits", "8,x"), 2, r"--bits\b.*\b8,x\b"),
        (("digits", "--bits", "0"), 2, r"--bits\b.*\b0\b.*\b1\b"),
        (("digits", "--methods", "Nothing"), 2, r"'Nothing'.*\bDeepLinf\b"),
        (("digits", "--methods", ","), 2, r"--methods\b"),
        (("nothing",), 2, "nothing"),
        (("arrays",), 2, r"\barrays\b.*\bFILE\b"),
        (("digits", "x.npz"), 2, r"\bdigits\b.*\bFILE\b"),
        (("arrays", "x.npz", "--features", "gist"), 2, r"--features\b.*\barrays\b"),
        (("arrays", "missing.npz"), 1, r"\bmissing\.npz\b.*No such file"),
        (("cifar10", "--data", "."), 1, r"\bCIFAR-10\b"),
        (("digits", "--train", "500", "--methods", "LSH"), 1, r"\bclass \d\b.*\b500\b"),
        (("digits", "--skip-concepts", "1"), 1, r"\bconcepts\b"),
        (
            ("digits", "--methods", "ITQ", "--bits", "65", "--queries", "9"),
            1,
            r"\bn_bits\b.*\bfeatures\b.*\b65\b",
        ),
    ],
)
def test_invalid_options_are_reported(tmp_path, arguments, code, message):
    if "--train" not in arguments:
        arguments = (*arguments, "--train", "20")
    done = bench(*arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert re.search(message, " ".join(done.stderr.replace("│", " ").split())), done.stderr
    assert "Traceback" not in done.stderr


def test_digits_have_defaults_that_fit_their_classes(tmp_path):
    done = bench("digits", "--methods", "LSH", "--bits", 8, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["n_train"], record["n_query"], record["train"]) == (50, 20, 500)


def test_too_few_rows_per_class_are_reported_once_before_the_first_cell(tmp_path):
    done = bench("digits", "--methods", "LSH,ITQ", "--train", 170, "--bits", "8,16", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("--train") == done.stderr.count("class ") == 1, done.stderr
    assert not list(tmp_path.iterdir())


def test_a_foreign_file_is_not_changed(tmp_path):
    (tmp_path / "notes.txt").write_text("my notes\n")
    done = bench(*QUICK, "--out", "notes.txt", cwd=tmp_path)
    assert done.returncode == 1
    assert re.search(r"\bnotes\.txt\b.*\bline 1\b.*\bJSON\b", done.stderr)
    assert (tmp_path / "notes.txt").read_text() == "my notes\n"

"""Audits: recall compared with brute force, relevance judgements, advice, bad input."""

import json
import re
import shlex
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import ndcg_score
from sklearn.neighbors import NearestNeighbors
from typer.testing import CliRunner

from antipodal import ITQ, audit, open_vectors, register
from antipodal.cli import app
from antipodal.evaluation.audit import AuditInterrupted, default_lengths, survey
from antipodal.evaluation.audit_report import write_audit_report
from antipodal.evaluation.audited_codes import Int8Vectors
from antipodal.evaluation.other_libraries import BASELINES
from antipodal.evaluation.recall import Judgements, drop_query_rows, true_neighbours
from browsers import tab

X = load_digits(return_X_y=True)[0]
QUICK = {"bits": (32,), "methods": ["ITQ"], "baselines": "none", "n_queries": 50}


@pytest.mark.parametrize("metric", ["cosine", "euclidean", "dot"])
@pytest.mark.parametrize("blocks", [1, 7])
def test_true_neighbours_are_those_of_brute_force(metric, blocks, monkeypatch):
    monkeypatch.setattr("antipodal.evaluation.recall._SCORES_AT_ONCE", 20 * len(X) // blocks)
    rows = X + np.random.default_rng(0).random(X.shape)  # without ties
    queries = rows[:20] + 0.25
    found = true_neighbours(rows, queries, 10, metric).ids
    if metric == "dot":
        expected = np.argsort(-(queries @ rows.T), axis=1, kind="stable")[:, :10]
    else:
        search = NearestNeighbors(n_neighbors=10, metric=metric, algorithm="brute").fit(rows)
        expected = search.kneighbors(queries, return_distance=False)
    np.testing.assert_array_equal(found, expected)


def test_a_query_that_is_a_row_finds_its_duplicates_but_not_itself():
    rows = np.concatenate([X[:50], X[:1]])
    own = np.array([0, 7])
    found = true_neighbours(rows, rows[own], 3, "cosine", query_rows=own).ids
    assert found[0, 0] == 50
    assert not (found == own[:, None]).any()


def test_recall_is_the_share_of_true_neighbours_among_the_results():
    found = audit(X, random_state=3, **QUICK)
    hasher = ITQ(32, random_state=int(np.random.RandomState(3).randint(2**31 - 1))).fit(X)
    codes, own = hasher.transform(X).astype(int), found.query_rows
    truth = true_neighbours(X, X[own], 10, "cosine", query_rows=own).ids
    for setting in found.settings:
        if setting.search == "hamming":
            far = (codes[own][:, None] != codes).sum(axis=2).astype(float)
        else:
            far = -hasher.project(X[own]).astype(float) @ (2 * codes - 1).T
        far[np.arange(len(own)), own] = np.inf
        order = np.argsort(far, axis=1, kind="stable")
        for r, recall in setting.with_floats.items():
            hits = [len(set(a) & set(b)) for a, b in zip(truth, order[:, : 10 * r], strict=True)]
            assert recall == pytest.approx(np.mean(hits) / 10, abs=0.003)
        shares = setting.by_query
        assert setting.recall == pytest.approx(shares.mean())
        assert setting.recall_error == pytest.approx(1.96 * shares.std(ddof=1) / np.sqrt(50))
        assert list(setting.with_floats.values()) == sorted(setting.with_floats.values())
    hamming, _ = found.settings
    assert hamming.distances.sum(axis=1).tolist() == [50 * 10, 50 * 100]
    assert hamming.with_int8[4] == pytest.approx(hamming.with_floats[4], abs=0.02)


def test_rounded_vectors_are_off_by_half_a_step():
    rows = np.concatenate([X, np.zeros((1, 64))])
    rounded = Int8Vectors(rows)[np.arange(len(rows))]
    assert (np.abs(rounded - rows) <= rows.max(axis=1, keepdims=True) / 254 + 1e-6).all()


def test_the_query_row_is_dropped_from_its_results():
    found = np.array([[4, 2, 9, 1]])
    np.testing.assert_array_equal(drop_query_rows(found, np.array([2]), 3), [[4, 9, 1]])
    np.testing.assert_array_equal(drop_query_rows(found, np.array([7]), 3), [[4, 2, 9]])


def test_ndcg_equals_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    grades = rng.integers(0, 4, (6, 30)) * (rng.random((6, 30)) < 0.3)
    query, document = np.nonzero(grades)
    judged = Judgements.of(np.stack([query, document, grades[query, document]], axis=1), 6, 30)
    scores = rng.random((6, 30))
    order = np.argsort(-scores, axis=1)[:, :10]
    queries = judged.judged_queries()
    expected = [ndcg_score(grades[[q]], scores[[q]], k=10) for q in queries]
    np.testing.assert_allclose(judged.ndcg(queries, order[queries]), expected)
    hits = [(grades[q, order[q]] > 0).sum() / (grades[q] > 0).sum() for q in queries]
    np.testing.assert_allclose(judged.recall(queries, order[queries]), hits)


def test_judgements_score_the_vectors_and_the_codes():
    queries, documents = X[:40], X[40:400]
    truth = true_neighbours(documents, queries, 1, "cosine").ids
    relevance = np.stack([np.arange(40), truth[:, 0]], axis=1)
    found = audit(documents, queries=queries, relevance=relevance, **QUICK)
    assert found.ndcg == 1
    for setting in found.settings:
        assert 0 < setting.ndcg[1] < 1
        reranked = [setting.ndcg[r] for r in sorted(setting.ndcg) if r > 1]
        assert reranked == sorted(reranked)  # more candidates hold the one answer more often
    assert found.records()[0]["ndcg_of_vectors"] == 1


def test_unusual_rows_are_counted_and_listed():
    rows = X[:60].copy()
    rows[3], rows[8], rows[20] = np.nan, 0, rows[19]
    found = survey(rows)
    assert (found.not_finite.tolist(), found.zero.tolist(), found.equal) == ([3], [8], 1)
    found = audit(rows, bits=(16,), methods=["LSH"], baselines="none", n_queries=60, k=3)
    assert found.query_rows.tolist() == [i for i in range(60) if i not in (3, 8)]
    remarks = " ".join(found.survey.remarks())
    assert "1 (3)" in remarks
    assert "1 (8)" in remarks
    assert "1 of 60" in remarks


def test_other_libraries_count_all_their_bytes():
    found = audit(
        X, bits=(20,), methods=["LSH"], n_queries=30
    )  # not a whole number of bytes, so no PQ
    others = {s.method: s for s in found.settings if s.search == "asymmetric" and s.method != "LSH"}
    assert {name: s.cost.bytes for name, s in others.items()} == {
        "RaBitQ, 1 bit": 16, "TurboQuant, 1 bit": 8,
        "RaBitQ, 2 bit": 36, "TurboQuant, 2 bit": 16,
        "RaBitQ, 4 bit": 52, "TurboQuant, 4 bit": 32,
    }  # fmt: skip
    assert others["RaBitQ, 4 bit"].recall > 0.85


def repeated_rows(times: int) -> np.ndarray:
    """Rows that all occur several times, each copy scaled and rounded differently."""
    rng = np.random.default_rng(0)
    rows = np.repeat(X[:40], times, axis=0)
    return (rows * rng.uniform(0.5, 2, (len(rows), 1))).astype(np.float32)


def test_rows_that_tie_with_the_last_neighbour_are_correct():
    rows = repeated_rows(60)  # codes cannot distinguish the copies, but neither can the cosine
    found = audit(rows, bits=(64,), methods=["ITQ"], baselines="none", n_queries=100)
    asymmetric = found.settings[1]
    assert asymmetric.recall > 0.99
    assert asymmetric.with_floats[4] > 0.99
    assert asymmetric.correct.shape == (100, 10)


def test_hits_are_the_results_whose_scores_reach_that_of_the_last_neighbour():
    rng = np.random.default_rng(1)
    rows, queries = rng.integers(0, 3, (400, 6)), rng.integers(1, 3, (30, 6))  # many ties
    found = rng.permuted(np.tile(np.arange(400), (30, 1)), axis=1)[:, :50]
    for metric in ("cosine", "dot", "euclidean"):
        truth = true_neighbours(rows, queries, 10, metric)
        if metric == "euclidean":
            scores = -np.square(queries[:, None] - rows).sum(axis=2, dtype=float)
        else:
            lengths = np.linalg.norm(rows, axis=1) if metric == "cosine" else np.ones(400)
            scores = queries @ rows.T / np.where(lengths > 0, lengths, 1)
        last = np.sort(scores, axis=1)[:, -10, None]
        expected = np.take_along_axis(scores, found, axis=1) >= last - 1e-9
        np.testing.assert_array_equal(truth.hits(found), expected)
        assert truth.tied.sum() > 10
        np.testing.assert_allclose(truth.recall(found), np.minimum(expected.sum(axis=1), 10) / 10)


def test_the_default_lengths_follow_the_width_of_the_vectors():
    assert default_lengths(384) == (192, 384, 768)
    assert default_lengths(100) == (48, 96, 200)
    assert default_lengths(6) == (8,)
    found = audit(X[:300], methods=["LSH"], baselines="none", n_queries=10)
    assert {setting.bits for setting in found.settings} == {32, 64, 128}


def brute_force_advice(found, target, max_rerank, most):
    """All settings that antipodal serves, as (bytes, rerank, recall), without `Advice`."""
    scoring = {"ITQ": "hamming", "LinfHash.asymmetric": "asymmetric"}
    choices = []
    for s in found.settings:
        if scoring.get(s.method) == s.search:
            choices.append((s.cost.bytes, 1, s.recall))
            for r in (2, 4, 8, 16):
                if r <= max_rerank:
                    choices.append((s.cost.bytes + 64 + 4, r, s.with_int8[r]))
                    choices.append((s.cost.bytes + 4 * 64, r, s.with_floats[r]))
    choices = [c for c in choices if c[0] <= most]
    good = [c for c in choices if c[2] >= target]
    return min(good)[:2] if good else max(choices, key=lambda c: (c[2], -c[0]))[:2]


@pytest.mark.parametrize("target", [0.6, 0.9, 0.99, 1.1])
@pytest.mark.parametrize("max_rerank", [1, 2, 4])
@pytest.mark.parametrize("most", [20, 10_000])
def test_the_advice_is_the_smallest_setting_that_antipodal_serves(
    audited_digits, target, max_rerank, most
):
    advice = audited_digits.advice(target, max_rerank=max_rerank, bytes=most)
    expected = brute_force_advice(audited_digits, target, max_rerank, most)
    assert (advice.bytes, advice.rerank) == expected
    assert advice.reached == (advice.recall >= target)
    assert advice.setting.served
    assert (advice.keep_vectors is None) == (advice.rerank == 1)
    assert f"{advice.bytes} bytes" in str(advice)
    size = ["--bytes", str(advice.bits // 8)]
    words = shlex.split(advice.command)
    assert words[:3] == ["antipodal", "build", "vectors.parquet"]
    assert words[words.index("--bytes") :][:2] == size
    assert ("--method" in words) == (advice.method != "LinfHash.asymmetric")
    assert ("--rerank" in advice.search_command) == (advice.rerank > 1)
    assert json.loads(json.dumps(advice.to_dict()))["command"] == advice.command


@pytest.fixture(scope="module")
def audited_digits():
    return audit(
        X.astype(np.float32), bits=(16, 64), methods=["ITQ", "LinfHash.asymmetric"], n_queries=100
    )


def test_other_metrics_are_advised_without_reranking():
    found = audit(X, metric="euclidean", **QUICK)
    advice = found.advice(1.0)
    assert (advice.rerank, advice.keep_vectors, advice.reached) == (1, None, False)


def test_fitted_models_and_other_libraries_are_not_advised():
    model = ITQ(24, random_state=0).fit(X[:500])
    found = audit(X, bits=(), models=[model], baselines="rabitq", n_queries=50)
    assert found.advice() is None
    assert {s.method for s in found.settings} >= {"ITQ (yours)", "RaBitQ, 1 bit"}


def test_recall_of_a_sample_is_extrapolated_to_all_rows():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((8000, 16)) @ rng.standard_normal((16, 32))
    options = {"bits": (32,), "methods": ["ITQ"], "baselines": "none", "n_queries": 500}
    _, full = audit(rows, **options).settings
    found = audit(rows, sample=1000, **options)
    _, part = found.settings
    assert (found.all_rows, found.survey.rows) == (8000, 1000)
    assert part.recall > full.recall + 0.1
    for r in (1, 2, 4):
        assert part.extrapolated[r] == pytest.approx(full.with_floats[r], abs=0.08)
    assert found.advice(0.2, max_rerank=1).recall == found.settings[0].extrapolated[1]
    assert "8,000" in " ".join(found.remarks())
    assert full.extrapolated == {}


def test_a_sample_reads_only_its_rows(tmp_path, monkeypatch):
    rows = X[:900].astype(np.float32)
    table = pa.table({"embedding": pa.FixedSizeListArray.from_arrays(rows.ravel(), 64)})
    pq.write_table(table, tmp_path / "X.parquet", row_group_size=100)
    file = open_vectors(tmp_path / "X.parquet")
    monkeypatch.setattr("antipodal.evaluation.audit._TRAINING_ROWS", 100)
    monkeypatch.setattr(type(file), "__array__", None)  # unpacks all rows
    found = audit(file, sample=200, **QUICK)
    expected = audit(rows, sample=200, **QUICK)
    np.testing.assert_array_equal(found.rows, expected.rows)
    assert [s.recall for s in found.settings] == [s.recall for s in expected.settings]
    read = []
    opened = pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile, "iter_batches",
        lambda self, size, groups, **rest: (
            read.extend(groups) or opened(self, size, groups, **rest)
        ),
    )  # fmt: skip
    np.testing.assert_array_equal(file.take([205, 208, 700, 899]), rows[[205, 208, 700, 899]])
    assert read == [2, 7, 8]


def test_settings_are_checked_before_the_first_is_run(monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("an audit began")

    monkeypatch.setattr("antipodal.evaluation.audit.true_neighbours", refuse)
    for options in (
        {"bits": (32, 128)},  # ITQ has at most 64 bits here
        {"bits": (32, 0)},
        {"bits": (32, -1)},
        {"models": [ITQ(8).fit(X[:, :9])]},
        {"baselines": "faiss"},
        {"baselines": ["rabitq", "nothing"]},
    ):
        with pytest.raises(ValueError, match=r"128|bits|9|'faiss'|'nothing'"):
            audit(X, **(QUICK | options))


def test_a_method_that_needs_many_rows_is_checked_with_all_of_them():
    class Demanding(ITQ):
        def fit(self, X, y=None):
            if len(X) < 1000:
                raise ValueError(f"expected 1,000 rows: got {len(X)}")
            return super().fit(X)

    register(Demanding)
    options = QUICK | {"methods": ["Demanding"]}
    assert len(audit(X, **options).settings) == 2
    with pytest.raises(ValueError, match="500"):
        audit(X[:500], **options)


def test_few_rows_leave_out_the_baselines_that_need_more():
    found = audit(X[:100], bits=(64,), methods=["LSH"], n_queries=20)
    assert not any(setting.method == "PQ" for setting in found.settings)
    [skipped] = found.skipped
    assert re.search(r"\bpq\b.*\b256\b.*\b100\b", skipped)
    assert skipped in found.remarks()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((300, 64)), r"\bX\b.*\bzero\b"),
        (np.full((300, 64), np.nan), r"\bX\b.*\bfinite\b.*\bNaN\b"),
        (np.concatenate([np.full((9, 64), np.nan), np.zeros((9, 64))]), r"\bX\b.*\bzero\b"),
    ],
)
def test_rows_without_a_possible_query_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        audit(rows, **QUICK)


def test_an_interrupt_keeps_the_finished_settings(tmp_path, monkeypatch):
    def stop(step, done, total):
        if (step, done) == ("ITQ, 4 bytes", 1):
            raise KeyboardInterrupt

    options = QUICK | {"methods": ["LSH", "ITQ"]}
    with pytest.raises(KeyboardInterrupt) as caught:
        audit(X, progress=stop, **options)
    assert isinstance(caught.value, AuditInterrupted)
    assert [s.method for s in caught.value.audit.settings] == ["LSH", "LSH"]

    monkeypatch.chdir(tmp_path)
    np.save("X.npy", X[:300])
    fit = ITQ.fit
    monkeypatch.setattr(
        ITQ, "fit", lambda self, X: fit(self, X) if len(X) < 300 else stop("ITQ, 4 bytes", 1, 2)
    )
    arguments = ["audit", "X.npy", "--bits", "16", "--methods", "LSH,ITQ", "--baselines", "none"]
    run = CliRunner().invoke(app, arguments)
    assert run.exit_code == 130
    assert "LSH" in run.stdout
    assert "ITQ" not in run.stdout


@pytest.mark.parametrize("options", [["--sample", "200"], [], ["-k", "100"]])
def test_the_table_fits_80_columns(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("X.npy", X[:400])
    run = CliRunner().invoke(app, ["audit", "X.npy", "--n-queries", "20", *options])
    assert run.exit_code == 0, run.output
    lines = [line for line in run.stdout.splitlines() if line[:1] in "┏┃┡│└"]
    assert len(lines) > 20
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", sorted(set(BASELINES) - {"lsq", "lsq-norm", "opq"}))
def test_baselines_count_their_bytes_and_find_neighbours(name):
    if name in ("rabitqlib", "turbovec", "scann", "usearch"):
        pytest.importorskip(name)
    found = audit(X, bits=(64,), methods=[], baselines=[name], n_queries=50)
    assert found.settings
    for setting in found.settings:
        assert setting.recall > 0.3
        assert setting.cost.bytes * 8 == setting.bits
        assert not setting.served


def test_a_baseline_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr("antipodal.evaluation.other_libraries.find_spec", lambda name: None)
    found = audit(X, **(QUICK | {"baselines": "turbovec,usearch"}))
    assert len(found.settings) == 2
    assert ["turbovec" in found.skipped[0], "usearch" in found.skipped[1]] == [True, True]
    assert all("compare" in text for text in found.skipped)


def test_fitted_models_are_audited_without_refitting():
    model = ITQ(24, random_state=0).fit(X[:500])
    found = audit(X, bits=(), models=[model], baselines="none", n_queries=50)
    assert {s.method for s in found.settings} == {"ITQ (yours)"}


def test_the_report_is_one_self_contained_page(tmp_path):
    found = audit(X, random_state=0, **QUICK)

    def describe(rows):
        return {row: {"title": f"item <{row}>"} for row in rows}

    about = {"vectors": "digits & co"}
    write_audit_report(tmp_path / "r.html", found, describe=describe, about=about)
    page = (tmp_path / "r.html").read_text()
    ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>"))
    assert "digits &amp; co" in page
    assert "item &lt;" in page
    assert "<script" not in page
    assert "http" not in page


def test_the_worst_queries_are_shown_with_true_neighbours_and_results(tmp_path):
    rows = X[::3]
    found = audit(rows, sample=400, random_state=1, **QUICK)
    write_audit_report(tmp_path / "r.html", found)
    page = ElementTree.fromstring((tmp_path / "r.html").read_text().partition("\n")[2])
    hasher = ITQ(32, random_state=int(np.random.RandomState(1).randint(2**31 - 1)))
    audited_rows = found.rows
    hasher.fit(rows)  # all rows, as there are fewer than 20,000
    setting = found.advice().setting
    codes = hasher.transform(rows[audited_rows]).astype(int)
    tables = [t for t in page.iter("table") if t.find("caption") is not None]
    assert len(tables) == 10
    shares = []
    for table in tables:
        share, row = re.findall(r"\d+", "".join(table.find("caption").itertext()))
        cells = [["".join(cell.itertext()) for cell in line] for line in table.find("tbody")]
        true, near = (
            [int(text.split()[-1]) for text in column] for column in zip(*cells, strict=True)
        )
        for ours, others, column in ((true, near, 0), (near, true, 1)):
            marked = [line[column].startswith("✓") for line in cells]
            assert marked == [each in others for each in ours]
        # Brute force over all rows.
        cosines = rows @ rows[int(row)] / np.linalg.norm(rows, axis=1)
        left = np.setdiff1d(audited_rows, [int(row)])
        assert sorted(cosines[true]) == pytest.approx(sorted(np.sort(cosines[left])[-10:]))
        if setting.search == "hamming":
            mine = codes[np.flatnonzero(audited_rows == int(row))[0]]
            apart = (codes != mine).sum(axis=1)
            near_places = np.searchsorted(audited_rows, near)
            assert sorted(apart[near_places]) == sorted(np.sort(apart)[1:11])
        shares.append(int(share))
        assert int(share) == round(100 * len({*true} & {*near}) / 10)
    assert shares == sorted(shares)


def test_a_method_looks_the_same_in_all_charts_of_a_report(tmp_path):
    methods = ["SignHash:rotate=false", "SignHash", "LSH"]
    found = audit(X[:500], bits=(16, 64), methods=methods, baselines="none", n_queries=50)
    write_audit_report(tmp_path / "r.html", found)
    page = ElementTree.fromstring((tmp_path / "r.html").read_text().partition("\n")[2])
    looks = {}
    for curve in page.iter("g"):
        name, marker = curve.findtext("path/title"), curve.find("path[@transform]")
        if name in methods:
            looks.setdefault(name, set()).add((curve.get("class"), marker.get("d")))
    assert {name: len(each) for name, each in looks.items()} == dict.fromkeys(methods, 1)
    assert len(set.union(*looks.values())) == len({m for _, m in set.union(*looks.values())}) == 3
    assert looks["SignHash"].pop()[0] == "m-SignHash"  # the plain method has its own colour


def test_the_report_shows_its_charts_in_a_browser_and_fits_a_phone(tmp_path, browser):
    found = audit(X[:500], bits=(16, 64), methods=["LSH", "ITQ"], n_queries=50)
    write_audit_report(tmp_path / "r.html", found)
    for width in (1180, 390):
        with tab(browser, viewport={"width": width, "height": 800}) as page:
            page.goto(f"file://{tmp_path}/r.html")
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert page.get_by_text(str(found.advice())).is_visible()
            charts = page.get_by_role("img", name=re.compile(r"\bbytes per vector\b"))
            assert charts.count() == 4  # two searches, with and without reranking
            curves = charts.nth(0).locator("path.line").all()
            assert [line.locator("title").text_content() for line in curves] == ["LSH", "ITQ"]
            colours = {line.evaluate("line => getComputedStyle(line).stroke") for line in curves}
            assert len(colours) == 2
            rows = page.get_by_role("row").filter(has_text="asymmetric")
            assert rows.count() == sum(s.search == "asymmetric" for s in found.settings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 1797}, r"\bk\b.*\b1,796\b"),
        ({"queries": X[:3, :5]}, r"\bqueries\b.*\b64\b.*\b5\b"),
        ({"queries": np.full((2, 64), np.nan)}, r"\bqueries\b.*\bfinite\b"),
        ({"relevance": [[0, 1]]}, r"\brelevance\b.*\bqueries\b"),
        ({"queries": X[:3], "relevance": [[0, 5000]]}, r"\brelevance\b.*\bdocument\b.*\b5000\b"),
        ({"queries": X[:3], "relevance": [[3, 5]]}, r"\brelevance\b.*\bquery\b.*\b3\b"),
        ({"queries": X[:3], "relevance": [[1, 5, -1]]}, r"\brelevance\b.*\bnegative\b"),
        ({"queries": X[:3], "relevance": [1, 5]}, r"\brelevance\b.*\(2,\)"),
        ({"metric": "hamming"}, r"\bmetric\b.*'hamming'"),
        ({"bits": (0,)}, r"\bbits\b.*\b0\b"),
        ({"methods": ["KSH"]}, r"\bKSH\b.*\blabels\b"),
        ({"methods": ["Nothing"]}, r"method\b.*'Nothing'"),
    ],
)
def test_invalid_arguments_are_named_in_the_error(options, message):
    with pytest.raises(ValueError, match=message):
        audit(X, **(QUICK | options))
    with pytest.raises(ValueError, match=r"\bX\b"):
        audit(["text"], **QUICK)


def test_one_row_has_no_neighbours():
    with pytest.raises(ValueError, match=r"\bk\b.*\b0\b"):
        audit(X[:1], **QUICK)


def test_the_command_prints_a_table_records_or_a_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("X.npy", X[:300].astype(np.float16))
    options = ["--bits", "16,32", "--methods", "LSH", "--baselines", "none", "--n-queries", "20"]
    run = CliRunner().invoke(app, ["audit", "X.npy", *options, "--html", "r.html"])
    assert run.exit_code == 0, run.output
    assert "LSH" in run.stdout
    assert "antipodal build X.npy --method LSH --bytes" in run.stdout
    assert (tmp_path / "r.html").exists()
    run = CliRunner().invoke(app, ["audit", "X.npy", *options, "--json", "--sample", "100"])
    *records, last = [json.loads(line) for line in run.stdout.splitlines() if line[0] == "{"]
    assert last["advice"]["method"] == "LSH"
    assert last["advice"]["command"].startswith("antipodal build X.npy")
    (tmp_path / "run.jsonl").write_text(run.stdout)
    assert CliRunner().invoke(app, ["report", "run.jsonl"]).exit_code == 0
    assert [(r["bits"], r["search"]) for r in records] == [
        (16, "hamming"), (16, "asymmetric"), (32, "hamming"), (32, "asymmetric"),
    ]  # fmt: skip
    assert {r["rows"] for r in records} == {100}


@pytest.mark.parametrize(
    ("option", "value"),
    [("--bits", "many"), ("--methods", "LSH,Nothing"), ("--baselines", "pq,nothing")],
)
def test_wrong_options_of_the_command_are_usage_errors(tmp_path, monkeypatch, option, value):
    monkeypatch.chdir(tmp_path)
    np.save("X.npy", X[:300])
    wrong = CliRunner().invoke(app, ["audit", "X.npy", option, value])
    assert wrong.exit_code == 2


def test_existing_codes_are_audited_against_their_vectors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    queries, rows = X[:40], X[40:640]
    hasher = ITQ(32, random_state=0).fit(rows)
    for name, part in (("q", queries), ("x", rows)):
        np.save(f"{name}.npy", part)
        np.save(f"{name}-codes.npy", hasher.encode(part))
    options = ["evaluate", "q-codes.npy", "x-codes.npy", "--bits", "32"]
    run = CliRunner().invoke(app, [*options, "--neighbours", "q.npy", "x.npy", "-k", "5", "--json"])
    assert run.exit_code == 0, run.output
    found = audit(rows, queries=queries, k=5, models=[hasher], methods=[], baselines="none")
    [audited] = [setting for setting in found.settings if setting.search == "hamming"]
    result = json.loads(run.stdout)
    assert result["recall"] == pytest.approx(audited.recall)
    assert result["recall_x4"] == pytest.approx(audited.with_floats[4])
    assert result["recall_int8_x4"] == pytest.approx(audited.with_int8[4])
    shown = CliRunner().invoke(app, [*options, "--neighbours", "q.npy", "x.npy", "-k", "5"])
    assert f"{audited.recall:.4g}" in shown.stdout
    fewer = CliRunner().invoke(app, [*options, "--neighbours", "x.npy", "x.npy"])
    assert fewer.exit_code == 1
    assert re.search(r"\b40\b.*\b600\b", str(fewer.exception))
    both = CliRunner().invoke(
        app, [*options, "--neighbours", "q.npy", "x.npy", "--labels-column", "y"]
    )
    assert both.exit_code == 2

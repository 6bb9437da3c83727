"""Audits: recall compared with brute force, relevance judgements, advice, bad input."""

import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import ndcg_score
from sklearn.neighbors import NearestNeighbors
from typer.testing import CliRunner

from antipodal import ITQ, audit
from antipodal.cli import app
from antipodal.evaluation.audit import survey
from antipodal.evaluation.audit_report import write_audit_report
from antipodal.evaluation.audited_codes import Int8Vectors
from antipodal.evaluation.recall import Judgements, drop_query_rows, ranks, true_neighbours
from browsers import tab

X = load_digits(return_X_y=True)[0]
QUICK = {"bits": (32,), "methods": ["ITQ"], "peers": False, "n_queries": 50}


@pytest.mark.parametrize("metric", ["cosine", "euclidean", "dot"])
@pytest.mark.parametrize("blocks", [1, 7])
def test_true_neighbours_are_those_of_brute_force(metric, blocks, monkeypatch):
    monkeypatch.setattr("antipodal.evaluation.recall._SCORES_AT_ONCE", 20 * len(X) // blocks)
    rows = X + np.random.default_rng(0).random(X.shape)  # without ties
    queries = rows[:20] + 0.25
    found = true_neighbours(rows, queries, 10, metric)
    if metric == "dot":
        expected = np.argsort(-(queries @ rows.T), axis=1, kind="stable")[:, :10]
    else:
        search = NearestNeighbors(n_neighbors=10, metric=metric, algorithm="brute").fit(rows)
        expected = search.kneighbors(queries, return_distance=False)
    np.testing.assert_array_equal(found, expected)


def test_a_query_that_is_a_row_finds_its_duplicates_but_not_itself():
    rows = np.concatenate([X[:50], X[:1]])
    own = np.array([0, 7])
    found = true_neighbours(rows, rows[own], 3, "cosine", query_rows=own)
    assert found[0, 0] == 50
    assert not (found == own[:, None]).any()


def test_recall_is_the_share_of_true_neighbours_among_the_results():
    found = audit(X, random_state=3, **QUICK)
    hasher = ITQ(32, random_state=int(np.random.RandomState(3).randint(2**31 - 1))).fit(X)
    codes, own = hasher.transform(X).astype(int), found.query_rows
    truth = true_neighbours(X, X[own], 10, "cosine", query_rows=own)
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
    rounded = Int8Vectors(X, "euclidean")[np.arange(len(X))]
    assert (np.abs(rounded - X) <= X.max(axis=0) / 254 + 1e-6).all()


def test_ranks_and_rows_without_the_query():
    found = np.array([[4, 2, 9, 1]])
    np.testing.assert_array_equal(ranks(found, np.array([[9, 7]])), [[2, 4]])
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


def test_judged_results_of_the_vectors_and_of_codes():
    queries, documents = X[:40], X[40:400]
    truth = true_neighbours(documents, queries, 1, "cosine")
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
    found = audit(rows, bits=(16,), methods=["LSH"], peers=False, n_queries=60, k=3)
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
        "RaBitQ, 1 per feature": 16, "TurboQuant, 1 per feature": 8,
        "RaBitQ, 2 per feature": 36, "TurboQuant, 2 per feature": 16,
        "RaBitQ, 4 per feature": 52, "TurboQuant, 4 per feature": 32,
    }  # fmt: skip
    assert others["RaBitQ, 4 per feature"].recall > 0.85


def test_the_advice_is_the_smallest_code_that_reaches_the_recall():
    found = audit(X, bits=(16, 64), methods=["ITQ"], peers=False, n_queries=100)
    setting, r = found.cheapest(0.9, rescored=True)
    assert setting.with_floats[r] >= 0.9
    assert setting.cost.bytes == min(
        s.cost.bytes for s in found.settings if max(s.with_floats.values()) >= 0.9
    )
    assert f" {setting.cost.bytes} bytes" in found.advice(0.9)
    assert "100 %" in found.advice(1.0)


def test_fitted_models_are_audited_without_refitting():
    model = ITQ(24, random_state=0).fit(X[:500])
    found = audit(X, bits=(), models=[model], peers=False, n_queries=50)
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
    write_audit_report(tmp_path / "r.html", found, keep=0.999)
    page = ElementTree.fromstring((tmp_path / "r.html").read_text().partition("\n")[2])
    hasher = ITQ(32, random_state=int(np.random.RandomState(1).randint(2**31 - 1)))
    audited_rows = found.rows
    hasher.fit(rows[audited_rows])
    setting = max(found.settings, key=lambda each: each.recall)
    chosen = found.cheapest(0.999, rescored=True)
    setting = setting if chosen is None else chosen[0]
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


def test_the_report_shows_its_charts_in_a_browser_and_fits_a_phone(tmp_path, browser):
    found = audit(X[:500], bits=(16, 64), methods=["LSH", "ITQ"], n_queries=50)
    write_audit_report(tmp_path / "r.html", found)
    for width in (1180, 390):
        with tab(browser, viewport={"width": width, "height": 800}) as page:
            page.goto(f"file://{tmp_path}/r.html")
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert page.get_by_text(found.advice(0.95)).is_visible()
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
    options = ["--bits", "16,32", "--methods", "LSH", "--no-peers", "--n-queries", "20"]
    run = CliRunner().invoke(app, ["audit", "X.npy", *options, "--html", "r.html"])
    assert run.exit_code == 0, run.output
    assert "LSH" in run.stdout
    assert "95 %" in run.stdout
    assert (tmp_path / "r.html").exists()
    run = CliRunner().invoke(app, ["audit", "X.npy", *options, "--json", "--sample", "100"])
    records = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert [(r["bits"], r["search"]) for r in records] == [
        (16, "hamming"), (16, "asymmetric"), (32, "hamming"), (32, "asymmetric"),
    ]  # fmt: skip
    assert {r["rows"] for r in records} == {100}
    wrong = CliRunner().invoke(app, ["audit", "X.npy", "--bits", "many"])
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
    found = audit(rows, queries=queries, k=5, models=[hasher], methods=[], peers=False)
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

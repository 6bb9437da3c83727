"""Comparison of runs: values of the files, the best value of a row, invalid files."""

import json
import xml.etree.ElementTree as ET
from statistics import mean, stdev

import numpy as np
import pytest
from typer.testing import CliRunner

from antipodal import AntipodalError, evaluate, pack
from antipodal.bench.comparison import read_run
from antipodal.cli import app
from antipodal.evaluation.html import METHOD_COLOURS
from browsers import tab
from test_report import tables


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def report(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


@pytest.fixture
def evaluations(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    files, results = [], []
    for name, noise in (("good", 0.1), ("bad <run>", 0.4)):
        bits = (np.eye(3)[labels].repeat(4, axis=1) > 0) ^ (rng.random((60, 12)) < noise)
        results.append(evaluate(pack(bits), pack(bits), labels, labels, n_bits=12).to_dict())
        files.append(write(tmp_path / f"{name}.json", results[-1]))
    return files, results


def settings(gain):
    return [
        {"method": m, "bits": 8 * b, "bytes": b, "search": s, "recall": 0.1 * b + gain,
         "recall_error": 0.01}
        for m in ("ITQ", "SignHash:rotate=false") for b in (1, 2, 4)
        for s in ("hamming", "asymmetric")
    ]  # fmt: skip


def cells(gain, seeds=(0, 1)):
    return [
        {"dataset": "digits", "method": m, "bits": b, "seed": s, "map": 50 + b + s + gain,
         "precision_r2": 40 + s, "recall_r2": 30.0}
        for m in ("DeepLinf", "LSH") for b in (16, 32) for s in seeds
    ]  # fmt: skip


def test_evaluations_are_compared_measure_by_measure(evaluations, tmp_path):
    files, results = evaluations
    done = report(*files, "--json")
    assert done.exit_code == 0, done.output
    rows = {r["measure"]: r["runs"] for r in map(json.loads, done.stdout.splitlines())}
    assert set(rows) == set(results[0])
    for name, shown in rows.items():
        for run, result in zip(("good", "bad <run>"), results, strict=True):
            assert shown[run] == result[name]
    text = report(*files).stdout
    assert f"* {results[0]['map']:.4g}" in text
    assert f"* {min(r['bit_correlation'] for r in results):.4g}" in text  # less is better
    assert f"* {results[0]['chance']:.4g}" not in text
    assert report(*files, "--html", tmp_path / "r.html").exit_code == 0
    page = (tmp_path / "r.html").read_text()
    ET.fromstring(page.partition("\n")[2])
    assert "<script" not in page
    (maps,) = [rows for _, rows in tables(page) if rows[0][:2] == ["run", "mAP"]]
    assert maps[1][:2] == ["good", f"{results[0]['map']:.2f}"]
    assert maps[2][:2] == ["bad <run>", f"{results[1]['map']:.2f}"]
    assert page.count('<span class="best">') > 5


def test_audits_are_compared_code_by_code(tmp_path, browser):
    files = [
        write(tmp_path / "a.jsonl", *settings(0)),
        write(tmp_path / "b.jsonl", *settings(0.3)[2:]),
    ]
    done = report(*files, "--html", tmp_path / "r.html", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 12
    first = next(r for r in rows if (r["code"], r["bytes"], r["search"]) == ("ITQ", "1", "hamming"))
    assert first["runs"] == {"a": pytest.approx(0.1), "b": None}
    last = next(r for r in rows if (r["code"], r["bytes"], r["search"]) == ("ITQ", "4", "hamming"))
    assert last["runs"] == {"a": pytest.approx(0.4), "b": pytest.approx(0.7)}
    with tab(browser, viewport={"width": 390, "height": 800}) as page:
        page.goto(f"file://{tmp_path}/r.html")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        lines = page.locator("path.line").all()
        assert len(lines) == 8  # two searches, two methods, two runs
        drawn = {
            line.locator("title").text_content().split(" · ")[0].partition(":")[0]:
            line.evaluate("line => getComputedStyle(line).stroke") for line in lines
        }  # fmt: skip
        for method, colour in drawn.items():
            red, green, blue = bytes.fromhex(METHOD_COLOURS[method][1:])
            assert colour == f"rgb({red}, {green}, {blue})"


def test_benchmarks_are_compared_by_means_over_seeds(tmp_path):
    files = [
        write(tmp_path / "a.jsonl", *cells(0)),
        write(tmp_path / "b.jsonl", *cells(2, (0, 1, 2))),
    ]
    rows = [json.loads(line) for line in report(*files, "--json").stdout.splitlines()]
    scores = [66 + s + 2 for s in (0, 1, 2)]
    mine = next(
        r for r in rows if r["method"] == "LSH" and r["bits"] == "16" and "mAP" in r["table"]
    )
    assert mine["runs"]["b"] == pytest.approx(mean(scores))
    assert f"* {mean(scores):.1f} ± {stdev(scores):.1f}" in report(*files).stdout
    assert {r["table"].partition(",")[0] for r in rows} == {"mAP", "precision", "recall"}
    assert report(files[0], "--html", tmp_path / "r.html").exit_code == 0  # a single run is valid
    assert "mAP" in (page := (tmp_path / "r.html").read_text())
    assert "MAP" not in page


def test_files_of_one_name_are_numbered(tmp_path):
    (tmp_path / "x").mkdir()
    files = [write(tmp_path / "r.jsonl", *cells(0)), write(tmp_path / "x" / "r.jsonl", *cells(1))]
    rows = [json.loads(line) for line in report(*files, "--json").stdout.splitlines()]
    assert set(rows[0]["runs"]) == {"r (1)", "r (2)"}


def test_files_that_cannot_be_compared_are_named(evaluations, tmp_path):
    (good, _), results = evaluations
    audit = write(tmp_path / "audit.jsonl", *settings(0))
    mixed = write(tmp_path / "mixed.jsonl", settings(0)[0], results[0])
    double = write(tmp_path / "double.json", *results)
    (tmp_path / "empty.json").touch()
    for files, message in (
        ((good, audit), r"good\b.*`antipodal evaluate`.*\baudit\b"),
        ((mixed,), r"record 2\b.*`antipodal audit`"),
        ((double,), r"\bdouble\b.*\b2\b"),
        ((tmp_path / "empty.json",), r"empty\.json.*records"),
        ((tmp_path / "none.json",), "No such file"),
        ((write(tmp_path / "other.json", {"a": 1}),), r"other\.json.*\ba\b"),
    ):
        done = report(*files, "--html", tmp_path / "r.html")
        assert isinstance(done.exception, AntipodalError)
        with pytest.raises(AntipodalError, match=message):
            raise done.exception
    assert not (tmp_path / "r.html").exists()
    assert read_run(audit).kind == "audit"

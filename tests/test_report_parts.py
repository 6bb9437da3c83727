"""Sections of the report: queries, classes, confusion, distances, compared with counts of pairs."""

import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from typer.testing import CliRunner

from antipodal import evaluate, pack
from antipodal.cli import app
from antipodal.codes import unpack
from antipodal.evaluation.html import METHOD_COLOURS
from antipodal.evaluation.report import break_down, class_scores, confusion, write_report
from antipodal.hashers.lsh import LSH
from antipodal.io.model_file import model_identity
from browsers import tab
from test_report import parse, row, tables

BITS = 10
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAG7buVgAAAABJRU5ErkJggg=="  # noqa: E501


@pytest.fixture(scope="module")
def data():
    """Four classes around random centres, one of them hard; query 7 has no relevant item."""
    rng = np.random.default_rng(0)
    centres = rng.random((4, BITS)) < 0.5
    flips = np.array([0.05, 0.1, 0.15, 0.4])

    def draw(n):
        labels = rng.integers(0, 4, n)
        return centres[labels] ^ (rng.random((n, BITS)) < flips[labels][:, None]), labels

    (query, ql), (database, dl) = draw(40), draw(150)
    names = np.array(["ant", "bee", "cat", "dog", "elk"])
    ql[7] = 4
    return pack(query), pack(database), names[ql], names[dl]


def pairs(data):
    q, d = unpack(data[0], BITS), unpack(data[1], BITS)
    return (q[:, None] != d).sum(axis=2), data[2][:, None] == data[3]


def test_scores_of_queries_equal_those_of_each_query_alone(data):
    found = break_down(*data, n_bits=BITS, radius=2).queries
    for i in range(len(data[0])):
        one = (data[0][i : i + 1], data[1], data[2][i : i + 1], data[3])
        mine = [float(values[i]) for values in found]
        if i == 7:
            assert np.isnan(mine).all()
            continue
        alone = evaluate(*one, n_bits=BITS)
        expected = [alone.map, alone.map_worst, alone.map_best, *alone.radius[2][:2]]
        assert mine == pytest.approx(expected)


def test_classes_are_means_over_their_queries_and_sorted(data):
    parts = break_down(*data, n_bits=BITS, radius=2)
    classes = class_scores(parts.queries, data[2])
    assert {each.name for each in classes} == {
        "ant",
        "bee",
        "cat",
        "dog",
    }  # elk has no relevant items
    assert [each.map for each in classes] == sorted(each.map for each in classes)
    assert classes[0].name == "dog"
    for each in classes:
        rows = data[2] == each.name
        alone = evaluate(data[0][rows], data[1], data[2][rows], data[3], n_bits=BITS)
        assert (each.queries, each.map) == (rows.sum(), pytest.approx(alone.map))
        assert (each.precision, each.recall) == pytest.approx(alone.radius[2][:2])


def test_concepts_are_classes_of_all_queries_that_have_them(data):
    hot = (np.random.default_rng(1).random((len(data[0]), 3)) < 0.5).astype(int)
    items = (np.random.default_rng(2).random((len(data[1]), 3)) < 0.5).astype(int)
    parts = break_down(data[0], data[1], hot, items, n_bits=BITS)
    for each in class_scores(parts.queries, hot):
        rows = hot[:, int(each.name)] == 1
        alone = evaluate(data[0][rows], data[1], hot[rows], items, n_bits=BITS)
        assert each.map == pytest.approx(alone.map)


def test_confusions_and_calibration_are_counts_of_pairs(data):
    distances, relevant = pairs(data)
    names, counts = confusion(*data, 2)
    assert names == ["ant", "bee", "cat", "dog", "elk"]
    for i, mine in enumerate(names):
        for j, theirs in enumerate(names):
            of_both = (data[2][:, None] == mine) & (data[3] == theirs)
            assert counts[i, j] == (of_both & (distances <= 2)).sum()
    found = break_down(*data, n_bits=BITS).calibration
    asked = relevant.any(axis=1)
    for d in range(BITS + 1):
        at = distances[asked] == d
        assert (found.pairs[d], found.relevant[d]) == (at.sum(), (at & relevant[asked]).sum())


@pytest.fixture(scope="module")
def report(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("parts") / "r.html"

    def describe(rows):
        pictures = {0: PIXEL, 1: "https://example.org/x.png", 2: 'data:image/png;base64,"onload="'}
        return {r: {"title": f"<b>{r}</b>", "thumbnail": pictures[r % 3]} for r in rows}

    options = {"n_bits": BITS, "describe_queries": describe, "describe_items": describe}
    write_report(path, *data, **options, n_examples=3, n_nearest=6, about={"model": "m"})
    return path


def test_the_tables_have_the_values_of_the_sections(data, report):
    text = report.read_text()
    distances, relevant = pairs(data)
    classes = class_scores(break_down(*data, n_bits=BITS).queries, data[2])
    listed = next(rows for _, rows in tables(text) if rows[0][0] == "class")
    assert [r[0] for r in listed[1:]] == [each.name for each in classes]
    assert [r[2] for r in listed[1:]] == [f"{each.map:.2f}" for each in classes]
    inside = distances <= 2
    confused = next(
        rows for _, rows in tables(text) if len(rows[0]) == 4 and rows[0][-1] == "pairs"
    )
    for mine, theirs, share, count in confused[1:]:
        of_mine = inside & (data[2][:, None] == mine)
        both = of_mine & (data[3] == theirs)
        assert mine != theirs
        assert (count, share) == (str(both.sum()), f"{100 * both.sum() / of_mine.sum():.2f}")
    shares = [float(r[2]) for r in confused[1:]]
    assert shares == sorted(shares, reverse=True)
    cells = [r for r in parse(text).iter("rect") if r.get("class") in ("right", "wrong")]
    for cell in cells:
        mine, theirs = re.findall(r"\b(ant|bee|cat|dog|elk)\b", cell.find("title").text)[:2]
        of_mine = inside & (data[2][:, None] == mine)
        share = (of_mine & (data[3] == theirs)).sum() / of_mine.sum()
        assert float(cell.get("fill-opacity")) == pytest.approx(share, abs=6e-4)
        assert (cell.get("class") == "right") == (mine == theirs)
    asked = relevant.any(axis=1)
    by_distance = next(rows for _, rows in tables(text) if rows[0][:2] == ["distance", "pairs"])
    for name, n_pairs, share in by_distance[1:]:
        low, _, high = name.partition(" to ")
        at = (distances[asked] >= int(low)) & (distances[asked] <= int(high or low))
        assert n_pairs == f"{at.sum():,}"
        assert share == f"{100 * (at & relevant[asked]).sum() / at.sum():.2f}"
    assert row(text, "model")[1] == "m"
    assert "UTC" in row(text, "created")[1]
    assert "Python" in row(text, "versions")[1]


def test_the_worst_queries_come_first_with_their_nearest_items(data, report):
    precision = break_down(*data, n_bits=BITS).queries.average_precision
    order = [int(i) for i in np.argsort(precision, kind="stable")[:3]]
    distances, relevant = pairs(data)
    shown = [(caption, rows) for caption, rows in tables(report.read_text()) if "%" in caption]
    assert len(shown) == 3
    for query, (caption, rows) in zip(order, shown, strict=True):
        said = rf"\b{precision[query]:.2f}\b.*\b{query}\b.*\b{data[2][query]}\b"
        assert re.search(said, caption)
        assert f"<b>{query}</b>" in caption
        nearest = sorted(range(len(data[1])), key=lambda i: (distances[query, i], i))[:6]
        assert [r[0] for r in rows[1:]] == [f"{i}<b>{i}</b>" for i in nearest]
        assert [r[1].startswith("✓") for r in rows[1:]] == relevant[query, nearest].tolist()


def test_pictures_are_within_the_file_and_nothing_is_loaded(report, browser):
    page = parse(report.read_text())
    sources = [element.get("src") for element in page.iter() if element.get("src")]
    assert set(sources) == {PIXEL}
    asked = []
    with tab(browser, viewport={"width": 390, "height": 800}) as page:
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"file://{report}")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert page.locator("svg.heat[role=img][aria-label]").is_visible()
        assert page.locator("img").first.evaluate("img => img.naturalWidth") == 1
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_many_classes_are_folded_and_have_no_heat_map(tmp_path):
    rng = np.random.default_rng(0)
    codes, labels = rng.integers(0, 256, (120, 1), dtype=np.uint8), np.arange(120) % 40
    write_report(tmp_path / "r.html", codes, codes, labels, labels, n_bits=8)
    text = (tmp_path / "r.html").read_text()
    assert re.search(r"<summary>20\b[^<]*</summary>", text)
    assert 'class="heat"' not in text
    assert [rows for _, rows in tables(text) if len(rows[0]) == 4 and rows[0][-1] == "pairs"]
    ET.fromstring(text.partition("\n")[2])


def test_the_command_takes_model_and_metadata_from_files(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, array in zip(("q", "d", "ql", "dl"), data, strict=True):
        np.save(f"{name}.npy", array)
    for name, n in (("q", len(data[0])), ("d", len(data[1]))):
        lines = [json.dumps({"title": f"{name} number {i}"}) for i in range(n)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    LSH(BITS).fit(np.eye(BITS)).save("model")
    LSH(8).fit(np.eye(BITS)).save("short")
    command = ["evaluate", "q.npy", "d.npy", "--query-labels", "ql.npy", "--database-labels",
               "dl.npy", "--bits", str(BITS)]  # fmt: skip
    files = ["--query-metadata", "q.jsonl", "--database-metadata", "d.jsonl"]
    done = CliRunner().invoke(app, [*command, "--html", "r.html", "--model", "model", *files])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "r.html").read_text()
    assert model_identity("model") in row(text, "model")[1]
    assert row(text, "command")[1].startswith("antipodal ")
    assert "q number 0" in text
    assert "d number" in text
    for options, code, message in (
        (["--html", "r.html", "--model", "short"], 2, r"\b8\b.*\b10\b"),
        (files, 2, "--html"),
        (["--html", "r.html", *files, "--metadata-columns", "title"], 2, "--metadata-columns"),
        (["--html", "r.html", "--query-metadata", "d.jsonl", "--database-metadata", "q.jsonl"], 1,
         r"q\.jsonl\b.*\brow 41\b"),
    ):  # fmt: skip
        done = CliRunner().invoke(app, [*command, *options])
        assert done.exit_code == code
        said = re.sub(r"[\s│]+", " ", done.stderr + str(done.exception))
        assert re.search(message, said), said


def test_methods_have_distinct_colours_that_are_visible_on_white():
    from matplotlib.colors import to_rgb

    colours = list(METHOD_COLOURS.values())
    assert len(set(colours)) == len(colours)
    for colour in colours:
        assert np.dot(to_rgb(colour), [0.299, 0.587, 0.114]) < 0.8
    # Methods that an audit shows together have clearly different colours.
    together = [METHOD_COLOURS[name] for name in ("SignHash", "ITQ", "LSH", "LinfHash", "RaBitQ",
                                                  "TurboQuant", "PQ")]  # fmt: skip
    for i, one in enumerate(together):
        for other in together[:i]:
            assert np.linalg.norm(np.subtract(to_rgb(one), to_rgb(other))) > 0.25

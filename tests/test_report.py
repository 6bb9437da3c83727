"""HTML report: values of `evaluate` and brute force, self-contained, escaped."""

import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antipodal import evaluate, pack
from antipodal.codes import unpack
from antipodal.errors import AntipodalError
from antipodal.evaluation.charts import (
    bar_chart,
    bit_strip,
    line_chart,
    linear_axis,
    log2_axis,
    method_looks,
    recall_axis,
)
from antipodal.evaluation.metrics import bit_health
from antipodal.evaluation.report import bits_of, write_report
from processes import run_command

BITS = 12


@pytest.fixture(scope="module")
def data():
    """Three classes around random centres; bit 5 is constant."""
    rng = np.random.default_rng(0)
    centres = rng.random((3, BITS)) < 0.5

    def draw(n):
        labels = rng.integers(0, 3, n)
        bits = centres[labels] ^ (rng.random((n, BITS)) < 0.15)
        bits[:, 5] = False
        return bits, labels

    (query, query_labels), (database, database_labels) = draw(30), draw(200)
    return pack(query), pack(database), query_labels, database_labels


@pytest.fixture(scope="module")
def report(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, *data, n_bits=BITS, radii=(0, 1), top=(7,), about={"file": "<q>.npy"})
    return path.read_text()


def parse(text):
    return ET.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


def tables(text):
    """Rows of text of each table, and its caption."""
    found = []
    for table in parse(text).iter("table"):
        rows = [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")]
        caption = table.find("caption")
        found.append(("" if caption is None else "".join(caption.itertext()), rows))
    return found


def row(text, name):
    return next(r for _, rows in tables(text) for r in rows if r[0] == name)


def test_the_report_is_well_formed_and_refers_to_nothing_outside(report):
    page = parse(report)
    assert page.find("head/title").text
    assert "http://" not in report
    assert "https://" not in report
    assert not re.search(r"url\(|@import", report)
    for element in page.iter():
        assert element.tag not in ("script", "link", "img", "iframe", "object")
        assert not {"src", "href", "style"} & set(element.keys())


def test_the_tables_have_the_values_of_evaluate(data, report):
    expected = evaluate(*data, n_bits=BITS, radii=(0, 1), top=(7,)).to_dict()

    def written(*names):
        return [f"{expected[name]:.2f}" for name in names]

    assert row(report, "mAP")[1:4] == written("map", "map_worst", "map_best")
    assert row(report, "MP@7")[1:4] == written("mp_at_7", "mp_at_7_worst", "mp_at_7_best")
    for r in 0, 1:
        names = (f"{name}_r{r}" for name in ("precision", "recall", "f1", "empty"))
        assert row(report, f"≤ {r}")[1:] == written(*names)
    assert row(report, "distinct codes")[1] == str(expected["distinct_codes"])
    assert row(report, "file")[1] == "<q>.npy"


def test_the_report_returns_exactly_what_evaluate_returns(data, tmp_path):
    options = {"n_bits": BITS, "radii": (3, 1), "top": (2,)}
    assert write_report(tmp_path / "r.html", *data, **options) == evaluate(*data, **options)


def marks(chart):
    """Return the points of a chart that respond to the pointer."""
    return [mark for mark in chart.iter("path") if mark.get("class") in ("dot", "target")]


def test_the_precision_recall_curve_matches_counts_of_pairs(data, report):
    q, d = unpack(data[0], BITS), unpack(data[1], BITS)
    distance = (q[:, None] != d).sum(axis=2)
    relevant = data[2][:, None] == data[3]
    expected = []
    for r in range(BITS + 1):
        inside = distance <= r
        if (inside & relevant).any():
            recall = (inside & relevant).sum() / relevant.sum()
            expected.append((recall, (inside & relevant).sum() / inside.sum()))
    chart = next(c for c in parse(report).iter("svg") if c.get("class") == "chart")
    np.testing.assert_allclose(points(chart)["precision"], 100 * np.array(expected), atol=0.2)
    hovered = [[float(line.split(": ")[1]) for line in mark.find("title").text.split("\n")[1:]]
               for mark in marks(chart)]  # fmt: skip
    np.testing.assert_allclose(hovered, 100 * np.array(expected), atol=5.1e-3)


def test_statistics_of_bits_match_numpy_and_average_to_bit_health(data):
    ones, correlation = bits_of(data[1], BITS)
    bits = unpack(data[1], BITS).astype(float)
    np.testing.assert_allclose(ones, 100 * bits.mean(axis=0))
    with np.errstate(invalid="ignore"):
        theirs = np.abs(np.nan_to_num(np.corrcoef(bits.T)))
    np.fill_diagonal(theirs, 0)
    np.testing.assert_allclose(correlation, 100 * theirs.sum(axis=1) / (BITS - 1), atol=1e-9)
    health = bit_health(data[1], BITS)
    assert np.minimum(ones, 100 - ones).mean() == pytest.approx(health.bit_balance)
    assert correlation.mean() == pytest.approx(health.bit_correlation)


def test_the_examples_are_the_nearest_items_by_distance_and_row(data, report):
    q, d = unpack(data[0], BITS), unpack(data[1], BITS)
    shown = [(caption, rows) for caption, rows in tables(report) if caption.startswith("query ")]
    assert [int(caption.split()[1].rstrip(",")) for caption, _ in shown] == [0, 7, 14, 22, 29]
    for caption, rows in shown:
        query = int(caption.split()[1].rstrip(","))
        distance = (q[query] != d).sum(axis=1)
        nearest = sorted(range(len(d)), key=lambda item: (distance[item], item))[:10]
        assert [(int(r[0]), int(r[2])) for r in rows[1:]] == [(i, distance[i]) for i in nearest]
        for r, item in zip(rows[1:], nearest, strict=True):
            same = data[2][query] == data[3][item]
            assert r[1] == f"{'✓ ' if same else ''}{data[3][item]}"


def test_hostile_labels_are_escaped(data, tmp_path):
    names = np.array(["<script>alert(1)</script>", "\"&'", "\x00\ud800\u202e"])
    path = tmp_path / "r.html"
    write_report(path, *data[:2], names[data[2]], names[data[3]], n_bits=BITS)
    text = path.read_text()
    assert "<script" not in text
    labels = {r[1].removeprefix("✓ ") for c, rows in tables(text) if c for r in rows[1:]}
    assert {names[0], names[1], "\ufffd\ufffd\ufffd"} >= labels & {names[0], names[1]} != set()


def test_concepts_are_shown_by_number_and_count_as_shared(data, tmp_path):
    hot = np.eye(3)
    hot[0, 1] = 1
    path = tmp_path / "r.html"
    result = write_report(path, *data[:2], hot[data[2]], hot[data[3]], n_bits=BITS, n_examples=2)
    assert result.chance == pytest.approx(100 * (hot[data[2]] @ hot[data[3]].T > 0).mean())
    for caption, rows in tables(path.read_text()):
        if caption.startswith("query "):
            mine = set(caption.split("label ")[1].strip().split(", "))
            for r in rows[1:]:
                theirs = set(r[1].removeprefix("✓ ").split(", "))
                assert r[1].startswith("✓") == bool(mine & theirs)


def test_a_strip_marks_the_bits_that_differ_line_by_line():
    rng = np.random.default_rng(1)
    bits, query = rng.integers(0, 2, (2, 100))
    one, off = (path.get("d") for path in ET.fromstring(bit_strip(bits, query)).iter("path"))
    for path, top, wanted in (one, 0, bits == 1), (off, 9, bits != query):
        cells = [tuple(map(int, c.split("h")[0].split())) for c in path.split("M")[1:]]
        assert cells == [(i % 64, 13 * (i // 64) + top) for i in np.flatnonzero(wanted)]


def texts(chart, kind):
    """Position and text of the labels of one kind."""
    found = [t for t in chart.iter("text") if t.get("class") == kind]
    return [(float(t.get("x")), float(t.get("y")), t.text) for t in found]


def points(chart, x=float, y=float):
    """The points of each curve, read off the ticks of the axes; x and y undo their scales."""

    def scale(ticks, transform):
        (a, first), *_, (b, last) = sorted((transform(value), place) for place, value in ticks)
        return lambda place: a + (place - first) / (last - first) * (b - a)

    x_of = scale([(px, float(t.replace(",", ""))) for px, _, t in texts(chart, "tick x")], x)
    y_of = scale([(py - 4, float(t.replace(",", ""))) for _, py, t in texts(chart, "tick y")], y)
    curves = {}
    for path in chart.iter("path"):
        if path.get("class") == "line":
            places = [tuple(map(float, point.split())) for point in path.get("d")[1:].split("L")]
            curves[path.find("title").text] = [(x_of(a), y_of(b)) for a, b in places]
    return curves


@pytest.mark.parametrize("n", [1, 2, 9, 64, 1000])
def test_charts_of_any_size_are_well_formed(n):
    ET.fromstring(bar_chart([50.0] * n, x_axis="bit", y_axis="<%>", level=50))
    curve = [(float(x), 1.0) for x in range(n + 1)]
    chart = ET.fromstring(line_chart({"a": curve}, x_axis="&", y_axis="y"))
    assert 5 <= len(chart.findall("text")) <= 17
    assert len(marks(chart)) == n + 1


def test_curves_have_markers_of_different_shapes():
    curves = {name: [(1.0, 1.0), (2.0, 3.0)] for name in "abcdefghijkl"}
    chart = ET.fromstring(line_chart(curves, x_axis="x", y_axis="y"))
    assert len({mark.get("d") for mark in marks(chart)}) == 12


def test_every_method_of_a_report_has_one_colour_and_one_marker():
    names = ["SignHash:rotate=false", "SignHash", "ITQ", "LinfHash.asymmetric", "LSH",
             "LinfHash.quick", "RaBitQ", "TurboQuant", "PQ"]  # fmt: skip
    looks = method_looks(names)
    assert len({look.classes.split()[0] for look in looks.values()}) == len(names)
    assert len({look.marker for look in looks.values()}) == len(names)
    for shown in (names[::2], names[3:]):  # a chart has only some of them
        curves = {name: [(1.0, 1.0)] for name in shown}
        chart = ET.fromstring(line_chart(curves, x_axis="x", y_axis="y", looks=looks))
        assert [mark.get("d") for mark in marks(chart)] == [looks[name].marker for name in shown]


@given(
    st.lists(st.lists(st.floats(0, 100, width=16), min_size=2, max_size=5), min_size=2, max_size=20)
)
def test_labels_do_not_overlap_and_stay_within_the_chart(values):
    curves = {f"curve {i}": list(enumerate(ys)) for i, ys in enumerate(values)}
    chart = ET.fromstring(line_chart(curves, x_axis="x", y_axis="y"))
    labels = texts(chart, "label")
    assert [text for *_, text in labels] == list(curves)
    heights = sorted(y for _, y, _ in labels)
    assert min(np.diff(heights)) >= 13.9
    *_, width, height = map(float, chart.get("viewBox").split())
    assert heights[0] >= 12
    assert heights[-1] <= height - 30
    assert all(x + 6.4 * len(text) <= width for x, _, text in labels)


@pytest.mark.parametrize(("low", "high"), [(91, 99.6), (0, 0), (100, 100), (3, 4), (0.001, 0.002)])
def test_axes_end_at_round_numbers_around_the_values(low, high):
    axis = linear_axis([high, low])
    assert axis.low <= low <= high <= axis.high
    assert axis.high - axis.low <= 2 * max(high - low, 0.1 * high, 1e-9) or high == 0
    assert [float(label) for _, label in axis.ticks] == pytest.approx([v for v, _ in axis.ticks])
    assert 2 <= len(axis.ticks) <= 8


def test_high_recalls_are_spread_and_drawn_where_the_axis_says():
    curves = {"a": [(8, 40.0), (16, 99.0)], "b": [(8, 95.0), (16, 99.5)], "c": [(8, 60), (16, 100)]}
    values = [y for curve in curves.values() for _, y in curve]
    svg = line_chart(curves, x_axis="x", y_axis="y", x=log2_axis([8, 16]), y=recall_axis(values))
    chart = ET.fromstring(svg)
    ticks = {text: y for _, y, text in texts(chart, "tick y")}
    assert ticks["90"] - ticks["99.5"] > 80  # pixels of 226
    assert list(ticks.values()) == sorted(ticks.values(), reverse=True)
    near = [label for _, label in recall_axis([91, 99.4, 99.8]).ticks]
    assert {"90", "99", "99.5"} <= {*near}
    assert recall_axis([40, 90]) == linear_axis([40, 90])
    least = 0.25  # misses at which 100 is drawn: half of the smallest
    drawn = points(chart, np.log2, lambda y: -np.log(max(100 - y, least)))
    for name, curve in curves.items():
        expected = [(np.log2(x), -np.log(max(100 - y, least))) for x, y in curve]
        np.testing.assert_allclose(drawn[name], expected, atol=0.03)


def test_one_bit_and_one_item_make_a_report(tmp_path):
    write_report(tmp_path / "r.html", pack([[1]]), pack([[0]]), ["a"], ["a"], n_bits=1)
    parse((tmp_path / "r.html").read_text())


def test_a_failed_report_keeps_the_existing_file(data, tmp_path):
    path = tmp_path / "r.html"
    path.write_text("before")
    with pytest.raises(ValueError, match="relevant"):
        write_report(path, *data[:2], data[2] + 9, data[3], n_bits=BITS)
    assert path.read_text() == "before"
    with pytest.raises(AntipodalError, match=r"no/r\.html"):
        write_report(tmp_path / "no" / "r.html", *data, n_bits=BITS)
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]


def test_the_command_writes_the_report_and_prints_the_same_scores(data, tmp_path):
    for name, array in zip(("q", "d", "ql", "dl"), data, strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    done = run_command(
        "evaluate", "q.npy", "d.npy", "--query-labels", "ql.npy", "--database-labels", "dl.npy",
        "--bits", BITS, "--html", "r.html", "--examples", 3, "--json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == evaluate(*data, n_bits=BITS).to_dict()
    text = (tmp_path / "r.html").read_text()
    assert sum(caption.startswith("query ") for caption, _ in tables(text)) == 3
    assert ["q.npy"] in [r[1:] for _, rows in tables(text) for r in rows]

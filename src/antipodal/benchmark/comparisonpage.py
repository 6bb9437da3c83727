"""Runs side by side as one HTML file, with charts."""

import os
from collections.abc import Callable, Mapping, Sequence
from statistics import mean

from antipodal.benchmark.runs import COMMANDS, Run
from antipodal.benchmark.sidebyside import best_of, compare, grouped, names_of
from antipodal.evaluation.charts import log_chart, method_looks, range_chart
from antipodal.evaluation.htmlpage import about_table, html_page, html_table, origin, text
from antipodal.storage.files import replacing

Curves = dict[str, list[tuple[float, float]]]


def write_comparison(
    path: str | os.PathLike[str],
    runs: Sequence[Run],
    files: Sequence[str],
    about: Mapping[str, str] | None = None,
) -> None:
    """Write runs of one command, which `files` hold, side by side as one HTML file."""
    names = names_of(runs)
    facts = [*(about or {}).items(), *zip(names, files, strict=True)]
    facts += [("runs of", COMMANDS[runs[0].kind]), *origin()]
    sections = [about_table(facts)]
    comparisons = compare(runs)
    sections.append(_CHARTS[runs[0].kind](runs, names))
    for title, headings, rows in comparisons:
        cells = [
            [
                *map(text, labels),
                *(
                    f'<span class="best">{text(cell.shown)}</span>'
                    if place in best_of(values)
                    else text(cell.shown)
                    for place, cell in enumerate(values)
                ),
            ]
            for labels, values in rows
        ]
        table = html_table([text(heading) for heading in (*headings, *names)], cells)
        sections.append(f"<h2>{text(title[0].upper() + title[1:])}</h2>{table}")
    if len(runs) > 1:
        sections.append('<p>In <span class="best">colour</span>: the best of a row.</p>')
    with replacing(path) as file:
        file.write(html_page("Runs side by side", sections).encode())


def _ranges_of_map(runs: Sequence[Run], names: Sequence[str]) -> str:
    rows = []
    for name, run in zip(names, runs, strict=True):
        r = run.records[0]
        drawn = range_chart(r["map_worst"], r["map"], r["map_best"], r["chance"])
        rows.append([text(name), f"{r['map']:.2f}", drawn])
    table = html_table(["run", "mAP", "0 to 100"], rows)
    return f"<h2>mAP</h2><p>With the range that ties leave open. Dashed: chance.</p>{table}"


def _no_chart(runs: Sequence[Run], names: Sequence[str]) -> str:
    return ""


def _recall_by_bytes(runs: Sequence[Run], names: Sequence[str]) -> str:
    """Draw a chart a way to search, a curve a run and method."""
    charts = []
    for search, title in (("hamming", "By Hamming distance"), ("asymmetric", "With real queries")):
        curves: Curves = {}
        for name, run in zip(names, runs, strict=True):
            for r in sorted(run.records, key=lambda record: record["bytes"]):
                if r["search"] == search:
                    curve = f"{r['method'].partition(',')[0]} · {name}"
                    curves.setdefault(curve, []).append((r["bytes"], 100 * r["recall"]))
        if curves:
            charts.append(_by_size(title, curves, "bytes per vector", "found, %"))
    return f'<h2>Neighbours that are found</h2><div class="pair">{"".join(charts)}</div>'


def _map_by_bits(runs: Sequence[Run], names: Sequence[str]) -> str:
    """Draw a chart a dataset of which there are several lengths, a curve a run and method."""
    by_dataset: dict[str, Curves] = {}
    for name, run in zip(names, runs, strict=True):
        for (dataset, method, bits), records in sorted(grouped(run.records).items()):
            if bits:  # rankings without codes have none
                point = (float(bits), mean(r["map"] for r in records))
                curves = by_dataset.setdefault(dataset, {})
                curves.setdefault(f"{method} · {name}", []).append(point)
    charts = [
        _by_size(dataset, curves, "bits", "mAP, %")
        for dataset, curves in by_dataset.items()
        if len({x for points in curves.values() for x, _ in points}) > 1
    ]
    if not charts:
        return ""
    return f'<h2>mAP by code length</h2><div class="pair">{"".join(charts)}</div>'


def _by_size(title: str, curves: Curves, x_axis: str, y_axis: str) -> str:
    sizes = [x for points in curves.values() for x, _ in points]
    chart = log_chart(
        curves, x_axis=x_axis, y_axis=y_axis, x_range=(min(sizes), max(sizes)),
        looks=method_looks(curves),
    )  # fmt: skip
    return f"<div><h3>{text(title)}</h3>{chart}</div>"


_CHARTS: dict[str, Callable[[Sequence[Run], Sequence[str]], str]] = {
    "evaluation": _ranges_of_map,
    "neighbours": _no_chart,
    "audit": _recall_by_bytes,
    "bench": _map_by_bits,
}

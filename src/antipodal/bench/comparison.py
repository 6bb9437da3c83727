"""Comparison of several runs as tables and as one HTML file."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Literal, NamedTuple

from markupsafe import Markup

from antipodal.bench.records import Record
from antipodal.bench.tables import spread
from antipodal.errors import AntipodalError
from antipodal.evaluation.charts import (
    line_chart,
    log2_axis,
    method_looks,
    range_charts,
    recall_axis,
)
from antipodal.evaluation.html import provenance, write_page
from antipodal.io.jsonl import read_objects

Kind = Literal["bench", "audit", "evaluation", "neighbours"]

# Fields of every record of a kind; the first kind that fits is chosen.
_FIELDS: dict[Kind, set[str]] = {
    "bench": {"dataset", "method", "bits", "seed", "map"},
    "audit": {"method", "bits", "bytes", "search", "recall"},
    "evaluation": {"queries", "database", "map", "bit_balance"},
    "neighbours": {"recall", "recall_error", "bytes"},
}
COMMANDS: dict[Kind, str] = {
    "bench": "antipodal bench",
    "audit": "antipodal audit",
    "evaluation": "antipodal evaluate",
    "neighbours": "antipodal evaluate --neighbours",
}


class Run(NamedTuple):
    """The records of one file, all of one kind."""

    name: str
    kind: Kind
    records: list[Record]


def read_run(path: str | os.PathLike[str]) -> Run:
    """Read and check the records of a run."""
    # The last line of an audit is its advice.
    records = [line.fields for line in read_objects(path) if line.fields.keys() != {"advice"}]
    if not records:
        raise AntipodalError(f"{path} has no records: did the run fail?")
    kind = _kind(records[0])
    if kind is None:
        raise AntipodalError(
            f"{path} must contain the output of evaluate, audit or bench with --json: the fields "
            f"of its first record are {', '.join(list(records[0])[:5]) or 'missing'}"
        )
    odd = next((i for i, record in enumerate(records) if _kind(record) != kind), None)
    if odd is not None:
        raise AntipodalError(
            f"{path} must contain the records of one run: record {odd + 1} is not from "
            f"`{COMMANDS[kind]}`, but the first one is"
        )
    return Run(Path(path).stem, kind, records)


def _kind(record: Record) -> Kind | None:
    return next((kind for kind, names in _FIELDS.items() if names <= record.keys()), None)


# Prefixes of measures for which less, or more, is better. Others are not ranked.
_LESS = ("empty_", "bit_correlation", "quantisation_error", "candidates_for", "recall_error")
_MORE = ("map", "mp_at", "precision_", "recall", "f1_", "ndcg", "judged_recall")
_BENCHED = {
    "map": "mAP",
    "precision_r2": "precision, radius ≤ 2",
    "recall_r2": "recall, radius ≤ 2",
}


class Compared(NamedTuple):
    """A cell: its text, its value, and a rank: greater is better, None is unranked."""

    shown: str
    value: float | int | str | None = None
    rank: float | None = None


class Comparison(NamedTuple):
    """A table with one column per run after the columns of `headings`."""

    title: str
    headings: list[str]
    rows: list[tuple[list[str], list[Compared]]]


def check_alike(runs: Sequence[Run]) -> None:
    """Raise an error if the runs are from different commands."""
    for run in runs[1:]:
        if run.kind != runs[0].kind:
            raise AntipodalError(
                f"all runs must be from the same command: {runs[0].name} is from "
                f"`{COMMANDS[runs[0].kind]}`, {run.name} from `{COMMANDS[run.kind]}`"
            )


def names_of(runs: Sequence[Run]) -> list[str]:
    """Return the name of each run: its file name, numbered if several files share it."""
    names = [run.name for run in runs]
    return [
        name if names.count(name) == 1 else f"{name} ({place})"
        for place, name in enumerate(names, start=1)
    ]


def compare(runs: Sequence[Run]) -> list[Comparison]:
    """Compare runs of one command."""
    check_alike(runs)
    if runs[0].kind == "audit":
        return [_settings(runs)]
    if runs[0].kind == "bench":
        return [_cells(runs, key, name) for key, name in _BENCHED.items()]
    return [_measures(runs)]


def _measures(runs: Sequence[Run]) -> Comparison:
    """Compare runs of one record each, one row per measure."""
    for run in runs:
        if len(run.records) > 1:
            raise AntipodalError(
                f"{run.name} must contain one evaluation per file: got {len(run.records)}"
            )
    records = [run.records[0] for run in runs]
    measures = dict.fromkeys(name for record in records for name in record)
    rows = [([name], [_cell(record, name) for record in records]) for name in measures]
    return Comparison("percentages and counts", ["measure"], rows)


def _cell(record: Record, name: str) -> Compared:
    value = record.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return Compared("–" if value is None else str(value), value)
    shown = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    if name.startswith(_LESS):
        return Compared(shown, value, -value)
    return Compared(shown, value, float(value) if name.startswith(_MORE) else None)


def _settings(runs: Sequence[Run]) -> Comparison:
    """Compare audits, one row per code and search."""

    def key(record: Record) -> tuple[int, str, str]:
        return record["bytes"], record["method"], record["search"]

    found = [{key(record): record for record in run.records} for run in runs]
    rows = []
    for each in sorted({key for records in found for key in records}):
        cells = []
        for records in found:
            record = records.get(each)
            if record is None:
                cells.append(Compared("–"))
            else:
                error = record.get("recall_error", 0.0)
                recall = record["recall"]
                cells.append(Compared(f"{recall:.3f} ± {error:.3f}", recall, recall))
        rows.append(([each[1], str(each[0]), each[2]], cells))
    title = "recall ± 1.96 standard errors"
    return Comparison(title, ["code", "bytes", "search"], rows)


def _cells(runs: Sequence[Run], key: str, name: str) -> Comparison:
    """Compare benchmarks, one row per dataset, method and length: means over seeds."""
    groups = [grouped(run.records) for run in runs]
    rows = []
    for dataset, method, bits in sorted({cell for group in groups for cell in group}):
        cells = []
        for group in groups:
            scores = [r[key] for r in group.get((dataset, method, bits), []) if key in r]
            average = mean(scores) if scores else None
            cells.append(Compared(spread(scores) if scores else "–", average, average))
        rows.append(([dataset, method, str(bits)], cells))
    title = f"{name}, percent, mean ± standard deviation over seeds"
    return Comparison(title, ["dataset", "method", "bits"], rows)


def grouped(records: Sequence[Record]) -> dict[tuple[str, str, int], list[Record]]:
    """Group records by dataset, method and length."""
    groups: dict[tuple[str, str, int], list[Record]] = {}
    for record in records:
        groups.setdefault((record["dataset"], record["method"], record["bits"]), []).append(record)
    return groups


def best_of(cells: Sequence[Compared]) -> set[int]:
    """Return the positions of the best cells; none if all ranked cells are equal."""
    ranks = [cell.rank for cell in cells if cell.rank is not None]
    if len(ranks) < 2 or min(ranks) == max(ranks):
        return set()
    return {place for place, cell in enumerate(cells) if cell.rank == max(ranks)}


def text_rows(comparison: Comparison) -> list[list[str]]:
    """Return the rows as text, with a star at the best cells."""
    return [
        [*names, *(f"{'* ' if i in best_of(cells) else ''}{c.shown}" for i, c in enumerate(cells))]
        for names, cells in comparison.rows
    ]


def write_comparison(
    path: str | os.PathLike[str],
    runs: Sequence[Run],
    files: Sequence[str],
    about: Mapping[str, str] | None = None,
) -> None:
    """Write a comparison of runs of one command as one HTML file; `files` are their paths."""
    names = names_of(runs)
    kind = runs[0].kind
    comparisons = compare(runs)
    ranges: dict[str, Any] | None = None
    title, charts = "", list[tuple[str, Markup]]()
    if kind == "evaluation":
        ranges = _map_ranges(runs, names)
    elif kind == "audit":
        title, charts = "Recall by code size", _recall_by_bytes(runs, names)
    elif kind == "bench":
        title, charts = "mAP by code length", _map_by_bits(runs, names)
    write_page(
        path,
        "comparison",
        title="Comparison of runs",
        facts=[
            *(about or {}).items(),
            *zip(names, files, strict=True),
            ("runs of", COMMANDS[kind]),
            *provenance(),
        ],
        names=names,
        ranges=ranges,
        chart_title=title,
        charts=charts,
        comparisons=comparisons,
        best_of=best_of,
    )


def _map_ranges(runs: Sequence[Run], names: Sequence[str]) -> dict[str, Any]:
    records = [run.records[0] for run in runs]
    scores = [(r["map_worst"], r["map"], r["map_best"]) for r in records]
    limits, charts = range_charts(scores, records[0]["chance"])
    rows = [
        [name, f"{record['map']:.2f}", chart]
        for name, record, chart in zip(names, records, charts, strict=True)
    ]
    return {"headings": ["run", "mAP", limits], "rows": rows}


Points = dict[str, list[tuple[float, float]]]


def _recall_by_bytes(runs: Sequence[Run], names: Sequence[str]) -> list[tuple[str, Markup]]:
    """Draw one chart per search, one curve per run and method."""
    by_search: dict[str, Points] = {"hamming": {}, "asymmetric": {}}
    for name, run in zip(names, runs, strict=True):
        for r in sorted(run.records, key=lambda record: record["bytes"]):
            curve = f"{r['method'].partition(',')[0]} · {name}"
            point = (r["bytes"], 100 * r["recall"])
            by_search.setdefault(r["search"], {}).setdefault(curve, []).append(point)
    return _by_size(
        {f"{search.capitalize()} search": curves for search, curves in by_search.items() if curves},
        "bytes per vector",
        "recall, %",
    )


def _map_by_bits(runs: Sequence[Run], names: Sequence[str]) -> list[tuple[str, Markup]]:
    """Draw one chart per dataset with several code lengths, one curve per run and method."""
    by_dataset: dict[str, Points] = {}
    for name, run in zip(names, runs, strict=True):
        for (dataset, method, bits), records in sorted(grouped(run.records).items()):
            if bits:  # uncompressed rankings have 0
                point = (float(bits), mean(r["map"] for r in records))
                curves = by_dataset.setdefault(dataset, {})
                curves.setdefault(f"{method} · {name}", []).append(point)
    several = {
        dataset: curves
        for dataset, curves in by_dataset.items()
        if len({x for points in curves.values() for x, _ in points}) > 1
    }
    return _by_size(several, "bits", "mAP, %")


def _by_size(charts: Mapping[str, Points], x_axis: str, y_axis: str) -> list[tuple[str, Markup]]:
    """Draw titled charts in which a curve of the same name looks the same."""
    looks = method_looks(sorted({name for curves in charts.values() for name in curves}))
    drawn = []
    for title, curves in charts.items():
        x = log2_axis(x for points in curves.values() for x, _ in points)
        y = recall_axis(y for points in curves.values() for _, y in points)
        chart = line_chart(curves, x_axis=x_axis, y_axis=y_axis, x=x, y=y, looks=looks)
        drawn.append((title, chart))
    return drawn

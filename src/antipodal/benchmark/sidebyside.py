"""Several runs side by side: what `evaluate`, `audit` or `bench` printed, as tables."""

from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

from antipodal.benchmark.records import Record
from antipodal.benchmark.runs import COMMANDS, Run
from antipodal.benchmark.summary import spread
from antipodal.errors import AntipodalError

# Measures for which less is better; of those that are in neither list none is best.
_LESS = ("empty_", "bit_correlation", "quantisation_error", "candidates_for", "recall_error")
_MORE = ("map", "mp_at", "precision_", "recall", "f1_", "ndcg", "judged_recall")
_BENCHED = {
    "map": "mAP",
    "precision_r2": "precision, radius ≤ 2",
    "recall_r2": "recall, radius ≤ 2",
}


class Compared(NamedTuple):
    """A value, as it is shown, and as it is compared: greater is better, None is not compared."""

    shown: str
    value: float | int | str | None = None
    rank: float | None = None


class Comparison(NamedTuple):
    """A table with a column for each run; `headings` are those of the columns before them."""

    title: str
    headings: list[str]
    rows: list[tuple[list[str], list[Compared]]]


def check_alike(runs: Sequence[Run]) -> None:
    """Refuse runs of different commands: they measure different things."""
    for run in runs[1:]:
        if run.kind != runs[0].kind:
            raise AntipodalError(
                f"runs side by side must be of one command: {runs[0].name} is of "
                f"`{COMMANDS[runs[0].kind]}`, {run.name} of `{COMMANDS[run.kind]}`"
            )


def names_of(runs: Sequence[Run]) -> list[str]:
    """Return what to call each run: by its file, numbered where two files have one name."""
    names = [run.name for run in runs]
    return [
        name if names.count(name) == 1 else f"{name} ({place})"
        for place, name in enumerate(names, start=1)
    ]


def compare(runs: Sequence[Run]) -> list[Comparison]:
    """Put runs of one command side by side."""
    check_alike(runs)
    if runs[0].kind == "audit":
        return [_settings(runs)]
    if runs[0].kind == "bench":
        return [_cells(runs, key, name) for key, name in _BENCHED.items()]
    return [_measures(runs)]


def _measures(runs: Sequence[Run]) -> Comparison:
    """Compare runs of one record each, a row a measure."""
    for run in runs:
        if len(run.records) > 1:
            raise AntipodalError(
                f"{run.name} holds {len(run.records)} evaluations: a run is one, in its own file"
            )
    records = [run.records[0] for run in runs]
    measures = dict.fromkeys(name for record in records for name in record)
    rows = [([name], [_cell(record, name) for record in records]) for name in measures]
    return Comparison("percent, counts where whole", ["measure"], rows)


def _cell(record: Record, name: str) -> Compared:
    value = record.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return Compared("–" if value is None else str(value), value)
    shown = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    if name.startswith(_LESS):
        return Compared(shown, value, -value)
    return Compared(shown, value, float(value) if name.startswith(_MORE) else None)


def _settings(runs: Sequence[Run]) -> Comparison:
    """Compare audits, a row a code and a way to search it."""

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
    title = "share of the true neighbours that is found, ± 1.96 standard errors"
    return Comparison(title, ["code", "bytes", "search"], rows)


def _cells(runs: Sequence[Run], key: str, name: str) -> Comparison:
    """Compare benchmarks, a row a method and length: means over seeds."""
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
    """Gather the seeds of each dataset, method and length."""
    groups: dict[tuple[str, str, int], list[Record]] = {}
    for record in records:
        groups.setdefault((record["dataset"], record["method"], record["bits"]), []).append(record)
    return groups


def best_of(cells: Sequence[Compared]) -> set[int]:
    """Return the places of the best; of none where there is nothing to compare."""
    ranks = [cell.rank for cell in cells if cell.rank is not None]
    if len(ranks) < 2 or min(ranks) == max(ranks):
        return set()
    return {place for place, cell in enumerate(cells) if cell.rank == max(ranks)}


def text_rows(comparison: Comparison) -> list[list[str]]:
    """Return the rows as text, a mark at what is best."""
    return [
        [*names, *(f"{'* ' if i in best_of(cells) else ''}{c.shown}" for i, c in enumerate(cells))]
        for names, cells in comparison.rows
    ]

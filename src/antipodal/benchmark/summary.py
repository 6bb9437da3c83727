"""Benchmark records as a table: mean ± standard deviation over seeds, the paper's figure beside."""

from collections.abc import Iterable, Sequence
from statistics import mean, stdev

from antipodal.benchmark.published import PUBLISHED, Scores
from antipodal.benchmark.records import Record

Column = tuple[str, str]  # the record's key, the heading

_RANKED: list[Column] = [("map", "mAP"), ("map_without_training", "mAP, new items")]
_TOP: list[Column] = [("map_at_10", "mAP@10"), ("mp_at_5000", "MP@5000")]
_BALLS: list[Column] = [
    ("precision_r2", "P r≤2"),
    ("recall_r2", "R r≤2"),
    ("precision_r0", "P r=0"),
    ("recall_r0", "R r=0"),
    ("empty_r2", "empty r≤2"),
]
_COST: list[Column] = [("chance", "chance"), ("fit_seconds", "fit, s")]


def columns(records: Sequence[Record]) -> list[Column]:
    """Return the columns that some record has a value for."""
    wanted = [*_RANKED, *_TOP, *_BALLS, *_COST]
    return [column for column in wanted if any(column[0] in record for record in records)]


def table(records: Sequence[Record]) -> list[list[str]]:
    """Return headings, then a row for each method and length, in the order they first come.

    Where the paper has a figure for the same data and protocol, it follows ours in brackets.
    """
    shown = columns(records)
    rows = [["method", "bits", "seeds", *(heading for _, heading in shown)]]
    for method, bits in dict.fromkeys((r["method"], r["bits"]) for r in records):
        mine = [r for r in records if (r["method"], r["bits"]) == (method, bits)]
        paper = published_scores(mine[0])
        cells = [spread([r[key] for r in mine if key in r], paper.get(key)) for key, _ in shown]
        rows.append([method, str(bits or "–"), str(len(mine)), *cells])
    return rows


def spread(values: Sequence[float], paper: float | None = None) -> str:
    """Write mean ± standard deviation, and the paper's figure in brackets."""
    if not values:
        return "–"
    text = _number(mean(values))
    if len(values) > 1:
        text += f" ± {_number(stdev(values))}"
    return text if paper is None else f"{text} ({paper:g})"


def published_scores(record: Record) -> Scores:
    """Return the paper's scores for the record's method, length, data and protocol, if any."""
    if record.get("mirrored") or ":" in record["method"]:
        return {}
    usual = 200 if "n_concepts" not in record else None
    if (record["protocol"], record.get("n_train"), record.get("n_query")) != ("paper", usual, 100):
        return {}
    scores = PUBLISHED.get(record["dataset"], {})
    return scores.get((record["method"].split(".")[0], record["bits"]), {})


def chance(records: Iterable[Record]) -> str:
    """Write what a random ranking would score."""
    return f"{mean(record['chance'] for record in records):.1f}"


def _number(value: float) -> str:
    """One decimal; small values keep a digit that is not zero."""
    return f"{value:.1f}" if value == 0 or abs(value) >= 0.05 else f"{value:.1g}"

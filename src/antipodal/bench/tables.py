"""Benchmark tables: mean ± standard deviation over seeds, next to the values of the paper."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev

from antipodal.bench.records import Record

Scores = Mapping[str, float]

_RADII = "precision_r2 recall_r2 f1_r2 precision_r0 recall_r0 f1_r0"

_CIFAR10 = """
KSH         48  31.10  18.22  0.86    1.64    5.39    5.6e-2   0.11
KSH         64  32.49  10.86  0.13    0.26    2.49    9.6e-3   1.9e-2
AGH1        48  14.55  15.95  2.8e-2  5.6e-2  4.88    2.2e-3   4.4e-3
AGH1        64  14.22   6.50  4.1e-3  8.1e-3  3.06    1.2e-3   2.4e-3
AGH2        48  15.34  17.43  7.1e-2  3.6e-2  5.44    3.5e-3   6.9e-3
AGH2        64  14.99   7.63  7.2e-3  1.4e-2  3.61    1.4e-3   2.7e-3
PSH         48  15.78   9.92  6.6e-3  1.3e-2  0.30    5.1e-5   1.0e-4
PSH         64  17.18   1.52  3.0e-4  6.1e-4  1.0e-3  1.69e-5  3.3e-5
LDAHash     48  13.13  3.0e-3 1.0e-4  5.1e-5  1.0e-3  1.7e-5   3.4e-5
LDAHash     64  13.07  1.0e-3 1.7e-5  3.3e-5  0.00    0.00     0.00
NNHash      48  31.21  34.87  1.81    3.44    10.02   9.4e-2   0.19
NNHash      64  35.24  23.23  0.29    0.57    5.89    1.4e-2   2.8e-2
SparseHash  48  26.67  32.03  12.10   17.56   19.95   0.96     1.83
SparseHash  64  27.25  30.01  36.68   33.01   30.25   9.8      14.90
DeepLinf    48  31.48  36.89  12.47   18.41   24.82   0.94     1.82
DeepLinf    64  36.76  38.67  30.28   33.96   33.30   8.9      14.05
"""

_NUS_WIDE = """
KSH          64  72.85  42.74  83.80  6.1e-3  1.2e-2  84.21  1.7e-3  3.3e-3
KSH         256  73.73  45.35  84.24  1.4e-3  2.9e-3  84.24  1.4e-3  2.9e-3
AGH1         64  69.48  47.28  69.43  0.11    0.22    73.35  3.9e-2  7.9e-2
AGH1        256  73.86  46.68  75.90  1.5e-2  2.9e-2  81.64  3.6e-3  7.1e-3
AGH2         64  68.90  47.27  68.73  0.14    0.28    72.82  5.2e-2  0.10
AGH2        256  73.00  47.65  74.90  5.3e-2  0.11    80.45  1.1e-2  2.2e-2
PSH          64  72.17  44.79  60.06  0.12    0.24    81.73  1.1e-2  2.2e-2
PSH         256  73.52  47.13  84.18  1.8e-3  3.5e-3  84.24  1.5e-3  2.9e-3
LDAHash      64  71.33  41.69  84.26  1.4e-3  2.9e-3  84.24  1.4e-3  2.9e-3
LDAHash     256  70.73  39.02  84.24  1.4e-3  2.9e-3  84.24  1.4e-3  2.9e-3
NNHash       64  76.39  59.76  75.51  1.59    3.11    81.24  0.10    0.20
NNHash      256  78.31  61.21  83.46  5.8e-2  0.11    83.94  4.9e-3  9.8e-3
SparseHash   64  74.87  56.82  72.32  1.99    3.87    81.98  0.37    0.73
SparseHash  256  74.73  59.37  80.98  0.10    0.19    82.85  0.98    1.94
DeepLinf     64  79.89  63.04  79.95  1.72    3.38    86.23  0.30    0.60
DeepLinf    256  80.02  65.62  84.63  7.2e-2  0.15    89.49  0.57    1.13
"""


def _parse(table: str, names: str) -> dict[tuple[str, int], Scores]:
    rows = (line.split() for line in table.strip().splitlines())
    return {
        (method, int(bits)): dict(zip(names.split(), map(float, values), strict=True))
        for method, bits, *values in rows
    }


PUBLISHED: Mapping[str, Mapping[tuple[str, int], Scores]] = {
    "cifar10-gist": _parse(_CIFAR10, f"map {_RADII}"),
    "nus-wide": _parse(_NUS_WIDE, f"map_at_10 mp_at_5000 {_RADII}"),
}


Column = tuple[str, str]  # key of the record, heading

_RANKING: list[Column] = [("map", "mAP"), ("map_without_training", "mAP, without training rows")]
_TOP: list[Column] = [("map_at_10", "mAP@10"), ("mp_at_5000", "MP@5000")]
_RADIUS: list[Column] = [
    ("precision_r2", "P r≤2"),
    ("recall_r2", "R r≤2"),
    ("precision_r0", "P r=0"),
    ("recall_r0", "R r=0"),
    ("empty_r2", "empty r≤2"),
]
_COST: list[Column] = [("chance", "chance"), ("fit_seconds", "fit, s")]


def columns(records: Sequence[Record]) -> list[Column]:
    """Return the columns for which some record has a value."""
    wanted = [*_RANKING, *_TOP, *_RADIUS, *_COST]
    return [column for column in wanted if any(column[0] in record for record in records)]


def table(records: Sequence[Record]) -> list[list[str]]:
    """Return headings, then a row for each method and length in the order of the records.

    The value of the paper for the same data and protocol follows in brackets, if there is one.
    """
    shown = columns(records)
    rows = [["method", "bits", "seeds", *(heading for _, heading in shown)]]
    for method, bits in dict.fromkeys((r["method"], r["bits"]) for r in records):
        group = [r for r in records if (r["method"], r["bits"]) == (method, bits)]
        paper = published_scores(group[0])
        cells = [spread([r[key] for r in group if key in r], paper.get(key)) for key, _ in shown]
        rows.append([method, str(bits or "–"), str(len(group)), *cells])
    return rows


def spread(values: Sequence[float], paper: float | None = None) -> str:
    """Format mean ± standard deviation, with the value of the paper in brackets."""
    if not values:
        return "–"
    text = _number(mean(values))
    if len(values) > 1:
        text += f" ± {_number(stdev(values))}"
    return text if paper is None else f"{text} ({paper:g})"


def published_scores(record: Record) -> Scores:
    """Return the scores of the paper for the method, length, data and protocol of a record."""
    if record.get("mirrored") or ":" in record["method"]:
        return {}
    usual = 200 if "n_concepts" not in record else None
    if (record["protocol"], record.get("n_train"), record.get("n_query")) != ("paper", usual, 100):
        return {}
    scores = PUBLISHED.get(record["dataset"], {})
    return scores.get((record["method"].split(".")[0], record["bits"]), {})


def chance(records: Iterable[Record]) -> str:
    """Format the mAP of a random ranking."""
    return f"{mean(record['chance'] for record in records):.1f}"


def _number(value: float) -> str:
    """Format with one decimal; small values with one significant digit."""
    return f"{value:.1f}" if value == 0 or abs(value) >= 0.05 else f"{value:.1g}"

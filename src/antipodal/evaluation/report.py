"""Scores of codes as one HTML file: tables, charts and examples, to be opened anywhere.

The file holds everything it shows. It needs no network, no script and no library.
"""

import os
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal import __version__
from antipodal.codes import Codes, check_codes, unpack
from antipodal.evaluation.charts import bar_chart, bit_strip, line_chart, range_chart
from antipodal.evaluation.metrics import Evaluation, bit_correlations, evaluate
from antipodal.evaluation.ranking import hamming_distances
from antipodal.storage.files import replacing

_MOST_CONCEPTS = 8  # of an item that are written out

_STYLE = """
:root { --ink: #1c2126; --soft: #566069; --paper: #fff; --line: #d5dade; --fill: #8ba6c1;
  --c0: #004488; --c1: #b3203c; --c2: #8a6400; font: 15px/1.5 system-ui, sans-serif; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ebee; --soft: #a5b0ba; --paper: #14181c;
  --line: #3a434c; --fill: #4d6f92; --c0: #8cbcf2; --c1: #ff8296; --c2: #e5b94e; } }
body { max-width: 70rem; margin: 0 auto; padding: 1rem; color: var(--ink);
  background: var(--paper); }
h1 { font-size: 1.5rem; margin: .5rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .3rem; }
p, .soft { color: var(--soft); margin: .3rem 0; max-width: 46rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr));
  gap: 1rem 2rem; }
.examples { grid-template-columns: repeat(auto-fit, minmax(min(31rem, 100%), 1fr)); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem .25rem 0; text-align: right; border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
th:first-child, td:first-child, .examples th:last-child { text-align: left; }
caption { text-align: left; color: var(--soft); padding: .3rem 0; }
svg { display: block; } .chart { width: 100%; max-width: 34rem; height: auto; }
text { fill: var(--soft); font-size: 12px; }
.grid { stroke: var(--line); } .axis { stroke: var(--soft); fill: none; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.line.c0 { stroke: var(--c0); } .line.c1 { stroke: var(--c1); stroke-dasharray: 7 3; }
.line.c2 { stroke: var(--c2); stroke-dasharray: 2 3; }
.key.c0 { color: var(--c0); } .key.c1 { color: var(--c1); } .key.c2 { color: var(--c2); }
.key::before { content: "— "; } .key.c1::before { content: "- - "; }
.key.c2::before { content: "··· "; }
.bar { fill: var(--fill); } .level { stroke: var(--c1); stroke-dasharray: 4 3; }
.value { stroke: var(--ink); stroke-width: 2; } .range { width: 14rem; height: 1rem; }
.strip { background: #fff; border: 1px solid var(--soft); shape-rendering: crispEdges;
  min-width: 8rem; } .one { fill: #000; } .off { fill: #c40f36; }
.hit { color: var(--c0); font-weight: 600; }
"""


class Bits(NamedTuple):
    """How healthy each bit of a database is, in percent."""

    ones: NDArray[np.float64]
    correlation: NDArray[np.float64]


def write_report(
    path: str | os.PathLike[str],
    query_codes: ArrayLike,
    database_codes: ArrayLike,
    query_labels: ArrayLike,
    database_labels: ArrayLike,
    *,
    n_bits: int,
    radii: Sequence[int] = (0, 2),
    top: Sequence[int] = (),
    n_examples: int = 5,
    n_nearest: int = 10,
    about: Mapping[str, str] | None = None,
) -> Evaluation:
    """Score codes as `evaluate` does, and write what it measured as one HTML file.

    Parameters
    ----------
    path : path
        Of the report. It is written whole or not at all.
    query_codes, database_codes, query_labels, database_labels, n_bits, radii, top
        As `evaluate` takes them.
    n_examples, n_nearest : int
        How many queries to show, and how many of the nearest items of each.
    about : mapping, optional
        What the report should say of its origin, such as the names of files.

    Returns
    -------
    Evaluation
        What `evaluate` gives for the same arguments.
    """
    data = (query_codes, database_codes, query_labels, database_labels)
    every = range(n_bits + 1)
    macro = evaluate(*data, n_bits=n_bits, radii=[*every, *radii], top=top)
    pooled = evaluate(*data, n_bits=n_bits, radii=every, balls="micro")
    query = check_codes(query_codes, n_bits, "query_codes")
    database = check_codes(database_codes, n_bits, "database_codes")
    labels = np.asarray(query_labels), np.asarray(database_labels)
    sections = [
        _about({"bits": str(n_bits), **(about or {})}, macro),
        _ranking(macro),
        _curves(macro, pooled, n_bits),
        _balls(macro, radii),
        _health(macro, bits_of(database, n_bits)),
        _examples(query, database, labels, n_bits, n_examples, n_nearest),
    ]
    body = "\n".join(sections)
    page = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>Retrieval report</title><style>{_STYLE}</style></head>\n<body>"
        f"<h1>Retrieval report</h1>\n{body}\n"
        f"<p>Written by antipodal {__version__}.</p></body></html>\n"
    )
    with replacing(path) as file:
        file.write(page.encode())
    wanted = {r: macro.radius[r] for r in radii}
    return Evaluation(**{**vars(macro), "radius": wanted})


def bits_of(codes: Codes, n_bits: int) -> Bits:
    """Return the share of ones of each bit, and its mean absolute correlation with the others.

    A constant bit correlates with nothing, as in `bit_health`, whose `bit_balance` is the mean of
    min(p, 1 - p) over these shares and whose `bit_correlation` is the mean of these means.
    """
    p, correlation = bit_correlations(codes, n_bits)
    np.fill_diagonal(correlation, 0)
    return Bits(100 * p, 100 * correlation.sum(axis=1) / max(n_bits - 1, 1))


def _text(value: object) -> str:
    """Make any text safe inside HTML; characters that cannot be printed are replaced."""
    return escape("".join(c if c.isprintable() else "\ufffd" for c in str(value)))


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """Make a table of cells that are HTML already."""
    head = "".join(f"<th>{heading}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n" for row in rows)
    title = f"<caption>{caption}</caption>" if caption else ""
    return (
        f'<div class="wide"><table>{title}<thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _about(about: Mapping[str, str], result: Evaluation) -> str:
    rows = [[_text(name), _text(value)] for name, value in about.items()]
    rows += [
        ["queries", f"{result.queries:,}"],
        ["queries without a relevant item, left out", f"{result.queries_without_relevant:,}"],
        ["items in the database", f"{result.database:,}"],
        ["relevant items, the precision of chance", f"{result.chance:.2f} %"],
    ]
    return _table(["what was scored", ""], rows)


def _ranking(result: Evaluation) -> str:
    scores = {"mAP": (result.map, result.map_worst, result.map_best)}
    for k, at in result.at.items():
        scores[f"mAP@{k}"] = (at.map, at.map_worst, at.map_best)
        scores[f"MP@{k}"] = (at.mp, at.mp_worst, at.mp_best)
    rows = [
        [
            name,
            *(f"{value:.2f}" for value in (mean, worst, best)),
            range_chart(worst, mean, best, result.chance),
        ]
        for name, (mean, worst, best) in scores.items()
    ]
    return (
        "<h2>Ranking</h2><p>Items at the same distance are tied. The score is the mean over all "
        "orders of the ties; the worst and the best order show how much the ties leave open. "
        "Dashed: chance.</p>" + _table(["percent", "mean", "worst", "best", "0 to 100"], rows)
    )


def _curves(macro: Evaluation, pooled: Evaluation, n_bits: int) -> str:
    curve = [(pooled.radius[r].recall, pooled.radius[r].precision) for r in range(n_bits + 1)]
    first = next(i for i, (recall, precision) in enumerate(curve) if recall or precision)
    balls = macro.radius
    by_radius = {
        name: [(float(r), float(getattr(balls[r], name))) for r in range(n_bits + 1)]
        for name in ("precision", "recall", "empty")
    }
    return (
        '<div class="pair"><div><h2>Precision and recall</h2>'
        "<p>A point a radius, over the balls of all queries together: of all items in them, the "
        "share that is relevant; of all that is relevant, the share in them.</p>"
        + line_chart(
            {"precision": curve[first:]}, x_axis="recall, %", y_axis="precision, %", x_max=100
        )
        + "</div><div><h2>Precision at radius r</h2>"
        "<p>Means over queries. An empty ball has precision 0; the share of empty balls is "
        "beside it.</p>"
        + line_chart(by_radius, x_axis="radius, bits", y_axis="%", x_max=n_bits)
        + "</div></div>"
    )


def _balls(result: Evaluation, radii: Sequence[int]) -> str:
    rows = [
        [f"≤ {r}", *(f"{value:.2f}" for value in result.radius[r])] for r in dict.fromkeys(radii)
    ]
    return _table(["radius", "precision", "recall", "F1", "empty balls"], rows, "percent")


def _health(result: Evaluation, bits: Bits) -> str:
    health = result.health
    rows = [
        ["balance: share of the rarer value of a bit, best 50", f"{health.bit_balance:.2f} %"],
        ["correlation of two bits, absolute, best 0", f"{health.bit_correlation:.2f} %"],
        ["distinct codes", f"{health.distinct_codes:,}"],
    ]
    return (
        "<h2>Bit health</h2>"
        + _table(["of the database", ""], rows)
        + '<div class="pair"><div>'
        + bar_chart(bits.ones.tolist(), x_axis="bit", y_axis="share of ones, %", level=50)
        + "</div><div>"
        + bar_chart(bits.correlation.tolist(), x_axis="bit", y_axis="mean correlation, %", level=0)
        + "</div></div>"
    )


def _examples(
    query: Codes,
    database: Codes,
    labels: tuple[NDArray[Any], NDArray[Any]],
    n_bits: int,
    n_examples: int,
    n_nearest: int,
) -> str:
    """Show the nearest items of a few queries, spread over the queries, ordered by row if tied."""
    if not n_examples:
        return ""
    asked = np.unique(np.linspace(0, len(query) - 1, n_examples).round().astype(int))
    parts = []
    for row in asked.tolist():
        distances = hamming_distances(query[row : row + 1], database)[0]
        nearest = np.argsort(distances, kind="stable")[:n_nearest]
        bits, *others = unpack(np.vstack([query[row : row + 1], database[nearest]]), n_bits)
        mine = labels[0][row]
        rows = []
        for item, other in zip(nearest.tolist(), others, strict=True):
            theirs = labels[1][item]
            shared = (mine == theirs) & (mine == 1) if np.ndim(mine) else mine == theirs
            rows.append(
                [
                    str(item),
                    f'<span class="hit">✓ {_label(theirs)}</span>'
                    if np.any(shared)
                    else _label(theirs),
                    str(distances[item]),
                    bit_strip(other, bits),
                ]
            )
        caption = f"query {row}, label {_label(mine)} {bit_strip(bits)}"
        parts.append(_table(["item", "label", "distance", "code"], rows, caption))
    return (
        "<h2>Examples</h2><p>Items are row numbers. Below a code, a mark where it differs from "
        f'the query\'s.</p><div class="pair examples">{"".join(parts)}</div>'
    )


def _label(label: Any) -> str:
    """Write a class, or the numbers of an item's concepts."""
    if np.ndim(label) == 0:
        return _text(label)
    concepts = np.flatnonzero(label)
    more = ", …" if len(concepts) > _MOST_CONCEPTS else ""
    return (", ".join(map(str, concepts[:_MOST_CONCEPTS])) or "none") + more

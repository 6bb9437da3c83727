"""Scores of codes as one HTML file: tables, charts and examples, to be opened anywhere.

The file holds everything it shows. It needs no network, no script and no library.
"""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.codes import Codes, check_codes
from antipodal.evaluation.breakdown import break_down, class_scores, confusion
from antipodal.evaluation.charts import bar_chart, line_chart, range_chart
from antipodal.evaluation.htmlpage import (
    about_table,
    html_page,
    html_table,
    key_figures,
    origin,
)
from antipodal.evaluation.metrics import Evaluation, bit_correlations, evaluate
from antipodal.evaluation.reportclasses import by_class, calibrated, confusions
from antipodal.evaluation.reportqueries import Describe, Shown
from antipodal.storage.files import replacing

_RADIUS = 2  # of the balls of classes and of single queries


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
    describe_queries: Describe | None = None,
    describe_items: Describe | None = None,
) -> Evaluation:
    """Score codes as `evaluate` does, and write what it measured as one HTML file.

    Parameters
    ----------
    path : path
        Of the report. It is written whole or not at all.
    query_codes, database_codes, query_labels, database_labels, n_bits, radii, top
        As `evaluate` takes them.
    n_examples, n_nearest : int
        How many queries to show, of those that find least and of all, and how many of the nearest
        items of each.
    about : mapping, optional
        What the report should say of its origin, such as the names of files.
    describe_queries, describe_items : callable, optional
        Given row numbers, return the metadata of each: `title` and `thumbnail` are shown, as the
        page of the service does.

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
    radius = min(_RADIUS, n_bits)
    parts = break_down(*data, n_bits=n_bits, radius=radius)
    shown = Shown(query, database, labels, n_bits, n_nearest, describe_queries, describe_items)
    sections = [
        _figures(macro, radius),
        _about({"bits": str(n_bits), **(about or {})}, macro),
        _ranking(macro),
        _curves(macro, pooled, n_bits),
        _balls(macro, radii),
        by_class(class_scores(parts.queries, labels[0]), radius, macro.chance),
    ]
    if labels[0].ndim == 1:
        sections.append(confusions(*confusion(query, database, *labels, radius), radius))
    sections += [
        calibrated(parts.calibration, n_bits, macro.chance),
        shown.worst(parts.queries, n_examples),
        _health(macro, bits_of(database, n_bits)),
        shown.examples(n_examples),
    ]
    with replacing(path) as file:
        file.write(html_page("Retrieval report", sections).encode())
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


def _figures(result: Evaluation, radius: int) -> str:
    ball = result.radius[radius]
    return key_figures(
        {
            "mAP, %": f"{result.map:.1f}",
            f"precision within radius {radius}, %": f"{ball.precision:.1f}",
            f"recall within radius {radius}, %": f"{ball.recall:.1f}",
            "queries": f"{result.queries:,}",
            "items": f"{result.database:,}",
        }
    )


def _about(about: Mapping[str, str], result: Evaluation) -> str:
    facts = [
        *about.items(),
        ("queries", f"{result.queries:,}"),
        ("queries without a relevant item, left out", f"{result.queries_without_relevant:,}"),
        ("items in the database", f"{result.database:,}"),
        ("relevant items, the precision of chance", f"{result.chance:.2f} %"),
        *origin(),
    ]
    return about_table(facts)


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
        "Dashed: chance.</p>" + html_table(["percent", "mean", "worst", "best", "0 to 100"], rows)
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
    return html_table(["radius", "precision", "recall", "F1", "empty balls"], rows, "percent")


def _health(result: Evaluation, bits: Bits) -> str:
    health = result.health
    rows = [
        ["balance: share of the rarer value of a bit, best 50", f"{health.bit_balance:.2f} %"],
        ["correlation of two bits, absolute, best 0", f"{health.bit_correlation:.2f} %"],
        ["distinct codes", f"{health.distinct_codes:,}"],
    ]
    return (
        "<h2>Bit health</h2>"
        + html_table(["of the database", ""], rows)
        + '<div class="pair"><div>'
        + bar_chart(bits.ones.tolist(), x_axis="bit", y_axis="share of ones, %", level=50)
        + "</div><div>"
        + bar_chart(bits.correlation.tolist(), x_axis="bit", y_axis="mean correlation, %", level=0)
        + "</div></div>"
    )

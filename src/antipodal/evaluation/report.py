"""HTML report of an evaluation."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.codes import Codes, check_codes, unpack
from antipodal.evaluation.breakdown import (
    Calibration,
    ClassScores,
    QueryScores,
    break_down,
    class_scores,
    confusion,
)
from antipodal.evaluation.charts import bar_chart, bit_strip, heat_map, line_chart, range_chart
from antipodal.evaluation.html import (
    about_table,
    html_page,
    html_table,
    key_figures,
    origin,
    text,
    thing,
)
from antipodal.evaluation.metrics import Evaluation, bit_correlations, evaluate
from antipodal.evaluation.ranking import Counts, hamming_distances
from antipodal.io.atomic import replacing

_MOST_CONCEPTS = 8  # of an item that are written out

# Gives what is known of rows, by their number: fields of their metadata.
Describe: TypeAlias = Callable[[Iterable[int]], Mapping[int, Mapping[str, Any]]]


@dataclass(frozen=True)
class Shown:
    """What is shown of queries and items: codes, labels, and what their metadata say, if known."""

    query: Codes
    database: Codes
    labels: tuple[NDArray[Any], NDArray[Any]]
    n_bits: int
    n_nearest: int
    describe_queries: Describe | None = None
    describe_items: Describe | None = None

    def examples(self, n: int) -> str:
        """Show a few queries, spread over all of them."""
        if not n:
            return ""
        asked = np.unique(np.linspace(0, len(self.query) - 1, n).round().astype(int)).tolist()
        tables = self._tables({row: f"query {row}" for row in asked})
        return (
            "<h2>Examples</h2><p>Queries spread over all of them, with their nearest items, which "
            "are row numbers. Below a code, a mark where it differs from the query's.</p>"
            f'<div class="pair examples">{tables}</div>'
        )

    def worst(self, scores: QueryScores, n: int) -> str:
        """Show the queries of lowest average precision."""
        order = np.argsort(scores.average_precision, kind="stable")[:n].tolist()  # NaN come last
        titles = {
            row: f"{scores.average_precision[row]:.2f} %: query {row}"
            for row in order
            if not np.isnan(scores.average_precision[row])
        }
        if not titles:
            return ""
        return (
            "<h2>Queries that find least</h2><p>Those of lowest average precision, which is "
            f'given, with their nearest items.</p><div class="pair examples">'
            f"{self._tables(titles)}</div>"
        )

    def _tables(self, titles: Mapping[int, str]) -> str:
        """Make a table for each of these queries; items that are tied are ordered by row."""
        nearest, distances = {}, {}
        for row in titles:
            found = hamming_distances(self.query[row : row + 1], self.database)[0]
            nearest[row] = np.argsort(found, kind="stable")[: self.n_nearest].tolist()
            distances[row] = found
        ask = self.describe_queries
        queries = {} if ask is None else ask(titles)
        ask = self.describe_items
        items = {} if ask is None else ask({item for found in nearest.values() for item in found})
        tables = []
        for row, title in titles.items():
            mine = self.labels[0][row]
            codes = np.vstack([self.query[row : row + 1], self.database[nearest[row]]])
            bits, *others = unpack(codes, self.n_bits)
            rows = []
            for item, other in zip(nearest[row], others, strict=True):
                theirs = self.labels[1][item]
                shared = (mine == theirs) & (mine == 1) if np.ndim(mine) else mine == theirs
                label = label_text(theirs)
                rows.append(
                    [
                        f"{item}{thing(items[item], '')}" if item in items else str(item),
                        f'<span class="hit">✓ {label}</span>' if np.any(shared) else label,
                        str(distances[row][item]),
                        bit_strip(other, bits),
                    ]
                )
            about = thing(queries[row], "") if row in queries else ""
            caption = f"{title}, label {label_text(mine)} {about}{bit_strip(bits)}"
            tables.append(html_table(["item", "label", "distance", "code"], rows, caption))
        return "".join(tables)


def label_text(label: Any) -> str:
    """Write a class, or the numbers of an item's concepts."""
    if np.ndim(label) == 0:
        return text(label)
    concepts = np.flatnonzero(label)
    more = ", …" if len(concepts) > _MOST_CONCEPTS else ""
    return (", ".join(map(str, concepts[:_MOST_CONCEPTS])) or "none") + more


_OPEN_CLASSES = 20  # that are shown at once; the rest is folded
_DRAWN_CLASSES = 24  # of which a table of confusions can be drawn
_CONFUSED = 10  # pairs of classes that are listed


def by_class(classes: Sequence[ClassScores], radius: int, chance: float) -> str:
    """List the classes, that with the lowest mAP first."""
    rows = [
        [
            text(each.name),
            f"{each.queries:,}",
            *(f"{value:.2f}" for value in (each.map, each.precision, each.recall)),
            range_chart(each.map_worst, each.map, each.map_best, chance),
        ]
        for each in classes
    ]
    headings = ["class", "queries", "mAP", f"P r≤{radius}", f"R r≤{radius}", "0 to 100"]
    shown = html_table(headings, rows[:_OPEN_CLASSES])
    if len(rows) > _OPEN_CLASSES:
        rest = rows[_OPEN_CLASSES:]
        shown += f"<details><summary>{len(rest)} more classes</summary>"
        shown += f"{html_table(headings, rest)}</details>"
    return (
        "<h2>Classes</h2><p>Means over the queries of each class, in percent, the hardest first. "
        f"P and R are precision and recall of the balls of radius {radius}.</p>{shown}"
    )


def confusions(names: Sequence[str], counts: Counts, radius: int) -> str:
    """Show which classes the items near a query are of, if not of its own."""
    totals = counts.sum(axis=1)
    shares = 100 * counts / np.maximum(totals, 1)[:, None]
    wrong = shares.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_CONFUSED]
    places = [divmod(place, len(names)) for place in order.tolist()]
    rows = [
        [text(names[i]), text(names[j]), f"{wrong[i, j]:.2f}", f"{counts[i, j]:,}"]
        for i, j in places
        if wrong[i, j]
    ]
    parts = []
    if len(names) <= _DRAWN_CLASSES:
        drawn = [
            [float(share) if total else None for share in row]
            for row, total in zip(shares, totals, strict=True)
        ]
        parts.append(f"<div>{heat_map(names, drawn, f'confusion at radius {radius}')}</div>")
    if rows:
        table = html_table(["queries of", "find", "share, %", "pairs"], rows)
        parts.append(f"<div><h3>Most confused</h3>{table}</div>")
    empty = int((totals == 0).sum())
    nothing = f" {empty} of {len(names)} classes find nothing there." if empty else ""
    return (
        f"<h2>Confusion at radius {radius}</h2><p>Of all items within radius {radius} of the "
        f"queries of a class (rows), the share that is of each class (columns).{nothing}</p>"
        f'<div class="pair">{"".join(parts)}</div>'
    )


def calibrated(calibration: Calibration, n_bits: int, chance: float) -> str:
    """Draw how likely an item is to be relevant, by its distance."""
    there = np.flatnonzero(calibration.pairs)
    relevant = [
        (float(d), 100 * float(calibration.relevant[d] / calibration.pairs[d])) for d in there
    ]
    within = 100 * np.cumsum(calibration.pairs) / calibration.pairs.sum()
    reached = [(float(d), float(within[d])) for d in range(there[-1] + 1)]
    chart = line_chart(
        {"relevant at this distance": relevant, "of all pairs, within it": reached},
        x_axis="distance, bits", y_axis="%", x_max=n_bits,
    )  # fmt: skip
    cuts = [*(r for r in (0, 2, 4, 8, 16, 32, 64) if r < n_bits), n_bits]
    edges = [-1, *cuts]
    rows = []
    for low, high in pairwise(edges):
        part = slice(low + 1, high + 1)
        pairs, hits = int(calibration.pairs[part].sum()), int(calibration.relevant[part].sum())
        if pairs:
            name = str(high) if high == low + 1 else f"{low + 1} to {high}"
            rows.append([name, f"{pairs:,}", f"{100 * hits / pairs:.2f}"])
    table = html_table(["distance", "pairs", "relevant, %"], rows)
    return (
        "<h2>What a distance means</h2><p>Of all pairs of a query and an item at a distance, the "
        f"share that is relevant: a distance at which it falls to {chance:.1f} %, which is chance, "
        'tells nothing more.</p><div class="pair">'
        f"<div>{chart}</div><div>{table}</div></div>"
    )


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

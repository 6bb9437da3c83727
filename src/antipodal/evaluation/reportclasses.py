"""Parts of the report: classes, what they are confused with, and what a distance means."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from antipodal.evaluation.breakdown import Calibration, ClassScores
from antipodal.evaluation.charts import heat_map, line_chart, range_chart
from antipodal.evaluation.htmlpage import html_table, text
from antipodal.evaluation.ranking import Counts

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

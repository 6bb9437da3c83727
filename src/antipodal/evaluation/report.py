"""HTML report of an evaluation: scores by query, class and distance, and confusion of classes."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.codes import Codes, check_codes, unpack
from antipodal.evaluation.charts import (
    bar_chart,
    bit_strip,
    heat_map,
    line_chart,
    range_charts,
)
from antipodal.evaluation.html import provenance, shown_item, write_page
from antipodal.evaluation.metrics import (
    BLOCK_BYTES,
    Evaluation,
    bit_correlations,
    check_labels,
    evaluate,
)
from antipodal.evaluation.ranking import (
    Counts,
    Floats,
    TiedRanking,
    blocks,
    count_by_distance,
    hamming_distances,
)


class QueryScores(NamedTuple):
    """Scores of each query (q,) in percent; NaN if the database has no relevant item."""

    average_precision: Floats
    worst: Floats
    best: Floats
    precision: Floats
    recall: Floats


class ClassScores(NamedTuple):
    """Means over the queries of one class or concept, in percent."""

    name: str
    queries: int
    map: float
    map_worst: float
    map_best: float
    precision: float
    recall: float


class Calibration(NamedTuple):
    """Number of pairs of query and item at each distance 0 … n_bits, and of relevant pairs."""

    pairs: Counts
    relevant: Counts


class Breakdown(NamedTuple):
    """Scores of each query, and relevance by distance over all queries."""

    queries: QueryScores
    calibration: Calibration


def break_down(
    query_codes: ArrayLike,
    database_codes: ArrayLike,
    query_labels: ArrayLike,
    database_labels: ArrayLike,
    *,
    n_bits: int,
    radius: int = 2,
) -> Breakdown:
    """Score each query: average precision, and precision and recall within a radius.

    Examples
    --------
    >>> from antipodal.codes import pack
    >>> database = pack([[0, 0, 0], [0, 0, 1], [1, 1, 1]])
    >>> found = break_down(pack([[0, 0, 0]]), database, ["a"], ["a", "b", "a"], n_bits=3, radius=1)
    >>> found.queries.precision, found.queries.recall
    (array([50.]), array([50.]))
    >>> found.calibration.pairs, found.calibration.relevant
    (array([1, 1, 0, 1]), array([1, 0, 0, 1]))
    """
    query = check_codes(query_codes, n_bits, "query_codes")
    database = check_codes(database_codes, n_bits, "database_codes")
    labels = check_labels(query_labels, database_labels, len(query), len(database))
    items, relevant = count_by_distance(query, database, *labels, n_bits, BLOCK_BYTES)
    scored: NDArray[np.bool_] = relevant.sum(axis=1) > 0
    scores = np.full((5, len(query)), np.nan)
    for part in blocks(len(query), BLOCK_BYTES // (128 * (n_bits + 1))):
        rows = np.flatnonzero(scored[part]) + part.start
        if not len(rows):
            continue
        ranking = TiedRanking(items[rows], relevant[rows])
        inside, hits = (counts[rows, : radius + 1].sum(axis=1) for counts in (items, relevant))
        shares = hits / np.maximum(inside, 1), hits / ranking.n_relevant
        scores[:, rows] = 100 * np.stack([*ranking.average_precision(), *shares])
    calibration = Calibration(items[scored].sum(axis=0), relevant[scored].sum(axis=0))
    return Breakdown(QueryScores(*scores), calibration)


def class_scores(scores: QueryScores, labels: NDArray[Any]) -> list[ClassScores]:
    """Return the mean scores of each class or concept, lowest mAP first."""
    found = []
    for name, rows in _rows_by_class(labels):
        values = np.stack(scores)[:, rows]
        values = values[:, ~np.isnan(values[0])]
        if values.shape[1]:
            found.append(ClassScores(name, values.shape[1], *values.mean(axis=1).tolist()))
    return sorted(found, key=lambda each: (each.map, each.name))


def _rows_by_class(labels: NDArray[Any]) -> list[tuple[str, NDArray[np.intp]]]:
    if labels.ndim == 2:
        return [(str(j), np.flatnonzero(labels[:, j])) for j in range(labels.shape[1])]
    return [(str(name), np.flatnonzero(labels == name)) for name in np.unique(labels)]


def confusion(
    query: Codes,
    database: Codes,
    query_labels: NDArray[Any],
    database_labels: NDArray[Any],
    radius: int,
) -> tuple[list[str], Counts]:
    """Count the items within a radius by class of the query (rows) and of the item (columns).

    Returns
    -------
    names : list of str
        Classes of queries and items, in order.
    counts : (n_classes, n_classes)
    """
    names, places = np.unique(np.concatenate([query_labels, database_labels]), return_inverse=True)
    mine, theirs = places[: len(query)], places[len(query) :]
    n = len(names)
    counts = np.zeros(n * n, np.int64)
    for part in blocks(len(query), 2**24 // max(1, len(database))):
        q, d = np.nonzero(hamming_distances(query[part], database) <= radius)
        counts += np.bincount(n * mine[part][q] + theirs[d], minlength=n * n)
    return [str(name) for name in names], counts.reshape(n, n)


# Returns the metadata of rows by their row number.
Describe: TypeAlias = Callable[[Iterable[int]], Mapping[int, Mapping[str, Any]]]

_RADIUS = 2  # for the scores of classes and the confusion of classes
_OPEN_CLASSES = 20  # rows of the table of classes that are not folded
_DRAWN_CLASSES = 24  # a heat map of more classes would be unreadable
_CONFUSED = 10  # listed pairs of classes
_MAX_CONCEPTS = 8  # listed concepts of an item


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
    """Evaluate codes as `evaluate` does and write the results as one HTML file.

    Parameters
    ----------
    path : path
        Path of the report. The file is written completely or not at all.
    query_codes, database_codes, query_labels, database_labels, n_bits, radii, top
        Arguments of `evaluate`.
    n_examples, n_nearest : int
        Number of queries shown, both at equal steps and of the lowest average precision, and
        number of nearest items shown for each.
    about : mapping, optional
        Further rows for the table at the top, such as file names.
    describe_queries, describe_items : callable, optional
        Called with row numbers; return the metadata of each row. `title` and `thumbnail` are
        shown.

    Returns
    -------
    Evaluation
        The result of `evaluate` for the same arguments.
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
    examples = _Examples(
        query, database, labels, n_bits, n_nearest, describe_queries, describe_items
    )
    within = macro.radius[radius]
    write_page(
        path,
        "evaluation",
        title="Retrieval report",
        figures={
            "mAP, %": f"{macro.map:.1f}",
            f"precision within radius {radius}, %": f"{within.precision:.1f}",
            f"recall within radius {radius}, %": f"{within.recall:.1f}",
            "queries": f"{macro.queries:,}",
            "items": f"{macro.database:,}",
        },
        facts=[
            ("bits", str(n_bits)),
            *(about or {}).items(),
            ("queries", f"{macro.queries:,}"),
            ("queries without relevant items (excluded)", f"{macro.queries_without_relevant:,}"),
            ("items in the database", f"{macro.database:,}"),
            ("relevant items (precision of a random ranking)", f"{macro.chance:.2f} %"),
            *provenance(),
        ],
        ranking=_ranking(macro),
        radius=radius,
        chance=f"{macro.chance:.1f}",
        precision_recall=_precision_recall_chart(pooled, n_bits),
        by_radius=line_chart(
            {
                label: [(float(r), float(getattr(macro.radius[r], name))) for r in every]
                for label, name in (
                    ("precision", "precision"), ("recall", "recall"), ("no results", "empty")
                )
            },
            x_axis="radius, bits",
            y_axis="%",
        ),
        radius_rows=[
            [f"≤ {r}", *(f"{value:.2f}" for value in macro.radius[r])]
            for r in dict.fromkeys(radii)
        ],
        classes=_classes(class_scores(parts.queries, labels[0]), radius, macro.chance),
        confusion=_confusion(*confusion(query, database, *labels, radius), radius)
        if labels[0].ndim == 1
        else None,
        calibration=_calibration(parts.calibration, n_bits),
        worst=examples.worst(parts.queries.average_precision, n_examples),
        bits=_bits(macro, bits_of(database, n_bits)),
        sample=examples.spread(n_examples),
    )  # fmt: skip
    return Evaluation(**{**vars(macro), "radius": {r: macro.radius[r] for r in radii}})


def _ranking(result: Evaluation) -> dict[str, Any]:
    """Return the table of scores that depend on the order of ties."""
    scores = {"mAP": (result.map_worst, result.map, result.map_best)}
    for k, at in result.at.items():
        scores[f"mAP@{k}"] = (at.map_worst, at.map, at.map_best)
        scores[f"MP@{k}"] = (at.mp_worst, at.mp, at.mp_best)
    limits, charts = range_charts(list(scores.values()), result.chance)
    rows = [
        [name, *(f"{value:.2f}" for value in (mean, worst, best)), chart]
        for (name, (worst, mean, best)), chart in zip(scores.items(), charts, strict=True)
    ]
    return {"headings": ["percent", "mean", "worst", "best", limits], "rows": rows}


def _precision_recall_chart(pooled: Evaluation, n_bits: int) -> str:
    curve = [(pooled.radius[r].recall, pooled.radius[r].precision) for r in range(n_bits + 1)]
    first = next(i for i, (recall, precision) in enumerate(curve) if recall or precision)
    return line_chart({"precision": curve[first:]}, x_axis="recall, %", y_axis="precision, %")


def _classes(classes: Sequence[ClassScores], radius: int, chance: float) -> dict[str, Any]:
    limits, charts = range_charts([(c.map_worst, c.map, c.map_best) for c in classes], chance)
    rows = [
        [c.name, f"{c.queries:,}", *(f"{v:.2f}" for v in (c.map, c.precision, c.recall)), chart]
        for c, chart in zip(classes, charts, strict=True)
    ]
    headings = ["class", "queries", "mAP", f"P r≤{radius}", f"R r≤{radius}", f"mAP, {limits}"]
    return {"headings": headings, "rows": rows, "open": _OPEN_CLASSES}


def _confusion(names: Sequence[str], counts: Counts, radius: int) -> dict[str, Any]:
    """Return the heat map of classes near a query, if they are few, and the largest errors."""
    totals = counts.sum(axis=1)
    shares = 100 * counts / np.maximum(totals, 1)[:, None]
    wrong = shares.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_CONFUSED]
    places = [divmod(place, len(names)) for place in order.tolist()]
    drawn = None
    if len(names) <= _DRAWN_CLASSES:
        cells = [
            [float(share) if total else None for share in row]
            for row, total in zip(shares, totals, strict=True)
        ]
        drawn = heat_map(names, cells, f"confusion of classes within radius {radius}")
    return {
        "map": drawn,
        "rows": [
            [names[i], names[j], f"{wrong[i, j]:.2f}", f"{counts[i, j]:,}"]
            for i, j in places
            if wrong[i, j]
        ],
        "empty": int((totals == 0).sum()),
        "total": len(names),
    }


def _calibration(calibration: Calibration, n_bits: int) -> dict[str, Any]:
    """Return chart and table of the share of relevant pairs by distance."""
    present = np.flatnonzero(calibration.pairs)
    relevant = [
        (float(d), 100 * float(calibration.relevant[d] / calibration.pairs[d])) for d in present
    ]
    within = 100 * np.cumsum(calibration.pairs) / calibration.pairs.sum()
    cumulative = [(float(d), float(within[d])) for d in range(present[-1] + 1)]
    chart = line_chart(
        {"relevant": relevant, "all pairs within": cumulative}, x_axis="distance, bits", y_axis="%"
    )
    cuts = [*(r for r in (0, 2, 4, 8, 16, 32, 64) if r < n_bits), n_bits]
    rows = []
    for low, high in pairwise([-1, *cuts]):
        part = slice(low + 1, high + 1)
        pairs, hits = int(calibration.pairs[part].sum()), int(calibration.relevant[part].sum())
        if pairs:
            name = str(high) if high == low + 1 else f"{low + 1} to {high}"
            rows.append([name, f"{pairs:,}", f"{100 * hits / pairs:.2f}"])
    return {"chart": chart, "rows": rows}


class BitShares(NamedTuple):
    """Share of ones of each bit and its mean absolute correlation with the others, in percent."""

    ones: NDArray[np.float64]
    correlation: NDArray[np.float64]


def bits_of(codes: Codes, n_bits: int) -> BitShares:
    """Return the share of ones of each bit, and its mean absolute correlation with the others.

    A constant bit counts as uncorrelated, as in `bit_health`. Its `bit_balance` is the mean of
    min(p, 1 - p) over these shares; its `bit_correlation` is the mean of these correlations.
    """
    p, correlation = bit_correlations(codes, n_bits)
    np.fill_diagonal(correlation, 0)
    return BitShares(100 * p, 100 * correlation.sum(axis=1) / max(n_bits - 1, 1))


def _bits(result: Evaluation, bits: BitShares) -> dict[str, Any]:
    health = result.health
    return {
        "rows": [
            ["balance: share of the rarer value of a bit (ideal: 50 %)",
             f"{health.bit_balance:.2f} %"],
            ["mean absolute correlation of two bits (ideal: 0 %)",
             f"{health.bit_correlation:.2f} %"],
            ["distinct codes", f"{health.distinct_codes:,}"],
        ],
        "ones": bar_chart(bits.ones.tolist(), x_axis="bit", y_axis="share of ones, %", level=50),
        "correlation": bar_chart(
            bits.correlation.tolist(), x_axis="bit", y_axis="mean correlation, %", level=0
        ),
    }  # fmt: skip


@dataclass(frozen=True)
class _Examples:
    """Queries with their nearest items, as the template shows them."""

    query: Codes
    database: Codes
    labels: tuple[NDArray[Any], NDArray[Any]]
    n_bits: int
    n_nearest: int
    describe_queries: Describe | None
    describe_items: Describe | None

    def spread(self, n: int) -> list[dict[str, Any]]:
        """Return n queries at equal steps."""
        rows = np.unique(np.linspace(0, len(self.query) - 1, n).round().astype(int)).tolist()
        return self._shown({row: f"query {row}" for row in rows})

    def worst(self, precision: NDArray[np.float64], n: int) -> list[dict[str, Any]]:
        """Return the n queries with the lowest average precision, except NaN."""
        order = np.argsort(precision, kind="stable")[:n].tolist()
        return self._shown(
            {
                row: f"{precision[row]:.2f} %: query {row}"
                for row in order
                if not np.isnan(precision[row])
            }
        )

    def _shown(self, titles: Mapping[int, str]) -> list[dict[str, Any]]:
        """Return these queries with their nearest items; tied items are ordered by row."""
        nearest, distances = {}, {}
        for row in titles:
            distances[row] = hamming_distances(self.query[row : row + 1], self.database)[0]
            nearest[row] = np.argsort(distances[row], kind="stable")[: self.n_nearest].tolist()
        queries = self.describe_queries(titles) if self.describe_queries else {}
        near = {item for rows in nearest.values() for item in rows}
        items = self.describe_items(near) if self.describe_items else {}
        shown = []
        for row, title in titles.items():
            label = self.labels[0][row]
            codes = np.vstack([self.query[row : row + 1], self.database[nearest[row]]])
            bits, *others = unpack(codes, self.n_bits)
            shown.append({
                "title": title, "label": label_text(label), "strip": bit_strip(bits),
                "shown": shown_item(queries[row]) if row in queries else None,
                "nearest": [
                    {
                        "row": item, "label": label_text(self.labels[1][item]),
                        "shown": shown_item(items[item]) if item in items else None,
                        "relevant": _share_label(label, self.labels[1][item]),
                        "distance": int(distances[row][item]), "strip": bit_strip(other, bits),
                    }
                    for item, other in zip(nearest[row], others, strict=True)
                ],
            })  # fmt: skip
        return shown


def _share_label(one: Any, other: Any) -> bool:
    """Return whether two labels are equal, or two rows of concepts have one in common."""
    return bool(np.any((one == other) & (one == 1)) if np.ndim(one) else one == other)


def label_text(label: Any) -> str:
    """Return a class as text, or the numbers of the concepts of an item."""
    if np.ndim(label) == 0:
        return str(label)
    concepts = np.flatnonzero(label)
    more = ", …" if len(concepts) > _MAX_CONCEPTS else ""
    return (", ".join(map(str, concepts[:_MAX_CONCEPTS])) or "none") + more

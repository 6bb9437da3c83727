"""HTML report of an audit."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from antipodal.evaluation.advice import Advice
from antipodal.evaluation.audit import Audit
from antipodal.evaluation.charts import Look, line_chart, log2_axis, method_looks, recall_axis
from antipodal.evaluation.html import provenance, shown_item, write_page
from antipodal.evaluation.recall import Setting
from antipodal.evaluation.report import Describe
from antipodal.io.faiss import load_faiss

_WORST = 10  # queries shown
_CHARTS = {  # search and oversampling factor of each chart of recall
    "Hamming search": ("hamming", 1),
    "Hamming search, reranked with 4× oversampling": ("hamming", 4),
    "Asymmetric search": ("asymmetric", 1),
    "Asymmetric search, reranked with 4× oversampling": ("asymmetric", 4),
}


def write_audit_report(
    path: str | os.PathLike[str],
    audit: Audit,
    *,
    advice: Advice | None = None,
    about: Mapping[str, str] | None = None,
    describe: Describe | None = None,
) -> None:
    """Write the results of an audit as one HTML file.

    Parameters
    ----------
    path : path
        Path of the report.
    audit : Audit
        Result of `antipodal.audit`.
    advice : Advice, optional
        Recommended setting; by default `audit.advice()`.
    about : mapping, optional
        Further rows for the table at the top, such as the command.
    describe : callable, optional
        Called with row numbers; returns the metadata of each row. `title` and `thumbnail` are
        shown.
    """
    advice = advice or audit.advice()
    facts = [
        *(about or {}).items(),
        ("rows", f"{audit.survey.rows:,} of {audit.survey.features:,} dimensions"),
        ("queries", f"{audit.n_queries:,}"),
        ("true neighbours of a query", f"{audit.k}, by {audit.metric}"),
    ]
    if audit.ndcg is not None:
        facts.append((f"nDCG@{audit.k} of uncompressed vectors", f"{audit.ndcg:.3f}"))
    headings, *rows = audit.table()
    looks = method_looks(sorted({_method(setting) for setting in audit.settings}))
    write_page(
        path,
        "audit",
        title="Audit of binary codes",
        advice=advice,
        remarks=audit.remarks(),
        facts=[*facts, *provenance(Faiss=load_faiss().__version__)],
        k=audit.k,
        recall_charts=_recall_charts(audit, looks),
        speed_charts=_speed_charts(audit, looks),
        headings=headings,
        rows=rows,
        distance_charts=_distance_charts(audit),
        worst=_worst(audit, advice, describe),
    )


def _method(setting: Setting) -> str:
    """Return the method without the number of bits per dimension of other libraries."""
    return setting.method.partition(",")[0]


def _recall_charts(audit: Audit, looks: Mapping[str, Look]) -> list[tuple[str, Markup]]:
    """Draw recall by bytes: one chart for each search, one curve for each method."""
    charts: dict[str, dict[str, list[tuple[float, float]]]] = {title: {} for title in _CHARTS}
    for setting in sorted(audit.settings, key=lambda setting: setting.cost.bytes):
        for title, (search, oversampling) in _CHARTS.items():
            recall = setting.with_floats.get(oversampling)
            if setting.search == search and recall is not None:
                charts[title].setdefault(_method(setting), []).append(
                    (setting.cost.bytes, 100 * recall)
                )
    sizes = log2_axis(setting.cost.bytes for setting in audit.settings)
    return [
        (
            title,
            line_chart(
                curves, x_axis="bytes per vector", y_axis=f"recall@{audit.k}, %", x=sizes,
                y=recall_axis(recall for points in curves.values() for _, recall in points),
                looks=looks,
            ),
        )
        for title, curves in charts.items()
        if curves
    ]  # fmt: skip


def _speed_charts(audit: Audit, looks: Mapping[str, Look]) -> list[tuple[str, Markup]]:
    """Draw recall by speed: one chart for each search, a curve through the lengths of a method."""
    charts = []
    for title, (search, oversampling) in _CHARTS.items():
        curves: dict[str, list[tuple[float, float]]] = {}
        for setting in sorted(audit.settings, key=lambda setting: setting.cost.bytes):
            if setting.search == search and oversampling == 1:
                point = (setting.cost.queries_per_second, 100 * setting.recall)
                curves.setdefault(_method(setting), []).append(point)
        points = [point for points in curves.values() for point in points]
        if points:
            chart = line_chart(
                curves, x_axis="queries per second", y_axis=f"recall@{audit.k}, %",
                x=log2_axis(speed for speed, _ in points),
                y=recall_axis(recall for _, recall in points), looks=looks,
            )  # fmt: skip
            charts.append((title, chart))
    return charts


def _distance_charts(audit: Audit) -> list[tuple[str, Markup]]:
    """Draw the distances of neighbours and others, for the best hasher of each code length."""
    best: dict[int, Setting] = {}
    for setting in audit.settings:
        known = best.get(setting.bits)
        if setting.distances is not None and (known is None or setting.recall > known.recall):
            best[setting.bits] = setting
    charts = []
    for setting in best.values():
        assert setting.distances is not None
        shares = 100 * setting.distances / setting.distances.sum(axis=1, keepdims=True)
        farthest = int(np.flatnonzero(shares.any(axis=0))[-1])
        curves = {
            name: list(enumerate(map(float, share[: farthest + 1])))
            for name, share in zip(("neighbours", "other rows"), shares, strict=True)
        }
        chart = line_chart(curves, x_axis="Hamming distance, bits", y_axis="share of pairs, %")
        charts.append((f"{setting.method}, {setting.bits} bits", chart))
    return charts


def _worst(audit: Audit, advice: Advice | None, describe: Describe | None) -> dict[str, Any] | None:
    """Return the queries of the lowest recall in the recommended setting."""
    if not audit.settings:
        return None
    best = max(audit.settings, key=lambda setting: setting.recall)
    setting = best if advice is None else advice.setting
    if setting.found is None or audit.truth is None or audit.rows is None:
        return None
    order = np.argsort(setting.by_query, kind="stable")[:_WORST]
    truth, found = (audit.rows[ids[order]].tolist() for ids in (audit.truth, setting.found))
    own = [None] * len(order) if audit.query_rows is None else audit.query_rows[order].tolist()
    shown = {row for ids in (own, *truth, *found) for row in ids if row is not None}
    metadata = {} if describe is None else describe(shown)
    queries = []
    correct = setting.correct[order].tolist()
    for query, row, true, near, hits in zip(
        order.tolist(), own, truth, found, correct, strict=True
    ):
        title = f"query {query}" if row is None else f"row {row}"
        queries.append(
            {
                "percent": f"{100 * setting.by_query[query]:.0f}",
                "shown": shown_item(None if row is None else metadata.get(row), title),
                "pairs": [
                    (
                        (shown_item(metadata.get(a), f"row {a}"), a in near),
                        (shown_item(metadata.get(b), f"row {b}"), hit),
                    )
                    for a, b, hit in zip(true, near, hits, strict=True)
                ],
            }
        )
    name = f"{setting.method}, {setting.cost.bytes} bytes per vector, {setting.search} search"
    return {"setting": name, "queries": queries}

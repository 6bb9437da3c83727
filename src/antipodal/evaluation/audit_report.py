"""HTML report of an audit."""

import os
from collections.abc import Mapping

import numpy as np

from antipodal.evaluation.audit import Audit
from antipodal.evaluation.charts import line_chart, log_chart, method_looks
from antipodal.evaluation.html import about_table, html_page, html_table, origin, text, thing
from antipodal.evaluation.recall import Setting
from antipodal.evaluation.report import Describe
from antipodal.index.scan import load_faiss
from antipodal.io.atomic import replacing

_WORST = 10
_WAYS = {  # what each chart of recall is of: search, and candidates per result
    "By Hamming distance": ("hamming", 1),
    "By Hamming distance, then 4 candidates per result by their vectors": ("hamming", 4),
    "With real queries": ("asymmetric", 1),
    "With real queries, then 4 candidates per result by their vectors": (
        "asymmetric",
        4,
    ),
}


def write_audit_report(
    path: str | os.PathLike[str],
    audit: Audit,
    *,
    keep: float = 0.95,
    about: Mapping[str, str] | None = None,
    describe: Describe | None = None,
) -> None:
    """Write what an audit measured as one HTML file.

    Parameters
    ----------
    path : path
        Where it goes.
    audit : Audit
        What `antipodal.audit` returned.
    keep : float
        Share of the neighbours that the advice is for.
    about : mapping, optional
        More to say at the top, such as the command.
    describe : callable, optional
        Given numbers of rows, return the metadata of each: `title` and `thumbnail` are shown.
    """
    sections = [
        f'<p class="lead">{text(audit.advice(keep))}</p>',
        *(f"<p>{text(remark)}</p>" for remark in audit.survey.remarks()),
        _about(audit, about or {}),
        _recall(audit),
        _numbers(audit),
        _distances(audit),
        _worst(audit, keep, describe),
    ]
    with replacing(path) as file:
        file.write(html_page("What codes keep of these vectors", sections).encode())


def _about(audit: Audit, about: Mapping[str, str]) -> str:
    facts = [
        *about.items(),
        ("rows", f"{audit.survey.rows:,} of {audit.survey.features:,} numbers"),
        ("queries", f"{audit.n_queries:,}"),
        ("neighbours of a query", f"{audit.k}, by {audit.metric}"),
        *origin(Faiss=load_faiss().__version__),
    ]
    if audit.ndcg is not None:
        facts.append((f"nDCG@{audit.k} of the vectors themselves", f"{audit.ndcg:.3f}"))
    return about_table(facts)


def _recall(audit: Audit) -> str:
    """Draw recall against bytes: a chart for each way to search, a curve for each method."""
    ways: dict[str, dict[str, list[tuple[float, float]]]] = {title: {} for title in _WAYS}
    names: dict[str, None] = {}
    for setting in sorted(audit.settings, key=lambda setting: setting.cost.bytes):
        name = setting.method.partition(",")[0]
        names[name] = None
        for title, (search, candidates) in _WAYS.items():
            found = setting.with_floats.get(candidates)
            if setting.search == search and found is not None:
                ways[title].setdefault(name, []).append((setting.cost.bytes, 100 * found))
    sizes = [setting.cost.bytes for setting in audit.settings]
    looks = method_looks(names)
    charts = [
        f"<div><h3>{title}</h3>"
        + log_chart(
            curves, x_axis="bytes per vector", y_axis="found, %",
            x_range=(min(sizes), max(sizes)), looks=looks,
        )
        + "</div>"
        for title, curves in ways.items()
        if curves
    ]  # fmt: skip
    return (
        "<h2>Neighbours that are found</h2><p>Share of the true neighbours among as many results, "
        f'against the bytes that a code takes.</p><div class="pair">{"".join(charts)}</div>'
    )


def _numbers(audit: Audit) -> str:
    headings, *rows = audit.table()
    return html_table([text(h) for h in headings], [[text(cell) for cell in row] for row in rows])


def _distances(audit: Audit) -> str:
    """Draw how far neighbours and others are, for each length by the code that finds most."""
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
            for name, share in zip(("neighbours", "others"), shares, strict=True)
        }
        chart = line_chart(
            curves, x_axis="bits that differ", y_axis="%",
            x_max=max(farthest, 1), y_max=5 * np.ceil(shares.max() / 5),
        )  # fmt: skip
        charts.append(f"<div><h3>{text(setting.method)}, {setting.bits} bits</h3>{chart}</div>")
    if not charts:
        return ""
    return (
        "<h2>Hamming distances</h2><p>Of queries to their true neighbours and to other rows. Where "
        "the two overlap, codes cannot tell them apart.</p>"
        f'<div class="pair">{"".join(charts)}</div>'
    )


def _worst(audit: Audit, keep: float, describe: Describe | None) -> str:
    """Show the queries that lose most, in the setting that the advice is about."""
    chosen = audit.cheapest(keep, rescored=True)
    setting = chosen[0] if chosen else max(audit.settings, key=lambda s: s.recall)
    if setting.found is None or audit.truth is None or audit.rows is None:
        return ""
    order = np.argsort(setting.by_query, kind="stable")[:_WORST]
    truth, found = (audit.rows[ids[order]].tolist() for ids in (audit.truth, setting.found))
    own = [None] * len(order) if audit.query_rows is None else audit.query_rows[order].tolist()
    asked = {row for ids in (own, *truth, *found) for row in ids if row is not None}
    rows = {} if describe is None else describe(asked)
    tables = []
    for query, row, true, near in zip(order.tolist(), own, truth, found, strict=True):
        cells = [
            [
                thing(rows.get(a), f"row {a}", is_hit=a in near),
                thing(rows.get(b), f"row {b}", is_hit=b in true),
            ]
            for a, b in zip(true, near, strict=True)
        ]
        name = f"query {query}" if row is None else f"row {row}"
        shown = thing(rows.get(-1 if row is None else row), name)
        caption = f"{100 * setting.by_query[query]:.0f} % found of {shown}"
        tables.append(html_table(["true neighbours", "found"], cells, caption))
    return (
        f"<h2>Queries that lose most</h2><p>With {text(setting.method)} at {setting.cost.bytes} "
        f"bytes, {text(setting.search)}, before any vectors are looked at. A ✓ is in both lists."
        f'</p><div class="pair neighbours">{"".join(tables)}</div>'
    )

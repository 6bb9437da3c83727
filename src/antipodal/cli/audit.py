"""`antipodal audit`: what codes keep of the neighbours that vectors have."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antipodal.cli.app import (
    TABLE,
    AsJson,
    Seed,
    app,
    bar,
    command_line,
    describer,
    model_text,
    print_json,
    print_table,
    say_next,
)
from antipodal.cli.outputs import HTML, Force, check_output

if TYPE_CHECKING:
    from antipodal.evaluation.audit import Audit


@app.command(epilog="Example: antipodal audit features.npy --bits 64,128 --html audit.html")
def audit(
    vectors: Annotated[str, typer.Argument(help=f"Vectors: {TABLE}.")],
    bits: Annotated[str, typer.Option(help="Lengths of the codes, by commas.")] = "64,128,256",
    queries: Annotated[
        str | None, typer.Option(help=f"Queries, in place of rows that are drawn: {TABLE}.")
    ] = None,
    n_queries: Annotated[int, typer.Option(min=1, help="Rows to draw as queries.")] = 1000,
    k: Annotated[int, typer.Option("-k", min=1, help="Neighbours of a query.")] = 10,
    metric: Annotated[str, typer.Option(help="cosine, dot or euclidean.")] = "cosine",
    methods: Annotated[
        str | None, typer.Option(help="Hashers by commas, as `bench` has them; no labels.")
    ] = None,
    model: Annotated[
        list[Path] | None, typer.Option(help="A hasher of your own, saved; may be repeated.")
    ] = None,
    peers: Annotated[
        bool, typer.Option(help="RaBitQ, TurboQuant and product quantisation of Faiss too.")
    ] = True,
    relevance: Annotated[
        str | None,
        typer.Option(help=f"Judgements: row of the query, row of the vector, grade: {TABLE}."),
    ] = None,
    id_column: Annotated[
        str | None, typer.Option(help="Column of names, to name rows by in the report.")
    ] = None,
    metadata: Annotated[
        Path | None,
        typer.Option(help="For the report, a JSON object per vector: title, thumbnail."),
    ] = None,
    metadata_columns: Annotated[
        str | None,
        typer.Option(help="Or columns of the file of the vectors, such as title,thumbnail."),
    ] = None,
    keep: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the neighbours to be kept.")
    ] = 0.95,
    sample: Annotated[
        int | None, typer.Option(min=2, help="Look at so many rows alone: a first answer.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Also write a report with charts, one file.")
    ] = None,
    seed: Seed = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Measure what codes of vectors keep of their true neighbours: no labels are needed."""
    import numpy as np

    from antipodal import load
    from antipodal.evaluation.audit import audit as measure
    from antipodal.io.vectors import open_vectors, read_column

    if html is not None:
        check_output(html, HTML, force)
    elif metadata is not None or metadata_columns is not None:
        raise typer.BadParameter("metadata are for the report: give --html too")
    if metadata is not None and metadata_columns is not None:
        raise typer.BadParameter("give --metadata or --metadata-columns, not both")
    columns = [] if metadata_columns is None else [c.strip() for c in metadata_columns.split(",")]
    lengths = _lengths(bits)
    models = [load(path) for path in model or []]
    ids = [] if id_column is None else [id_column]
    file = open_vectors(vectors, leave_out=[*columns, *ids])
    options: dict[str, Any] = {"metric": metric}
    if methods is not None:
        options["methods"] = methods.split(",")
    if queries is not None:
        options["queries"] = np.asarray(open_vectors(queries))
    if relevance is not None:
        options["relevance"] = read_column(relevance)
    with bar("audit") as show:

        def progress(what: str, done: int, total: int) -> None:
            show(done, total, f", {what}")
            if not sys.stderr.isatty() and what == "codes" and done < total:
                typer.echo(f"audit: code {done + 1}/{total}", err=True)

        found = measure(
            file, lengths, n_queries=n_queries, k=k, models=models, peers=peers,
            sample=sample, random_state=seed, progress=progress, **options,
        )  # fmt: skip
    if html is not None:
        from antipodal.evaluation.audit_report import write_audit_report

        about = {"vectors": vectors, "command": command_line()}
        about |= {f"model {i + 1}": model_text(path) for i, path in enumerate(model or [])}
        describe = describer(metadata, file, [*columns, *ids], title=id_column)
        write_audit_report(html, found, keep=keep, about=about, describe=describe)
    if as_json:
        for record in found.records():
            print_json(record)
        return
    for remark in found.survey.remarks():
        typer.echo(remark)
    headings, *rows = found.table()
    title = f"share of the {k} nearest by {metric} that is found; {found.n_queries:,} queries"
    print_table(title, headings, rows)
    if found.ndcg is not None:
        typer.echo(f"The vectors themselves: nDCG@{k} {found.ndcg:.3f}.")
    typer.echo(found.advice(keep))
    if html is not None:
        typer.echo(f"The report is in {html}.")
    best = found.cheapest(keep, rescored=True)
    if best is not None and best[0].method in _hashers(found):
        method, bits_of_it = best[0].method, str(best[0].bits)
        say_next(
            "fit", vectors, "--method", method, "--bits", bits_of_it, "--out", "model.antipodal"
        )


def _hashers(found: "Audit") -> set[str]:
    """Return the codes that `fit` can make: no peers, and no models that are there already."""
    counted = {each.method for each in found.settings if each.distances is not None}
    return {method for method in counted if not method.endswith("(yours)")}


def _lengths(text: str) -> list[int]:
    try:
        lengths = [int(part) for part in text.split(",")]
    except ValueError:
        lengths = []
    if not lengths or min(lengths) < 1:
        raise typer.BadParameter(f"--bits must be lengths by commas, such as 64,128: got {text!r}")
    return lengths

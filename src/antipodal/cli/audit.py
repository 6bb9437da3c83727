"""`antipodal audit`: recall of binary codes on vectors without labels."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antipodal.cli.app import (
    TABLE,
    TABLES,
    AsJson,
    Seed,
    app,
    bar,
    command_line,
    describe_model,
    metadata_lookup,
    print_json,
    print_next,
    print_table,
    split_commas,
)
from antipodal.cli.outputs import HTML, Force, check_output

if TYPE_CHECKING:
    from antipodal.evaluation.audit import Audit


@app.command(epilog="Example: antipodal audit features.npy --bits 64,128 --html audit.html")
def audit(
    vectors: Annotated[str, typer.Argument(help=f"Vectors: {TABLES}.")],
    bits: Annotated[str, typer.Option(help="Comma-separated code lengths.")] = "64,128,256",
    queries: Annotated[
        str | None, typer.Option(help=f"Query vectors: {TABLE}. Default: random rows.")
    ] = None,
    n_queries: Annotated[int, typer.Option(min=1, help="Number of random queries.")] = 1000,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of neighbours per query.")] = 10,
    metric: Annotated[
        str, typer.Option(help="Metric of the true neighbours: cosine, dot or euclidean.")
    ] = "cosine",
    methods: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated methods, as for `bench`. Default: those without labels."
        ),
    ] = None,
    model: Annotated[
        list[Path] | None, typer.Option(help="Saved model to audit as well. Repeatable.")
    ] = None,
    peers: Annotated[
        bool,
        typer.Option(
            help="Include RaBitQ, TurboQuant and product quantisation of Faiss (the default).",
            show_default=False,
        ),
    ] = True,
    relevance: Annotated[
        str | None,
        typer.Option(help=f"Relevance judgements: query row, vector row, grade: {TABLE}."),
    ] = None,
    id_column: Annotated[
        str | None, typer.Option(help="Column with the row names shown in the report.")
    ] = None,
    metadata: Annotated[
        Path | None,
        typer.Option(help="Metadata for the report: JSON Lines with title, thumbnail."),
    ] = None,
    metadata_columns: Annotated[
        str | None,
        typer.Option(help="Metadata columns of the vector file, such as title,thumbnail."),
    ] = None,
    keep: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Target recall of the recommendation.")
    ] = 0.95,
    sample: Annotated[
        int | None, typer.Option(min=2, help="Use a random sample of N rows.", metavar="N")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Also write a report with charts to this file.")
    ] = None,
    seed: Seed = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Measure the recall of binary codes on your vectors. No labels are needed."""
    import numpy as np

    from antipodal import load
    from antipodal.evaluation.audit import audit as measure
    from antipodal.io.vectors import open_vectors, read_column

    if html is not None:
        check_output(html, HTML, force)
    elif metadata is not None or metadata_columns is not None:
        raise typer.BadParameter("--metadata and --metadata-columns need --html")
    if metadata is not None and metadata_columns is not None:
        raise typer.BadParameter("give --metadata or --metadata-columns, not both")
    columns = split_commas(metadata_columns)
    lengths = _code_lengths(bits)
    models = [load(path) for path in model or []]
    ids = [] if id_column is None else [id_column]
    file = open_vectors(vectors, leave_out=[*columns, *ids])
    options: dict[str, Any] = {"metric": metric}
    if methods is not None:
        options["methods"] = split_commas(methods)
    if queries is not None:
        options["queries"] = np.asarray(open_vectors(queries))
    if relevance is not None:
        options["relevance"] = read_column(relevance)
    with bar("audit") as show:

        def progress(step: str, done: int, total: int) -> None:
            show(done, total, f", {step}")
            if not sys.stderr.isatty() and step == "codes" and done < total:
                typer.echo(f"audit: code {done + 1}/{total}", err=True)

        result = measure(
            file, lengths, n_queries=n_queries, k=k, models=models, peers=peers,
            sample=sample, random_state=seed, progress=progress, **options,
        )  # fmt: skip
    if html is not None:
        from antipodal.evaluation.audit_report import write_audit_report

        about = {"vectors": vectors, "command": command_line()}
        about |= {f"model {i + 1}": describe_model(path) for i, path in enumerate(model or [])}
        describe = metadata_lookup(metadata, file, [*columns, *ids], title=id_column)
        write_audit_report(html, result, keep=keep, about=about, describe=describe)
    if as_json:
        for record in result.records():
            print_json(record)
        return
    for remark in result.survey.remarks():
        typer.echo(remark)
    headings, *rows = result.table()
    print_table(f"recall@{k}, {metric}, {result.n_queries:,} queries", headings, rows)
    if result.ndcg is not None:
        typer.echo(f"Uncompressed vectors: nDCG@{k} {result.ndcg:.3f}.")
    typer.echo(result.advice(keep))
    if html is not None:
        typer.echo(f"Report: {html}")
    best = result.cheapest(keep, rescored=True)
    if best is not None and best[0].method in _fitted_methods(result):
        method, n_bits = best[0].method, str(best[0].bits)
        print_next("fit", vectors, "--method", method, "--bits", n_bits, "--out", "model.antipodal")


def _fitted_methods(result: "Audit") -> set[str]:
    """Return the audited methods that `fit` can train: no Faiss quantisers or saved models."""
    hashers = {each.method for each in result.settings if each.distances is not None}
    return {method for method in hashers if not method.endswith("(yours)")}


def _code_lengths(text: str) -> list[int]:
    try:
        lengths = [int(part) for part in text.split(",")]
    except ValueError:
        lengths = []
    if not lengths or min(lengths) < 1:
        raise typer.BadParameter(
            f"--bits must be comma-separated code lengths, such as 64,128: got {text!r}"
        )
    return lengths

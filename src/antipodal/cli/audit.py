"""`antipodal audit`: recall of binary codes on vectors without labels."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antipodal.cli.app import (
    TABLE,
    TABLES,
    AsJson,
    Metric,
    Neighbours,
    Seed,
    Threads,
    app,
    bar,
    command_line,
    describe_model,
    metadata_lookup,
    print_json,
    print_table,
    split_commas,
)
from antipodal.cli.outputs import HTML, Force, HtmlReport, check_output

if TYPE_CHECKING:
    from antipodal.evaluation.recall import Setting


@app.command(epilog="Example: antipodal audit features.npy --html audit.html")
def audit(
    vectors: Annotated[str, typer.Argument(help=f"Vectors: {TABLES}.")],
    bits: Annotated[
        str | None,
        typer.Option(help="Comma-separated code lengths. Default: 0.5, 1, 2 bits per dimension."),
    ] = None,
    queries: Annotated[
        str | None, typer.Option(help=f"Query vectors: {TABLE}. Default: random rows.")
    ] = None,
    n_queries: Annotated[int, typer.Option(min=1, help="Number of random queries.")] = 1000,
    k: Neighbours = 10,
    metric: Metric = "cosine",
    methods: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated methods, as for `bench`. Default: unsupervised methods."
        ),
    ] = None,
    model: Annotated[
        list[Path] | None, typer.Option(help="Saved model to audit as well. Repeatable.")
    ] = None,
    baselines: Annotated[
        str,
        typer.Option(
            help="Other libraries to compare with: quick, all, none, or comma-separated names "
            "(rabitq, turboquant, pq, opq, rq, lsq, lsq-norm, ivf-rabitq, rabitqlib, turbovec, "
            "scann, usearch)."
        ),
    ] = "quick",
    relevance: Annotated[
        str | None,
        typer.Option(help=f"Relevance judgements: query row, vector row, grade: {TABLE}."),
    ] = None,
    id_column: Annotated[
        str | None, typer.Option(help="Id column of the vector file. The report shows the ids.")
    ] = None,
    metadata: Annotated[
        Path | None,
        typer.Option(help="Metadata for the report: JSON Lines with title, thumbnail."),
    ] = None,
    metadata_columns: Annotated[
        str | None,
        typer.Option(help="Metadata columns of the vector file, such as title,thumbnail."),
    ] = None,
    recall: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Target recall of the recommendation.")
    ] = 0.95,
    max_rerank: Annotated[
        int, typer.Option(min=1, help="Maximum oversampling factor of the recommendation.")
    ] = 4,
    max_bytes: Annotated[
        int | None,
        typer.Option(
            "--bytes",
            min=1,
            metavar="N",
            help="Maximum bytes per vector of the recommendation, kept vectors included.",
        ),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(
            min=2,
            metavar="N",
            help="Read a random sample of N rows, and extrapolate recall to all rows.",
        ),
    ] = None,
    html: HtmlReport = None,
    seed: Seed = 0,
    force: Force = False,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Measure the recall of binary codes on your vectors. No labels are needed."""
    import numpy as np

    from antipodal import load
    from antipodal.evaluation.advice import Source
    from antipodal.evaluation.audit import AuditInterrupted
    from antipodal.evaluation.audit import audit as measure
    from antipodal.evaluation.other_libraries import baseline_names
    from antipodal.hashers.registry import make_hasher
    from antipodal.io.vectors import open_vectors, read_column

    if html is not None:
        check_output(html, HTML, force)
    elif metadata is not None:
        raise typer.BadParameter("--metadata needs --html")
    if metadata is not None and metadata_columns is not None:
        raise typer.BadParameter("pass --metadata or --metadata-columns, not both")
    try:
        baseline_names(baselines)
        for name in split_commas(methods):
            make_hasher(name, 8, seed)
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    columns = split_commas(metadata_columns)
    models = [load(path) for path in model or []]
    ids = [] if id_column is None else [id_column]
    file = open_vectors(vectors, leave_out=[*columns, *ids])
    options: dict[str, Any] = {"metric": metric, "bits": _code_lengths(bits)}
    if max_bytes is not None and bits is None:
        options["bits"] = _lengths_within(max_bytes, file.n_features)
    if methods is not None:
        options["methods"] = split_commas(methods)
    if queries is not None:
        options["queries"] = np.asarray(open_vectors(queries))
    if relevance is not None:
        options["relevance"] = read_column(relevance)
    interrupted, began = False, time.monotonic()
    with bar("audit", lines=False) as show:

        def progress(step: str, done: int, total: int) -> None:
            show(done, total, f", {step}")
            if not sys.stderr.isatty() and step not in ("neighbours", "codes"):
                seconds = time.monotonic() - began
                typer.echo(f"audit: {done + 1}/{total}, {seconds:.0f} s, {step}", err=True)

        def print_code(settings: list["Setting"]) -> None:
            recalls = ", ".join(f"{one.recall:.3f} {one.search}" for one in settings)
            name = f"{settings[0].method}, {settings[0].cost.bytes} bytes"
            typer.echo(f"audit: {name}, recall@{k}: {recalls}", err=True)

        try:
            result = measure(
                file, n_queries=n_queries, k=k, models=models, baselines=baselines, sample=sample,
                random_state=seed, progress=progress, on_code=print_code, **options,
            )  # fmt: skip
        except AuditInterrupted as error:
            result, interrupted = error.audit, True
    example_id = 0 if id_column is None else next(file.records(ids))[id_column]
    source = Source(vectors, queries, id_column, metadata_columns, example_id)
    budget: dict[str, Any] = {"bytes": max_bytes, "source": source}
    advice = result.advice(recall, max_rerank=max_rerank, **budget)
    if html is not None:
        from antipodal.evaluation.audit_report import write_audit_report

        about = {"vectors": vectors, "command": command_line()}
        about |= {f"model {i + 1}": describe_model(path) for i, path in enumerate(model or [])}
        describe = metadata_lookup(metadata, file, [*columns, *ids], title=id_column)
        write_audit_report(html, result, advice=advice, about=about, describe=describe)
    if as_json:
        for record in result.records():
            print_json(record)
        print_json({"advice": None if advice is None else advice.to_dict()})
    else:
        for remark in result.remarks():
            typer.echo(remark)
        headings, *rows = result.short_table()
        print_table(f"recall@{k}, {metric}, {result.n_queries:,} queries", headings, rows)
        if result.ndcg is not None:
            typer.echo(f"Uncompressed vectors: nDCG@{k} {result.ndcg:.3f}.")
        if advice is None:
            typer.echo("No recommendation: no method of antipodal was measured within the budget.")
        else:
            typer.echo(advice)
            typer.echo(f"Next: {advice.command}\n      {advice.search_command}")
            if advice.keep_vectors is not None:
                plain = result.advice(recall, max_rerank=1, **budget)
                typer.echo(f"Without kept vectors: {plain and plain.summary()}")
        if html is not None:
            typer.echo(f"Report: {html}")
    if interrupted:
        typer.echo(f"audit: interrupted after {len(result.settings)} settings", err=True)
        raise typer.Exit(130)


def _lengths_within(n_bytes: int, n_features: int) -> list[int]:
    """Return the default code lengths that fit a number of bytes, and the longest that does."""
    from antipodal.evaluation.audit import default_lengths

    longest = 8 * n_bytes
    return sorted({longest, *(n for n in default_lengths(n_features) if n < longest)})


def _code_lengths(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        lengths = [int(part) for part in text.split(",")]
    except ValueError:
        lengths = []
    if not lengths or min(lengths) < 1:
        raise typer.BadParameter(
            f"--bits must be comma-separated code lengths, such as 64,128: got {text!r}"
        )
    return lengths

"""`antipodal evaluate`: codes that exist, against labels or against the vectors they are of."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from antipodal.cli.app import (
    TABLE,
    TABLES,
    AsJson,
    Bits,
    app,
    command_line,
    describer,
    model_text,
    print_json,
    print_table,
)
from antipodal.cli.outputs import HTML, Force, check_output


@app.command(
    epilog="Example: antipodal evaluate query-codes.npy codes.npy --query-labels "
    "query-labels.npy --database-labels labels.npy --bits 64 --html report.html"
)
def evaluate(
    queries: Annotated[str, typer.Argument(help=f"Packed codes of the queries: {TABLES}.")],
    database: Annotated[str, typer.Argument(help=f"Packed codes of the database: {TABLES}.")],
    bits: Bits,
    query_labels: Annotated[
        str | None, typer.Option(help=f"Labels of the queries: {TABLE}.")
    ] = None,
    database_labels: Annotated[
        str | None, typer.Option(help=f"Labels of the database: {TABLE}.")
    ] = None,
    labels_column: Annotated[
        str | None, typer.Option(help="Or a column of both files of codes.")
    ] = None,
    neighbours: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="QUERIES DATABASE",
            help=f"Or the vectors of both: how many of their true neighbours are found. {TABLES}.",
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Neighbours of a query.")] = 10,
    metric: Annotated[
        str, typer.Option(help="That makes vectors neighbours: cosine, dot or euclidean.")
    ] = "cosine",
    radius: Annotated[list[int] | None, typer.Option(min=0, help="May be repeated.")] = None,
    top: Annotated[
        list[int] | None, typer.Option(min=1, help="Also mAP@k and MP@k; may be repeated.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Also write a report with charts and examples, one file.")
    ] = None,
    examples: Annotated[int, typer.Option(min=0, help="Queries that the report shows.")] = 5,
    model: Annotated[
        Path | None, typer.Option(help="That made the codes, to be named in the report.")
    ] = None,
    query_metadata: Annotated[
        Path | None,
        typer.Option(
            help="For the report, a JSON object per query, a line each: title, thumbnail."
        ),
    ] = None,
    database_metadata: Annotated[
        Path | None, typer.Option(help="The same for the database.")
    ] = None,
    metadata_columns: Annotated[
        str | None,
        typer.Option(help="Or columns of both files of codes, such as title,thumbnail."),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Score how well codes retrieve: mAP under every tie order, balls, bit health."""
    import numpy as np

    from antipodal.evaluation.metrics import evaluate as score
    from antipodal.io.vectors import open_vectors, read_column

    named = [labels for labels in (query_labels, database_labels) if labels is not None]
    if neighbours is not None:
        if named or labels_column is not None or html is not None:
            raise typer.BadParameter("--neighbours needs no labels, and writes no report")
        _evaluate_neighbours((queries, database), neighbours, bits, k, metric, as_json)
        return
    if len(named) != (0 if labels_column is not None else 2):
        raise typer.BadParameter(
            "give --query-labels and --database-labels, --labels-column, or --neighbours"
        )
    if html is not None:
        check_output(html, HTML, force)
    elif any((model, query_metadata, database_metadata, metadata_columns)):
        raise typer.BadParameter("--model and metadata are for the report: give --html too")
    if metadata_columns is not None and (query_metadata or database_metadata):
        raise typer.BadParameter("give --metadata-columns or files of metadata, not both")
    columns = [] if metadata_columns is None else [c.strip() for c in metadata_columns.split(",")]
    others = [] if labels_column is None else [labels_column]
    files = [
        open_vectors(name, leave_out=[*others, *columns], text_dtype=np.uint8)
        for name in (queries, database)
    ]
    arrays = [np.asarray(file) for file in files]
    arrays += [read_column(name) for name in named]
    arrays += [file.column(name) for name in others for file in files]
    options: dict[str, Any] = {
        "n_bits": bits,
        "radii": tuple(radius or (0, 2)),
        "top": tuple(top or ()),
    }
    if html is None:
        result = score(*arrays, **options).to_dict()
    else:
        from antipodal.evaluation.report import write_report

        about = {"codes of the queries": queries, "codes of the database": database}
        about |= {} if model is None else {"model": model_text(model, bits)}
        about["command"] = command_line()
        describe = [
            describer(path, file, columns)
            for path, file in zip((query_metadata, database_metadata), files, strict=True)
        ]
        result = write_report(
            html, *arrays, **options, n_examples=examples, about=about,
            describe_queries=describe[0], describe_items=describe[1],
        ).to_dict()  # fmt: skip
    if as_json:
        print_json(result)
        return
    _print_measures("values in percent, counts where whole", result)
    if html is not None:
        typer.echo(f"The report is in {html}.")


def _evaluate_neighbours(
    codes: tuple[str, str],
    vectors: tuple[str, str],
    bits: int,
    k: int,
    metric: Any,
    as_json: bool,
) -> None:
    """Print what codes keep of the true neighbours of their vectors."""
    import numpy as np

    from antipodal.evaluation.audit import audit_codes
    from antipodal.io.vectors import open_vectors

    packed = [np.asarray(open_vectors(name, text_dtype=np.uint8)) for name in codes]
    files = [open_vectors(name) for name in vectors]
    kept = audit_codes(*packed, *files, n_bits=bits, k=k, metric=metric)
    result = {
        name: value
        for name, value in kept.to_dict(files[1].n_features, files[1].dtype.itemsize).items()
        if name.startswith(("recall", "candidates", "bytes", "compression", "queries"))
    }
    if as_json:
        print_json(result)
        return
    _print_measures(f"of the {k} nearest by {metric}, the share that is found", result)


def _print_measures(title: str, result: Mapping[str, Any]) -> None:
    rows = []
    for name, value in result.items():
        shown = "–" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
        rows.append([name, shown])
    print_table(title, ["measure", "value"], rows)

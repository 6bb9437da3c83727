"""`antipodal evaluate` and `antipodal report`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from antipodal.cli.app import (
    TABLE,
    TABLES,
    AsJson,
    Bits,
    Metric,
    Threads,
    app,
    command_line,
    describe_model,
    metadata_lookup,
    print_json,
    print_table,
    split_commas,
)
from antipodal.cli.outputs import HTML, Force, HtmlReport, check_output


@app.command(
    epilog="Example: antipodal evaluate query-codes.npy codes.npy --query-labels "
    "query-labels.npy --database-labels labels.npy --bits 64 --html report.html"
)
def evaluate(
    queries: Annotated[str, typer.Argument(help=f"Packed query codes: {TABLES}.")],
    database: Annotated[str, typer.Argument(help=f"Packed database codes: {TABLES}.")],
    bits: Bits,
    query_labels: Annotated[str | None, typer.Option(help=f"Query labels: {TABLE}.")] = None,
    database_labels: Annotated[str | None, typer.Option(help=f"Database labels: {TABLE}.")] = None,
    labels_column: Annotated[
        str | None, typer.Option(help="Label column of both code files.")
    ] = None,
    neighbours: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="QUERIES DATABASE",
            help=f"Query and database vectors, to measure recall without labels: {TABLE}.",
        ),
    ] = None,
    k: Annotated[
        int, typer.Option("-k", min=1, help="Number of true neighbours, for --neighbours.")
    ] = 10,
    metric: Metric = "cosine",
    radius: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Hamming radius of precision and recall [0, 2]. Repeatable."),
    ] = None,
    top: Annotated[
        list[int] | None, typer.Option(min=1, help="Also report mAP@k and MP@k. Repeatable.")
    ] = None,
    html: HtmlReport = None,
    examples: Annotated[
        int, typer.Option(min=0, help="Number of example queries in the report.")
    ] = 5,
    model: Annotated[
        Path | None, typer.Option(help="Model of the codes, named in the report.")
    ] = None,
    query_metadata: Annotated[
        Path | None,
        typer.Option(help="Query metadata for the report: JSON Lines with title, thumbnail."),
    ] = None,
    database_metadata: Annotated[
        Path | None, typer.Option(help="Database metadata for the report, in the same format.")
    ] = None,
    metadata_columns: Annotated[
        str | None,
        typer.Option(help="Metadata columns of both code files, such as title,thumbnail."),
    ] = None,
    force: Force = False,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate retrieval with codes: mAP with tie bounds, precision and recall by radius.

    With labels, items that share a label with the query are relevant. With --neighbours, the
    recall of the nearest vectors is measured.
    """
    import numpy as np

    from antipodal.evaluation.metrics import evaluate as measure
    from antipodal.io.vectors import open_vectors, read_column

    label_files = [labels for labels in (query_labels, database_labels) if labels is not None]
    if neighbours is not None:
        if label_files or labels_column is not None or html is not None:
            raise typer.BadParameter("--neighbours takes no labels and no --html")
        _evaluate_neighbours((queries, database), neighbours, bits, k, metric, as_json)
        return
    if len(label_files) != (0 if labels_column is not None else 2):
        raise typer.BadParameter(
            "pass --query-labels and --database-labels, --labels-column, or --neighbours"
        )
    if html is not None:
        check_output(html, HTML, force)
    elif any((model, query_metadata, database_metadata, metadata_columns)):
        raise typer.BadParameter("--model and metadata options need --html")
    if metadata_columns is not None and (query_metadata or database_metadata):
        raise typer.BadParameter("pass --metadata-columns or metadata files, not both")
    columns = split_commas(metadata_columns)
    label_columns = [] if labels_column is None else [labels_column]
    files = [
        open_vectors(name, leave_out=[*label_columns, *columns], text_dtype=np.uint8)
        for name in (queries, database)
    ]
    arrays = [np.asarray(file) for file in files]
    arrays += [read_column(name) for name in label_files]
    arrays += [file.column(name) for name in label_columns for file in files]
    options: dict[str, Any] = {
        "n_bits": bits,
        "radii": tuple(radius or (0, 2)),
        "top": tuple(top or ()),
    }
    if html is None:
        result = measure(*arrays, **options).to_dict()
    else:
        from antipodal.evaluation.report import write_report

        about = {"query codes": queries, "database codes": database}
        about |= {} if model is None else {"model": describe_model(model, bits)}
        about["command"] = command_line()
        describe = [
            metadata_lookup(path, file, columns)
            for path, file in zip((query_metadata, database_metadata), files, strict=True)
        ]
        result = write_report(
            html, *arrays, **options, n_examples=examples, about=about,
            describe_queries=describe[0], describe_items=describe[1],
        ).to_dict()  # fmt: skip
    if as_json:
        print_json(result)
        return
    _print_measures("percent; integers are counts", result)
    if html is not None:
        typer.echo(f"Report: {html}")


def _evaluate_neighbours(
    codes: tuple[str, str],
    vectors: tuple[str, str],
    bits: int,
    k: int,
    metric: Any,
    as_json: bool,
) -> None:
    """Print the recall of the true neighbours of the vectors."""
    import numpy as np

    from antipodal.evaluation.audit import audit_codes
    from antipodal.io.vectors import open_vectors

    packed = [np.asarray(open_vectors(name, text_dtype=np.uint8)) for name in codes]
    files = [open_vectors(name) for name in vectors]
    setting = audit_codes(*packed, *files, n_bits=bits, k=k, metric=metric)
    result = {
        name: value
        for name, value in setting.to_dict(files[1].n_features, files[1].dtype.itemsize).items()
        if name.startswith(("recall", "candidates", "bytes", "compression", "queries"))
    }
    if as_json:
        print_json(result)
        return
    _print_measures(f"recall@{k}, {metric}", result)


def _print_measures(title: str, result: Mapping[str, Any]) -> None:
    rows = []
    for name, value in result.items():
        shown = "–" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
        rows.append([name, shown])
    print_table(title, ["measure", "value"], rows)


@app.command(epilog="Example: antipodal report run1.json run2.json --html runs.html")
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Outputs of evaluate, audit or bench with --json, one file per run, or records of "
            "bench."
        ),
    ],
    html: HtmlReport = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Compare several runs of one command. The best value of each row has a star."""
    from antipodal.bench.comparison import compare, names_of, read_run, text_rows, write_comparison

    if html is not None:
        check_output(html, HTML, force)
    found = [read_run(path) for path in runs]
    comparisons, names = compare(found), names_of(found)
    if html is not None:
        write_comparison(html, found, [str(path) for path in runs], {"command": command_line()})
    if as_json:
        for comparison in comparisons:
            for labels, cells in comparison.rows:
                record = dict(zip(comparison.headings, labels, strict=True))
                values = {name: cell.value for name, cell in zip(names, cells, strict=True)}
                print_json({"table": comparison.title, **record, "runs": values})
        return
    for comparison in comparisons:
        print_table(comparison.title, [*comparison.headings, *names], text_rows(comparison))
    if html is not None:
        typer.echo(f"Report: {html}")

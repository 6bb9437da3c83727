"""`antipodal report`."""

from pathlib import Path
from typing import Annotated

import typer

from antipodal.cli.app import AsJson, app, command_line, print_json, print_table
from antipodal.cli.outputs import HTML, Force, check_output


@app.command(epilog="Example: antipodal report run1.json run2.json --html runs.html")
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="What evaluate, audit or bench printed with --json, a file a run; or the records "
            "of bench."
        ),
    ],
    html: Annotated[
        Path | None, typer.Option(help="Also write a page with charts, one file.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Put several runs of one command side by side; a star is at the best of a row."""
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
        typer.echo(f"The report is in {html}.")

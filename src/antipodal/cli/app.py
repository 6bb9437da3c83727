"""The command line's application, the options that commands share, and how they print."""

import json
from importlib import import_module
from typing import Annotated, Any

import typer

from antipodal import __version__
from antipodal.errors import AntipodalError, missing_extra

app = typer.Typer(
    help="Learn binary codes that survive quantisation, and search them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Bits = Annotated[int, typer.Option("--bits", min=1, help="Length of the codes.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything that is drawn.")]
ARRAY = "FILE.npy, FILE.npz:NAME, or - for a .npy in a pipe"


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"antipodal {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def print_table(title: str, headings: list[str], rows: list[list[str]]) -> None:
    """Print a table, its first column to the left and the others to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for column, heading in enumerate(headings):
        table.add_column(heading, justify="right" if column else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a pipe has no width of its own
    console.print(table)


def print_json(record: dict[str, Any]) -> None:
    """Print one record a line."""
    typer.echo(json.dumps(record))


def require_service() -> None:
    """Say what to install if the service cannot be loaded."""
    try:
        import_module("antipodal.service.server")
    except ImportError as error:
        raise AntipodalError(missing_extra("the service", str(error.name), "serve")) from error

"""The command line's application, the options that commands share, and how they print."""

import json
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from antipodal import __version__
from antipodal.errors import AntipodalError, NoStoreError, StoreError, missing_extra

if TYPE_CHECKING:
    from antipodal.stores import Store

Given = TypeVar("Given", str, Path | None)
_UsageError: Any = typer.BadParameter.__bases__[0]  # typer does not export it


class _Commands(TyperGroup):
    """The commands. What they say of a URL in the wrong place must not show its password."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the arguments name."""
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            from antipodal.stores.address import shown_url

            # To the end: a password may hold any character. Also where a slash is missing.
            error.message = re.sub(
                r"[^\s(']*(://|:\S*@).*",
                lambda found: shown_url(found[0]),
                error.message,
                flags=re.DOTALL,
            )
            raise


app = typer.Typer(
    cls=_Commands,
    help="Learn binary codes that survive quantisation, and search them.",
    epilog="For completion of commands and options by the shell (bash, zsh, fish, PowerShell): "
    "antipodal --install-completion, then open a new shell.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Bits = Annotated[int, typer.Option("--bits", min=1, help="Length of the codes.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything that is drawn.")]
# A URL may hold a password, which is better not on a command line: others can see that.
STORE_VARIABLE = "ANTIPODAL_STORE"
StoreUrl = Annotated[
    str | None,
    typer.Option(
        envvar=STORE_VARIABLE,
        help="A store: sqlite:///FILE, postgresql://…, milvus:///FILE or milvus+http://….",
    ),
]
# docs/reference/file-formats.md says more of them
TABLE = "FILE or FILE:COLUMN, or - for a .npy in a pipe"
TABLES = f".npy, .npz, .parquet, .feather, .csv or .jsonl, as {TABLE}"


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


def check_no_url(value: Given) -> Given:
    """Refuse the URL of a store where a file is asked for; a message would quote it."""
    # A Path has one slash where the URL had two. A single letter is a drive of Windows.
    if re.match(r"[A-Za-z0-9+]{2,}:/", str(value)):
        raise typer.BadParameter("this is a URL, not a file: is --store missing before it?")
    return value


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
    """Print one record per line."""
    typer.echo(json.dumps(record))


def say_next(*command: str) -> None:
    """Say which command may come next, to who reads it; what is in capitals is to be filled in."""
    typer.echo(f"Next: {shlex.join(['antipodal', *command])}")


def chosen_store(
    context: typer.Context, store: str | None, file: Path | None, option: str
) -> str | None:
    """Return the URL of the store, or None if a file is named: one of them must be.

    A file goes before a store that only the environment names.
    """
    source = context.get_parameter_source("store")
    if file is not None and source is not None and source.name == "ENVIRONMENT":
        return None
    if (store is None) == (file is None):
        raise typer.BadParameter(f"give --store URL or {option} FILE")
    return store


def require_service() -> None:
    """Say what to install if the service cannot be loaded."""
    try:
        import_module("antipodal.service.server")
    except ImportError as error:
        raise AntipodalError(missing_extra("the service", str(error.name), "serve")) from error


def open_known_store(url: str) -> "Store":
    """Open a store that is there already, or say how to make one."""
    from antipodal.stores import open_store

    try:
        return open_store(url)
    except NoStoreError as error:
        raise StoreError(
            f"there is no store at {error.place}: is the name right? "
            "`antipodal index CODES --store URL` makes one"
        ) from None

"""Command-line application: shared options, output, progress."""

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from antipodal.evaluation.report import Describe
    from antipodal.io.vectors import VectorFile
import json
import re
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, TypeVar

from typer.core import TyperGroup

from antipodal import __version__
from antipodal.errors import AntipodalError, NoStoreError, StoreError, missing_extra

if TYPE_CHECKING:
    from antipodal.stores import Store


if TYPE_CHECKING:
    from collections.abc import Callable

    from antipodal.paper.training import Epoch, Progress

    Bar = Callable[..., None]


@contextmanager
def bar(title: str) -> Iterator["Bar"]:
    """Show a bar with the time left on a terminal, and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeLeft())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as shown:
        task = shown.add_task(title, total=None)

        def show(done: int, total: int, note: str = "") -> None:
            shown.update(task, completed=done, total=total, description=title + note)

        yield show


@contextmanager
def training_progress(title: str) -> Iterator["Progress"]:
    """Show epochs and loss: a bar on a terminal, about ten lines elsewhere."""
    with bar(title) as show:

        def report(epoch: "Epoch") -> None:
            note = f", loss {epoch.loss:.3f}"
            if epoch.validation_loss is not None:
                note += f", held out {epoch.validation_loss:.3f}"
            show(epoch.number, epoch.n_epochs, note)
            step = max(1, epoch.n_epochs // 10)
            if not sys.stderr.isatty() and epoch.number % step == 0:
                typer.echo(f"{title}: epoch {epoch.number}/{epoch.n_epochs}{note}", err=True)

        yield report


def command_line() -> str:
    """Return the command that is running, as a shell would take it."""
    return f"antipodal {shlex.join(sys.argv[1:])}"


def model_text(path: Path, bits: int | None = None) -> str:
    """Say which model a file holds; refuse one that makes codes of another length."""
    from antipodal.io.model_file import open_model_file

    found = open_model_file(path, "hasher")
    header = found.header
    n_bits = dict(header.get("parameters") or {}).get("n_bits")
    if bits not in (None, n_bits):
        raise typer.BadParameter(f"{path} makes codes of {n_bits} bits, not {bits}")
    return (
        f"{path}: {header.get('class')}, {n_bits} bits, by antipodal {header.get('antipodal')}, "
        f"identity {found.identity}"
    )


def describer(
    metadata: Path | None, file: "VectorFile", columns: Sequence[str], title: str | None = None
) -> "Describe | None":
    """Return what looks up the metadata of rows: JSON lines, or columns beside the vectors.

    The column `title` stands in for a title, where there is no other.
    """
    if metadata is None and not columns:
        return None

    def records() -> Iterator[dict[str, Any]]:
        if metadata is None:
            return ({"title": row.get(title or ""), **row} for row in file.records(columns))
        from antipodal.io.jsonl import read_objects

        return (line.fields for line in read_objects(metadata))

    def describe(rows: Iterable[int]) -> dict[int, dict[str, Any]]:
        wanted = set(rows)
        found = {row: fields for row, fields in enumerate(records()) if row in wanted}
        missing = wanted - found.keys()
        if missing:
            raise ValueError(
                f"{metadata} must have an object for each row: there is none for row {min(missing)}"
            )
        return found

    return describe


Given = TypeVar("Given", str, Path | None)
_UsageError: Any = typer.BadParameter.__bases__[0]  # typer does not export it


class _Commands(TyperGroup):
    """The commands. What they say of a URL in the wrong place must not show its password."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the arguments name."""
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            from antipodal.stores.url import shown_url

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

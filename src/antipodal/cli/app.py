"""Command-line application: shared options, output and progress."""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from antipodal import __version__
from antipodal.errors import AntipodalError, NoStoreError, StoreError, missing_extra

if TYPE_CHECKING:
    from antipodal.client import Client
    from antipodal.collection import Collection
    from antipodal.evaluation.report import Describe
    from antipodal.hashers.base import BaseHasher
    from antipodal.io.vectors import VectorFile
    from antipodal.paper.training import Epoch, Progress
    from antipodal.stores import Store

_UsageError: Any = typer.BadParameter.__bases__[0]  # typer does not export it


# The order of `antipodal --help`: collections, stores, single steps, evaluation.
_ORDER = [
    "audit", "build", "search", "add", "get", "delete", "serve", "switch", "export", "info",
    "store", "fit", "encode", "index", "evaluate", "bench", "report", "datasets", "demo",
]  # fmt: skip


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Print a usage error as one line, without the password of a misplaced store URL."""
    try:
        yield
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise  # prints the help
        from antipodal.stores.url import shown_url

        # Up to the end of the text: a password may contain any character.
        text = re.sub(
            r"[^\s(']*(://|:\S*@).*",
            lambda url: shown_url(url[0]),
            error.format_message(),
            flags=re.DOTALL,
        )
        text = " ".join(text.removeprefix("Invalid value: ").split()).rstrip(".")
        names, context = [], error.ctx
        while context is not None and context.parent is not None:
            names.append(context.info_name)
            context = context.parent
        command = " ".join(["antipodal", *reversed(names)])
        end = "" if text.endswith("?") else "."
        typer.echo(f"{command}: {text}{end} See `{command} --help`", err=True)
        raise typer.Exit(2) from None


class _Commands(TyperGroup):
    """The group of all commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of the help."""
        return sorted(super().list_commands(ctx), key=_ORDER.index)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before the name of the command."""
        with _usage_errors():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command named by the arguments."""
        with _usage_errors():
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Commands,
    help="Compress embeddings to binary codes and search them.",
    epilog="Shell completion for bash, zsh, fish and PowerShell: run "
    "antipodal --install-completion, then open a new shell.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"antipodal {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


# Shared options

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Bits = Annotated[int, typer.Option("--bits", min=1, help="Code length in bits.")]
Seed = Annotated[int, typer.Option(min=0, help="Random seed.")]
Neighbours = Annotated[int, typer.Option("-k", min=1, help="Number of neighbours per query.")]
Metric = Annotated[
    str, typer.Option(help="Metric of the true neighbours: cosine, dot or euclidean.")
]


def limit_threads(context: typer.Context, n_threads: int | None) -> int | None:
    """Set the number of threads, before NumPy and Faiss are imported; restore it at the end."""
    if n_threads is not None:
        # Both are read by libraries when they are loaded, the first one also by `usable_cores`.
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            before = os.environ.get(name)
            os.environ[name] = str(n_threads)
            context.call_on_close(partial(_restore_variable, name, before))
    return n_threads


def _restore_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        callback=limit_threads,
        help="Maximum number of threads. Default: the cores that this process may use.",
    ),
]
# The variable keeps passwords out of the command line, which other users of the machine can read.
STORE_VARIABLE = "ANTIPODAL_STORE"
StoreUrl = Annotated[
    str | None,
    typer.Option(
        envvar=STORE_VARIABLE,
        help="Store URL: sqlite:///FILE, postgresql://…, milvus:///FILE or milvus+http://….",
    ),
]
Place = Annotated[
    str,
    typer.Argument(
        metavar="COLLECTION",
        help="Collection: a file, a store URL, or the http(s) URL of a service.",
    ),
]
Key = Annotated[str | None, typer.Option(envvar="ANTIPODAL_KEY", help="API key of a service.")]
# Described in docs/reference/file-formats.md.
TABLE = "FILE or FILE:COLUMN"
TABLES = (
    f"{TABLE} (.npy, .npz, .parquet, .feather, .csv, .jsonl), or - for a .npy array from "
    "standard input"
)


def split_commas(text: str | None) -> list[str]:
    """Return the comma-separated parts of an option; none if it is not given."""
    return [] if text is None else [part.strip() for part in text.split(",")]


Given = TypeVar("Given", str, Path | None)


def check_no_url(value: Given) -> Given:
    """Refuse a store URL in place of a file name, without quoting it: it may hold a password."""
    # A Path has one slash where the URL had two. A single letter is a Windows drive.
    if re.match(r"[A-Za-z0-9+]{2,}:/", str(value)):
        raise typer.BadParameter("expected a file, got a URL. Is --store missing before it?")
    return value


def chosen_store(
    context: typer.Context, store: str | None, file: Path | None, option: str
) -> str | None:
    """Return the store URL, or None if a file is given; exactly one of them is required.

    A file takes precedence over a store URL from the environment.
    """
    source = context.get_parameter_source("store")
    if file is not None and source is not None and source.name == "ENVIRONMENT":
        return None
    if (store is None) == (file is None):
        raise typer.BadParameter(f"pass either --store URL or {option} FILE")
    return store


@contextmanager
def _must_exist(kind: str) -> Iterator[None]:
    """Raise StoreError with a hint for a store or collection that does not exist."""
    try:
        yield
    except NoStoreError as error:
        raise StoreError(
            f"no {kind} exists at {error.place}. Is the name right? "
            "`antipodal build VECTORS --out COLLECTION` creates one"
        ) from None


def open_existing_store(place: str) -> "Store":
    """Open the store at a URL or path, or raise StoreError if it does not exist."""
    from antipodal.stores.engines import open_address
    from antipodal.stores.url import place_address

    with _must_exist("store"):
        return open_address(place_address(place))


def is_service(place: str | None) -> bool:
    """Return whether a collection is behind a service."""
    return place is not None and place.startswith(("http://", "https://"))


def open_collection(place: str, key: str | None = None) -> "Collection | Client":
    """Open a collection, or raise StoreError if it does not exist."""
    from antipodal.collection import Collection

    with _must_exist("collection"):
        return Collection.open(place, key=key)


def parse_ids(texts: Sequence[str], id_type: str) -> list[Any]:
    """Convert ids of the command line to the id type of a collection."""
    if id_type == "string":
        return list(texts)
    try:
        return [int(text) for text in texts]
    except ValueError:
        wrong = next(text for text in texts if not re.fullmatch(r"\s*[+-]?[0-9_]+\s*", text))
        raise ValueError(f"the ids of this collection are integers: got {wrong!r}") from None


def check_features(rows: "VectorFile", name: str, hasher: "BaseHasher", model: Path) -> None:
    """Raise ValueError if the rows do not have the number of features of the model."""
    if rows.n_features != hasher.n_features_in_:
        raise ValueError(
            f"{name} has {rows.n_features} features per row, {model} expects "
            f"{hasher.n_features_in_}. Was the model trained on other features?"
        )


def require_service() -> None:
    """Raise AntipodalError naming the missing extra if the service cannot be imported."""
    try:
        import_module("antipodal.service.server")
    except ImportError as error:
        raise AntipodalError(missing_extra("the service", str(error.name), "serve")) from error


# Output


def print_json(record: dict[str, Any]) -> None:
    """Print a record as one line of JSON."""
    typer.echo(json.dumps(record))


def print_table(title: str, headings: list[str], rows: list[list[str]]) -> None:
    """Print a table with a left-aligned first column and right-aligned others.

    A table wider than the terminal is printed in full, for `less -S`, rather than cut.
    """
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    table = Table(title=title)
    for column, heading in enumerate(headings):
        table.add_column(heading, justify="right" if column else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(soft_wrap=True)
    natural = Measurement.get(console, console.options.update(width=10_000), table).maximum
    console.width = max(console.width if console.is_terminal else 200, natural)
    console.print(table)


def print_next(*command: str) -> None:
    """Suggest the next command; words in capitals are placeholders."""
    typer.echo(f"Next: {shlex.join(['antipodal', *command])}")


@contextmanager
def bar(title: str, *, lines: bool = True) -> Iterator[Callable[..., None]]:
    """Show progress on standard error: a bar on a terminal, about ten lines otherwise.

    Without `lines`, nothing is printed if it is not a terminal.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeLeft())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as shown:
        task = shown.add_task(title, total=None)
        tenths = 0  # printed so far

        def show(done: int, total: int, note: str = "") -> None:
            nonlocal tenths
            shown.update(task, completed=done, total=total, description=title + note)
            reached = 10 * done // max(1, total)
            if lines and reached > tenths and not console.is_terminal:
                tenths = reached
                typer.echo(f"{title}: {done:,}/{total:,}{note}", err=True)

        yield show


@contextmanager
def training_progress(title: str) -> Iterator["Progress"]:
    """Show epochs and loss."""
    with bar(f"{title}, epochs") as show:

        def report(epoch: "Epoch") -> None:
            note = f", loss {epoch.loss:.3f}"
            if epoch.validation_loss is not None:
                note += f", validation loss {epoch.validation_loss:.3f}"
            show(epoch.number, epoch.n_epochs, note)

        yield report


# Contents of HTML reports


def command_line() -> str:
    """Return the running command, quoted for a shell."""
    return f"antipodal {shlex.join(sys.argv[1:])}"


def describe_model(path: Path, bits: int | None = None) -> str:
    """Return a description of a model file; refuse a model with another code length."""
    from antipodal.io.model_file import open_model_file

    found = open_model_file(path, "hasher")
    header = found.header
    n_bits = dict(header.get("parameters") or {}).get("n_bits")
    if bits not in (None, n_bits):
        raise typer.BadParameter(f"{path} has codes of {n_bits} bits, not {bits}")
    return (
        f"{path}: {header.get('class')}, {n_bits} bits, antipodal {header.get('antipodal')}, "
        f"identity {found.identity}"
    )


def metadata_lookup(
    metadata: Path | None, file: "VectorFile", columns: Sequence[str], title: str | None = None
) -> "Describe | None":
    """Return a function that looks up the metadata of rows.

    Metadata come from a file of JSON lines, or from columns of the vector file. The column
    `title` is used as the title of a row without one.
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
                f"{metadata} must have one object per row: row {min(missing)} has none"
            )
        return found

    return describe

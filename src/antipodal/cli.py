"""The command line: parse, call, print.

Exit codes: 0 done, 1 bad data (a file, an array, a disk), 2 bad usage. Results go to standard
output, progress to standard error.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antipodal import __version__
from antipodal.errors import AntipodalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from antipodal.siamese import Epoch, Progress

    Bar = Callable[..., None]

app = typer.Typer(
    help="Learn binary codes that survive quantisation, and search them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Bits = Annotated[int, typer.Option("--bits", min=1, help="Length of the codes.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything that is drawn.")]
ARRAY = "FILE.npy, or FILE.npz:NAME"


def main() -> None:
    """Run the command line; bad data is one line on standard error and exit code 1."""
    try:
        app()
    except (AntipodalError, OSError, ValueError, TypeError, FloatingPointError) as error:
        message = " ".join(str(error).split())
        print(f"antipodal: {message}", file=sys.stderr)
        sys.exit(1)


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


@app.command()
def demo(
    bits: Bits = 48,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images.")] = 300,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(help="Where model and codes go.")] = Path("antipodal-demo"),
    as_json: AsJson = False,
) -> None:
    """Learn codes of handwritten digits, score them beside rivals, show nearest images."""
    from antipodal.demo import Demo

    show = Demo(bits, epochs, seed)
    rows = show.split

    def say(text: str) -> None:
        if not as_json:
            typer.echo(text)

    say(
        f"{len(show.labels)} images of handwritten digits, 8 × 8 pixels: {len(rows.train)} labelled"
        f" for training, {len(rows.query)} queries, {len(rows.database)} in the database.\n"
    )
    with _training_progress(f"deep l∞ network, {bits} bits") as progress:
        scores = list(show.scores(progress))
    if as_json:
        for score in scores:
            record = {"method": score.method, "bits": bits, "seed": seed}
            _print_json(record | score.evaluation.to_dict() | {"fit_seconds": score.fit_seconds})
    else:
        _print_scores(scores, bits)
    model, codes = show.save(out)
    say(f"\nThe model is in {model}, the packed codes of the database in {codes}.")
    for found in show.neighbours(n_queries=3, k=5):
        captions = [f"query: {show.labels[found.query]}"] + [
            f"{show.labels[row]}, {distance} bit{'' if distance == 1 else 's'} off"
            for row, distance in zip(found.nearest, found.distances, strict=True)
        ]
        say("\n" + "\n".join(show.picture([found.query, *found.nearest.tolist()], captions)))


@app.command()
def fit(
    features: Annotated[str, typer.Argument(help=f"Training rows: {ARRAY}.")],
    model: Annotated[Path, typer.Option("--out", "-o", help="Where the model goes.")],
    labels: Annotated[
        str | None, typer.Option(help=f"A class a row, or multi-hot concepts: {ARRAY}.")
    ] = None,
    pairs: Annotated[
        str | None, typer.Option(help=f"Rows i, j, similar (1 or 0), instead of labels: {ARRAY}.")
    ] = None,
    method: Annotated[str, typer.Option(help="DeepLinf, ITQ or LSH.")] = "DeepLinf",
    bits: Bits = 64,
    seed: Seed = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A parameter of the method, NAME=VALUE; may be repeated."),
    ] = None,
    paper: Annotated[bool, typer.Option(help="DeepLinf in the setting of the paper.")] = False,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Keep the training's state here, and resume from it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Learn a hasher from features and labels (or pairs), and save it."""
    from antipodal.arrays import read_array
    from antipodal.hashers import NetworkHasher

    hasher = _new_hasher(method, bits, seed, settings or [], paper)
    trained = isinstance(hasher, NetworkHasher)
    if trained and (labels is None) == (pairs is None):
        raise typer.BadParameter(f"{method} learns from --labels or from --pairs: give one")
    if pairs is not None and not trained:
        raise typer.BadParameter(f"{method} does not learn from pairs")
    if checkpoint is not None and not trained:
        raise typer.BadParameter(f"{method} has no training to resume: leave --checkpoint out")
    rows = read_array(features)
    began = time.perf_counter()
    with _training_progress(f"{method}, {bits} bits") as progress:
        if isinstance(hasher, NetworkHasher):
            options: dict[str, Any] = {"progress": progress, "checkpoint": checkpoint}
            if pairs is not None:
                listed = read_array(pairs)
                if listed.ndim != 2 or listed.shape[1] != 3:
                    raise ValueError(
                        f"{pairs} must have three columns, i, j, similar: got {listed.shape}"
                    )
                hasher.fit_pairs(rows, listed[:, :2], listed[:, 2], **options)
            else:
                hasher.fit(rows, read_array(str(labels)), **options)
        else:
            hasher.fit(rows)
    seconds = time.perf_counter() - began
    hasher.save(model)
    record = {
        "model": str(model),
        "method": method,
        "bits": bits,
        "seed": seed,
        "rows": len(rows),
        "features": int(rows.shape[1]),
        "fit_seconds": round(seconds, 3),
    }
    if as_json:
        _print_json(record)
    else:
        typer.echo(
            f"{model}: {method}, {bits} bits, from {len(rows):,} rows of {rows.shape[1]:,} "
            f"features in {seconds:.1f} s"
        )


@app.command()
def encode(
    model: Annotated[Path, typer.Argument(help="Written by `antipodal fit`.")],
    features: Annotated[str, typer.Argument(help=f"Rows to encode: {ARRAY}.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the codes go, .npy.")],
    as_json: AsJson = False,
) -> None:
    """Turn features into packed binary codes, a block of rows at a time."""
    from antipodal.arrays import read_array, write_codes
    from antipodal.codes import code_width
    from antipodal.hashers import load

    hasher = load(model)
    rows = read_array(features)
    width = code_width(hasher.n_bits)
    began = time.perf_counter()
    with _bar("encoding") as show:

        def blocks() -> Iterator[Any]:
            done = 0
            for block in hasher.encode_blocks(rows):
                yield block
                done += len(block)
                show(done, len(rows))

        write_codes(out, blocks(), len(rows), width)
    seconds = time.perf_counter() - began
    if as_json:
        _print_json(
            {
                "codes": str(out),
                "rows": len(rows),
                "bits": hasher.n_bits,
                "bytes": len(rows) * width,
                "seconds": round(seconds, 3),
            }
        )
    else:
        typer.echo(f"{out}: {len(rows):,} codes of {hasher.n_bits} bits in {seconds:.1f} s")


@app.command()
def evaluate(
    queries: Annotated[str, typer.Argument(help=f"Packed codes of the queries: {ARRAY}.")],
    database: Annotated[str, typer.Argument(help=f"Packed codes of the database: {ARRAY}.")],
    query_labels: Annotated[str, typer.Option(help=f"Labels of the queries: {ARRAY}.")],
    database_labels: Annotated[str, typer.Option(help=f"Labels of the database: {ARRAY}.")],
    bits: Bits,
    radius: Annotated[list[int] | None, typer.Option(min=0, help="May be repeated.")] = None,
    top: Annotated[
        list[int] | None, typer.Option(min=1, help="Also mAP@k and MP@k; may be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score how well codes retrieve: mAP under every tie order, balls, bit health."""
    from antipodal.arrays import read_array
    from antipodal.metrics import evaluate as score

    result = score(
        read_array(queries),
        read_array(database),
        read_array(query_labels),
        read_array(database_labels),
        n_bits=bits,
        radii=tuple(radius or (0, 2)),
        top=tuple(top or ()),
    ).to_dict()
    if as_json:
        _print_json(result)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("measure", "value", title="values in percent, counts where whole")
    for name, value in result.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else f"{value:.4g}")
    Console().print(table)


def _new_hasher(method: str, bits: int, seed: int, settings: list[str], paper: bool) -> Any:
    """Make the hasher that the options describe; what they get wrong is bad usage."""
    from antipodal.hashers import HASHERS

    if method not in HASHERS:
        known = ", ".join(HASHERS)
        raise typer.BadParameter(f"unknown method {method!r}: choose from {known}")
    kind: Any = HASHERS[method]
    if paper and method != "DeepLinf":
        raise typer.BadParameter("--paper is a setting of DeepLinf")
    hasher = kind.paper(bits, random_state=seed) if paper else kind(bits, random_state=seed)
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or name not in hasher.get_params():
            raise typer.BadParameter(
                f"--set {setting}: expected NAME=VALUE with NAME one of "
                f"{', '.join(sorted(hasher.get_params()))}"
            )
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        hasher.set_params(**{name: value})
    return hasher


def _print_json(record: dict[str, Any]) -> None:
    typer.echo(json.dumps(record))


def _print_scores(scores: Any, bits: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("method", title=f"{bits} bits; percent; mAP is the mean over random tie orders")
    for heading in ("mAP", "worst to best", "P r≤2", "R r≤2", "empty r≤2", "fit, s"):
        table.add_column(heading, justify="right")
    for score in scores:
        r = score.evaluation.to_dict()
        table.add_row(
            score.method,
            f"{r['map']:.1f}",
            f"{r['map_worst']:.1f} to {r['map_best']:.1f}",
            f"{r['precision_r2']:.1f}",
            f"{r['recall_r2']:.1f}",
            f"{r['empty_r2']:.1f}",
            f"{score.fit_seconds:.1f}",
        )
    Console().print(table)


@contextmanager
def _bar(title: str) -> Iterator["Bar"]:
    """Show a bar with the time left on a terminal, and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeLeft())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=None)

        def show(done: int, total: int, note: str = "") -> None:
            bar.update(task, completed=done, total=total, description=title + note)

        yield show


@contextmanager
def _training_progress(title: str) -> Iterator["Progress"]:
    """Show epochs and loss: a bar on a terminal, about ten lines elsewhere."""
    with _bar(title) as show:

        def report(epoch: "Epoch") -> None:
            note = f", loss {epoch.loss:.3f}"
            if epoch.validation_loss is not None:
                note += f", held out {epoch.validation_loss:.3f}"
            show(epoch.number, epoch.n_epochs, note)
            step = max(1, epoch.n_epochs // 10)
            if not sys.stderr.isatty() and epoch.number % step == 0:
                typer.echo(f"{title}: epoch {epoch.number}/{epoch.n_epochs}{note}", err=True)

        yield report

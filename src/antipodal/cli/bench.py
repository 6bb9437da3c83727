"""`antipodal bench`."""

import sys
import time
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antipodal.cli.app import AsJson, app, bar, print_json, print_table, say_next
from antipodal.errors import AntipodalError
from antipodal.io.atomic import make_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from antipodal.bench.records import Record


# What messages for Python call the options of this command.
_OPTIONS = {
    "pass `dir`": "pass --data DIR",
    "n_train": "--train",
    "n_query": "--queries",
    "n_concepts": "--concepts",
}


def _by_options(message: object) -> str:
    """Return a message that names options where it named arguments."""
    text = str(message)
    for argument, option in _OPTIONS.items():
        text = text.replace(argument, option)
    return text


def _naming_options(command: "Callable[..., None]") -> "Callable[..., None]":
    """Have what a command raises name its options."""

    @wraps(command)
    def run(**options: Any) -> None:
        try:
            command(**options)
        except (AntipodalError, ValueError) as error:
            raise AntipodalError(_by_options(error)) from error

    return run


class DataSource(StrEnum):
    """What can be benchmarked."""

    cifar10 = "cifar10"
    nuswide = "nuswide"
    multilabel = "multilabel"
    idx = "idx"
    arrays = "arrays"
    digits = "digits"


_IMAGES = (DataSource.cifar10, DataSource.idx, DataSource.digits)


class Features(StrEnum):
    """What the rows of an image set are described by."""

    gist = "gist"
    pixels = "pixels"


class Protocol(StrEnum):
    """How the rows are split."""

    paper = "paper"
    unseen = "unseen"


@app.command(
    epilog="Example: antipodal bench digits --methods DeepLinf,ITQ --bits 32,64 --seeds 0-4"
)
@_naming_options
def bench(
    source: Annotated[DataSource, typer.Argument(metavar="DATASET", help=" | ".join(DataSource))],
    file: Annotated[
        Path | None,
        typer.Argument(help="For multilabel and arrays: FILE or FILE:COLUMN, with labels in it."),
    ] = None,
    labels_column: Annotated[
        str | None, typer.Option(help="Of that file; else y, Y, label or labels, if it has one.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Directory of the data; otherwise $ANTIPODAL_DATA.")
    ] = None,
    methods: Annotated[
        str,
        typer.Option(help="By commas; settings as NAME:parameter=value, your own as module:Class."),
    ] = "DeepLinf,ITQ,LSH",
    bits: Annotated[str, typer.Option(help="Code lengths.")] = "48,64",
    seeds: Annotated[str, typer.Option(help="Each draws a split and its methods' choices.")] = "0",
    protocol: Annotated[Protocol, typer.Option(help="Or classes never seen in training.")] = (
        Protocol.paper
    ),
    split: Annotated[
        Path | None, typer.Option(help="A saved split, in place of the protocol's.")
    ] = None,
    train: Annotated[
        int | None,
        typer.Option(min=1, help="Training rows per class [200], or in all if multi-label [5000]."),
    ] = None,
    queries: Annotated[int, typer.Option(min=1, help="Queries per class or concept.")] = 100,
    concepts: Annotated[int, typer.Option(min=1, help="Most frequent concepts that count.")] = 21,
    skip_concepts: Annotated[
        int, typer.Option(min=0, help="Leave out as many of the most frequent concepts.")
    ] = 0,
    features: Annotated[
        Features | None, typer.Option(help="Of images: gist for cifar10, pixels otherwise.")
    ] = None,
    mirrored: Annotated[
        bool,
        typer.Option("--mirrored", help="Learn from mirror images too, and average over both."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Records, one per line; cells found there are not run again."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Cells at a time; by default one per core.")
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Draw figures too, as SVG and PNG."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit and score methods × code lengths × seeds; stop it when you like, and it goes on."""
    lengths, chosen = _whole_numbers(bits, "--bits", 1), _whole_numbers(seeds, "--seeds", 0)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names:
        raise typer.BadParameter("--methods: give at least one")
    if (file is None) == (source in (DataSource.multilabel, DataSource.arrays)):
        wanted = "needs a FILE" if file is None else "takes no FILE"
        raise typer.BadParameter(f"bench {source} {wanted}")
    if labels_column is not None and file is None:
        raise typer.BadParameter(f"--labels-column is for a FILE, and bench {source} takes none")
    if features is not None and source not in _IMAGES:
        raise typer.BadParameter(f"--features is for images, and {source} has none")
    from antipodal.bench.records import appending
    from antipodal.bench.runner import Benchmark, grid, load_dataset, run_cells
    from antipodal.bench.workers import available_cores
    from antipodal.datasets import Split

    try:
        cells = grid(names, lengths, chosen)
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    if out is None or not out.exists():
        make_folder("." if out is None else out.parent)
    else:
        with appending(out):  # nothing yet: see that it can be, and that no other run has it
            pass
    if figures is not None:
        from antipodal.bench.figures import draw_figures, prepare_directory

        prepare_directory(figures)  # now: what is missing should not show after hours
    dataset = load_dataset(
        source, file or data, features=features, skip_concepts=skip_concepts, labels=labels_column
    )
    given = None if split is None else Split.load(split, len(dataset))
    benchmark = Benchmark(dataset, protocol, train, queries, concepts, given, mirrored)
    path = out or Path(f"antipodal-bench-{dataset.name}.jsonl")
    began, failed = time.perf_counter(), 0
    with appending(path) as file_of_records, bar(dataset.name) as show:
        records = benchmark.matching(cells, file_of_records.found)
        for record in records.values() if as_json else ():
            print_json(record)
        waiting = [cell for cell in cells if cell not in records]
        if records:
            _say(f"{len(records)} of {len(cells)} cells are in {path} already")
        show(0, len(waiting))
        outcomes = run_cells(benchmark, waiting, processes or available_cores())
        for done, (cell, outcome) in enumerate(outcomes, start=1):
            name = f"{cell.method}, {cell.bits} bits, seed {cell.seed}"
            show(done, len(waiting), f", {name}")
            if isinstance(outcome, Exception):
                failed += 1
                _say(f"{name}: {_by_options(outcome)}")
                continue
            file_of_records.append(outcome)
            records[cell] = outcome
            if as_json:
                print_json(outcome)
            if not sys.stderr.isatty():
                left = (time.perf_counter() - began) / done * (len(waiting) - done)
                _say(f"{name}: mAP {outcome['map']:.2f}; {done}/{len(waiting)}, {left:.0f} s left")
    found = [records[cell] for cell in cells if cell in records]
    if not as_json and found:
        _print_table(found, path)
    if figures is not None:
        draw_figures(
            benchmark, figures, methods=names, lengths=lengths, seeds=chosen, records=found,
            images=dataset.images, say=_say,
        )  # fmt: skip
    if failed:
        raise typer.Exit(1)


def _print_table(records: "list[Record]", path: Path) -> None:
    from antipodal.bench.tables import chance, table

    title = (
        f"{records[0]['dataset']}, percent, mean ± standard deviation over seeds (paper); "
        f"a random order scores {chance(records)}"
    )
    headings, *rows = table(records)
    print_table(title, headings, rows)
    typer.echo(f"The records are in {path}.")
    say_next("report", str(path))


def _whole_numbers(text: str, option: str, least: int) -> list[int]:
    """Read "48,64" or "0-4"."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.strip().isdecimal() or (dash and not last.strip().isdecimal()):
            raise typer.BadParameter(
                f"{option} {text}: expected whole numbers, such as 48,64 or 0-4"
            )
        numbers += range(int(first), int(last if dash else first) + 1)
    if not numbers or min(numbers) < least:
        raise typer.BadParameter(f"{option} {text}: expected numbers from {least}")
    return list(dict.fromkeys(numbers))


def _say(text: str) -> None:
    typer.echo(text, err=True)

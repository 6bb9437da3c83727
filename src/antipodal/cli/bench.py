"""`antipodal bench` and `antipodal datasets`."""

import sys
import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antipodal.cli.app import AsJson, app, bar, print_json, print_next, print_table
from antipodal.errors import AntipodalError
from antipodal.io.atomic import make_folder

if TYPE_CHECKING:
    from antipodal.bench.records import Record

# Python arguments in error messages of the library, and the options that set them.
_OPTIONS = {
    "pass `dir`": "pass --data DIR",
    "n_train": "--train",
    "n_query": "--queries",
    "n_concepts": "--concepts",
}
_warn = partial(typer.echo, err=True)


def _with_option_names(message: object) -> str:
    """Return an error message with the names of Python arguments replaced by options."""
    text = str(message)
    for argument, option in _OPTIONS.items():
        text = text.replace(argument, option)
    return text


def _naming_options(command: Callable[..., None]) -> Callable[..., None]:
    """Translate Python arguments in the errors of a command to options."""

    @wraps(command)
    def run(**options: Any) -> None:
        try:
            command(**options)
        except (AntipodalError, ValueError) as error:
            raise AntipodalError(_with_option_names(error)) from error

    return run


class DataSource(StrEnum):
    """Datasets of a benchmark, and formats of custom ones."""

    cifar10 = "cifar10"
    nuswide = "nuswide"
    multilabel = "multilabel"
    idx = "idx"
    arrays = "arrays"
    digits = "digits"


_IMAGES = (DataSource.cifar10, DataSource.idx, DataSource.digits)


class Features(StrEnum):
    """Image features."""

    gist = "gist"
    pixels = "pixels"


class Protocol(StrEnum):
    """Protocols that split the rows into training, query and database sets."""

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
        typer.Argument(
            help="FILE or FILE:COLUMN of features and labels, for multilabel and arrays."
        ),
    ] = None,
    labels_column: Annotated[
        str | None,
        typer.Option(help="Label column of FILE. Default: y, Y, label or labels."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Data directory. Default: $ANTIPODAL_DATA.")
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Comma-separated methods, with settings as NAME:parameter=value. A custom method "
            "is module:Class."
        ),
    ] = "DeepLinf,ITQ,LSH",
    bits: Annotated[str, typer.Option(help="Comma-separated code lengths.")] = "48,64",
    seeds: Annotated[
        str, typer.Option(help="Random seeds of splits and methods, such as 0,1 or 0-4.")
    ] = "0",
    protocol: Annotated[
        Protocol, typer.Option(help="Split protocol. unseen: query classes have no training rows.")
    ] = Protocol.paper,
    split: Annotated[
        Path | None,
        typer.Option(help="File written by Split.save: use this split, not the protocol's."),
    ] = None,
    train: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Training rows per class [200, digits: 50], or in total if multi-label [5000].",
        ),
    ] = None,
    queries: Annotated[
        int | None,
        typer.Option(min=1, help="Queries per class or concept [100, digits: 20]."),
    ] = None,
    concepts: Annotated[
        int, typer.Option(min=1, help="Number of most frequent concepts to use.")
    ] = 21,
    skip_concepts: Annotated[
        int, typer.Option(min=0, help="Number of most frequent concepts to omit.")
    ] = 0,
    features: Annotated[
        Features | None,
        typer.Option(help="Image features. Default: gist for cifar10, otherwise pixels."),
    ] = None,
    mirrored: Annotated[
        bool,
        typer.Option(
            "--mirrored", help="Also train on mirrored images, and average the outputs of both."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Records file, one JSON object per line. Finished cells are not rerun."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Number of parallel processes. Default: one per core.")
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also draw figures into this directory, as SVG and PNG."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Benchmark methods across code lengths and seeds. Interrupted runs resume."""
    lengths, chosen = _parse_numbers(bits, "--bits", 1), _parse_numbers(seeds, "--seeds", 0)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names:
        raise typer.BadParameter("--methods: expected at least one method")
    if (file is None) == (source in (DataSource.multilabel, DataSource.arrays)):
        problem = "needs a FILE" if file is None else "takes no FILE"
        raise typer.BadParameter(f"bench {source} {problem}")
    if labels_column is not None and file is None:
        raise typer.BadParameter(f"--labels-column needs a FILE, and bench {source} takes none")
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
        with appending(out):  # fail now if the file is not writable or another run uses it
            pass
    if figures is not None:
        from antipodal.bench.figures import draw_figures, prepare_directory

        prepare_directory(figures)  # fail now, not after hours of training
    dataset = load_dataset(
        source, file or data, features=features, skip_concepts=skip_concepts, labels=labels_column
    )
    saved_split = None if split is None else Split.load(split, len(dataset))
    if source is DataSource.digits:  # about 180 rows per class
        train, queries = train or 50, queries or 20
    benchmark = Benchmark(dataset, protocol, train, queries or 100, concepts, saved_split, mirrored)
    benchmark.draw(chosen[0])  # fail now if a class has too few rows, not once per cell
    path = out or Path(f"antipodal-bench-{dataset.name}.jsonl")
    began, n_failed = time.perf_counter(), 0
    with appending(path) as record_file, bar(dataset.name, lines=False) as show:
        records = benchmark.matching(cells, record_file.found)
        for record in records.values() if as_json else ():
            print_json(record)
        pending = [cell for cell in cells if cell not in records]
        if records:
            _warn(f"{len(records)} of {len(cells)} cells are already in {path}")
        show(0, len(pending))
        outcomes = run_cells(benchmark, pending, processes or available_cores())
        for done, (cell, outcome) in enumerate(outcomes, start=1):
            name = f"{cell.method}, {cell.bits} bits, seed {cell.seed}"
            show(done, len(pending), f", {name}")
            if isinstance(outcome, Exception):
                n_failed += 1
                _warn(f"{name}: {_with_option_names(outcome)}")
                continue
            record_file.append(outcome)
            records[cell] = outcome
            if as_json:
                print_json(outcome)
            if not sys.stderr.isatty():
                left = (time.perf_counter() - began) / done * (len(pending) - done)
                _warn(f"{name}: mAP {outcome['map']:.2f}; {done}/{len(pending)}, {left:.0f} s left")
    finished = [records[cell] for cell in cells if cell in records]
    if not as_json and finished:
        _print_scores(finished, path)
    if figures is not None:
        draw_figures(
            benchmark, figures, methods=names, lengths=lengths, seeds=chosen, records=finished,
            images=dataset.images, say=_warn,
        )  # fmt: skip
    if n_failed:
        raise typer.Exit(1)


def _print_scores(records: "list[Record]", path: Path) -> None:
    from antipodal.bench.tables import chance, table

    headings, *rows = table(records)
    print_table(
        f"{records[0]['dataset']}, percent, mean ± standard deviation over seeds (paper); "
        f"random order: {chance(records)}",
        headings,
        rows,
    )
    typer.echo(f"Records: {path}")
    print_next("report", str(path))


def _parse_numbers(text: str, option: str, least: int) -> list[int]:
    """Parse "48,64" or "0-4"."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.strip().isdecimal() or (dash and not last.strip().isdecimal()):
            raise typer.BadParameter(
                f"{option} {text}: expected whole numbers, such as 48,64 or 0-4"
            )
        if dash and int(last) < int(first):
            raise typer.BadParameter(f"{option} {text}: the range {part} must ascend")
        numbers += range(int(first), int(last if dash else first) + 1)
    if min(numbers) < least:
        raise typer.BadParameter(f"{option} {text}: expected numbers of at least {least}")
    return list(dict.fromkeys(numbers))


_DATASETS = {
    "cifar10": "60,000 colour images, 32 × 32, 10 classes",
    "mnist": "70,000 handwritten digits, 28 × 28, 10 classes",
    "fashion-mnist": "70,000 greyscale images of clothes, 28 × 28, 10 classes",
    "nuswide": "269,648 photographs as 500 visual words, 81 concepts; requires registration",
    "digits": "1,797 handwritten digits, 8 × 8, 10 classes; included in scikit-learn",
}


@app.command(epilog="Example: antipodal datasets cifar10 --data data")
def datasets(
    name: Annotated[
        str | None, typer.Argument(help="Dataset to download: cifar10, mnist or fashion-mnist.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Directory. Default: $ANTIPODAL_DATA, or a cache directory."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the benchmark datasets, or download one."""
    from antipodal.datasets.download import SOURCES, download

    if name is None:
        for each, description in _DATASETS.items():
            command = f"antipodal datasets {each}" if each in SOURCES else None
            if as_json:
                print_json({"dataset": each, "description": description, "download": command})
            else:
                typer.echo(f"{each:14} {description}" + (f"; {command}" if command else ""))
        return
    if name not in SOURCES:
        raise typer.BadParameter(f"cannot download {name!r}: expected {', '.join(SOURCES)}")
    with bar(name) as show:
        path = download(name, data, progress=show)
    if as_json:
        print_json({"dataset": name, "path": str(path)})
    else:
        typer.echo(f"{name}: {path}")
        print_next("bench", "cifar10" if name == "cifar10" else "idx", "--data", str(path))

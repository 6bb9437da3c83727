"""`antipodal fit` and `encode`."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from antipodal.cli.app import (
    TABLE,
    TABLES,
    AsJson,
    Bits,
    Seed,
    Threads,
    app,
    bar,
    check_features,
    limit_threads,
    print_json,
    print_next,
    split_commas,
    training_progress,
)
from antipodal.cli.outputs import ARRAY, MODEL, Force, check_output
from antipodal.errors import AntipodalError, missing_extra
from antipodal.io.atomic import check_writable


class BulkEngine(Enum):
    """Engines that encode folders of parquet files."""

    local = "local"
    ray = "ray"


@app.command(
    epilog="Example: antipodal fit features.npy --labels labels.npy --bits 64 --out model.antipodal"
)
def fit(
    features: Annotated[str, typer.Argument(help=f"Training features: {TABLES}.")],
    model: Annotated[Path, typer.Option("--out", "-o", help="Model file to write.")],
    labels: Annotated[
        str | None, typer.Option(help=f"Class labels, or multi-hot concepts: {TABLE}.")
    ] = None,
    labels_column: Annotated[
        str | None, typer.Option(help="Label column of the feature file.")
    ] = None,
    pairs: Annotated[
        str | None,
        typer.Option(help=f"Pairs of rows instead of labels: i, j, similar (1 or 0): {TABLE}."),
    ] = None,
    unlabelled: Annotated[
        str | None,
        typer.Option(help=f"Additional features without labels, for networks: {TABLE}."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(help="Method, such as DeepLinf, KSH or ITQ. A custom method is module:Class."),
    ] = "DeepLinf",
    bits: Bits = 64,
    seed: Seed = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Method parameter as NAME=VALUE. Repeatable."),
    ] = None,
    paper: Annotated[
        bool, typer.Option(help="Use DeepLinf with the settings of the paper.")
    ] = False,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Checkpoint file. Interrupted training resumes from it.")
    ] = None,
    force: Force = False,
    threads: Annotated[
        int,
        typer.Option(
            min=1,
            callback=limit_threads,
            help="Number of threads. A seed determines the model on one thread only.",
        ),
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Train a model on features with labels, pairs or neither, and save it."""
    import numpy as np
    from sklearn.utils import get_tags

    from antipodal.hashers.network import NetworkHasher
    from antipodal.hashers.registry import make_hasher
    from antipodal.io.vectors import open_vectors, read_column
    from antipodal.threads import all_threads

    if paper and method != "DeepLinf":
        raise typer.BadParameter(f"--paper is for DeepLinf, not {method}")
    try:
        hasher = make_hasher("DeepLinf.paper" if paper else method, bits, seed, settings or [])
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    trained = isinstance(hasher, NetworkHasher)
    if labels is not None and labels_column is not None:
        raise typer.BadParameter("pass --labels or --labels-column, not both")
    has_labels = labels is not None or labels_column is not None
    if trained and has_labels == (pairs is not None):
        raise typer.BadParameter(f"{method} needs either --labels or --pairs")
    if unlabelled is not None and (pairs is not None or not hasher.uses_unlabelled):
        reason = f"{method} does not use" if pairs is None else "--pairs cannot be combined with"
        raise typer.BadParameter(f"{reason} --unlabelled")
    if pairs is not None and not trained:
        raise typer.BadParameter(f"{method} does not use --pairs")
    if not has_labels and not trained and get_tags(hasher).target_tags.required:
        raise typer.BadParameter(f"{method} needs --labels or --labels-column")
    if checkpoint is not None and not trained:
        raise typer.BadParameter(f"{method} has no training to resume: remove --checkpoint")
    check_output(model, MODEL, force)  # fail now, not after hours of training
    if checkpoint is not None:
        check_writable(checkpoint)
    if has_labels and not hasher.uses_labels:
        typer.echo(f"{method} does not use labels: {labels or labels_column} is ignored", err=True)
        has_labels = False
    label_columns = [] if labels_column is None else [labels_column]
    file = open_vectors(features, leave_out=label_columns)
    y = None
    if has_labels:
        y = read_column(labels) if labels is not None else file.column(label_columns[0])
    rows = np.asarray(file)
    began = time.perf_counter()
    try:
        with (
            all_threads() if threads > 1 else nullcontext(),
            training_progress(f"{method}, {bits} bits") as progress,
        ):
            if isinstance(hasher, NetworkHasher):
                options: dict[str, Any] = {"progress": progress, "checkpoint": checkpoint}
                if pairs is not None:
                    listed = np.asarray(open_vectors(pairs, text_dtype=np.int64))
                    if listed.shape[1] != 3:
                        raise ValueError(
                            f"{pairs} must have three columns, i, j, similar: got shape "
                            f"{listed.shape}"
                        )
                    hasher.fit_pairs(rows, listed[:, :2], listed[:, 2], **options)
                else:
                    if unlabelled is not None:
                        options["unlabelled"] = open_vectors(unlabelled, leave_out=label_columns)
                    hasher.fit(rows, y, **options)
            else:
                if not sys.stderr.isatty():
                    typer.echo(f"{method}, {bits} bits: fitting on {len(rows):,} rows", err=True)
                hasher.fit(rows, y)
    except KeyboardInterrupt:
        typer.echo(f"antipodal: interrupted. {_interrupted_state(trained, checkpoint)}", err=True)
        raise typer.Exit(130) from None
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
        print_json(record)
    else:
        typer.echo(
            f"{model}: {method}, {bits} bits, trained on {len(rows):,} rows of "
            f"{rows.shape[1]:,} features in {seconds:.1f} s"
        )
        print_next("build", "VECTORS", "--model", str(model), "--out", "docs.db")


def _interrupted_state(trained: bool, checkpoint: Path | None) -> str:
    """Describe the files that an interrupted `fit` leaves."""
    if not trained:
        return "No model was written"
    if checkpoint is None:
        return "Nothing was saved. With --checkpoint FILE, the same command would resume"
    if not checkpoint.exists():
        return f"{checkpoint} was not written yet"
    return f"Run the same command again to resume from {checkpoint}"


@app.command(epilog="Example: antipodal encode model.antipodal features.npy --out codes.npy")
def encode(
    model: Annotated[Path, typer.Argument(help="Model file written by `antipodal fit`.")],
    features: Annotated[str, typer.Argument(help=f"Features to encode: {TABLES}.")],
    out: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            help="Output: a .npy file, - for standard output, or FOLDER/ for parquet files. Input "
            "of several parquet files is written to a folder, unless the name ends in .npy.",
        ),
    ],
    columns: Annotated[
        str | None,
        typer.Option(help="Folder output: comma-separated columns to copy, such as id,title."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Folder output: resume an interrupted run.")
    ] = False,
    engine: Annotated[
        BulkEngine, typer.Option(help="Folder output: encode on this machine or with Ray.")
    ] = BulkEngine.local,
    address: Annotated[
        str | None, typer.Option(help="Address of a running Ray cluster, such as auto.")
    ] = None,
    force: Force = False,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Encode features as packed binary codes, in blocks of rows.

    The output is one array, or a folder. For a folder, the input is a parquet file, folder or
    pattern, and each input file becomes one parquet file of columns and codes.
    """
    if _is_folder_output(features, out):
        if address is not None and engine is not BulkEngine.ray:
            raise typer.BadParameter("--address needs --engine ray")
        copied = None if columns is None else split_commas(columns)
        _encode_folder(model, features, out, copied, resume, engine, address, as_json)
        return
    if columns is not None or resume or engine is not BulkEngine.local or address is not None:
        raise typer.BadParameter(
            f"--columns, --resume, --engine and --address are for folder output: use --out {out}/"
        )
    _encode_array(model, features, Path(out), force, as_json)


def _is_folder_output(features: str, out: str) -> bool:
    """Return whether the codes are written to a folder; refuse the names of other formats."""
    from antipodal.io.formats import NPY, PARQUET, find_files, format_of_name, split_column

    if out.endswith(("/", os.sep)) or os.path.isdir(out):
        return True
    named = format_of_name(out)
    if named not in (None, NPY):
        raise typer.BadParameter(
            f"codes are written to a NumPy array or a folder of parquet files: expected --out "
            f"NAME.npy or --out FOLDER/, got {out}, the name of {named.description}"
        )
    place, _ = split_column(features)
    if out == "-" or named is NPY or os.path.isfile(place):
        return False
    return find_files(place)[0].format is PARQUET


def _encode_folder(
    model: Path,
    source: str,
    out: str,
    columns: list[str] | None,
    resume: bool,
    engine: BulkEngine,
    address: str | None,
    as_json: bool,
) -> None:
    try:
        from antipodal.bulk import encode as encode_folder
    except ImportError as error:
        message = missing_extra("folder output", str(error.name), "arrow")
        raise AntipodalError(message) from error

    began = time.perf_counter()
    with bar("encode") as show:
        report = encode_folder(
            model, source, out, columns=columns, engine=engine.value, address=address,
            resume=resume, progress=show,
        )  # fmt: skip
    seconds = time.perf_counter() - began
    if as_json:
        print_json({"codes": out, **report._asdict(), "seconds": round(seconds, 3)})
    else:
        files = "file" if report.files == 1 else "files"
        typer.echo(
            f"{out}: {report.rows:,} rows in {report.files:,} {files}, "
            f"{report.files_encoded:,} of them encoded by this run, in {seconds:.1f} s"
        )
        print_next("index", f"{out}:code", "--store", "sqlite:///items.db", "--model", str(model))


def _encode_array(model: Path, features: str, out: Path, force: bool, as_json: bool) -> None:
    from antipodal.codes import code_width
    from antipodal.hashers.registry import load
    from antipodal.io.numpy_files import write_codes
    from antipodal.io.vectors import open_vectors

    if str(out) != "-":
        check_output(out, ARRAY, force)
    hasher = load(model)
    rows = open_vectors(features)
    check_features(rows, features, hasher, model)
    width = code_width(hasher.n_bits)
    began = time.perf_counter()
    with bar("encode") as show:

        def blocks() -> Iterator[Any]:
            done = 0
            for block in hasher.encode_blocks(rows):
                yield block
                done += len(block)
                show(done, len(rows))

        write_codes(out, blocks(), len(rows), width)
    seconds = time.perf_counter() - began
    if str(out) == "-":  # standard output holds the codes
        return
    if as_json:
        print_json(
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
        print_next("index", str(out), "--store", "sqlite:///items.db", "--model", str(model))

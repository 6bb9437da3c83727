"""`antipodal fit` and `encode`."""

import os
import time
from collections.abc import Iterator
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
    app,
    bar,
    print_json,
    say_next,
    training_progress,
)
from antipodal.cli.outputs import ARRAY, MODEL, Force, check_output
from antipodal.errors import AntipodalError, missing_extra
from antipodal.io.atomic import check_writable


class BulkEngine(Enum):
    """What encodes a folder."""

    local = "local"
    ray = "ray"


@app.command(
    epilog="Example: antipodal fit features.npy --labels labels.npy --bits 64 --out model.antipodal"
)
def fit(
    features: Annotated[str, typer.Argument(help=f"Training rows: {TABLES}.")],
    model: Annotated[Path, typer.Option("--out", "-o", help="Where the model goes.")],
    labels: Annotated[
        str | None, typer.Option(help=f"A class per row, or multi-hot concepts: {TABLE}.")
    ] = None,
    labels_column: Annotated[
        str | None, typer.Option(help="Or a column of the file of the training rows.")
    ] = None,
    pairs: Annotated[
        str | None, typer.Option(help=f"Rows i, j, similar (1 or 0), instead of labels: {TABLE}.")
    ] = None,
    unlabelled: Annotated[
        str | None,
        typer.Option(help=f"More rows, without labels, for a network to learn from: {TABLE}."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="Such as DeepLinf, KSH or ITQ; your own as module:Class.")
    ] = "DeepLinf",
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
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Learn a hasher from features and labels (or pairs), and save it."""
    import numpy as np
    from sklearn.utils import get_tags

    from antipodal.hashers.network import NetworkHasher
    from antipodal.hashers.registry import make_hasher
    from antipodal.io.vectors import open_vectors, read_column

    if paper and method != "DeepLinf":
        raise typer.BadParameter("--paper is a setting of DeepLinf")
    try:
        hasher = make_hasher("DeepLinf.paper" if paper else method, bits, seed, settings or [])
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    trained = isinstance(hasher, NetworkHasher)
    if labels is not None and labels_column is not None:
        raise typer.BadParameter("give --labels or --labels-column, not both")
    has_labels = labels is not None or labels_column is not None
    if trained and has_labels == (pairs is not None):
        raise typer.BadParameter(f"{method} learns from --labels or from --pairs: give one")
    if unlabelled is not None and (pairs is not None or not hasher.uses_unlabelled):
        why = f"{method} does not" if pairs is None else "pairs name no classes, so it cannot"
        raise typer.BadParameter(f"{why} learn from rows without labels: leave --unlabelled out")
    if pairs is not None and not trained:
        raise typer.BadParameter(f"{method} does not learn from pairs")
    if not has_labels and not trained and get_tags(hasher).target_tags.required:
        raise typer.BadParameter(f"{method} learns from --labels: give them")
    if checkpoint is not None and not trained:
        raise typer.BadParameter(f"{method} has no training to resume: leave --checkpoint out")
    check_output(model, MODEL, force)  # now, not after hours of training
    if checkpoint is not None:
        check_writable(checkpoint)
    if has_labels and not hasher.uses_labels:
        typer.echo(
            f"{method} does not learn from labels: {labels or labels_column} is not used", err=True
        )
        has_labels = False
    others = [] if labels_column is None else [labels_column]
    file = open_vectors(features, leave_out=others)
    y = None
    if has_labels:
        y = read_column(labels) if labels is not None else file.column(others[0])
    rows = np.asarray(file)
    began = time.perf_counter()
    try:
        with training_progress(f"{method}, {bits} bits") as progress:
            if isinstance(hasher, NetworkHasher):
                options: dict[str, Any] = {"progress": progress, "checkpoint": checkpoint}
                if pairs is not None:
                    listed = np.asarray(open_vectors(pairs, text_dtype=np.int64))
                    if listed.shape[1] != 3:
                        raise ValueError(
                            f"{pairs} must have three columns, i, j, similar: got {listed.shape}"
                        )
                    hasher.fit_pairs(rows, listed[:, :2], listed[:, 2], **options)
                else:
                    if unlabelled is not None:
                        options["unlabelled"] = open_vectors(unlabelled, leave_out=others)
                    hasher.fit(rows, y, **options)
            else:
                hasher.fit(rows, y)
    except KeyboardInterrupt:
        typer.echo(f"antipodal: interrupted, {_what_is_kept(trained, checkpoint)}", err=True)
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
            f"{model}: {method}, {bits} bits, from {len(rows):,} rows of {rows.shape[1]:,} "
            f"features in {seconds:.1f} s"
        )
        say_next("encode", str(model), "FEATURES", "--out", "codes.npy")


def _what_is_kept(trained: bool, checkpoint: Path | None) -> str:
    """Say what an interrupted `fit` leaves."""
    if not trained:
        return "and no model was written"
    if checkpoint is None:
        return (
            "and nothing was kept. With --checkpoint FILE the same command goes on where it stopped"
        )
    if not checkpoint.exists():
        return f"before there was a state to keep in {checkpoint}"
    return f"the state of the training is in {checkpoint}: the same command goes on from there"


@app.command(epilog="Example: antipodal encode model.antipodal features.npy --out codes.npy")
def encode(
    model: Annotated[Path, typer.Argument(help="Written by `antipodal fit`.")],
    features: Annotated[str, typer.Argument(help=f"Rows to encode: {TABLES}.")],
    out: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            help="Where the codes go: .npy, - for a pipe, or FOLDER/ for parquet to parquet.",
        ),
    ],
    columns: Annotated[
        str | None,
        typer.Option(help="To a folder: columns to keep beside the codes, such as id,title."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="To a folder: go on with what an earlier run left.")
    ] = False,
    engine: Annotated[
        BulkEngine, typer.Option(help="To a folder: on this machine, or by Ray Data.")
    ] = BulkEngine.local,
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster that is running, such as auto.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Turn features into packed binary codes, a block of rows at a time.

    Codes go to one array or, from a file, folder or pattern of parquet, to a folder with a file
    for each of these: its columns, and their codes.
    """
    if out.endswith(("/", os.sep)) or os.path.isdir(out):
        if address is not None and engine is not BulkEngine.ray:
            raise typer.BadParameter("--address is that of a Ray cluster: give --engine ray too")
        kept = None if columns is None else [name.strip() for name in columns.split(",")]
        _encode_folder(model, features, out, kept, resume, engine, address, as_json)
        return
    if columns is not None or resume or engine is not BulkEngine.local or address is not None:
        raise typer.BadParameter(
            "--columns, --resume, --engine and --address are for codes that go to a folder: "
            f"--out {out}/"
        )
    _encode_array(model, features, Path(out), force, as_json)


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
        message = missing_extra("codes in a folder", str(error.name), "arrow")
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
            f"{report.files_encoded:,} encoded now, in {seconds:.1f} s"
        )
        say_next("index", f"{out}:code", "--store", "sqlite:///items.db", "--model", str(model))


def _encode_array(model: Path, features: str, out: Path, force: bool, as_json: bool) -> None:
    from antipodal.codes import code_width
    from antipodal.hashers.registry import load
    from antipodal.io.numpy_files import write_codes
    from antipodal.io.vectors import open_vectors

    if str(out) != "-":
        check_output(out, ARRAY, force)
    hasher = load(model)
    rows = open_vectors(features)
    if rows.n_features != hasher.n_features_in_:
        raise ValueError(
            f"{features} has {rows.n_features} features per row, and {model} was learned from "
            f"{hasher.n_features_in_}"
        )
    width = code_width(hasher.n_bits)
    began = time.perf_counter()
    with bar("encoding") as show:

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
        say_next("index", str(out), "--store", "sqlite:///items.db", "--model", str(model))

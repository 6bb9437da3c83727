"""`antipodal export`."""

from pathlib import Path
from typing import Annotated

import typer

from antipodal.cli.app import AsJson, app, print_json
from antipodal.cli.outputs import ONNX, Force, check_output


@app.command(epilog="Example: antipodal export model.antipodal --onnx model.onnx")
def export(
    model: Annotated[Path, typer.Argument(help="Written by `antipodal fit`.")],
    onnx: Annotated[
        Path, typer.Option("--onnx", help="Where the model for ONNX runtimes goes, .onnx.")
    ],
    licence: Annotated[
        str | None, typer.Option(help="Of the data it was learned from, for its metadata.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a model for runtimes without Python: features in, packed codes out."""
    from antipodal.hashers.registry import load
    from antipodal.io.model_file import model_identity

    check_output(onnx, ONNX, force)
    hasher, identity = load(model), model_identity(model)
    hasher.to_onnx(onnx, identity=identity, licence=licence)
    if as_json:
        print_json(
            {
                "onnx": str(onnx),
                "method": type(hasher).__name__,
                "bits": hasher.n_bits,
                "features": hasher.n_features_in_,
                "model": identity,
                "bytes": onnx.stat().st_size,
            }
        )
    else:
        typer.echo(
            f"{onnx}: {type(hasher).__name__}, {hasher.n_features_in_:,} features to "
            f"{hasher.n_bits} bits"
        )

"""`antipodal export`: a collection or model in the formats of other programs."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antipodal.cli.app import (
    AsJson,
    app,
    bar,
    is_service,
    open_existing_store,
    print_json,
    split_commas,
)
from antipodal.cli.outputs import FAISS, ONNX, PARQUET, STORE, Force, check_output, file_kind
from antipodal.errors import AntipodalError

if TYPE_CHECKING:
    from antipodal.stores import Store


@app.command(epilog="Example: antipodal export docs.db --parquet items.parquet")
def export(
    source: Annotated[
        str,
        typer.Argument(help="Collection: a file or store URL. For --onnx also a model file."),
    ],
    parquet: Annotated[
        Path | None, typer.Option(help="Parquet file of ids, codes and metadata to write.")
    ] = None,
    faiss: Annotated[Path | None, typer.Option(help="Faiss index file to write.")] = None,
    onnx: Annotated[
        Path | None,
        typer.Option(help="ONNX model file to write. The model maps vectors to packed codes."),
    ] = None,
    metadata_columns: Annotated[
        str | None,
        typer.Option(help="Comma-separated metadata fields to write as columns of --parquet."),
    ] = None,
    licence: Annotated[
        str | None, typer.Option(help="Licence of the training data, for --onnx.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Export a snapshot of a collection to parquet or Faiss, or its model to ONNX.

    The same items produce the same parquet file from every engine.
    """
    if sum(path is not None for path in (parquet, faiss, onnx)) != 1:
        raise typer.BadParameter("pass one of --parquet, --faiss and --onnx")
    if metadata_columns is not None and parquet is None:
        raise typer.BadParameter("--metadata-columns needs --parquet")
    if licence is not None and onnx is None:
        raise typer.BadParameter("--licence needs --onnx")
    if is_service(source):
        raise typer.BadParameter("a service cannot be exported: pass its file or store URL")
    began = time.perf_counter()
    with ExitStack() as stack:
        store: Store | None = None
        if onnx is None or "://" in source or file_kind(source) == STORE:
            store = stack.enter_context(open_existing_store(source))
        if parquet is not None and store is not None:
            record = _write_parquet(store, parquet, split_commas(metadata_columns), force)
        elif faiss is not None and store is not None:
            record = _write_faiss(store, faiss, force)
        else:
            assert onnx is not None
            record = _write_onnx(store, source, onnx, licence, force)
    if as_json:
        print_json(record)
        return
    seconds = time.perf_counter() - began
    counted = f"{record['items']:,} items" if "items" in record else record["method"]
    typer.echo(f"{record['file']}: {counted}, {record['bytes']:,} bytes, in {seconds:.1f} s")
    if "sha256" in record:
        typer.echo(f"sha256 of the items {record['sha256']}")


def _write_parquet(store: "Store", file: Path, columns: list[str], force: bool) -> dict[str, Any]:
    from antipodal.stores.transfer import export_items

    store.check_not_own_file(file)
    check_output(file, PARQUET, force)
    with bar("items") as show:
        total = store.item_count()
        made = export_items(store, file, columns=columns, progress=lambda n: show(n, total))
    return {"file": str(file), **made._asdict(), "bytes": file.stat().st_size}


def _write_faiss(store: "Store", file: Path, force: bool) -> dict[str, Any]:
    from antipodal.collection.settings import read_model

    store.check_not_own_file(file)
    check_output(file, FAISS, force)
    hasher, identity = read_model(store)
    if store.id_type == "string":
        raise AntipodalError(
            f"{store.place} has string ids, but ids of Faiss are integers: export it with "
            "--parquet, or build it with integer ids"
        )
    with store.snapshot() as now:
        ids, codes = now.all_codes()
    hasher.to_faiss(codes, file, ids)
    return {
        "file": str(file),
        "items": len(ids),
        "bits": store.n_bits,
        "scoring": hasher.scoring,
        "model": identity,
        "bytes": file.stat().st_size,
    }


def _write_onnx(
    store: "Store | None", source: str, file: Path, licence: str | None, force: bool
) -> dict[str, Any]:
    from antipodal.collection.settings import read_model
    from antipodal.hashers.registry import load_with_identity

    check_output(file, ONNX, force)
    if store is None:
        hasher, identity = load_with_identity(source)
    else:
        store.check_not_own_file(file)
        hasher, identity = read_model(store)
    hasher.to_onnx(file, identity=identity, licence=licence)
    return {
        "file": str(file),
        "method": type(hasher).__name__,
        "bits": hasher.n_bits,
        "features": hasher.n_features_in_,
        "model": identity,
        "bytes": file.stat().st_size,
    }

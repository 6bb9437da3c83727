"""`antipodal build`, `add`, `get` and `delete`: create collections and change their items."""

import json
import time
from contextlib import ExitStack
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antipodal.cli.app import (
    STORE_VARIABLE,
    TABLES,
    AsJson,
    Key,
    Place,
    Seed,
    Threads,
    app,
    bar,
    is_service,
    open_collection,
    parse_ids,
    print_json,
    print_next,
)
from antipodal.cli.rows import IdColumn, IdFile, MetadataColumns, MetadataFile, RowOptions
from antipodal.errors import AntipodalError
from antipodal.io.atomic import check_writable

if TYPE_CHECKING:
    from antipodal.collection import Collection
    from antipodal.hashers.base import BaseHasher

_DEFAULT_BYTES = 48


class KeptVectors(StrEnum):
    """Types of kept vectors."""

    int8 = "int8"
    float16 = "float16"
    float32 = "float32"


@app.command(
    epilog="Example: antipodal build vectors.parquet:embedding --id-column id "
    "--metadata-columns title,url --bytes 48 --out docs.db"
)
def build(
    vectors: Annotated[str, typer.Argument(help=f"Vectors: {TABLES}.")],
    out: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            envvar=STORE_VARIABLE,
            help="Collection to create: a file, such as docs.db, or a store URL.",
        ),
    ],
    ids: IdFile = None,
    id_column: IdColumn = None,
    metadata: MetadataFile = None,
    metadata_columns: MetadataColumns = None,
    n_bytes: Annotated[
        int | None,
        typer.Option("--bytes", min=1, help=f"Bytes per code. Default: {_DEFAULT_BYTES}."),
    ] = None,
    bits: Annotated[int | None, typer.Option(min=1, help="Bits per code.")] = None,
    recall: Annotated[
        float | None,
        typer.Option(
            help="Choose the smallest code with this recall@10, by an audit of a sample. With "
            "--keep-vectors, recall after reranking with 4× oversampling."
        ),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Model file written by `antipodal fit`.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(help="Unsupervised method, as for `fit`, fitted to a sample."),
    ] = "LinfHash.asymmetric",
    keep_vectors: Annotated[
        KeptVectors | None,
        typer.Option(help="Also keep the vectors, for `search --rerank`. Default: none."),
    ] = None,
    seed: Seed = 0,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Compress vectors into a collection: codes, ids, metadata and the model.

    To resume an interrupted run, repeat the command. Other errors leave no collection behind.
    """
    given = RowOptions(ids, id_column, metadata, metadata_columns)
    options = _choice(n_bytes, bits, recall, model, method, seed)
    if is_service(out):
        raise typer.BadParameter(
            "--out must be a file or a store URL: `antipodal add` adds vectors to a service"
        )
    from antipodal.collection import Collection
    from antipodal.stores.url import place_address

    began = time.perf_counter()
    address = place_address(out)
    if address.scheme in ("sqlite", "milvus"):
        check_writable(address.target)  # fail now, not after the fit
    file = given.open(vectors)
    numbers = given.read_ids(file)
    with ExitStack() as stack:
        show = stack.enter_context(bar("build"))

        def progress(step: str, done: int, total: int) -> None:
            if step != "fit" or done < total:
                show(done, total, f", {step}")

        try:
            docs = Collection.create(
                out,
                file,
                ids=numbers,
                metadata=given.read_metadata(file, stack),
                keep_vectors=None if keep_vectors is None else keep_vectors.value,
                random_state=seed,
                progress=progress,
                **options,
            )
        except KeyboardInterrupt:
            typer.echo("antipodal: interrupted. Run the same command again to resume", err=True)
            raise typer.Exit(130) from None
    with docs:
        record = describe_collection(docs)
    files = [path for path in docs.store.own_files() if path.exists()]
    record["bytes"] = sum(path.stat().st_size for path in files) if files else None
    record["seconds"] = round(time.perf_counter() - began, 3)
    if as_json:
        print_json(record)
        return
    size = f", {record['bytes'] / 1e6:,.1f} MB" if record["bytes"] is not None else ""
    typer.echo(
        f"{record['collection']}: {record['items']:,} vectors of {record['features']:,} dimensions "
        f"in {record['bytes_per_vector']} bytes each{size}, {record['method']}, "
        f"{record['bits']} bits, {record['scoring']} search, in {record['seconds']:.1f} s"
    )
    first = 0 if numbers is None else numbers[0]
    print_next("search", record["collection"], f"--id={first}")


def _choice(
    n_bytes: int | None,
    bits: int | None,
    recall: float | None,
    model: Path | None,
    method: str,
    seed: int,
) -> dict[str, Any]:
    """Return the arguments of `Collection.create` that choose the model."""
    if sum(value is not None for value in (n_bytes, bits, recall, model)) > 1:
        raise typer.BadParameter("pass at most one of --bytes, --bits, --recall and --model")
    if recall is not None and not 0 < recall <= 1:
        raise typer.BadParameter(f"--recall must be above 0 and at most 1: got {recall}")
    if method == "LinfHash.asymmetric":
        if model is None:
            return {"recall": recall} if recall is not None else {"bytes": n_bytes, "bits": bits}
        from antipodal.hashers.registry import load

        return {"model": load(model)}
    if recall is not None or model is not None:
        raise typer.BadParameter("--method cannot be combined with --recall or --model")
    return {"model": _hasher(method, bits or 8 * (n_bytes or _DEFAULT_BYTES), seed)}


def _hasher(method: str, n_bits: int, seed: int) -> "BaseHasher":
    """Return an unfitted hasher that needs no labels."""
    from sklearn.utils import get_tags

    from antipodal.hashers.network import NetworkHasher
    from antipodal.hashers.registry import make_hasher

    try:
        hasher = make_hasher(method, n_bits, seed)
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    if isinstance(hasher, NetworkHasher) or get_tags(hasher).target_tags.required:
        raise typer.BadParameter(
            f"{method} needs labels: train it with `antipodal fit`, then pass --model"
        )
    return hasher


def describe_collection(docs: "Collection") -> dict[str, Any]:
    """Return the description of a collection, for JSON."""
    from antipodal.codes import code_width
    from antipodal.stores.vectors import vector_bytes

    width = code_width(docs.store.n_bits)
    if docs.keep_vectors is not None:
        width += vector_bytes(docs.n_features, docs.keep_vectors)
    return {
        "collection": docs.place,
        "items": docs.count(),
        "method": type(docs.model).__name__,
        "bits": docs.store.n_bits,
        "features": docs.n_features,
        "bytes_per_vector": width,
        "scoring": docs.model.scoring,
        "id_type": docs.id_type,
        "keep_vectors": docs.keep_vectors,
        "model": docs.identity,
    }


_BATCH_ROWS = 8_192

Ids = Annotated[list[str], typer.Argument(metavar="ID…", help="Ids of items.")]


@app.command(
    epilog="Example: antipodal add docs.db more.parquet:embedding --id-column id "
    "--metadata-columns title,url"
)
def add(
    place: Place,
    vectors: Annotated[str, typer.Argument(help=f"Vectors: {TABLES}.")],
    ids: IdFile = None,
    id_column: IdColumn = None,
    metadata: MetadataFile = None,
    metadata_columns: MetadataColumns = None,
    key: Key = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Add vectors to a collection.

    Items with the same ids are replaced, so the command can be repeated. Without ids, items
    get the integers after the largest id. All input is validated before anything is stored.
    """
    import numpy as np

    from antipodal.stores.items import check_unique_ids
    from antipodal.validation import check_finite

    began = time.perf_counter()
    given = RowOptions(ids, id_column, metadata, metadata_columns)
    file = given.open(vectors)
    numbers = given.read_ids(file)
    with ExitStack() as stack:
        docs = open_collection(place, key)
        stack.callback(docs.close)
        if file.n_features != docs.n_features:
            raise ValueError(
                f"{vectors} has {file.n_features} features per row, {docs.place} expects "
                f"{docs.n_features}. Are these vectors of another embedding model?"
            )
        if numbers is not None:
            numbers = check_unique_ids(numbers, docs.id_type)
        elif docs.id_type == "string":
            raise typer.BadParameter("this collection has string ids: pass --id-column or --ids")
        objects = given.read_metadata(file, stack)
        done = 0
        for rows in file.blocks(_BATCH_ROWS):
            check_finite(rows, vectors, done + np.arange(len(rows)))
            done += len(rows)
        texts = None if objects is None else iter(objects)
        show = stack.enter_context(bar("add"))
        replaced = done = 0
        for rows in file.blocks(_BATCH_ROWS):
            stop = done + len(rows)
            fields = None if texts is None else list(islice(texts, len(rows)))
            if numbers is None:
                docs.add(rows, metadata=fields)
            else:
                replaced += docs.upsert(rows, numbers[done:stop], fields)
            done = stop
            show(done, len(file))
        record = {
            "collection": docs.place,
            "added": done - replaced,
            "replaced": replaced,
            "items": docs.count(),
            "seconds": round(time.perf_counter() - began, 3),
        }
    if as_json:
        print_json(record)
    else:
        typer.echo(
            f"{record['collection']}: {record['added']:,} added, {replaced:,} replaced, "
            f"{record['items']:,} items, in {record['seconds']:.1f} s"
        )


@app.command(epilog="Example: antipodal get docs.db 7")
def get(place: Place, ids: Ids, key: Key = None, as_json: AsJson = False) -> None:
    """Print the metadata of items. Unknown ids are an error."""
    from antipodal.codes import to_hex

    with open_collection(place, key) as docs:
        wanted = parse_ids(ids, docs.id_type)
        items = docs.get(wanted)
        n_bits = docs.n_bits
        name = docs.place
    for number, code, fields in zip(
        items.ids.tolist(), to_hex(items.codes, n_bits), items.metadata, strict=True
    ):
        if as_json:
            print_json({"id": number, "code": code, "metadata": fields})
        else:
            typer.echo(f"{number}: {json.dumps(fields, ensure_ascii=False)}")
    known = set(items.ids.tolist())
    if unknown := [number for number in wanted if number not in known]:
        raise AntipodalError(f"{name} has no item {', '.join(map(repr, unknown[:5]))}")


@app.command(epilog="Example: antipodal delete docs.db 7 8")
def delete(place: Place, ids: Ids, key: Key = None, as_json: AsJson = False) -> None:
    """Delete items. Unknown ids are ignored."""
    with open_collection(place, key) as docs:
        n_deleted = docs.delete(parse_ids(ids, docs.id_type))
        record = {"collection": docs.place, "deleted": n_deleted, "items": docs.count()}
    if as_json:
        print_json(record)
    else:
        typer.echo(f"{record['collection']}: {n_deleted:,} deleted, {record['items']:,} items")

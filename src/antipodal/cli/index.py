"""`antipodal index`: add codes to a store or write an index file."""

import time
from contextlib import ExitStack, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antipodal.cli.app import (
    TABLES,
    AsJson,
    StoreUrl,
    Threads,
    app,
    bar,
    check_no_url,
    chosen_store,
    print_json,
    print_next,
)
from antipodal.cli.outputs import INDEX, Force, check_output
from antipodal.cli.rows import (
    CheckedMetadata,
    IdColumn,
    IdFile,
    MetadataColumns,
    MetadataFile,
    RowOptions,
)
from antipodal.errors import AntipodalError, IdsTakenError, NoStoreError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from antipodal.index import HammingIndex
    from antipodal.stores import Store


_BATCH = 50_000  # items in one transaction
_STATS_QUERIES, _STATS_K = 1000, 10


class IndexEngine(StrEnum):
    """Search engines of an index file."""

    flat = "flat"
    ivf = "ivf"
    hnsw = "hnsw"


@app.command(
    epilog="Example: antipodal index codes.npy --store sqlite:///items.db --model model.antipodal"
)
def index(
    context: typer.Context,
    codes: Annotated[str, typer.Argument(callback=check_no_url, help=f"Packed codes: {TABLES}.")],
    store: StoreUrl = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", callback=check_no_url, help="Index file to write instead of a store."
        ),
    ] = None,
    ids: IdFile = None,
    id_column: IdColumn = None,
    metadata: MetadataFile = None,
    metadata_columns: MetadataColumns = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="Model of the codes. The store then contains it, and the store or index file "
            "refuses codes of other models."
        ),
    ] = None,
    bits: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Code length. Default: that of the model or store, or all bits of the bytes.",
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace existing items with the same ids."),
    ] = False,
    drop_metadata: Annotated[
        bool,
        typer.Option(
            "--drop-metadata",
            help="Delete the metadata of replaced items. Default: keep them.",
        ),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Skip existing items with equal code and metadata. Items that differ are an error "
            "unless --replace is given.",
        ),
    ] = False,
    engine: Annotated[
        IndexEngine, typer.Option(help="Engine of the index file. ivf and hnsw are approximate.")
    ] = IndexEngine.flat,
    prepare: Annotated[
        int | None,
        typer.Option(
            min=0, help="Build tables for radius searches up to this radius. Index files only."
        ),
    ] = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Measure the recall of the index file.")
    ] = False,
    force: Force = False,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Add codes to a store, or write them to an index file.

    Without ids, items get the ids after the largest in the store, or 0, 1, … with --replace or
    --resume. All input is validated before anything is written.
    """
    store = chosen_store(context, store, out, "--out")
    given = RowOptions(ids, id_column, metadata, metadata_columns)
    has_metadata = given.has_metadata
    if store is None and (has_metadata or resume or replace):
        raise typer.BadParameter(
            "--metadata, --metadata-columns, --replace and --resume are for stores"
        )
    if store is not None and (stats or prepare is not None or engine is not IndexEngine.flat):
        raise typer.BadParameter("--engine, --prepare and --stats are for index files")
    if drop_metadata and (has_metadata or not replace):
        raise typer.BadParameter("--drop-metadata needs --replace, without --metadata")
    if store is None:
        check_output(str(out), INDEX, force)
    import numpy as np

    from antipodal.index import HammingIndex

    file = given.open(codes, text_dtype=np.uint8)
    if file.dtype != np.uint8:
        raise ValueError(
            f"{codes} must contain packed codes, uint8, one per row: got {file.dtype} of shape "
            f"{file.shape}. Run `antipodal encode` first if these are features"
        )
    rows = np.asarray(file)
    numbers = given.read_ids(file)
    if numbers is None and (replace or resume):
        numbers = np.arange(len(rows))
    identity, n_bits = _model_identity(model, bits)
    began = time.perf_counter()
    if store is None:
        index = HammingIndex(
            n_bits or 8 * rows.shape[1],
            engine=engine.value,
            model=identity,
            dictionary=_dictionary(model) if engine is IndexEngine.ivf else None,
        )
        if prepare is not None:
            index.prepare(prepare)
        record = _write_index(index, Path(str(out)), rows, numbers, stats)
    else:
        options = {"replace": replace, "resume": resume}
        options["keep_metadata"] = replace and not has_metadata and not drop_metadata
        with ExitStack() as stack:
            objects = given.read_metadata(file, stack)
            record = _fill_store(
                store, codes, rows, numbers, objects, n_bits, identity, model, options
            )
    seconds = time.perf_counter() - began
    record["seconds"] = round(seconds, 3)
    if as_json:
        print_json(record)
        return
    place = record.get("store") or record["index"]
    counts = [f"{record['added']:,} added"]
    counts += [f"{record[name]:,} {name}" for name in ("replaced", "unchanged") if record.get(name)]
    typer.echo(
        f"{place}: {record['items']:,} items of {record['bits']} bits, "
        f"{', '.join(counts)}, in {seconds:.1f} s"
    )
    if "recall" in record:
        typer.echo(
            f"recall@{_STATS_K} of {record['queries']} codes as queries: {record['recall']:.2f} %"
        )
    where = ["--index", place] if store is None else ["--store", place]
    # A store contains its model, an index file does not.
    with_model = [] if model is None or store is not None else ["--model", str(model)]
    print_next("search", "QUERIES", *where, *with_model)


def _model_identity(model: Path | None, bits: int | None) -> tuple[str | None, int | None]:
    """Return the identity of the model and the code length, each None if unknown."""
    if model is None:
        return None, bits
    from antipodal.io.model_file import model_bits

    n_bits, identity = model_bits(model)
    if bits not in (None, n_bits):
        raise typer.BadParameter(f"{model} has codes of {n_bits} bits, not {bits}")
    return identity, n_bits


def _dictionary(model: Path | None) -> "NDArray[Any] | None":
    """Return the dictionary of an asymmetric model, by which an approximate index clusters."""
    if model is None:
        return None
    from antipodal.hashers.registry import load

    hasher = load(model)
    return getattr(hasher, "dictionary_", None) if hasher.scoring == "asymmetric" else None


def _fill_store(
    url: str,
    codes: str,
    rows: "NDArray[Any]",
    numbers: "NDArray[Any] | None",
    objects: CheckedMetadata | None,
    n_bits: int | None,
    identity: str | None,
    model: Path | None,
    options: dict[str, bool],
) -> dict[str, Any]:
    """Validate all items, create the store if it is missing, and add the items."""
    from antipodal.stores import open_store
    from antipodal.stores.base import MODEL
    from antipodal.stores.items import check_items, id_type_of
    from antipodal.stores.url import shown_url

    with ExitStack() as stack:
        store: Store | None = None
        with suppress(NoStoreError):
            store = stack.enter_context(open_store(url, model=identity))
        if store is not None:
            if n_bits not in (None, store.n_bits):
                raise AntipodalError(
                    f"{store.place} contains codes of {store.n_bits} bits, {codes} has {n_bits}. "
                    "Are these codes of another model?"
                )
            n_bits = store.n_bits
        n_bits = n_bits or 8 * rows.shape[1]
        _check_width(rows, codes, n_bits, shown_url(url) if store is None else store.place)
        new_type = "int64" if numbers is None else id_type_of(numbers)
        id_type = new_type if store is None else store.id_type
        ids, _ = check_items(numbers, rows, n_bits, id_type)
        if store is None:
            store = stack.enter_context(
                open_store(url, n_bits=n_bits, model=identity, id_type=id_type)
            )
        show = stack.enter_context(bar("items"))
        try:
            loaded = store.load(
                ids,
                rows,
                objects,
                **options,
                batch_size=_BATCH,
                progress=lambda n: show(n, len(rows)),
            )
        except IdsTakenError as error:
            hint = "Pass --replace to replace them"
            if not options["resume"]:
                hint += ", or --resume to skip equal ones"
            raise AntipodalError(f"{error}. {hint}") from None
        if model is not None and not store.attachments():
            store.write_attachments({MODEL: model.read_bytes()})
        record = {
            "store": shown_url(url),
            "items": store.count(),
            "bits": n_bits,
            "added": loaded.added,
            "replaced": loaded.replaced,
            "unchanged": loaded.unchanged,
        }
        if numbers is None and len(rows):
            record["first_id"] = int(loaded.ids[0])
        return record


def _check_width(rows: "NDArray[Any]", codes: str, n_bits: int, place: str) -> None:
    from antipodal.codes import code_width

    width = code_width(n_bits)
    if rows.shape[1] != width:
        raise AntipodalError(
            f"codes of {n_bits} bits, as in {place}, have {width} bytes per row: {codes} has "
            f"{rows.shape[1]}. Are these codes of another model?"
        )


def _write_index(
    index: "HammingIndex",
    out: Path,
    rows: "NDArray[Any]",
    ids: "NDArray[Any] | None",
    stats: bool,
) -> dict[str, Any]:
    import numpy as np

    index.add(rows, ids)
    index.save(out)
    record: dict[str, Any] = {
        "index": str(out),
        "items": len(index),
        "engine": index.engine,
        "bits": index.n_bits,
        "added": len(rows),
    }
    if stats:
        chosen = np.random.default_rng(0).permutation(len(rows))[:_STATS_QUERIES]
        queries = np.ascontiguousarray(rows[np.sort(chosen)])
        recall = 100 * index.recall(queries, _STATS_K)
        record |= {"queries": len(queries), "k": _STATS_K, "recall": round(recall, 4)}
    return record

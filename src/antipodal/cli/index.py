"""`antipodal index`: add codes to a store or write an index file."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from antipodal.cli.app import (
    TABLE,
    TABLES,
    AsJson,
    StoreUrl,
    app,
    bar,
    check_no_url,
    chosen_store,
    print_json,
    print_next,
    split_commas,
)
from antipodal.cli.outputs import INDEX, Force, check_output
from antipodal.errors import AntipodalError, IdsTakenError, NoStoreError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from antipodal.index import HammingIndex
    from antipodal.io.vectors import VectorFile
    from antipodal.stores import Store
    from antipodal.stores.metadata import MetadataText


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
    ids: Annotated[
        str | None,
        typer.Option(
            help=f"Item ids, one per code: {TABLE}. Default: continue after the largest id in the "
            "store, or 0, 1, … with --replace or --resume."
        ),
    ] = None,
    id_column: Annotated[str | None, typer.Option(help="Id column of the code file.")] = None,
    metadata: Annotated[
        Path | None,
        typer.Option(help="Item metadata: JSON Lines, one object per code. Stores only."),
    ] = None,
    metadata_columns: Annotated[
        str | None,
        typer.Option(help="Comma-separated metadata columns of the code file. Stores only."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="Model of the codes. The store or index file then refuses codes of other models."
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
    as_json: AsJson = False,
) -> None:
    """Add codes to a store, or write them to an index file.

    All input is validated before anything is written.
    """
    store = chosen_store(context, store, out, "--out")
    if ids is not None and id_column is not None:
        raise typer.BadParameter("give --ids or --id-column, not both")
    if metadata is not None and metadata_columns is not None:
        raise typer.BadParameter("give --metadata or --metadata-columns, not both")
    has_metadata = metadata is not None or metadata_columns is not None
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
    from antipodal.io.vectors import open_vectors, read_column

    columns = split_commas(metadata_columns)
    no_codes = columns if id_column is None else [id_column, *columns]
    file = open_vectors(codes, leave_out=no_codes, text_dtype=np.uint8)
    if file.dtype != np.uint8:
        raise ValueError(
            f"{codes} must contain packed codes, uint8, one per row: got {file.dtype} of shape "
            f"{file.shape}. Run `antipodal encode` first if these are features"
        )
    rows = np.asarray(file)
    numbers = None if ids is None else read_column(ids)
    if id_column is not None:
        numbers = file.column(id_column)
    if numbers is not None and numbers.shape != (len(rows),):
        raise ValueError(
            f"{ids or id_column} must contain one id for each of {len(rows)} codes: got shape "
            f"{numbers.shape}"
        )
    if numbers is None and (replace or resume):
        numbers = np.arange(len(rows))
    identity, n_bits = _model_identity(model, bits)
    began = time.perf_counter()
    if store is None:
        index = HammingIndex(n_bits or 8 * rows.shape[1], engine=engine.value, model=identity)
        if prepare is not None:
            index.prepare(prepare)
        record = _write_index(index, Path(str(out)), rows, numbers, stats)
    else:
        options = {"replace": replace, "resume": resume}
        options["keep_metadata"] = replace and not has_metadata and not drop_metadata
        texts = None
        if has_metadata:
            texts = _column_texts(file, columns) if metadata is None else _line_texts(metadata)
        record = _fill_store(store, codes, rows, numbers, texts, n_bits, identity, options)
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
    with_model = [] if model is None else ["--model", str(model)]
    print_next("search", "QUERIES", *where, *with_model)


def _model_identity(model: Path | None, bits: int | None) -> tuple[str | None, int | None]:
    """Return the identity of the model and the code length, each None if unknown."""
    if model is None:
        return None, bits
    from antipodal.io.model_file import model_bits, model_identity

    n_bits = model_bits(model)
    if bits not in (None, n_bits):
        raise typer.BadParameter(f"{model} makes codes of {n_bits} bits, not {bits}")
    return model_identity(model), n_bits


def _fill_store(
    url: str,
    codes: str,
    rows: "NDArray[Any]",
    numbers: "NDArray[Any] | None",
    texts: "Iterator[MetadataText] | None",
    n_bits: int | None,
    identity: str | None,
    options: dict[str, bool],
) -> dict[str, Any]:
    """Validate all items, create the store if it is missing, and add the items."""
    from antipodal.stores import open_store
    from antipodal.stores.loading import check_items
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
        ids, _ = check_items(numbers, rows, n_bits)
        objects = None
        if texts is not None:
            copy = stack.enter_context(TemporaryFile("w+", encoding="utf-8", newline="\n"))
            objects = _Metadata(texts, copy, len(rows))
        if store is None:
            store = stack.enter_context(open_store(url, n_bits=n_bits, model=identity))
        show = stack.enter_context(bar("items"))

        def progress(n: int) -> None:
            show(n, len(rows))
            if not sys.stderr.isatty():
                typer.echo(f"{n:,} of {len(rows):,} items", err=True)

        try:
            loaded = store.load(ids, rows, objects, **options, batch_size=_BATCH, progress=progress)
        except IdsTakenError as error:
            hint = "Pass --replace to replace them"
            if not options["resume"]:
                hint += ", or --resume to skip equal ones"
            raise AntipodalError(f"{error}. {hint}") from None
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


class _Metadata:
    """Validated metadata of all items, which can be iterated more than once.

    The texts are written to a temporary file, because the input may be a pipe and must not be
    validated twice.
    """

    def __init__(self, texts: "Iterator[MetadataText]", copy: IO[str], n_items: int) -> None:
        self._copy, self._n_items = copy, n_items
        n_texts = 0
        for text in texts:
            copy.write(text + "\n")
            n_texts += 1
        if n_texts != n_items:
            raise AntipodalError(
                f"metadata must have one object for each of {n_items} codes: got {n_texts}"
            )

    def __len__(self) -> int:
        return self._n_items

    def __iter__(self) -> "Iterator[MetadataText]":
        from antipodal.stores.metadata import MetadataText

        self._copy.seek(0)
        return (MetadataText(line[:-1]) for line in self._copy)


def _line_texts(path: Path) -> "Iterator[MetadataText]":
    """Yield the validated metadata of a JSON Lines file."""
    from antipodal.io.jsonl import read_objects

    for number, fields in read_objects(path):
        yield _validated(fields, f"{path}, line {number}")


def _column_texts(file: "VectorFile", columns: list[str]) -> "Iterator[MetadataText]":
    """Yield the validated metadata in columns of the code file."""
    for row, fields in enumerate(file.records(columns)):
        yield _validated(fields, f"{file.name}, row {row}")


def _validated(fields: dict[str, Any], place: str) -> "MetadataText":
    from antipodal.stores.metadata import metadata_text

    try:
        return metadata_text(fields)
    except (TypeError, ValueError) as error:
        raise AntipodalError(f"{place}: {error}") from error


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

"""`antipodal index`."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
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
    say_next,
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
    """How an index file is searched."""

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
            "--out", "-o", callback=check_no_url, help="Or an index file, without metadata."
        ),
    ] = None,
    ids: Annotated[
        str | None,
        typer.Option(
            help="An id per code. Without it ids continue after the largest in the store; with "
            f"--replace or --resume they are 0, 1, …: {TABLE}."
        ),
    ] = None,
    id_column: Annotated[
        str | None, typer.Option(help="Or a column of the file of the codes.")
    ] = None,
    metadata: Annotated[
        Path | None, typer.Option(help="A JSON object per code, one per line; for stores.")
    ] = None,
    metadata_columns: Annotated[
        str | None,
        typer.Option(help="Or columns of the file of the codes, with commas between."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="That made the codes: the store, or the index file, will refuse others'."
        ),
    ] = None,
    bits: Annotated[
        int | None,
        typer.Option(min=1, help="Of a code; otherwise the model's, the store's, or whole bytes."),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace items that have these ids: else that is an error."),
    ] = False,
    drop_metadata: Annotated[
        bool,
        typer.Option(
            "--drop-metadata",
            help="Items that are replaced lose their metadata: else, without --metadata, they "
            "keep them.",
        ),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Pass over items that are there with the same code (and metadata, if given); "
            "one that differs is an error without --replace.",
        ),
    ] = False,
    engine: Annotated[
        IndexEngine, typer.Option(help="Of an index file: ivf and hnsw may miss items.")
    ] = IndexEngine.flat,
    prepare: Annotated[
        int | None,
        typer.Option(min=0, help="Keep tables in the index file that answer radii up to this."),
    ] = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Measure the recall of searches in the index file.")
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Put codes into a store, batch by batch, or into an index file.

    All input is checked before anything is written.
    """
    store = chosen_store(context, store, out, "--out")
    if ids is not None and id_column is not None:
        raise typer.BadParameter("give --ids or --id-column, not both")
    if metadata is not None and metadata_columns is not None:
        raise typer.BadParameter("give --metadata or --metadata-columns, not both")
    has_metadata = metadata is not None or metadata_columns is not None
    if store is None and (has_metadata or resume or replace):
        raise typer.BadParameter("--metadata, --replace and --resume are for stores")
    if store is not None and (stats or prepare is not None or engine is not IndexEngine.flat):
        raise typer.BadParameter("--engine, --prepare and --stats are for index files")
    if drop_metadata and (has_metadata or not replace):
        raise typer.BadParameter("--drop-metadata is for --replace without --metadata")
    if store is None:
        check_output(str(out), INDEX, force)
    import numpy as np

    from antipodal.index import HammingIndex
    from antipodal.io.vectors import open_vectors, read_column

    names = [] if metadata_columns is None else _split_names(metadata_columns)
    others = names if id_column is None else [id_column, *names]
    file = open_vectors(codes, leave_out=others, text_dtype=np.uint8)
    if file.dtype != np.uint8:
        raise ValueError(
            f"{codes} must hold packed codes, uint8, one per row: got {file.dtype} of shape "
            f"{file.shape}. Features become codes by `antipodal encode`"
        )
    rows = np.asarray(file)
    numbers = None if ids is None else read_column(ids)
    if id_column is not None:
        numbers = file.column(id_column)
    if numbers is not None and numbers.shape != (len(rows),):
        raise ValueError(
            f"{ids or id_column} must hold an id for each of {len(rows)} codes: got {numbers.shape}"
        )
    if numbers is None and (replace or resume):
        numbers = np.arange(len(rows))
    identity, n_bits = _described(model, bits)
    began = time.perf_counter()
    if store is None:
        index = HammingIndex(n_bits or 8 * rows.shape[1], engine=engine.value, model=identity)
        if prepare is not None:
            index.prepare(prepare)
        record = _write_index(index, Path(str(out)), rows, numbers, stats)
    else:
        how = {"replace": replace, "resume": resume}
        how["keep_metadata"] = replace and not has_metadata and not drop_metadata
        texts = None
        if has_metadata:
            texts = _column_texts(file, names) if metadata is None else _line_texts(metadata)
        record = _fill_store(store, codes, rows, numbers, texts, n_bits, identity, how)
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
            f"recall of the {_STATS_K} nearest, for {record['queries']} of the codes: "
            f"{record['recall']:.2f} %"
        )
    where = ["--index", place] if store is None else ["--store", place]
    made_by = [] if model is None else ["--model", str(model)]
    say_next("search", "QUERIES", *where, *made_by)


def _described(model: Path | None, bits: int | None) -> tuple[str | None, int | None]:
    """Return the identity of the model, if any, and the length of the codes, if it is known."""
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
    how: dict[str, bool],
) -> dict[str, Any]:
    """Check everything, make the store if there is none, and load the items."""
    from antipodal.stores import open_store
    from antipodal.stores.loading import check_items
    from antipodal.stores.url import shown_url

    with ExitStack() as stack:
        store = _opened(url, identity, stack)
        if store is not None:
            if n_bits not in (None, store.n_bits):
                raise AntipodalError(
                    f"{store.place} keeps codes of {store.n_bits} bits, these have {n_bits}. "
                    "Were they made by another model?"
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
            loaded = store.load(ids, rows, objects, **how, batch_size=_BATCH, progress=progress)
        except IdsTakenError as error:
            ways = "--replace replaces them"
            if not how["resume"]:
                ways += ", --resume passes over those that are the same"
            raise AntipodalError(f"{error}. {ways}") from None
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


def _opened(url: str, identity: str | None, stack: ExitStack) -> "Store | None":
    """Open the store that is there, if there is one."""
    from antipodal.stores import open_store

    try:
        return stack.enter_context(open_store(url, model=identity))
    except NoStoreError:
        return None


def _check_width(rows: "NDArray[Any]", codes: str, n_bits: int, place: str) -> None:
    from antipodal.codes import code_width

    width = code_width(n_bits)
    if rows.shape[1] != width:
        raise AntipodalError(
            f"codes of {n_bits} bits, as for {place}, have {width} bytes per row: {codes} has "
            f"{rows.shape[1]}. Were they made by another model?"
        )


class _Metadata:
    """The metadata of all items, all checked, to be read as often as one likes.

    They are copied to a temporary file in the form that stores keep: so they may come from a pipe,
    and are read and checked once.
    """

    def __init__(self, texts: "Iterator[MetadataText]", copy: IO[str], n_items: int) -> None:
        self._copy, self._n_items = copy, n_items
        n_texts = 0
        for text in texts:
            copy.write(text + "\n")
            n_texts += 1
        if n_texts != n_items:
            raise AntipodalError(
                f"there must be metadata for each of {n_items} codes, a line: got {n_texts}"
            )

    def __len__(self) -> int:
        return self._n_items

    def __iter__(self) -> "Iterator[MetadataText]":
        from antipodal.stores.metadata import MetadataText

        self._copy.seek(0)
        return (MetadataText(line[:-1]) for line in self._copy)


def _line_texts(path: Path) -> "Iterator[MetadataText]":
    """Check the metadata in a file of JSON lines."""
    from antipodal.io.jsonl import read_objects

    for number, fields in read_objects(path):
        yield _checked(fields, f"{path}, line {number}")


def _column_texts(file: "VectorFile", names: list[str]) -> "Iterator[MetadataText]":
    """Check the metadata in columns beside the codes."""
    for row, fields in enumerate(file.records(names)):
        yield _checked(fields, f"{file.name}, row {row}")


def _checked(fields: dict[str, Any], place: str) -> "MetadataText":
    from antipodal.stores.metadata import metadata_text

    try:
        return metadata_text(fields)
    except (TypeError, ValueError) as error:
        raise AntipodalError(f"{place}: {error}") from error


def _split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


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

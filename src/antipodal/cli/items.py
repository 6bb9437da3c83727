"""`antipodal add`, `get` and `delete`: the items of a collection."""

import json
import time
from contextlib import ExitStack
from itertools import islice
from typing import Annotated

import typer

from antipodal.cli.app import (
    TABLES,
    AsJson,
    Key,
    Place,
    Threads,
    app,
    bar,
    open_collection,
    parse_ids,
    print_json,
)
from antipodal.cli.rows import IdColumn, IdFile, MetadataColumns, MetadataFile, RowOptions
from antipodal.errors import AntipodalError

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

    from antipodal.stores.ids import check_unique_ids
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

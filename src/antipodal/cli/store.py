"""`antipodal store`: list, back up, restore, copy, vacuum stores and attach models."""

import time
from pathlib import Path
from typing import Annotated

import typer

from antipodal.cli.app import (
    STORE_VARIABLE,
    AsJson,
    StoreUrl,
    app,
    bar,
    check_no_url,
    open_existing_store,
    print_json,
    print_next,
    print_table,
)
from antipodal.cli.outputs import STORE, Force, check_output

commands = typer.Typer(
    help="List, back up, restore, copy and vacuum stores, and attach models.", no_args_is_help=True
)
app.add_typer(commands, name="store")


@commands.command(
    epilog="Example: antipodal store backup items-monday.db --store sqlite:///items.db"
)
def backup(
    file: Annotated[
        Path, typer.Argument(callback=check_no_url, help="Backup file to write or replace.")
    ],
    store: StoreUrl = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Back up a store to one file and verify it.

    The store may be in use. The backup is a SQLite store, whatever the engine of the store.
    """
    from antipodal.stores.transfer import back_up
    from antipodal.stores.url import shown_url

    began = time.monotonic()
    with open_existing_store(_required(store)) as source:
        source.check_not_own_file(file)
        check_output(file, STORE, force)
        made = back_up(source, file)
    if as_json:
        print_json({"file": str(file), **made._asdict(), "bytes": file.stat().st_size})
    else:
        typer.echo(
            f"{file}: {made.items:,} items of {shown_url(_required(store))}, verified, in "
            f"{time.monotonic() - began:.1f} s\nsha256 {made.sha256}"
        )


@commands.command(
    epilog="Example: antipodal store restore items-monday.db --store sqlite:///items.db"
)
def restore(
    file: Annotated[
        Path,
        typer.Argument(
            exists=True, dir_okay=False, help="Backup file written by `antipodal store backup`."
        ),
    ],
    store: StoreUrl = None,
    sha256: Annotated[
        str | None, typer.Option(help="Expected SHA-256 of the backup, as printed by `backup`.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Restore all items of a store from a backup.

    The store is created if missing. It may be in use: other processes see either all old or all
    new items.
    """
    from antipodal.stores.transfer import restore as restore_store
    from antipodal.stores.url import shown_url

    began = time.monotonic()
    made = restore_store(file, _required(store), sha256=sha256)
    if as_json:
        print_json({"store": shown_url(_required(store)), **made._asdict()})
    else:
        typer.echo(
            f"{shown_url(_required(store))}: {made.items:,} items restored from {file}, in "
            f"{time.monotonic() - began:.1f} s"
        )


@commands.command("list", epilog="Example: antipodal store list .")
def list_(
    place: Annotated[
        str | None,
        typer.Argument(
            envvar=STORE_VARIABLE, help="Folder or file of SQLite stores, or a store URL."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List stores in a folder, database or server.

    A database of PostgreSQL or a server of Milvus is given by a store URL.
    """
    from antipodal.stores.engines import list_stores
    from antipodal.stores.url import shown_url

    if place is None:
        raise typer.BadParameter(f"pass a folder or a store URL, or set {STORE_VARIABLE}")
    found = list_stores(place)
    if as_json:
        for each in found:
            print_json(each._asdict())
    elif found:
        rows = [
            [each.store, _number(each.bits), _number(each.items), (each.model or "–")[:16]]
            for each in found
        ]
        print_table(
            f"{len(found)} store{'s' * (len(found) != 1)}",
            ["store", "bits", "items", "model"],
            rows,
        )
    else:
        typer.echo(f"no stores in {shown_url(place)}")
    problems = [each.problem for each in found if each.problem is not None]
    for problem in problems:
        typer.echo(f"antipodal: {problem}", err=True)
    if problems:
        raise typer.Exit(1)


@commands.command(
    epilog="Example: antipodal store attach model.antipodal --store sqlite:///items.db"
)
def attach(
    model: Annotated[
        Path, typer.Argument(callback=check_no_url, help="Model file of the codes in the store.")
    ],
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Add the model to a store of codes.

    The store is then a collection, which accepts vectors.
    """
    from antipodal.collection import Collection
    from antipodal.stores.url import shown_url

    with open_existing_store(_required(store)) as opened:
        docs = Collection.attach(opened, model)
        place, n_items = opened.place, docs.count()
    if as_json:
        print_json({"store": place, "model": docs.identity, "items": n_items})
    else:
        typer.echo(f"{place}: {n_items:,} items, contains {model}")
        print_next("search", shown_url(_required(store)), "QUERIES")


@commands.command(
    epilog="Example: antipodal store copy --store sqlite:///items.db --to sqlite:///copy.db"
)
def copy(
    to: Annotated[
        str,
        typer.Option(
            envvar="ANTIPODAL_STORE_TO",
            help="URL of the target store. Created if missing.",
        ),
    ],
    store: StoreUrl = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace all items of the target.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy a store to another store of any engine.

    Counts and checksums are then compared. Without --replace, the target must be new or contain
    only items of the source: an interrupted copy resumes.
    """
    from antipodal.stores.transfer import copy_store
    from antipodal.stores.url import shown_url

    began = time.monotonic()
    with open_existing_store(_required(store)) as source, bar("items") as show:
        total = source.item_count()
        made = copy_store(source, to, replace=replace, progress=lambda n: show(n, total))
    if as_json:
        print_json({"store": shown_url(to), **made._asdict()})
    else:
        before = f", {made.there_before:,} of them already copied" if made.there_before else ""
        typer.echo(
            f"{shown_url(to)}: {made.items:,} items of {shown_url(_required(store))}{before}, "
            f"verified, in {time.monotonic() - began:.1f} s\nsha256 of the items {made.sha256}"
        )


@commands.command(epilog="Example: antipodal store vacuum --store sqlite:///items.db")
def vacuum(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Reclaim the disk space of deleted items."""
    with open_existing_store(_required(store)) as opened:
        before, after = opened.vacuum()
        place = opened.place
    if as_json:
        print_json({"store": place, "bytes_before": before, "bytes_after": after})
    else:
        typer.echo(f"{place}: {before:,} bytes before, {after:,} after")


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _required(store: str | None) -> str:
    if store is None:
        raise typer.BadParameter(f"pass --store URL, or set {STORE_VARIABLE}")
    return store

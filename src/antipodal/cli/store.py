"""`antipodal store`: backups, copies, exports and lists of stores."""

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
    open_known_store,
    print_json,
    print_table,
)
from antipodal.cli.outputs import PARQUET, STORE, Force, check_output

commands = typer.Typer(
    help="List, back up, restore, copy, export and vacuum stores.", no_args_is_help=True
)
app.add_typer(commands, name="store")

_NO_STORE = "give --store URL, or the variable ANTIPODAL_STORE"


@commands.command(
    epilog="Example: antipodal store backup items-monday.db --store sqlite:///items.db"
)
def backup(
    file: Annotated[Path, typer.Argument(callback=check_no_url, help="To write, replaced whole.")],
    store: StoreUrl = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Copy a store into one file while others read and write it, and check the copy.

    The file is a store of SQLite, whatever engine the items come from.
    """
    from antipodal.stores.transfer import back_up
    from antipodal.stores.url import shown_url

    began = time.monotonic()
    with open_known_store(_given(store)) as source:
        source.check_not_own_file(file)
        check_output(file, STORE, force)
        made = back_up(source, file)
    if as_json:
        print_json({"file": str(file), **made._asdict(), "bytes": file.stat().st_size})
    else:
        typer.echo(
            f"{file}: {made.items:,} items of {shown_url(_given(store))}, checked, in "
            f"{time.monotonic() - began:.1f} s\nsha256 {made.sha256}"
        )


@commands.command(
    epilog="Example: antipodal store restore items-monday.db --store sqlite:///items.db"
)
def restore(
    file: Annotated[
        Path,
        typer.Argument(exists=True, dir_okay=False, help="Written by `antipodal store backup`."),
    ],
    store: StoreUrl = None,
    sha256: Annotated[
        str | None, typer.Option(help="What the file must have, as `backup` printed it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put the items of a backup in the place of all that a store has, or make the store.

    Others may have the store open: they see all items before, then all items after.
    """
    from antipodal.stores.transfer import restore as restore_store
    from antipodal.stores.url import shown_url

    began = time.monotonic()
    made = restore_store(file, _given(store), sha256=sha256)
    if as_json:
        print_json({"store": shown_url(_given(store)), **made._asdict()})
    else:
        typer.echo(
            f"{shown_url(_given(store))}: the {made.items:,} items of {file}, in "
            f"{time.monotonic() - began:.1f} s"
        )


@commands.command("list", epilog="Example: antipodal store list .")
def list_(
    place: Annotated[
        str | None,
        typer.Argument(
            envvar=STORE_VARIABLE, help="A folder or file of SQLite, or a URL as of --store."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List stores: files of a folder, tables of a database, collections of Milvus."""
    from antipodal.stores.listing import list_stores

    if place is None:
        raise typer.BadParameter("give a folder or a URL, or the variable ANTIPODAL_STORE")
    found = list_stores(place)
    if as_json:
        for each in found:
            print_json(each._asdict())
    elif found:
        rows = [
            [each.store, _number(each.bits), _number(each.items), (each.model or "–")[:16]]
            for each in found
        ]
        print_table(f"{len(found)} stores", ["store", "bits", "items", "model"], rows)
    else:
        typer.echo("There are no stores.")
    problems = [each.problem for each in found if each.problem is not None]
    for problem in problems:
        typer.echo(f"antipodal: {problem}", err=True)
    if problems:
        raise typer.Exit(1)


@commands.command(epilog="Example: antipodal store export items.parquet --store sqlite:///items.db")
def export(
    file: Annotated[
        Path, typer.Argument(callback=check_no_url, help="To write, .parquet, replaced whole.")
    ],
    store: StoreUrl = None,
    metadata_columns: Annotated[
        str | None,
        typer.Option(help="Fields of the metadata that become columns, with commas between."),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write the items of a store to a parquet file: ids, codes and metadata, of one moment.

    The same items make the same file, whatever engine they come from.
    """
    from antipodal.stores.transfer import export_items

    began = time.monotonic()
    columns = [] if metadata_columns is None else [c.strip() for c in metadata_columns.split(",")]
    with open_known_store(_given(store)) as source, bar("items") as show:
        source.check_not_own_file(file)
        check_output(file, PARQUET, force)
        total = source.item_count()
        made = export_items(source, file, columns=columns, progress=lambda n: show(n, total))
    if as_json:
        print_json({"file": str(file), **made._asdict(), "bytes": file.stat().st_size})
    else:
        typer.echo(
            f"{file}: {made.items:,} items, in {time.monotonic() - began:.1f} s\n"
            f"sha256 of the items {made.sha256}"
        )


@commands.command(
    epilog="Example: antipodal store copy --store sqlite:///items.db --to sqlite:///copy.db"
)
def copy(
    to: Annotated[
        str,
        typer.Option(
            envvar="ANTIPODAL_STORE_TO",
            help="The store to copy to, made if there is none: a URL as of --store.",
        ),
    ],
    store: StoreUrl = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="In the place of all that is there.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy a store into another, of any engine, and check the copy by count and checksum.

    The other must be new, or have a part of the same items: a copy that was interrupted goes on.
    """
    from antipodal.stores.transfer import copy_store
    from antipodal.stores.url import shown_url

    began = time.monotonic()
    with open_known_store(_given(store)) as source, bar("items") as show:
        total = source.item_count()
        made = copy_store(source, to, replace=replace, progress=lambda n: show(n, total))
    if as_json:
        print_json({"store": shown_url(to), **made._asdict()})
    else:
        before = f", {made.there_before:,} of them there before" if made.there_before else ""
        typer.echo(
            f"{shown_url(to)}: {made.items:,} items of {shown_url(_given(store))}{before}, "
            f"checked, in {time.monotonic() - began:.1f} s\nsha256 of the items {made.sha256}"
        )


@commands.command(epilog="Example: antipodal store vacuum --store sqlite:///items.db")
def vacuum(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Give back the room of deleted and replaced items, where the engine does not by itself."""
    with open_known_store(_given(store)) as opened:
        before, after = opened.vacuum()
        place = opened.place
    if as_json:
        print_json({"store": place, "bytes_before": before, "bytes_after": after})
    else:
        typer.echo(f"{place}: {before:,} bytes before, {after:,} now")


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _given(store: str | None) -> str:
    if store is None:
        raise typer.BadParameter(_NO_STORE)
    return store

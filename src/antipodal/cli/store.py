"""`antipodal store`: backups of stores."""

import time
from pathlib import Path
from typing import Annotated

import typer

from antipodal.cli.app import AsJson, StoreUrl, app, check_no_url, open_known_store, print_json

commands = typer.Typer(help="Back up and restore stores.", no_args_is_help=True)
app.add_typer(commands, name="store")

_NO_STORE = "give --store URL, or the variable ANTIPODAL_STORE"


@commands.command()
def backup(
    file: Annotated[Path, typer.Argument(callback=check_no_url, help="To write, replaced whole.")],
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Copy a store into one file while others read and write it, and check the copy.

    The file is a store of SQLite, whatever engine the items come from.
    """
    from antipodal.stores.address import shown_url
    from antipodal.stores.backup import back_up

    began = time.monotonic()
    with open_known_store(_given(store)) as source:
        made = back_up(source, file)
    if as_json:
        print_json({"file": str(file), **made._asdict(), "bytes": file.stat().st_size})
    else:
        typer.echo(
            f"{file}: {made.items:,} items of {shown_url(_given(store))}, checked, in "
            f"{time.monotonic() - began:.1f} s\nsha256 {made.sha256}"
        )


@commands.command()
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
    from antipodal.stores.address import shown_url
    from antipodal.stores.backup import restore as restore_store

    began = time.monotonic()
    made = restore_store(file, _given(store), sha256=sha256)
    if as_json:
        print_json({"store": shown_url(_given(store)), **made._asdict()})
    else:
        typer.echo(
            f"{shown_url(_given(store))}: the {made.items:,} items of {file}, in "
            f"{time.monotonic() - began:.1f} s"
        )


def _given(store: str | None) -> str:
    if store is None:
        raise typer.BadParameter(_NO_STORE)
    return store

"""`antipodal switch`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from antipodal.cli.app import AsJson, app, print_json, require_service


@app.command(
    epilog="Example: antipodal switch mounts.json items=model.antipodal,sqlite:///items.db"
)
def switch(
    mounts: Annotated[
        Path, typer.Argument(help="The file that `serve --mounts` follows; made if there is none.")
    ],
    mount: Annotated[
        str, typer.Argument(help="NAME=MODEL,STORE, or NAME alone with --remove.", metavar="MOUNT")
    ],
    keys: Annotated[
        Path | None, typer.Option(help="Of this mount; else those that it has.")
    ] = None,
    images: Annotated[
        str | None, typer.Option(help="Features of images: gist, pixels:8x8, or pixels:HxW:TOP.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Serve it no more.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give a name of a running service another model and store, without a pause.

    The store must be there, filled with codes of the model. Keys are kept unless others are given.
    A service sees the change within two seconds, reads model and codes, and then answers with them.
    """
    require_service()
    from antipodal.service.engine import Engine
    from antipodal.service.mounts import changing_mounts, parse_mount
    from antipodal.stores.url import shown_url

    if remove:
        with changing_mounts(mounts) as known:
            if mount not in known:
                raise typer.BadParameter(f"{mounts} has no mount {mount}")
            del known[mount]
        shown: dict[str, object] = {"name": mount, "removed": True}
        said = f"{mount} is removed"
    else:
        name, new = parse_mount(mount)
        engine = Engine.open(new.model, new.store, images=images, read_only=True)
        n_items = engine.store.count()
        engine.close()
        with changing_mounts(mounts) as known:
            old = known.get(name)
            if keys is None and old is not None:
                keys = old.keys
            own = None if keys is None else keys.absolute()
            known[name] = replace(new, keys=own, images=images)
        shown = {
            "name": name,
            "model": str(new.model),
            "store": shown_url(new.store),
            "items": n_items,
            "replaced": old is not None,
        }
        said = f"{name}: {n_items:,} items in {shown_url(new.store)}, codes of {new.model}"
    if as_json:
        print_json(shown)
    else:
        typer.echo(f"{said}\nServices that follow {mounts} see it within two seconds.")

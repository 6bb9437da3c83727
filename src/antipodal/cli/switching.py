"""`antipodal switch`."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from antipodal.cli.app import AsJson, app, print_json, require_service
from antipodal.errors import AntipodalError

_POLL_SECONDS = 0.1


@app.command(
    epilog="Example: antipodal switch mounts.json items=model.antipodal,sqlite:///items.db"
)
def switch(
    mounts: Annotated[
        Path, typer.Argument(help="File of mounts, used by `serve --mounts`. Created if missing.")
    ],
    mount: Annotated[
        str, typer.Argument(help="NAME=MODEL,STORE, or NAME with --remove.", metavar="MOUNT")
    ],
    keys: Annotated[
        Path | None, typer.Option(help="Key file of this mount. Default: unchanged.")
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(help="Image features: gist, pixels:8x8, pixels:HxW:TOP. Default: unchanged."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the mount.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for the workers of a running service.")
    ] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Hot-swap the model and store behind a mount.

    The store must exist. Workers that use the file load the new model and codes, and then answer
    with them. The command waits until all of them have done so, and fails if one of them cannot.
    """
    require_service()
    from antipodal.service.engine import Engine
    from antipodal.service.mounts import changing_mounts, parse_mount
    from antipodal.stores.url import shown_url

    if remove:
        name, fingerprint = mount, ""
        with changing_mounts(mounts) as known:
            if name not in known:
                raise typer.BadParameter(f"{mounts} has no mount {name}")
            del known[name]
        shown: dict[str, object] = {"name": name, "removed": True}
        text = f"{name}: removed"
    else:
        name, new = parse_mount(mount)
        with changing_mounts(mounts) as known:
            old = known.get(name)
            if old is not None:
                new = replace(new, keys=old.keys, images=old.images, scores=old.scores)
            new = replace(new, keys=keys or new.keys, images=images or new.images).absolute()
            engine = Engine.open(new.model, new.store, images=new.images, read_only=True)
            n_items = engine.store.count()
            engine.close()
            known[name], fingerprint = new, new.fingerprint()
        store = shown_url(new.store)
        shown = {"name": name, "model": str(new.model), "store": store, "items": n_items}
        shown["replaced"] = old is not None
        text = f"{name}: {n_items:,} items in {store}, encoded by {new.model}"
    shown["workers"] = n_workers = _wait_for_workers(mounts, name, fingerprint, timeout)
    if as_json:
        print_json(shown)
    elif n_workers:
        typer.echo(f"{text}\nConfirmed by {n_workers} worker{'s' if n_workers > 1 else ''}.")
    else:
        typer.echo(f"{text}\nNo running service uses {mounts}.")


def _wait_for_workers(mounts: Path, name: str, fingerprint: str, seconds: float) -> int:
    """Return the number of workers that serve the new mount, or raise AntipodalError."""
    from antipodal.service.mounts import read_reports

    deadline = time.monotonic() + seconds
    while True:
        reports = [report.get(name, {}) for report in read_reports(mounts)]
        done = [one for one in reports if one.get("mount", "") == fingerprint]
        for report in done:
            if report.get("error"):
                raise AntipodalError(
                    f"{mounts} is written, but a worker cannot open {name}, and still serves the "
                    f"old one: {report['error']}"
                )
        if len(done) == len(reports):
            return len(done)
        if time.monotonic() > deadline:
            raise AntipodalError(
                f"{mounts} is written, but {len(reports) - len(done)} of {len(reports)} workers "
                f"did not confirm {name} within {seconds:g} s: see the log of the service"
            )
        time.sleep(_POLL_SECONDS)

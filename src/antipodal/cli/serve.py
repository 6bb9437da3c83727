"""`antipodal serve` and `antipodal switch`."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antipodal.cli.app import STORE_VARIABLE, AsJson, app, print_json, require_service
from antipodal.errors import AntipodalError

if TYPE_CHECKING:
    from antipodal.service.mounts import Mount

_EXPOSED = (
    "antipodal: other machines can reach {host}. Put a reverse proxy in front of the service: it "
    "adds TLS, and limits connections, request rates and slow clients, which the service itself "
    "does not. See deploy/nginx.conf."
)


@app.command(
    epilog="Example: antipodal serve --model model.antipodal --store sqlite:///items.db --port 8080"
)
def serve(
    context: typer.Context,
    model: Annotated[
        Path | None, typer.Option(help="Model file written by `antipodal fit`.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            envvar=STORE_VARIABLE, help="Store URL, such as sqlite:///FILE. Created if missing."
        ),
    ] = None,
    mount: Annotated[
        list[str] | None,
        typer.Option(help="NAME=MODEL,STORE: serve a model under /NAME/. Repeatable."),
    ] = None,
    mount_keys: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILE: key file of one mount, instead of --keys. Repeatable."),
    ] = None,
    mounts: Annotated[
        Path | None,
        typer.Option(help="File of mounts, polled for changes: see `antipodal switch`."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port. 0 chooses a free one.")
    ] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="Number of worker processes.")] = 1,
    keys: Annotated[
        Path | None,
        typer.Option(
            help="Key file with lines `read KEY` or `write KEY`. Default: $ANTIPODAL_KEYS."
        ),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(help="Image features: gist, pixels:8x8 or pixels:HxW:TOP."),
    ] = None,
    scores: Annotated[
        Path | None, typer.Option(help="JSON file of scores for the model card.")
    ] = None,
    allow_anyone: Annotated[
        bool, typer.Option("--allow-anyone", help="Allow other machines without keys.")
    ] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="Disable PUT and DELETE.")] = False,
    prepare: Annotated[
        int | None,
        typer.Option(min=0, help="Build tables for radius searches up to this radius."),
    ] = None,
    root_path: Annotated[
        str, typer.Option(help="URL prefix added by a reverse proxy, such as /search.")
    ] = "",
    proxy_headers: Annotated[
        list[str] | None,
        typer.Option(
            help="Address or network of a proxy whose X-Forwarded-For is trusted. Repeatable."
        ),
    ] = None,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a JSON body.")] = 1 << 20,
    max_binary_body: Annotated[
        int, typer.Option(min=1, help="Bytes of a binary body: float32, Arrow or an image.")
    ] = 8 << 20,
    max_batch: Annotated[int, typer.Option(min=1, help="Vectors or items per request.")] = 1_000,
    max_k: Annotated[int, typer.Option(min=1, help="Neighbours per query.")] = 1_000,
    max_results: Annotated[
        int, typer.Option(min=1, help="Items returned by a radius search.")
    ] = 1_000,
    max_found: Annotated[
        int, typer.Option(min=1, help="Results of one request, over all its queries.")
    ] = 100_000,
    max_histogram: Annotated[
        int, typer.Option(min=1, help="Items counted by a histogram.")
    ] = 1_000_000,
    max_pixels: Annotated[int, typer.Option(min=1, help="Pixels of an image.")] = 16_000_000,
    max_requests: Annotated[
        int, typer.Option(min=1, help="Requests in progress per worker. More get 503.")
    ] = 128,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time limit of a request.")] = 30.0,
    threads: Annotated[int, typer.Option(min=1, help="Concurrent searches per worker.")] = 2,
) -> None:
    """Serve models and stores over HTTP, with a web page."""
    require_service()
    from antipodal.service.limits import Limits
    from antipodal.service.server import Settings, is_loopback
    from antipodal.service.server import serve as listen

    limits = Limits(
        body=max_body,
        binary_body=max_binary_body,
        batch=max_batch,
        k=max_k,
        results=max_results,
        found=max_found,
        histogram=max_histogram,
        pixels=max_pixels,
        seconds=seconds,
        threads=threads,
        requests=max_requests,
    )
    if not is_loopback(host):
        typer.echo(_EXPOSED.format(host=host or "all addresses"), err=True)
    listen(
        Settings(
            mounts=_mounts(context, model, store, images, scores, mount, mount_keys, mounts),
            mounts_file=mounts,
            host=host,
            port=port,
            workers=workers,
            keys=keys,
            allow_anyone=allow_anyone,
            read_only=read_only,
            root_path=root_path,
            proxies=tuple(proxy_headers or ()),
            prepare=prepare,
            limits=limits,
        )
    )


def _mounts(
    context: typer.Context,
    model: Path | None,
    store: str | None,
    images: str | None,
    scores: Path | None,
    mount: list[str] | None,
    mount_keys: list[str] | None,
    file: Path | None,
) -> dict[str, "Mount"]:
    """Return the mounts of the options. A single model has an empty name."""
    from antipodal.service.mounts import Mount, parse_mount

    source = context.get_parameter_source("store")
    if store is not None and source is not None and source.name == "ENVIRONMENT" and model is None:
        store = None  # the variable is for a single model
    single = any(value is not None for value in (model, store, images, scores))
    if single + bool(mount) + (file is not None) != 1:
        raise typer.BadParameter("give --model and --store, or --mount, or --mounts")
    if mount_keys and not mount:
        raise typer.BadParameter("--mount-keys needs --mount")
    if single:
        if model is None or store is None:
            raise typer.BadParameter("give both --model and --store")
        return {"": Mount(model, store, images=images, scores=scores)}
    found = {}
    for text in mount or []:
        name, one = parse_mount(text)
        if name in found:
            raise typer.BadParameter(f"two mounts have the name {name}")
        found[name] = one
    for text in mount_keys or []:
        name, _, path = text.partition("=")
        if name not in found or not path:
            raise typer.BadParameter("--mount-keys must be NAME=FILE, with the name of a --mount")
        found[name] = replace(found[name], keys=Path(path))
    return found


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
        with changing_mounts(mounts) as known:
            if known.pop(mount, None) is None:
                raise typer.BadParameter(f"{mounts} has no mount {mount}")
        name, fingerprint = mount, None
        shown: dict[str, object] = {"name": name, "removed": True}
        text = f"{name}: removed"
    else:
        name, new = parse_mount(mount)
        with changing_mounts(mounts) as known:
            old = known.get(name, new)
            new = replace(old, model=new.model, store=new.store)
            new = replace(new, keys=keys or old.keys, images=images or old.images)
            engine = Engine.open(new.model, new.store, images=new.images, read_only=True)
            n_items = engine.store.count()
            engine.close()
            is_replaced = name in known
            known[name], fingerprint = new, new.fingerprint()
        store = shown_url(new.store)
        shown = {"name": name, "model": str(new.model), "store": store, "items": n_items}
        shown["replaced"] = is_replaced
        text = f"{name}: {n_items:,} items in {store}, encoded by {new.model}"
    shown["workers"] = n_workers = _wait_for_workers(mounts, name, fingerprint, timeout)
    if as_json:
        print_json(shown)
    elif n_workers:
        typer.echo(f"{text}\nConfirmed by {n_workers} worker{'s' if n_workers > 1 else ''}.")
    else:
        typer.echo(f"{text}\nNo running service uses {mounts}.")


def _wait_for_workers(mounts: Path, name: str, fingerprint: str | None, seconds: float) -> int:
    """Return the number of workers that serve the new mount, or raise AntipodalError."""
    from antipodal.service.mounts import read_reports

    deadline = time.monotonic() + seconds
    while True:
        reports = read_reports(mounts)
        done = [one for one in reports if one and one["mounts"].get(name) == fingerprint]
        errors = [report["errors"][name] for report in done if name in report["errors"]]
        if errors:
            raise AntipodalError(
                f"{mounts} is written, but a worker cannot open {name}, and still serves the old "
                f"one: {errors[0]}"
            )
        if len(done) == len(reports):
            return len(done)
        if time.monotonic() > deadline:
            raise AntipodalError(
                f"{mounts} is written, but {len(reports) - len(done)} of {len(reports)} workers "
                f"did not confirm {name} within {seconds:g} s: see the log of the service"
            )
        time.sleep(0.1)

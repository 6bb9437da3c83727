"""`antipodal serve` and `antipodal switch`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antipodal.cli.app import STORE_VARIABLE, AsJson, app, print_json, require_service
from antipodal.io.atomic import folder_lock

if TYPE_CHECKING:
    from antipodal.service.mounts import Mount

_EXPOSED = (
    "antipodal: other machines can reach {host}. Put a reverse proxy in front of the service, for "
    "TLS and for limits on connections, request rates and slow clients. See deploy/nginx.conf."
)


@app.command(epilog="Example: antipodal serve docs.db --port 8080")
def serve(
    context: typer.Context,
    collection: Annotated[
        str | None,
        typer.Argument(help="Path or URL of a collection written by `antipodal build`."),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Model file, for a store that does not contain it.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            envvar=STORE_VARIABLE, help="Store URL, such as sqlite:///FILE. Created if missing."
        ),
    ] = None,
    mounts: Annotated[
        Path | None,
        typer.Option(help="JSON file of several models, polled for changes: see `switch`."),
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
        typer.Option(help="Image features: gist, pixels:8x8, pixels:HxW:TOP or module:function."),
    ] = None,
    embed: Annotated[
        str | None,
        typer.Option(
            help="Embedder of typed queries: module:function, or the URL of an OpenAI-compatible "
            "endpoint."
        ),
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
    max_body: Annotated[int, typer.Option(min=1, help="Maximum size of a JSON body, in bytes.")] = 1
    << 20,
    max_binary_body: Annotated[
        int,
        typer.Option(
            min=1, help="Maximum size of a binary body (float32, Arrow or image), in bytes."
        ),
    ] = 8 << 20,
    max_batch: Annotated[
        int, typer.Option(min=1, help="Maximum number of vectors or items per request.")
    ] = 1_000,
    max_k: Annotated[int, typer.Option(min=1, help="Maximum k of a search.")] = 1_000,
    max_results: Annotated[
        int, typer.Option(min=1, help="Maximum number of items returned by a radius search.")
    ] = 1_000,
    max_found: Annotated[
        int,
        typer.Option(min=1, help="Maximum number of results of one request, over all its queries."),
    ] = 100_000,
    max_histogram: Annotated[
        int, typer.Option(min=1, help="Maximum number of items counted by a histogram.")
    ] = 1_000_000,
    max_pixels: Annotated[
        int, typer.Option(min=1, help="Maximum number of pixels of an image.")
    ] = 16_000_000,
    max_requests: Annotated[
        int,
        typer.Option(
            min=1, help="Maximum number of requests in progress per worker. Others get 503."
        ),
    ] = 128,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Time limit of a request, in seconds.")
    ] = 30.0,
    threads: Annotated[
        int, typer.Option(min=1, help="Number of concurrent searches per worker.")
    ] = 2,
) -> None:
    """Serve a collection over HTTP, with a web UI."""
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
            mount=_single(context, collection, model, store, images, embed, scores, mounts),
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


def _single(
    context: typer.Context,
    collection: str | None,
    model: Path | None,
    store: str | None,
    images: str | None,
    embed: str | None,
    scores: Path | None,
    mounts: Path | None,
) -> "Mount | None":
    """Return the single collection of the options, or None if they name a file of mounts."""
    from antipodal.service.mounts import Mount, absolute

    source = context.get_parameter_source("store")
    if source is not None and source.name == "ENVIRONMENT" and (mounts or collection):
        store = None  # the variable is a default
    if collection is not None and store is not None:
        raise typer.BadParameter("pass a collection or --store, not both")
    place = collection or store
    if mounts is not None:
        if any(value is not None for value in (place, model, images, embed, scores)):
            raise typer.BadParameter("pass a collection or --mounts, not both")
        return None
    if place is None:
        raise typer.BadParameter("pass a collection, such as docs.db, or --mounts")
    return Mount(absolute(place), model, images=images, embed=embed, scores=scores)


@app.command(epilog="Example: antipodal switch mounts.json articles=articles.db")
def switch(
    mounts: Annotated[Path, typer.Argument(help="File of `serve --mounts`. Created if missing.")],
    mount: Annotated[
        str, typer.Argument(help="NAME=COLLECTION, or NAME=MODEL,STORE.", metavar="MOUNT")
    ],
    images: Annotated[str | None, typer.Option(help="As for serve. Default: unchanged.")] = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for workers.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Hot-swap the collection behind a mount, or add a mount.

    The collection must exist. The command waits until all workers use the new collection, and
    fails if one of them cannot open it. To remove a mount, delete it from the file.
    """
    require_service()
    from antipodal.service import mounts as service
    from antipodal.service.engine import Engine
    from antipodal.stores.url import shown_url

    name, new = service.parse_mount(mount)
    with folder_lock(mounts.absolute().parent):  # concurrent changes wait
        known = service.read_mounts(mounts) if mounts.exists() else {}
        old = known.get(name, new)
        new = replace(old, model=new.model, store=new.store, images=images or old.images)
        engine = Engine.open(new.store, new.model, images=new.images, read_only=True)
        shown = {"name": name, "items": engine.store.count(), "store": shown_url(new.store)}
        shown["model"] = engine.collection.identity
        engine.close()
        service.write_mounts(mounts, known | {name: new})
        shown["workers"] = service.wait_for_workers(mounts, name, timeout)
    if as_json:
        print_json(shown)
    else:
        typer.echo("{name}: {items:,} items, confirmed by {workers} workers".format(**shown))

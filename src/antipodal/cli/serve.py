"""`antipodal serve`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antipodal.cli.app import STORE_VARIABLE, app, require_service

if TYPE_CHECKING:
    from antipodal.service.mounts import Mount


@app.command(
    epilog="Example: antipodal serve --model model.antipodal --store sqlite:///items.db --port 8080"
)
def serve(
    context: typer.Context,
    model: Annotated[Path | None, typer.Option(help="A fitted hasher, by `antipodal fit`.")] = None,
    store: Annotated[
        str | None,
        typer.Option(
            envvar=STORE_VARIABLE, help="Of its codes, made if there is none: sqlite:///FILE, …."
        ),
    ] = None,
    mount: Annotated[
        list[str] | None,
        typer.Option(help="NAME=MODEL,STORE: one of several, under /NAME/. May come again."),
    ] = None,
    mount_keys: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILE: keys of one mount, in place of --keys. May come again."),
    ] = None,
    mounts: Annotated[
        Path | None,
        typer.Option(help="A file of mounts that is followed: see `antipodal switch`."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0: any that is free.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="Processes, which share the store.")] = 1,
    keys: Annotated[
        Path | None,
        typer.Option(help="Lines `read KEY` or `write KEY`; else the variable ANTIPODAL_KEYS."),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(help="Features of images: gist, pixels:8x8, or pixels:HxW:TOP."),
    ] = None,
    scores: Annotated[
        Path | None, typer.Option(help="A JSON object of scores, for the model card.")
    ] = None,
    allow_anyone: Annotated[
        bool, typer.Option("--allow-anyone", help="Listen beyond this machine without keys.")
    ] = False,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Only answer: no PUT, no DELETE.")
    ] = False,
    prepare: Annotated[
        int | None,
        typer.Option(min=0, help="Make stores ready for single searches within this radius."),
    ] = None,
    root_path: Annotated[
        str, typer.Option(help="Prefix under which a proxy serves this, such as /search.")
    ] = "",
    proxy_headers: Annotated[
        list[str] | None,
        typer.Option(
            help="Address or network of a proxy whose X-Forwarded-For and -Proto are believed. "
            "May come again."
        ),
    ] = None,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a JSON body.")] = 1 << 20,
    max_binary_body: Annotated[
        int, typer.Option(min=1, help="Bytes of a binary body: raw float32 or Arrow.")
    ] = 8 << 20,
    max_batch: Annotated[int, typer.Option(min=1, help="Vectors or items of a request.")] = 1_000,
    max_k: Annotated[int, typer.Option(min=1, help="Neighbours of a search.")] = 1_000,
    max_results: Annotated[int, typer.Option(min=1, help="Items of a radius search.")] = 1_000,
    max_found: Annotated[
        int, typer.Option(min=1, help="Items that all queries of a request find together.")
    ] = 100_000,
    max_histogram: Annotated[
        int, typer.Option(min=1, help="Items that a histogram may count.")
    ] = 1_000_000,
    max_pixels: Annotated[int, typer.Option(min=1, help="Of an image.")] = 16_000_000,
    max_request_pixels: Annotated[
        int, typer.Option(min=1, help="Of all images of a request together.")
    ] = 64_000_000,
    max_key_pixels: Annotated[
        int, typer.Option(min=1, help="Of all images decoded for one key at a time.")
    ] = 64_000_000,
    seconds: Annotated[float, typer.Option(min=0.1, help="For one request.")] = 30.0,
    threads: Annotated[int, typer.Option(min=1, help="Searches at a time, in a worker.")] = 2,
) -> None:
    """Answer over HTTP: encode, search, keep items; with a page to look at."""
    require_service()
    from antipodal.service.limits import Limits
    from antipodal.service.server import Settings
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
        request_pixels=max_request_pixels,
        key_pixels=max_key_pixels,
        seconds=seconds,
        threads=threads,
    )
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
    """Return the mounts that the options name; a single model has the name of nothing."""
    from antipodal.service.mounts import Mount, parse_mount

    source = context.get_parameter_source("store")
    if store is not None and source is not None and source.name == "ENVIRONMENT" and model is None:
        store = None  # meant for a single model
    single = any(value is not None for value in (model, store, images, scores))
    if single + bool(mount) + (file is not None) != 1:
        raise typer.BadParameter("give --model and --store, or --mount, or --mounts")
    if mount_keys and not mount:
        raise typer.BadParameter("--mount-keys goes with --mount")
    if single:
        if model is None or store is None:
            raise typer.BadParameter("give both --model and --store")
        return {"": Mount(model, store, images=images, scores=scores)}
    found = {}
    for text in mount or []:
        name, one = parse_mount(text)
        if name in found:
            raise typer.BadParameter(f"there are two mounts of the name {name}")
        found[name] = one
    for text in mount_keys or []:
        name, _, path = text.partition("=")
        if name not in found or not path:
            raise typer.BadParameter("--mount-keys is NAME=FILE, the name that of a --mount")
        found[name] = replace(found[name], keys=Path(path))
    return found

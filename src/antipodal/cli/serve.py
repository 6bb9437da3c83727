"""`antipodal serve`."""

from pathlib import Path
from typing import Annotated

import typer

from antipodal.cli.app import STORE_VARIABLE, app, require_service


@app.command()
def serve(
    model: Annotated[Path, typer.Option(help="A fitted hasher, by `antipodal fit`.")],
    store: Annotated[
        str,
        typer.Option(
            envvar=STORE_VARIABLE, help="Of its codes, made if there is none: sqlite:///FILE, …."
        ),
    ],
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
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = 8 << 20,
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
        batch=max_batch,
        k=max_k,
        results=max_results,
        found=max_found,
        histogram=max_histogram,
        pixels=max_pixels,
        request_pixels=max_request_pixels,
        seconds=seconds,
        threads=threads,
    )
    listen(
        Settings(
            model=model,
            store=store,
            host=host,
            port=port,
            workers=workers,
            keys=keys,
            images=images,
            scores=scores,
            allow_anyone=allow_anyone,
            limits=limits,
        )
    )

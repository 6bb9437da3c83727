"""`antipodal demo`."""

import socket
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated

import typer

from antipodal.cli.app import (
    AsJson,
    Bits,
    Seed,
    app,
    bar,
    print_json,
    print_table,
    require_service,
    say_next,
    training_progress,
)
from antipodal.io.atomic import make_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from antipodal.bench.demo import Demo, Score


@app.command(epilog="Example: antipodal demo --bits 32 --out demo")
def demo(
    bits: Bits = 48,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Of the networks, in place of their default.")
    ] = None,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(help="Where model and codes go.")] = Path("antipodal-demo"),
    open_page: Annotated[
        bool,
        typer.Option(
            "--open", help="DeepLinf alone, then a page to search by, in the browser; till Ctrl-C."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Learn codes of handwritten digits, score them beside rivals, show nearest images."""
    if open_page:
        require_service()  # before the training
    make_folder(out)
    from antipodal.bench.demo import Demo

    show = Demo(bits, epochs, seed)
    rows = show.split

    def say(text: str) -> None:
        if not as_json:
            typer.echo(text)

    say(
        f"{len(show.labels)} images of handwritten digits, 8 × 8 pixels: {len(rows.train)} labelled"
        f" for training, {len(rows.query)} queries, {len(rows.database)} in the database.\n"
    )
    if open_page:
        _open_page(show, out, seed, as_json)
        return
    scores = []
    with bar(f"{bits} bits") as progress:
        for score in show.scores():
            scores.append(score)
            progress(len(scores), len(show.hashers), f", {score.method}")
            if not as_json and not sys.stderr.isatty():
                typer.echo(f"{score.method}: fitted in {score.fit_seconds:.1f} s", err=True)
    if as_json:
        for score in scores:
            record = {"method": score.method, "bits": bits, "seed": seed}
            print_json(record | score.evaluation.to_dict() | {"fit_seconds": score.fit_seconds})
    else:
        _print_scores(scores, bits)
    model, codes = show.save(out)
    say(f"\nThe model is in {model}, the packed codes of the database in {codes}.")
    for found in show.neighbours(n_queries=3, k=5):
        captions = [f"query: {show.labels[found.query]}"] + [
            f"{show.labels[row]}, {distance} bit{'' if distance == 1 else 's'} off"
            for row, distance in zip(found.nearest, found.distances, strict=True)
        ]
        say("\n" + "\n".join(show.picture([found.query, *found.nearest.tolist()], captions)))
    if not as_json:
        say_next("demo", "--open")


def _open_page(show: "Demo", out: Path, seed: int, as_json: bool) -> None:
    with training_progress(f"DeepLinf, {show.n_bits} bits") as progress:
        score = show.score_deep(progress)

    def opened(address: str) -> None:
        if as_json:
            record = {"method": score.method, "bits": show.n_bits, "seed": seed}
            record |= score.evaluation.to_dict() | {"fit_seconds": score.fit_seconds}
            print_json(record | {"page": address})
        else:
            _print_scores([score], show.n_bits)
            typer.echo(f"\nModel and store are in {out}, digits to upload in {out / 'unseen'}.")
            typer.echo(f"The page is at {address} until Ctrl-C.")
        sys.stdout.flush()
        # In a thread: some browsers only return when they are closed.
        Thread(target=webbrowser.open, args=[address], daemon=True).start()

    serve_demo(show, out, score, opened)


def serve_demo(show: "Demo", out: Path, score: "Score", opened: "Callable[[str], object]") -> None:
    """Answer on a free port of this machine, until Ctrl-C; `opened` gets the address.

    It is called when connections are accepted already, and may open a browser.
    """
    import uvicorn

    from antipodal.service import Engine, create_app

    model, _ = show.save(out)
    show.write_queries(out)
    names = ("map", "map_worst", "map_best", "precision_r2", "recall_r2")
    scores = {name: score.evaluation.to_dict()[name] for name in names}
    engine = Engine.open(model, show.fill_store(out, model), images="pixels:8x8", scores=scores)
    app = create_app(engine, hosts={"127.0.0.1", "localhost"})
    with socket.create_server(("127.0.0.1", 0)) as listening, suppress(KeyboardInterrupt):
        opened(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        config = uvicorn.Config(app, log_config=None, access_log=False, ws="none")
        uvicorn.Server(config).run(sockets=[listening])


def _print_scores(scores: "list[Score]", bits: int) -> None:
    rows = []
    for score in scores:
        r = score.evaluation.to_dict()
        rows.append(
            [
                score.method,
                "✓" if score.uses_labels else "",
                f"{r['map']:.1f}",
                f"{r['map_worst']:.1f}–{r['map_best']:.1f}",
                *(f"{r[name]:.1f}" for name in ("precision_r2", "recall_r2", "empty_r2")),
                f"{score.fit_seconds:.1f}",
            ]
        )
    print_table(
        f"{bits} bits; percent; mAP is the mean over random tie orders",
        ["method", "labels", "mAP", "any order", "P r≤2", "R r≤2", "empty", "fit, s"],
        rows,
    )

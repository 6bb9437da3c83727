"""`antipodal demo`: models and search on handwritten digits."""

import socket
import sys
import webbrowser
from collections.abc import Callable
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
    print_next,
    print_table,
    require_service,
    training_progress,
)
from antipodal.io.atomic import make_folder

if TYPE_CHECKING:
    from antipodal.bench.demo import Demo, Score


@app.command(epilog="Example: antipodal demo --bits 32 --out demo")
def demo(
    bits: Bits = 48,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Number of training epochs of the networks.")
    ] = None,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(help="Output folder for model and codes.")] = Path(
        "antipodal-demo"
    ),
    open_page: Annotated[
        bool,
        typer.Option(
            "--open",
            help="Train DeepLinf only, then open a search page in the browser until Ctrl-C.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train all methods on handwritten digits, compare their scores and show search results."""
    if open_page:
        require_service()  # fail now, not after the training
    make_folder(out)
    from antipodal.bench.demo import Demo

    digits = Demo(bits, epochs, seed)
    split = digits.split

    if not as_json:
        typer.echo(
            f"{len(digits.labels)} images of handwritten digits, 8 × 8 pixels: "
            f"{len(split.train)} for training, {len(split.query)} queries, "
            f"{len(split.database)} in the database.\n"
        )
    if open_page:
        _open_page(digits, out, seed, as_json)
        return
    scores = []
    with bar(f"{bits} bits", lines=False) as progress:
        for score in digits.scores():
            scores.append(score)
            progress(len(scores), len(digits.hashers), f", {score.method}")
            if not as_json and not sys.stderr.isatty():
                typer.echo(f"{score.method}: trained in {score.fit_seconds:.1f} s", err=True)
    model, codes = digits.save(out)
    if as_json:
        for score in scores:
            record = {"method": score.method, "bits": bits, "seed": seed}
            print_json(record | score.evaluation.to_dict() | {"fit_seconds": score.fit_seconds})
        return
    _print_scores(scores, bits)
    typer.echo(f"\nModel: {model}\nPacked codes of the database: {codes}")
    for found in digits.neighbours(n_queries=3, k=5):
        captions = [f"query: {digits.labels[found.query]}"] + [
            f"{digits.labels[row]}, distance {distance}"
            for row, distance in zip(found.nearest, found.distances, strict=True)
        ]
        picture = digits.picture([found.query, *found.nearest.tolist()], captions)
        typer.echo("\n" + "\n".join(picture))
    print_next("demo", "--open")


def _open_page(digits: "Demo", out: Path, seed: int, as_json: bool) -> None:
    with training_progress(f"DeepLinf, {digits.n_bits} bits") as progress:
        score = digits.score_deep(progress)

    def opened(address: str) -> None:
        if as_json:
            record = {"method": score.method, "bits": digits.n_bits, "seed": seed}
            record |= score.evaluation.to_dict() | {"fit_seconds": score.fit_seconds}
            print_json(record | {"page": address})
        else:
            _print_scores([score], digits.n_bits)
            typer.echo(f"\nModel and store: {out}\nDigits to upload: {out / 'unseen'}")
            typer.echo(f"Search page: {address} (Ctrl-C stops it)")
        sys.stdout.flush()
        # In a thread: webbrowser.open may block until the browser is closed.
        Thread(target=webbrowser.open, args=[address], daemon=True).start()

    _serve_page(digits, out, score, opened)


def _serve_page(digits: "Demo", out: Path, score: "Score", opened: Callable[[str], object]) -> None:
    """Serve the demo on a free local port until Ctrl-C.

    `opened` is called with the address as soon as connections are accepted.
    """
    import uvicorn

    from antipodal.service import Engine, create_app

    model, _ = digits.save(out)
    digits.write_queries(out)
    names = ("map", "map_worst", "map_best", "precision_r2", "recall_r2")
    scores = {name: score.evaluation.to_dict()[name] for name in names}
    engine = Engine.open(digits.fill_store(out, model), model, images="pixels:8x8", scores=scores)
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
        f"{bits} bits; percent; mAP is the mean over random orders of ties",
        ["method", "labels", "mAP", "mAP range", "P r≤2", "R r≤2", "empty", "train, s"],
        rows,
    )

"""`antipodal demo`: texts without labels, digits with labels, and both in the web UI."""

import json
import shlex
import socket
import sys
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
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
from antipodal.io.atomic import make_folder, replacing

if TYPE_CHECKING:
    from antipodal.bench.demo import Demo, Score

EMBED = "antipodal.bench.demo:embed"
_COLUMNS = ("--id-column", "title", "--metadata-columns", "text,topic")


@app.command(epilog="Example: antipodal demo --open")
def demo(
    bits: Bits = 48,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Number of training epochs of the networks.")
    ] = None,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("antipodal-demo"),
    open_page: Annotated[
        bool,
        typer.Option(
            "--open",
            help="Build both collections without the comparisons, then open the web UI until "
            "Ctrl-C.",
        ),
    ] = False,
    host: Annotated[str, typer.Option(help="Address of --open to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port of --open. 0 chooses a free one.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Compress and search texts without labels, then compare the paper's networks on digits."""
    if open_page:
        require_service()  # fail now, not after the training
    make_folder(out)
    from antipodal.bench.demo import METHODS, WITHOUT_TORCH, Demo

    _show_texts(out, open_page, as_json)
    has_torch = find_spec("torch") is not None
    digits = Demo(bits, epochs, seed, METHODS if has_torch else WITHOUT_TORCH)
    if not as_json:
        split = digits.split
        typer.echo(
            f"\n2. With labels, as in the paper: {len(digits.labels)} images of handwritten "
            f"digits,\n   {len(split.train)} for training, {len(split.query)} queries, "
            f"{len(split.database)} in the database.\n"
        )
        if not has_torch:
            typer.echo("The paper's networks need PyTorch, the extra `train`, and are skipped.\n")
    if open_page:
        _open_page(digits, out, host, port, as_json)
    else:
        _show_digits(digits, out, seed, as_json)


def _show_texts(out: Path, only_build: bool, as_json: bool) -> None:
    """Run the commands of the path without labels: audit, build and search."""
    from antipodal.bench.demo import N_FEATURES, QUERIES, write_texts

    texts, collection = out / "texts.jsonl", str(out / "texts.db")
    count = write_texts(texts)
    if not as_json:
        typer.echo(
            f"1. Without labels: {count:,} docstrings of Python's standard library as vectors of "
            f"{N_FEATURES} dimensions."
        )
    vectors = (f"{texts}:embedding", *_COLUMNS)
    if not only_build:
        few = ("--methods", "ITQ,LinfHash.asymmetric", "--baselines", "rabitq,pq")
        _run(
            "audit",
            *vectors,
            "--bits",
            f"{N_FEATURES // 2},{N_FEATURES}",
            *few,
            "--n-queries",
            "300",
            as_json=as_json,
        )
        if not as_json:
            typer.echo(
                "\nThese vectors come from latent semantic analysis of short texts, not from a "
                "neural\nnetwork. On them, product quantisation or ITQ may find more neighbours. "
                "On embeddings\nof neural networks the ranking is different "
                "(docs/guide/audit.md): audit your own."
            )
    for suffix in ("", "-wal", "-shm"):  # of an earlier demonstration
        Path(f"{collection}{suffix}").unlink(missing_ok=True)
    build = ("--bytes", "48", "--keep-vectors", "int8", "--out", collection)
    _run("build", *vectors, *build, as_json=as_json)
    if not only_build:
        queries = [word for query in QUERIES for word in ("--text", query)]
        options = ("--embed", EMBED, "-k", "3", "--rerank", "4", "--metadata")
        _run("search", collection, *queries, *options, as_json=as_json)


def _run(*words: str, as_json: bool) -> None:
    """Print a command and run it."""
    if not as_json:
        typer.echo(f"\n$ {shlex.join(['antipodal', *words])}")
    typer.main.get_command(app)([*words, *["--json"] * as_json], standalone_mode=False)


def _show_digits(digits: "Demo", out: Path, seed: int, as_json: bool) -> None:
    """Compare the methods, and show neighbours as pictures."""
    scores = []
    with bar(f"{digits.n_bits} bits", lines=False) as progress:
        for score in digits.scores():
            scores.append(score)
            progress(len(scores), len(digits.hashers), f", {score.method}")
            if not as_json and not sys.stderr.isatty():
                typer.echo(f"{score.method}: trained in {score.fit_seconds:.1f} s", err=True)
    model, codes = digits.save(out)
    if as_json:
        for score in scores:
            record = {"method": score.method, "bits": digits.n_bits, "seed": seed}
            print_json(record | score.evaluation.to_dict() | {"fit_seconds": score.fit_seconds})
        return
    _print_scores(scores, digits.n_bits)
    for found in digits.neighbours(n_queries=3, k=3):
        captions = [f"query: {digits.labels[found.query]}"] + [
            f"{digits.labels[row]}, distance {distance}"
            for row, distance in zip(found.nearest, found.distances, strict=True)
        ]
        picture = digits.picture([found.query, *found.nearest.tolist()], captions)
        typer.echo("\n" + "\n".join(picture))
    typer.echo(f"\nModel: {model}\nPacked codes of the database: {codes}")
    print_next("demo", "--open")


def _open_page(digits: "Demo", out: Path, host: str, port: int, as_json: bool) -> None:
    """Build the collection of digits, and serve both until Ctrl-C."""
    import uvicorn

    from antipodal.service.mounts import Mount, write_mounts
    from antipodal.service.server import Settings, application, check_address

    check_address(host, port)
    with training_progress(f"{digits.name}, {digits.n_bits} bits") as progress:
        score = digits.score_first(progress)
    names = ("map", "map_worst", "map_best", "precision_r2", "recall_r2")
    scores = {name: score.evaluation.to_dict()[name] for name in names}
    with replacing(out / "digits-scores.json") as file:
        file.write(json.dumps(scores).encode())
    folder = out.absolute()
    mounts = {
        "texts": Mount(str(folder / "texts.db"), embed=EMBED),
        "digits": Mount(
            str(digits.build(folder)), images="pixels:8x8", scores=folder / "digits-scores.json"
        ),
    }
    digits.save(out)
    digits.write_queries(out)
    write_mounts(out / "mounts.json", mounts)
    # Requests with the Host header of another machine are refused, and so are writes.
    served = application(Settings(mounts_file=out / "mounts.json", host=host, read_only=True))
    with socket.create_server((host, port)) as listening, suppress(KeyboardInterrupt):
        port = listening.getsockname()[1]
        address = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}/"
        if as_json:
            print_json({"method": score.method, "bits": digits.n_bits, **scores, "page": address})
        else:
            _print_scores([score], digits.n_bits)
            typer.echo(f"\nCollections and models: {out}\nDigits to upload: {out / 'unseen'}")
            typer.echo(f"Web UI: {address} (Ctrl-C stops it)")
        sys.stdout.flush()
        # In a thread: webbrowser.open may block until the browser is closed.
        Thread(target=webbrowser.open, args=[address], daemon=True).start()
        config = uvicorn.Config(served, log_config=None, access_log=False, ws="none")
        uvicorn.Server(config).run(sockets=[listening])


def _print_scores(scores: "Sequence[Score]", bits: int) -> None:
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

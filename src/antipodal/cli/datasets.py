"""`antipodal datasets`."""

from pathlib import Path
from typing import Annotated

import typer

from antipodal.cli.app import AsJson, app, bar, print_json, say_next


@app.command(epilog="Example: antipodal datasets cifar10 --data data")
def datasets(
    name: Annotated[
        str | None, typer.Argument(help="cifar10, mnist or fashion-mnist, to download it.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Where to; otherwise $ANTIPODAL_DATA, or a cache directory.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say which datasets there are and where they are looked for, or download one."""
    from antipodal.datasets.download import SOURCES, download

    if name is None:
        _list(as_json)
        return
    if name not in SOURCES:
        known = ", ".join(SOURCES)
        raise typer.BadParameter(f"{name} cannot be downloaded: choose from {known}")
    with bar(name) as show:
        path = download(name, data, progress=show)
    if as_json:
        print_json({"dataset": name, "path": str(path)})
    else:
        typer.echo(f"{name} is in {path}")
        say_next("bench", "cifar10" if name == "cifar10" else "idx", "--data", str(path))


def _list(as_json: bool) -> None:
    from antipodal.datasets.download import SOURCES

    described = {
        "cifar10": "60,000 colour images, 32 × 32, 10 classes",
        "mnist": "70,000 handwritten digits, 28 × 28, 10 classes",
        "fashion-mnist": "70,000 grey images of clothes, 28 × 28, 10 classes",
        "nuswide": "269,648 photographs as 500 visual words, 81 concepts; by registration",
        "digits": "1,797 handwritten digits, 8 × 8; scikit-learn brings them",
    }
    for name, what in described.items():
        how = f"antipodal datasets {name}" if name in SOURCES else None
        if as_json:
            print_json({"dataset": name, "description": what, "download": how})
        else:
            typer.echo(f"{name:14} {what}" + (f"; {how}" if how else ""))

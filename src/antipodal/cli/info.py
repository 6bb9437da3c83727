"""`antipodal info`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from antipodal.cli.app import AsJson, app, check_no_url, print_json

_CALLED = {
    "antipodal": "written by antipodal",
    "model": "identity of the model",
    "run": "identity of the run",
    "data_licence": "licence of the data",
    "table_bands": "bands of tables for small radii",
    "missing_or_changed": "files missing or changed",
}
_UNKNOWN = "it does not say"


@app.command(epilog="Example: antipodal info model.antipodal")
def info(
    file: Annotated[
        Path,
        typer.Argument(callback=check_no_url, help="Any file that antipodal wrote, or a folder."),
    ],
    as_json: AsJson = False,
) -> None:
    """Say what a file is, which version wrote it, and from what.

    Models, index files, SQLite stores and backups, codes and folders of codes, exports,
    checkpoints, records, ONNX models, splits and reports. Checksums are checked on the way.
    """
    from antipodal.cli.fileinfo import describe

    facts = describe(file)
    if as_json:
        print_json(facts)
        return
    name, kind = facts.pop("file"), facts.pop("kind")
    typer.echo(f"{name}: {kind}")
    parameters = facts.pop("parameters", {})
    lines = {_CALLED.get(key, key.replace("_", " ")): _shown(value) for key, value in facts.items()}
    lines |= {f"parameter {key}": json.dumps(value) for key, value in parameters.items()}
    width = max(map(len, lines))
    for key, text in lines.items():
        typer.echo(f"  {key:{width}}  {text}")


def _shown(value: Any) -> str:
    if value is None:
        return _UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value)

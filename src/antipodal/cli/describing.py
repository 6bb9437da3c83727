"""What commands tell a report: how it was made, by which model, and what rows are of."""

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from antipodal.evaluation.reportqueries import Describe
    from antipodal.reading import VectorFile


def command_line() -> str:
    """Return the command that is running, as a shell would take it."""
    return f"antipodal {shlex.join(sys.argv[1:])}"


def model_text(path: Path, bits: int | None = None) -> str:
    """Say which model a file holds; refuse one that makes codes of another length."""
    from antipodal.storage.modelfile import open_model_file

    found = open_model_file(path, "hasher")
    header = found.header
    n_bits = dict(header.get("parameters") or {}).get("n_bits")
    if bits not in (None, n_bits):
        raise typer.BadParameter(f"{path} makes codes of {n_bits} bits, not {bits}")
    return (
        f"{path}: {header.get('class')}, {n_bits} bits, by antipodal {header.get('antipodal')}, "
        f"identity {found.identity}"
    )


def describer(
    metadata: Path | None, file: "VectorFile", columns: Sequence[str], title: str | None = None
) -> "Describe | None":
    """Return what looks up the metadata of rows: JSON lines, or columns beside the vectors.

    The column `title` stands in for a title, where there is no other.
    """
    if metadata is None and not columns:
        return None

    def records() -> Iterator[dict[str, Any]]:
        if metadata is None:
            return ({"title": row.get(title or ""), **row} for row in file.records(columns))
        from antipodal.reading.filekinds import JSON_LINES, FoundFile
        from antipodal.reading.jsontables import read_objects

        found = FoundFile(str(metadata), JSON_LINES, "option")
        return (line.fields for line in read_objects(found))

    def describe(rows: Iterable[int]) -> dict[int, dict[str, Any]]:
        wanted = set(rows)
        found = {row: fields for row, fields in enumerate(records()) if row in wanted}
        missing = wanted - found.keys()
        if missing:
            raise ValueError(
                f"{metadata} must have an object for each row: there is none for row {min(missing)}"
            )
        return found

    return describe

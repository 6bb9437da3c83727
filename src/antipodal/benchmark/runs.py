"""What `evaluate`, `audit` and `bench` print with --json, read again from a file of each run."""

import os
from pathlib import Path
from typing import Literal, NamedTuple

from antipodal.benchmark.records import Record
from antipodal.errors import AntipodalError
from antipodal.reading.filekinds import JSON_LINES, FoundFile
from antipodal.reading.jsontables import read_objects

Kind = Literal["bench", "audit", "evaluation", "neighbours"]

# The fields that every record of a kind has; the first kind that fits is meant.
_FIELDS: dict[Kind, set[str]] = {
    "bench": {"dataset", "method", "bits", "seed", "map"},
    "audit": {"method", "bits", "bytes", "search", "recall"},
    "evaluation": {"queries", "database", "map", "bit_balance"},
    "neighbours": {"recall", "recall_error", "bytes"},
}
COMMANDS: dict[Kind, str] = {
    "bench": "antipodal bench",
    "audit": "antipodal audit",
    "evaluation": "antipodal evaluate",
    "neighbours": "antipodal evaluate --neighbours",
}


class Run(NamedTuple):
    """The records of one file, all of one kind."""

    name: str
    kind: Kind
    records: list[Record]


def read_run(path: str | os.PathLike[str]) -> Run:
    """Read the records of a run, or say what is wrong with the file."""
    file = FoundFile(os.fspath(path), JSON_LINES, "place among the runs")
    records = [line.fields for line in read_objects(file)]
    if not records:
        raise AntipodalError(f"{path} has no records: did the run fail?")
    kind = _kind(records[0])
    if kind is None:
        raise AntipodalError(
            f"{path} does not hold what evaluate, audit or bench print with --json: its first "
            f"record has {', '.join(list(records[0])[:5]) or 'nothing'}"
        )
    odd = next((i for i, record in enumerate(records) if _kind(record) != kind), None)
    if odd is not None:
        raise AntipodalError(
            f"{path} must hold the records of one run: record {odd + 1} is not of "
            f"`{COMMANDS[kind]}` as the first is"
        )
    return Run(Path(path).stem, kind, records)


def _kind(record: Record) -> Kind | None:
    return next((kind for kind, names in _FIELDS.items() if names <= record.keys()), None)

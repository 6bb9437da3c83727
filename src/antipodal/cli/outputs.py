"""File kinds, and the check that an output does not replace a file of another kind."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from antipodal.errors import AntipodalError
from antipodal.io.atomic import check_writable

MODEL, INDEX, STORE = "model", "index", "SQLite store"
ARRAY, ARCHIVE, PARQUET, ONNX = "NumPy array", "NumPy archive", "parquet file", "ONNX model"
RECORDS, HTML, SAFETENSORS, FAISS = "JSON records", "HTML page", "safetensors file", "Faiss index"
DATABASE, SIDE_FILE, OTHER = "SQLite database", "SQLite side file", "unknown file"

_SIGNATURES = {
    b"antipidx": INDEX,
    b"SQLite format 3\0": STORE,
    b"\x93NUMPY": ARRAY,
    b"PK": ARCHIVE,
    b"PAR1": PARQUET,
    b"{": RECORDS,
    b"<!DOCTYPE html>": HTML,
}
_SIDE_FILES = ("-wal", "-shm", "-journal")
_START_BYTES = 100  # the length of a SQLite header
_HEADER_BYTES = 2**26  # of a safetensors file: longer headers are not read

Force = Annotated[
    bool, typer.Option("--force", help="Also replace an existing file of another kind.")
]
HtmlReport = Annotated[
    Path | None,
    typer.Option("--html", help="Also write a report with charts to this file."),
]


def check_output(path: str | os.PathLike[str], kind: str, force: bool = False) -> None:
    """Raise AntipodalError if `path` cannot be written or is a file of another kind.

    Call it before long work. Empty files, devices and pipes may always be written.

    Parameters
    ----------
    kind : str
        Kind of the file to be written, as `file_kind` names it.
    force : bool
        Accept a file of any kind.
    """
    check_writable(path)
    found = None if force else file_kind(path)
    if found not in (None, kind):
        raise AntipodalError(
            f"cannot write {path}: expected a new file or an existing {kind}, got a file of "
            f"another kind, {found}. Is the name right? Choose another one, or pass --force "
            "to replace the file"
        )


def file_kind(path: str | os.PathLike[str]) -> str | None:
    """Return the kind of a file by its first bytes, or None if it may be replaced without loss.

    Missing and empty files, devices and pipes may be replaced. The side files of a SQLite database
    may not: they can be missing or empty while the database is in use.
    """
    real = os.path.realpath(path)
    for ending in _SIDE_FILES:
        if real.endswith(ending) and _signature(_start(real.removesuffix(ending))) == STORE:
            return SIDE_FILE
    start = _start(real)
    if not start:
        # a new database may still be in its write-ahead log
        return STORE if os.path.isfile(real) and _has_log(real) else None
    kind = signature_kind(real, start)
    if kind == STORE:
        return _sqlite_kind(real, start)
    if kind == MODEL:
        return _safetensors_kind(real)
    return kind


def signature_kind(path: str | os.PathLike[str], start: bytes) -> str:
    """Return the kind of a non-empty file by its first bytes alone."""
    kind = _signature(start)
    if kind is not None:
        return kind
    if start[8:9] == b"{":  # after the length of a safetensors header
        return MODEL
    if start[2:13] == b"\x12\x09antipodal" or Path(path).suffix == ".onnx":
        return ONNX
    return OTHER


def _signature(start: bytes) -> str | None:
    return next((kind for sign, kind in _SIGNATURES.items() if start.startswith(sign)), None)


def _start(path: str) -> bytes:
    if not os.path.isfile(path):
        return b""
    try:
        with open(path, "rb") as file:
            return file.read(_START_BYTES)
    except PermissionError:
        return b"\0"  # of unknown kind


def _sqlite_kind(path: str, start: bytes) -> str:
    """Distinguish stores from databases of other programs by the application id in the header."""
    from antipodal.stores.sqlite_file import APPLICATION_ID

    found = int.from_bytes(start[68:72], "big")
    # the id of a new store may still be in its write-ahead log
    return STORE if found == APPLICATION_ID or (found == 0 and _has_log(path)) else DATABASE


def _has_log(path: str) -> bool:
    log = f"{path}-wal"
    return os.path.isfile(log) and os.path.getsize(log) > 0


def _safetensors_kind(path: str) -> str:
    """Distinguish models, checkpoints and files of other programs by their metadata."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(min(length, _HEADER_BYTES))
    try:
        metadata = json.loads(text).get("__metadata__", {})
        if metadata.get("format") != "antipodal":
            return SAFETENSORS
        return MODEL if metadata["kind"] == "hasher" else str(metadata["kind"])
    except (ValueError, KeyError, AttributeError, RecursionError):
        return OTHER

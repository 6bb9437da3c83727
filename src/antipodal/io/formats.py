"""File formats: recognised by the file name or by the first bytes."""

import glob
import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from antipodal.errors import AntipodalError


class FileFormat(NamedTuple):
    """The description of a file format, its file name suffixes, and the first bytes of a file."""

    description: str
    suffixes: tuple[str, ...]
    magic: bytes | None = None


NPY = FileFormat("a NumPy array", (".npy",), b"\x93NUMPY")
NPZ = FileFormat("an .npz file of arrays", (".npz",))  # a zip file, as are many others
PARQUET = FileFormat("a parquet file", (".parquet", ".pq"), b"PAR1")
# Arrow streams, unlike Arrow files, have no magic bytes.
ARROW = FileFormat("an Arrow or Feather file", (".arrow", ".feather", ".ipc"), b"ARROW1")
CSV = FileFormat("a CSV file", (".csv", ".csv.gz", ".tsv", ".tsv.gz"))
JSON_LINES = FileFormat("JSON Lines", (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz"))
FORMATS = (NPY, NPZ, PARQUET, ARROW, CSV, JSON_LINES)
_GZIP = b"\x1f\x8b"


class DataFile(NamedTuple):
    """A file, its format, and the evidence for that format, for error messages."""

    path: str
    format: FileFormat
    evidence: str

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Convert any exception to an AntipodalError that names the file and its format."""
        try:
            yield
        except (AntipodalError, MemoryError):
            raise
        except Exception as error:  # pyarrow, gzip and zlib raise many types
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise AntipodalError(
                f"cannot read {self.path}: {reason.rstrip('.')}. "
                f"It was read as {self.format.description} {self.evidence}"
            ) from error

    def open(self) -> BinaryIO:
        """Open the file, decompressed if its name ends in .gz."""
        if self.path.endswith(".gz"):
            return cast(BinaryIO, gzip.open(self.path))
        return open(self.path, "rb")


def split_column(source: str) -> tuple[str, str | None]:
    """Split `FILE:COLUMN`, unless a file of the whole name, colon included, exists."""
    path, colon, column = source.rpartition(":")
    if not colon or os.path.lexists(source):
        return source, None
    if os.path.lexists(path) or glob.has_magic(path) or _format_of_name(path) is not None:
        return path, column
    return source, None


def find_files(path: str) -> list[DataFile]:
    """Return the files of a path, folder or glob pattern, sorted by name, all of one format.

    A folder is searched recursively. Names that begin with a dot or an underscore are skipped:
    writers of data sets use them for metadata. The path `-` is standard input.
    """
    if path == "-":
        return [DataFile(path, NPY, "because it is a pipe")]
    if os.path.isdir(path):
        names = [str(file) for file in Path(path).rglob("*") if _is_data(file, Path(path))]
    elif glob.has_magic(path) and not os.path.lexists(path):
        names = [name for name in glob.glob(path, recursive=True) if not os.path.isdir(name)]
    else:
        names = [path]
    if not names:
        is_empty = os.path.isdir(path)
        reason = "the folder has no data files" if is_empty else "no file matches the pattern"
        raise AntipodalError(f"cannot read {path}: {reason}")
    first, *others = files = [find_format(name) for name in sorted(names)]
    for other in others:
        if other.format != first.format:
            raise AntipodalError(
                f"the files of {path} must have one format: {first.path} is "
                f"{first.format.description}, {other.path} is {other.format.description}"
            )
    return files


def _is_data(file: Path, folder: Path) -> bool:
    is_skipped = any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)
    return not is_skipped and file.is_file()


def _format_of_name(path: str) -> FileFormat | None:
    name = path.lower()
    return next((known for known in FORMATS if name.endswith(known.suffixes)), None)


def find_format(path: str) -> DataFile:
    """Recognise the format of a file by its name or, if that is inconclusive, its first bytes."""
    try:
        if not os.path.isfile(path) and os.path.exists(path):
            return DataFile(path, NPY, "because it is a pipe")  # bytes read here would be lost
        with open(path, "rb") as file:
            start = file.read(8)
    except OSError as error:
        raise AntipodalError(f"cannot read {path}: {error.strerror or error}") from error
    by_name = _format_of_name(path)
    if by_name is not None:
        named = DataFile(path, by_name, "because of its name")
        with named.naming_errors():
            _check_start(named, start)
        return named
    for known in FORMATS:
        if known.magic and start.startswith(known.magic):
            return DataFile(path, known, "because of its first bytes")
    suffixes = ", ".join(suffix for known in FORMATS for suffix in known.suffixes)
    raise AntipodalError(
        f"cannot read {path}: {_unknown(start)}. Supported names end in {suffixes}"
    )


def _check_start(file: DataFile, start: bytes) -> None:
    """Check that the first bytes match the format of the file name."""
    if file.format in (NPY, NPZ):  # checked where they are opened
        return
    if not start:
        raise ValueError("it is empty")
    if start.startswith(b"FEA1"):
        raise ValueError("it is a Feather file of version 1: write it again as version 2")
    if file.path.endswith(".gz") and not start.startswith(_GZIP):
        raise ValueError("its name ends in .gz, but it is not compressed with gzip")
    if file.format is PARQUET and not start.startswith(b"PAR1"):
        raise ValueError(f"it begins with {start[:4]!r}, not with {PARQUET.magic!r}")


def _unknown(start: bytes) -> str:
    if not start:
        return "it is empty"
    if start.startswith(b"PK"):
        return "it is a zip file: if it contains arrays, its name must end in .npz"
    if start.startswith(_GZIP):
        return "it is compressed with gzip, and its name has no supported suffix before .gz"
    return f"its format follows neither from its name nor from its first bytes, {start!r}"

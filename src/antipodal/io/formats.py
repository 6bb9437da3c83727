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


NPY = FileFormat("a NumPy array (.npy)", (".npy",), b"\x93NUMPY")
NPZ = FileFormat("a NumPy archive (.npz) of arrays", (".npz",), b"PK")
PARQUET = FileFormat("a parquet file", (".parquet", ".pq"), b"PAR1")
ARROW = FileFormat("an Arrow or Feather file", (".arrow", ".feather", ".ipc"), b"ARROW1")
CSV = FileFormat("a CSV file", (".csv", ".csv.gz", ".tsv", ".tsv.gz"))
JSON_LINES = FileFormat("JSON Lines", (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz"))
FORMATS = (NPY, NPZ, PARQUET, ARROW, CSV, JSON_LINES)
_GZIP = b"\x1f\x8b"
_CONTENTS = {
    b"": "it is empty",
    b"\x93NUMPY": "it contains a single array, as .npy files do",
    b"PK": "it is a zip file: if it contains arrays, its name must end in .npz",
    _GZIP: "it is compressed with gzip",
    b"FEA1": "it is a Feather file of version 1: write it again as version 2",
}


class FormatError(Exception):
    """The first bytes of a file do not match its format."""


class DataFile(NamedTuple):
    """A file, its format, and the evidence for that format, for error messages."""

    path: str
    format: FileFormat
    evidence: str

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Convert any exception to an AntipodalError that names the file and its format."""
        is_numpy = self.format in (NPY, NPZ)
        try:
            yield
        except AntipodalError:
            raise
        except Exception as error:  # pyarrow, NumPy, zipfile, gzip and zlib raise many types
            if isinstance(error, MemoryError) and not is_numpy:
                raise
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            if "Object arrays" in reason or "Python objects" in reason:  # NumPy's messages
                reason = "it contains Python objects, which need pickle: save numbers or strings"
            elif is_numpy and not isinstance(error, (OSError, FormatError)):
                reason = "it is truncated or damaged"
            raise AntipodalError(
                f"cannot read {self.path}: {reason.rstrip('.')}. "
                f"It was read as {self.format.description} {self.evidence}"
            ) from error

    def check_start(self, start: bytes) -> None:
        """Raise FormatError if the first bytes do not match the format."""
        if not start:
            raise FormatError(_describe_start(start))
        if self.path.endswith(".gz"):
            if not start.startswith(_GZIP):
                raise FormatError("its name ends in .gz, but it is not compressed with gzip")
        elif self.format.magic and not start.startswith(self.format.magic):
            if self.format is ARROW and not start.startswith(b"FEA1"):
                return  # Arrow streams have no magic bytes
            raise FormatError(
                f"{_describe_start(start)}. Its first bytes should be {self.format.magic!r}"
            )

    def open(self) -> BinaryIO:
        """Open the file, decompressed if its name ends in .gz."""
        if self.path.endswith(".gz"):
            return cast(BinaryIO, gzip.open(self.path))
        return open(self.path, "rb")


def _describe_start(start: bytes) -> str:
    for magic, description in _CONTENTS.items():
        if start.startswith(magic) if magic else not start:
            return description
    return f"it begins with {start!r}"


def split_column(source: str) -> tuple[str, str | None]:
    """Split `FILE:COLUMN`, unless a file of the whole name, colon included, exists."""
    path, colon, column = source.rpartition(":")
    if not colon or os.path.lexists(source):
        return source, None
    if os.path.lexists(path) or glob.has_magic(path) or format_of_name(path) is not None:
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


def format_of_name(path: str) -> FileFormat | None:
    """Return the format of a file by the suffix of its name, or None."""
    name = path.lower()
    return next((known for known in FORMATS if name.endswith(known.suffixes)), None)


def find_format(path: str) -> DataFile:
    """Recognise the format of a file by its name or, if that is inconclusive, its first bytes."""
    try:
        if not os.path.isfile(path) and os.path.exists(path):
            return DataFile(path, NPY, "because it is a pipe")  # reading would consume its bytes
        with open(path, "rb") as file:
            start = file.read(8)
    except OSError as error:
        raise AntipodalError(f"cannot read {path}: {error.strerror or error}") from error
    by_name = format_of_name(path)
    if by_name is not None:
        named = DataFile(path, by_name, "because of its name")
        with named.naming_errors():
            named.check_start(start)
        return named
    for known in FORMATS:
        if known.magic and start.startswith(known.magic) and known is not NPZ:
            return DataFile(path, known, "because of its first bytes")
    suffixes = ", ".join(suffix for known in FORMATS for suffix in known.suffixes)
    raise AntipodalError(
        f"cannot read {path}: {_describe_start(start)}. Supported names end in {suffixes}"
    )

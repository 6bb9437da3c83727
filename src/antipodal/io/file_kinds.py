"""File formats: recognised by name or by the first bytes."""

import glob
import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from antipodal.errors import AntipodalError


class FileKind(NamedTuple):
    """What is written in a file: how it is called, how its name ends and how it begins."""

    called: str
    endings: tuple[str, ...]
    beginnings: tuple[bytes, ...] = ()


NPY = FileKind("a NumPy array", (".npy",), (b"\x93NUMPY",))
NPZ = FileKind("an .npz file of arrays", (".npz",), (b"PK",))
PARQUET = FileKind("a parquet file", (".parquet", ".pq"), (b"PAR1",))
# An Arrow stream begins with a length, behind the mark of the newer format or without it.
ARROW = FileKind("an Arrow or Feather file", (".arrow", ".feather", ".ipc"), (b"ARROW1",))
CSV = FileKind("a CSV file", (".csv", ".csv.gz", ".tsv", ".tsv.gz"))
JSON_LINES = FileKind("JSON lines", (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz"))
KINDS = (NPY, NPZ, PARQUET, ARROW, CSV, JSON_LINES)
_GZIP = b"\x1f\x8b"


class FoundFile(NamedTuple):
    """A file, its kind, and why it was taken for one of that kind."""

    path: str
    kind: FileKind
    why: str

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Turn whatever fails into an error that names the file, and what it was taken for."""
        try:
            yield
        except (AntipodalError, MemoryError):
            raise
        except Exception as error:  # pyarrow, gzip and zlib raise many kinds
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise AntipodalError(
                f"cannot read {self.path}: {reason.rstrip('.')}. "
                f"It was taken for {self.kind.called} by its {self.why}"
            ) from error

    def open(self) -> BinaryIO:
        """Open the file, unpacked where its name ends in .gz."""
        if self.path.endswith(".gz"):
            return cast(BinaryIO, gzip.open(self.path))
        return open(self.path, "rb")


def split_column(source: str) -> tuple[str, str | None]:
    """Split `FILE:COLUMN`; a file whose own name has the colon goes first."""
    path, colon, column = source.rpartition(":")
    if not colon or os.path.lexists(source):
        return source, None
    if os.path.lexists(path) or glob.has_magic(path) or kind_by_name(path) is not None:
        return path, column
    return source, None


def find_files(path: str) -> list[FoundFile]:
    """Return the files that a path, a folder or a pattern stands for, by name, all of one kind.

    Of a folder those of all folders within; names that begin with a dot or an underscore are left
    out, for these are not data but notes of those who wrote it.
    """
    nothing = "there is no file in this folder"
    if os.path.isdir(path):
        names = [str(file) for file in Path(path).rglob("*") if _is_data(file, Path(path))]
    elif glob.has_magic(path) and not os.path.lexists(path):
        names = [name for name in glob.glob(path, recursive=True) if not os.path.isdir(name)]
        nothing = "no file has such a name"
    else:
        names = [path]
    if not names:
        raise AntipodalError(f"cannot read {path}: {nothing}")
    found = [find_kind(name) for name in sorted(names)]
    for other in found[1:]:
        if other.kind != found[0].kind:
            raise AntipodalError(
                f"the files of {path} must be of one kind: {found[0].path} is "
                f"{found[0].kind.called}, {other.path} is {other.kind.called}"
            )
    return found


def _is_data(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)
    return not hidden and file.is_file()


def kind_by_name(path: str) -> FileKind | None:
    """Return the kind that a name ends as."""
    name = path.lower()
    return next((kind for kind in KINDS if name.endswith(kind.endings)), None)


def find_kind(path: str) -> FoundFile:
    """Tell the kind of a file by its name, and if that does not say, by its first bytes."""
    by_name = kind_by_name(path)
    try:
        if not os.path.isfile(path) and os.path.exists(path):
            return FoundFile(path, NPY, "being a pipe")  # to look into it would lose what is read
        with open(path, "rb") as file:
            start = file.read(8)
    except OSError as error:
        raise AntipodalError(f"cannot read {path}: {error.strerror or error}") from error
    if by_name is not None:
        found = FoundFile(path, by_name, "name")
        _check_start(found, start)
        return found
    for kind in KINDS:
        if kind.beginnings and start.startswith(kind.beginnings) and kind is not NPZ:
            return FoundFile(path, kind, "first bytes")
    endings = ", ".join(ending for kind in KINDS for ending in kind.endings)
    raise AntipodalError(
        f"cannot read {path}: {_unknown(start)}. Names of files that can be read end in {endings}"
    )


def _check_start(found: FoundFile, start: bytes) -> None:
    """Refuse a file that begins otherwise than files of its name do."""
    if found.kind in (NPY, NPZ):  # which say so themselves
        return
    with found.naming():
        if not start:
            raise ValueError("it is empty")
        if start.startswith(b"FEA1"):
            raise ValueError("it is of the first version of Feather: write it again with a newer")
        if found.path.endswith(".gz") and not start.startswith(_GZIP):
            raise ValueError("its name ends in .gz, and it is not packed by gzip")
        if found.kind is PARQUET and not start.startswith(PARQUET.beginnings):
            raise ValueError(f"it begins with {start[:4]!r}, not with {PARQUET.beginnings[0]!r}")


def _unknown(start: bytes) -> str:
    if not start:
        return "it is empty"
    if start.startswith(b"PK"):
        return "it is a zip file: if it holds arrays, its name must end in .npz"
    if start.startswith(_GZIP):
        return "it is packed by gzip, and its name does not say what is in it"
    return f"neither its name nor its first bytes, {start!r}, say what it is"

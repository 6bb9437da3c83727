"""A file of JSON records, one per line, that a stopped run finds again when it goes on."""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from types import ModuleType
from typing import Any

from antipodal.errors import AntipodalError
from antipodal.io.atomic import sync_directory

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

Record = dict[str, Any]


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """Read all whole records; a last line without its end, of a run that was killed, is left out.

    A file that does not exist holds none.
    """
    try:
        return _parse(path, Path(path).read_bytes())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise AntipodalError(f"cannot read {path}: {error.strerror or error}") from error


def _parse(path: str | os.PathLike[str], data: bytes) -> list[Record]:
    records = []
    *lines, rest = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise _foreign(path, number)
        records.append(record)
    if rest and not rest.startswith(b"{"):  # not the beginning of a record either
        raise _foreign(path, len(lines) + 1)
    return records


def _foreign(path: str | os.PathLike[str], line: int) -> AntipodalError:
    return AntipodalError(f"{path}, line {line} is not a JSON object: is this a file of records?")


class RecordWriter:
    """Appends records; each is on the disk when `append` returns, if it is a disk.

    `found` are the records that the file had when it was opened.
    """

    def __init__(self, path: Path, file: FileIO, found: list[Record]) -> None:
        self.found = found
        self._path = path
        self._file = file

    def append(self, record: Record) -> None:
        """Write one record, whole or not at all."""
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        kept = _is_regular(self._file)
        end = self._file.seek(0, os.SEEK_END) if kept else 0
        try:
            while line:  # a disk that fills up may take a part of it
                line = line[self._file.write(line) :]
            if kept:
                os.fsync(self._file.fileno())
        except OSError as error:
            if kept:
                with suppress(OSError):  # then the next run cuts off what is half a line
                    self._file.truncate(end)
            raise AntipodalError(
                f"cannot write {self._path}: {error.strerror or error}. The records before are "
                "kept; run the same command again to go on"
            ) from error


@contextmanager
def appending(path: str | os.PathLike[str]) -> Iterator[RecordWriter]:
    """Open a file of records to read and append to, for one process at a time.

    A half-written last line is cut off: its run was killed before the record was complete. A file
    of something else is left as it is. A device or a pipe is written to, and never read.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Made if it is missing, and never emptied: another run may have made it a moment ago.
        mode = "r+" if not target.exists() or target.is_file() else "w"
        file = FileIO(os.fspath(target), mode, opener=_open_or_make)
    except OSError as error:
        raise AntipodalError(f"cannot write {target}: {error.strerror or error}") from error
    with file:
        if not _is_regular(file):
            yield RecordWriter(target, file, [])
            return
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise AntipodalError(
                    f"{target} is being written by another run: wait for it, or choose another file"
                ) from error
        try:
            sync_directory(target.parent)  # the name of a new file, too, is on the disk
        except OSError as error:
            raise AntipodalError(f"cannot write {target}: {error.strerror or error}") from error
        # Read only now: until a moment ago another run may have written.
        data = file.read()
        found = _parse(target, data)
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            file.truncate(whole)
        yield RecordWriter(target, file, found)


def _is_regular(file: FileIO) -> bool:
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)


def _open_or_make(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o666)

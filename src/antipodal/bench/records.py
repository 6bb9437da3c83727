"""JSON Lines files of benchmark records, from which interrupted runs resume."""

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
    """Return all complete records; an incomplete last line of a killed run is ignored.

    A missing file has no records.
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
    if rest and not rest.startswith(b"{"):  # not the start of a record either
        raise _foreign(path, len(lines) + 1)
    return records


def _foreign(path: str | os.PathLike[str], line: int) -> AntipodalError:
    return AntipodalError(
        f"{path}, line {line} must be a JSON object: is this a file of benchmark records?"
    )


class RecordWriter:
    """Append-only file of records. In a regular file, `append` syncs each record to disk.

    `found` is the list of records that the file had when it was opened.
    """

    def __init__(self, path: Path, file: FileIO, found: list[Record]) -> None:
        self.found = found
        self._path = path
        self._file = file

    def append(self, record: Record) -> None:
        """Write one record, completely or not at all."""
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        regular = _is_regular(self._file)
        end = self._file.seek(0, os.SEEK_END) if regular else 0
        try:
            while line:  # a full disk may accept only a part
                line = line[self._file.write(line) :]
            if regular:
                os.fsync(self._file.fileno())
        except OSError as error:
            if regular:
                with suppress(OSError):  # if it fails, the next run removes the incomplete line
                    self._file.truncate(end)
            raise AntipodalError(
                f"cannot write {self._path}: {error.strerror or error}. Earlier records are "
                "stored; run the same command again to resume"
            ) from error


@contextmanager
def appending(path: str | os.PathLike[str]) -> Iterator[RecordWriter]:
    """Open a file of records for reading and appending, with an exclusive lock.

    The incomplete last line of a killed run is removed. A file with other contents raises an error
    and is not changed. A device or pipe is written to, but not read.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Never truncated on opening, since another run may have created it in the meantime.
        mode = "r+" if not target.exists() or target.is_file() else "w"
        file = FileIO(os.fspath(target), mode, opener=_open_or_create)
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
                    f"{target} is locked by another run: wait for it or choose another file"
                ) from error
        try:
            sync_directory(target.parent)  # syncs the name of a new file
        except OSError as error:
            raise AntipodalError(f"cannot write {target}: {error.strerror or error}") from error
        # Read after locking, since another run may have written before.
        data = file.read()
        found = _parse(target, data)
        complete = data.rfind(b"\n") + 1
        if complete < len(data):
            file.truncate(complete)
        yield RecordWriter(target, file, found)


def _is_regular(file: FileIO) -> bool:
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)


def _open_or_create(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o666)

"""A file of JSON records, one a line, that a stopped run finds again when it goes on."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from types import ModuleType
from typing import Any

from antipodal.errors import AntipodalError

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
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise AntipodalError(f"cannot read {path}: {error.strerror or error}") from error
    records = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise AntipodalError(
                f"{path}, line {number} is not a JSON object: is this a file of records?"
            )
        records.append(record)
    return records


class RecordWriter:
    """Appends records; each is on the disk when `append` returns."""

    def __init__(self, path: Path, file: FileIO) -> None:
        self._path = path
        self._file = file

    def append(self, record: Record) -> None:
        """Write one record, whole or not at all."""
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        end = self._file.seek(0, os.SEEK_END)
        try:
            while line:  # a disk that fills up may take a part of it
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(end)
            raise AntipodalError(
                f"cannot write {self._path}: {error.strerror or error}. The records before are "
                "kept; run the same command again to go on"
            ) from error


@contextmanager
def appending(path: str | os.PathLike[str]) -> Iterator[RecordWriter]:
    """Open a file of records to append to, for one process at a time.

    A half-written last line is cut off: its run was killed before the record was complete.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        file = open(target, "r+b" if target.exists() else "w+b", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise AntipodalError(f"cannot write {target}: {error.strerror or error}") from error
    with file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise AntipodalError(
                    f"{target} is being written by another run: wait for it, or choose another file"
                ) from error
        data = file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            file.truncate(whole)
        yield RecordWriter(target, file)

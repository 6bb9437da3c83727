"""Manifest of a folder of codes: the model, and the rows and checksum of every file.

During a run, `_progress.jsonl` has one line about the run and one line per finished file. At the
end, `_manifest.json` replaces it. Readers of folders of parquet files skip names that begin with an
underscore.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import antipodal
from antipodal.bulk.encoder import FileJob, FileRecord
from antipodal.errors import AntipodalError
from antipodal.io.atomic import make_folder, replacing

MANIFEST, PROGRESS = "_manifest.json", "_progress.jsonl"
_FORMAT = "antipodal bulk codes 1"


class Manifest:
    """The manifest of a folder, updated while its files are written.

    Parameters
    ----------
    folder : Path
    about : mapping
        The properties that a resumed run must share: the model and the columns.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder = folder
        self.about = {"format": _FORMAT, **about}
        self.done: dict[str, FileRecord] = {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder, and lock it against other runs."""
        make_folder(self.folder)
        with _lock(self.folder):
            yield

    def begin(self, jobs: Sequence[FileJob], *, resume: bool) -> list[FileJob]:
        """Return the remaining jobs.

        A job is done if its file matches its recorded checksum, and its source is unchanged.
        """
        earlier = read_contents(self.folder)
        if earlier is None:
            self._check_empty()
        else:
            about, records, _ = earlier
            self._check_same(about)
            if not resume:
                raise AntipodalError(
                    f"{self.folder} already contains codes of this model: resume the run, or "
                    "choose another folder"
                )
            jobs_by_name = {job.name: job for job in jobs}
            self._check_known(records, jobs_by_name)
            self.done = {
                record.name: record
                for record in records
                if is_intact(record, jobs_by_name[record.name])
            }
        lines = [self.about, *(record._asdict() for record in self.done.values())]
        with replacing(self.folder / PROGRESS) as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
        with suppress(FileNotFoundError):
            os.unlink(self.folder / MANIFEST)
        return [job for job in jobs if job.name not in self.done]

    def add(self, record: FileRecord) -> None:
        """Record a finished file."""
        self.done[record.name] = record
        with open(self.folder / PROGRESS, "a") as file:
            file.write(json.dumps(record._asdict()) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def finish(self) -> dict[str, Any]:
        """Write the manifest and return its contents."""
        records = [self.done[name] for name in sorted(self.done)]
        contents = {
            **self.about,
            "antipodal": antipodal.__version__,
            "rows": sum(record.rows for record in records),
            "files": [record._asdict() for record in records],
        }
        with replacing(self.folder / MANIFEST) as file:
            file.write(json.dumps(contents, indent=1).encode() + b"\n")
        os.unlink(self.folder / PROGRESS)
        return contents

    def _check_empty(self) -> None:
        names = [entry.name for entry in os.scandir(self.folder) if entry.name[0] != "."]
        if names:
            raise AntipodalError(
                f"{self.folder} must be empty or contain codes with their manifest: it contains "
                f"{min(names)!r} and no {MANIFEST}"
            )

    def _check_same(self, about: Mapping[str, Any]) -> None:
        """Raise an error if the model or the columns differ from those of earlier runs."""
        for name in self.about:
            new, old = self.about[name], about.get(name)
            if new != old:
                raise AntipodalError(
                    f"{self.folder} contains files with {name} {old!r}, this run has {new!r}: "
                    "choose another folder"
                )

    def _check_known(self, records: Sequence[FileRecord], jobs: Mapping[str, FileJob]) -> None:
        gone = next((record.name for record in records if record.name not in jobs), None)
        if gone is not None:
            raise AntipodalError(
                f"{self.folder} contains codes of {gone}, which is not among the files to encode: "
                "choose another folder, or encode the same files"
            )


class FolderContents(NamedTuple):
    """The contents of a manifest, finished or in progress."""

    about: dict[str, Any]
    records: list[FileRecord]
    is_finished: bool


def read_contents(folder: Path) -> FolderContents | None:
    """Return the manifest of a folder, finished or in progress, or None if it has none."""
    path = folder / PROGRESS
    try:
        if path.exists():  # takes precedence: a crash may have left the old manifest in place
            about, *records = _read_lines(path)
        elif (path := folder / MANIFEST).exists():
            about = json.loads(path.read_bytes())
            records = about.pop("files")
        else:
            return None
        done = [FileRecord(**record) for record in records]
        return FolderContents(dict(about), done, path.name == MANIFEST)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise AntipodalError(
            f"{path} is damaged ({error}): choose another folder, or remove this one"
        ) from error


def is_intact(record: FileRecord, job: FileJob) -> bool:
    """Return whether a file of codes and its source are unchanged."""
    try:
        source = os.stat(job.source)
        if os.path.getsize(job.target) != record.bytes:
            return False
        with open(job.target, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return False
    same_source = (source.st_size, source.st_mtime_ns) == (
        record.source_bytes, record.source_modified_ns,
    )  # fmt: skip
    return digest == record.sha256 and same_source


def _read_lines(path: Path) -> list[Any]:
    """Return the parsed lines, without an incomplete last line."""
    complete, _, _ = path.read_text().rpartition("\n")
    return [json.loads(line) for line in complete.splitlines()]


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Lock the folder, where supported; the lock ends with the process."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AntipodalError(f"another run is writing to {folder}") from None
        except OSError:  # a network file system without locks
            pass
        yield
    finally:
        os.close(handle)

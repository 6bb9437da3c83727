"""What a folder of codes says of itself: the model, and every file with its rows and checksum.

While files are being written, each that is done is a line of `_progress.jsonl`, behind a first line
that says of which run it is; at the end all are in `_manifest.json`, and the lines are gone. Those
who read folders of parquet leave names with an underscore alone.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any, NamedTuple

import antipodal
from antipodal.bulk.encoder import FileJob, FileRecord
from antipodal.errors import AntipodalError
from antipodal.io.atomic import make_folder, replacing

MANIFEST, PROGRESS = "_manifest.json", "_progress.jsonl"
_FORMAT = "antipodal bulk codes 1"


class Manifest:
    """The record of a run in its folder.

    Parameters
    ----------
    folder : Path
    about : mapping
        What must not change from run to run: the model and the columns.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder = folder
        self.about = {"format": _FORMAT, **about}
        self.done: dict[str, FileRecord] = {}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder, and keep other runs out of it as long as this one works on it."""
        make_folder(self.folder)
        with _lock(self.folder):
            yield

    def begin(self, jobs: Sequence[FileJob], *, resume: bool) -> list[FileJob]:
        """Return the jobs that are left to do, all of them in a new folder.

        Of what was done before, a file counts that is still as it was recorded, byte by byte, and
        whose source has not changed since.
        """
        earlier = read_contents(self.folder)
        if earlier is None:
            self._check_empty()
        else:
            about, records, _ = earlier
            self._check_same(about)
            if not resume:
                raise AntipodalError(
                    f"{self.folder} holds codes of this model already: resume to go on with it, or "
                    "name another folder"
                )
            jobs_by_name = {job.name: job for job in jobs}
            self._check_known(records, jobs_by_name)
            self.done = {
                record.name: record
                for record in records
                if is_intact(record, jobs_by_name[record.name])
            }
            self._remove_leftovers(jobs)
        lines = [self.about, *(record._asdict() for record in self.done.values())]
        with replacing(self.folder / PROGRESS) as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
        with suppress(FileNotFoundError):
            os.unlink(self.folder / MANIFEST)
        return [job for job in jobs if job.name not in self.done]

    def add(self, record: FileRecord) -> None:
        """Remember a file that is on the disk."""
        self.done[record.name] = record
        with open(self.folder / PROGRESS, "a") as file:
            file.write(json.dumps(record._asdict()) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def finish(self) -> dict[str, Any]:
        """Write the manifest and return what it says."""
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
        there = [entry.name for entry in os.scandir(self.folder) if entry.name[0] != "."]
        if there:
            raise AntipodalError(
                f"{self.folder} must be empty or hold codes with their manifest: it holds "
                f"{sorted(there)[0]!r} and no {MANIFEST}"
            )

    def _check_same(self, about: Mapping[str, Any]) -> None:
        """Refuse to mix codes of two models, or files with other columns."""
        for name in self.about:
            here, there = self.about[name], about.get(name)
            if here != there:
                raise AntipodalError(
                    f"{self.folder} holds files with {name} {there!r}, and these would have "
                    f"{here!r}: name another folder"
                )

    def _check_known(self, records: Sequence[FileRecord], jobs: Mapping[str, FileJob]) -> None:
        gone = next((record.name for record in records if record.name not in jobs), None)
        if gone is not None:
            raise AntipodalError(
                f"{self.folder} holds codes of {gone}, which is not among the files to encode: "
                "name another folder, or the files as before"
            )

    def _remove_leftovers(self, jobs: Sequence[FileJob]) -> None:
        """Remove the temporary files of a run that was killed; no other run is at work here."""
        targets = [Path(job.target) for job in jobs]
        for target in [*targets, self.folder / PROGRESS, self.folder / MANIFEST]:
            for path in target.parent.glob(f".{escape(target.name[:40])}.????????"):
                path.unlink()


class FolderContents(NamedTuple):
    """What a folder says of itself; the run that writes it may not be finished."""

    about: dict[str, Any]
    records: list[FileRecord]
    is_finished: bool


def read_contents(folder: Path) -> FolderContents | None:
    """Return what the runs so far have left, if there was one."""
    path = folder / PROGRESS
    try:
        if path.exists():  # also beside a manifest, if it was just about to be removed
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
            f"{path} is damaged ({error}): name another folder, or remove this one"
        ) from error


def is_intact(record: FileRecord, job: FileJob) -> bool:
    """Return whether the file is as it was written, and its source as it was read."""
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
    """Return the lines but for a last one that was not written to its end."""
    whole, _, _ = path.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the folder alone, where the system can; it lets go when the process ends."""
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
            raise AntipodalError(f"another run is writing to {folder}: wait for it") from None
        except OSError:  # a file system of a network that knows no locks
            pass
        yield
    finally:
        os.close(handle)

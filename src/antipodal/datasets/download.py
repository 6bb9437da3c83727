"""Dataset downloads, verified by checksum."""

import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from platformdirs import user_cache_path

from antipodal.errors import AntipodalError
from antipodal.io.atomic import folder_lock, replacing

VARIABLE = "ANTIPODAL_DATA"


def data_directory(dir: str | os.PathLike[str] | None = None) -> Path:
    """Return `dir`, or else the environment variable ANTIPODAL_DATA, or else the cache directory.

    The latter is `antipodal` in the user's cache directory, such as ~/.cache.
    """
    chosen = os.environ.get(VARIABLE) if dir is None else dir
    return Path(chosen).expanduser() if chosen else user_cache_path("antipodal", appauthor=False)


def find_directory(dir: str | os.PathLike[str] | None, help: str) -> Path:
    """Return the data directory; if it is missing, raise an error with the help for the dataset."""
    path = data_directory(dir)
    if path.is_dir():
        return path
    if dir is not None:
        raise AntipodalError(f"{path} is not a directory")
    if os.environ.get(VARIABLE):
        raise AntipodalError(f"{path} (from {VARIABLE}) is not a directory")
    raise AntipodalError(
        f"no data directory: pass `dir`, or set the environment variable {VARIABLE}. "
        f"The default, {path}, does not exist; {help}"
    )


_TIMEOUT = 30.0  # seconds without data
_CHUNK = 1 << 13  # bytes that are lost when a connection breaks
_RANGE_NOT_SATISFIABLE = 416

Report = Callable[[int], None]


class RemoteFile(NamedTuple):
    """A file on a server, with its published size and checksum."""

    url: str
    size: int
    md5: str  # as published by the authors; detects damage, not tampering

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.url.rpartition("/")[2]

    def is_at(self, path: Path) -> bool:
        """Return whether `path` is this file, verified by size and checksum."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        from pooch import file_hash  # not at the top: it is slow to import

        return bool(file_hash(path, alg="md5") == self.md5)


def fetch(remote: RemoteFile, path: Path, report: Report) -> None:
    """Download a file to `path`, first under that name with ``.part`` appended.

    If the connection breaks, the next call resumes from the partial file. `report` is called with
    the number of bytes downloaded so far.
    """
    import pooch
    from requests import ConnectionError, RequestException

    part = path.with_name(f"{path.name}.part")

    def resume(url: str, target: str, _: object) -> None:
        if not remote.is_at(part):  # complete if a process was killed before renaming
            with part.open("ab") as file:
                partial = _PartialFile(remote, file, report)
                headers = {
                    "User-Agent": "antipodal",
                    "Accept-Encoding": "identity",
                    "Range": f"bytes={partial.done}-",
                }
                get = pooch.HTTPDownloader(
                    chunk_size=_CHUNK, timeout=_TIMEOUT, headers=headers,
                    hooks={"response": partial.begin},
                )  # fmt: skip
                get(url, partial, None)
            if partial.done < remote.size:
                raise ConnectionError("the server closed the connection")
        os.replace(part, target)

    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("WARNING")  # suppress its own messages
    try:
        pooch.retrieve(remote.url, f"md5:{remote.md5}", path.name, path.parent, downloader=resume)
    except RequestException as error:
        reason, done = _cause(error), part.stat().st_size
        if done:
            reason += (
                f", the connection broke after {done:,} of {remote.size:,} bytes; the next attempt "
                "resumes from there"
            )
        raise _failure(remote, reason) from error
    except ValueError as error:  # raised by pooch, which has removed the file
        reason = f"its checksum is not the published one, MD5 {remote.md5}"
        raise _failure(remote, reason) from error
    finally:
        logger.setLevel(level)


class _PartialFile:
    """A partially downloaded file, to which pooch appends."""

    def __init__(self, remote: RemoteFile, file: BinaryIO, report: Report) -> None:
        self.remote, self.file, self.report = remote, file, report
        self.done = file.tell()
        if self.done >= remote.size:  # complete, but with a wrong checksum
            self._start_over()

    def begin(self, response: Any, **_: object) -> None:
        """Check the response of the server: an error, the rest of the file, or the whole file."""
        if response.is_redirect:
            return
        if not response.ok:
            response.close()
            if response.status_code == _RANGE_NOT_SATISFIABLE:  # the partial file cannot be resumed
                self._start_over()
            reason = f"the server returned {response.status_code} {response.reason}"
            raise _failure(self.remote, reason)
        # The checksum is of the compressed file: prevent decompression by requests.
        response.raw.headers.pop("Content-Encoding", None)
        if response.headers.get("Content-Range", "").partition("-")[0] != f"bytes {self.done}":
            self._start_over()
        length = response.headers.get("Content-Length", "")
        if length.isdecimal() and self.done + int(length) != self.remote.size:
            response.close()
            self._refuse(f"{self.done + int(length):,}")

    def write(self, chunk: bytes) -> None:
        """Append a chunk."""
        if self.done + len(chunk) > self.remote.size:
            self._refuse("more")
        self.file.write(chunk)
        self.done += len(chunk)
        self.report(self.done)

    def flush(self) -> None:
        """Flush to disk, so that a killed process loses nothing."""
        self.file.flush()

    def _start_over(self) -> None:
        self.file.truncate(0)
        self.done = 0

    def _refuse(self, found: str) -> None:
        self._start_over()
        expected = f"it should have {self.remote.size:,} bytes, but the server has {found}"
        raise _failure(self.remote, expected)


def _cause(error: BaseException) -> str:
    """Return the message of the innermost error; those of requests show internal objects."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(getattr(error, "strerror", None) or error)


def _failure(remote: RemoteFile, reason: str) -> AntipodalError:
    return AntipodalError(f"cannot download {remote.url}: {reason}")


Progress = Callable[[int, int], None]


class RemoteDataset(NamedTuple):
    """The files of a downloadable dataset.

    Parameters
    ----------
    folder : str
        Its folder in the data directory.
    files : tuple of RemoteFile
        The files of the dataset; or a single archive, if there are members.
    members : mapping of str to int
        The names, in `folder` of the archive, and sizes of its files.
    """

    folder: str
    files: tuple[RemoteFile, ...]
    members: Mapping[str, int] = {}

    def is_at(self, folder: Path) -> bool:
        """Return whether the folder contains the dataset; archive members are checked by size."""
        if self.members:
            paths = ((folder / name, size) for name, size in self.members.items())
            return all(path.is_file() and path.stat().st_size == size for path, size in paths)
        return all(remote.is_at(folder / remote.name) for remote in self.files)


def _idx(base: str, *published: tuple[int, str]) -> tuple[RemoteFile, ...]:
    kinds = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    names = (f"{kind}-ubyte.gz" for kind in kinds)
    return tuple(RemoteFile(base + n, *p) for n, p in zip(names, published, strict=True))


SOURCES = {
    "cifar10": RemoteDataset(
        "cifar-10-batches-bin",
        (
            RemoteFile(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                170_052_171,
                "c32a1d4ab5d03f1284b67883e8d87530",
            ),
        ),
        {f"data_batch_{i}.bin": 30_730_000 for i in range(1, 6)} | {"test_batch.bin": 30_730_000},
    ),
    "fashion-mnist": RemoteDataset(
        "fashion-mnist",
        _idx(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            (26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            (29_515, "25c81989df183df01b3e8a0aad5dffbe"),
            (4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
            (5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
        ),
    ),
    "mnist": RemoteDataset(
        "mnist",
        _idx(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
            (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
            (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
        ),
    ),
}


def download(
    name: str, dir: str | os.PathLike[str] | None = None, *, progress: Progress | None = None
) -> Path:
    """Download a dataset unless it exists, and return the folder for its loader.

    Parameters
    ----------
    name : "cifar10", "fashion-mnist" or "mnist"
        The last two are for `idx`.
    dir : path, optional
        The data directory, created if missing; the dataset gets a folder in it. By default the
        environment variable ANTIPODAL_DATA, or else `antipodal` in the user's cache directory.
    progress : callable, optional
        Called as progress(done, total), in bytes.

    Raises
    ------
    AntipodalError
        The download failed; the message explains the manual download. The next call resumes.
    """
    if name not in SOURCES:
        raise ValueError(f"name must be one of {', '.join(SOURCES)}: got {name!r}")
    source, directory = SOURCES[name], data_directory(dir)
    folder = directory / source.folder
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with folder_lock(directory):
            if source.is_at(directory):
                return directory
            if not source.is_at(folder):
                with _work_folder(folder) as work:
                    get = _get_archive if source.members else _get_files
                    get(source, folder, work, progress)
    except OSError as error:  # of the disk: `fetch` converts network errors
        raise AntipodalError(f"cannot write {directory}: {error.strerror or error}") from error
    return folder


@contextmanager
def _work_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder for incomplete files next to `folder`.

    If the block raises, partial files are kept for the next attempt.
    """
    work = folder.with_name(f"{folder.name}.part")
    work.mkdir(exist_ok=True)
    try:
        yield work
    except BaseException:
        if any(path.stat().st_size for path in work.iterdir() if path.is_file()):
            raise
        shutil.rmtree(work)
        raise
    shutil.rmtree(work)


def _get_files(source: RemoteDataset, folder: Path, work: Path, progress: Progress | None) -> None:
    folder.mkdir(exist_ok=True)
    before, total = 0, sum(remote.size for remote in source.files)
    for remote in source.files:
        if not remote.is_at(folder / remote.name):
            by_hand = f"and put it in {folder}"
            _fetch(remote, work / remote.name, by_hand, progress, before, total)
            os.replace(work / remote.name, folder / remote.name)
        before += remote.size


def _get_archive(
    source: RemoteDataset, folder: Path, work: Path, progress: Progress | None
) -> None:
    (remote,) = source.files
    archive, first = folder.parent / remote.name, min(source.members)
    if not remote.is_at(archive):  # possibly put there by the user
        archive = work / remote.name
        by_hand = f"and unpack it in {folder.parent}, so that {folder / first} exists"
        _fetch(remote, archive, by_hand, progress, 0, remote.size)
    unpacked = work / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)  # left by a killed process
    unpacked.mkdir()
    _unpack(archive, source, unpacked)
    if folder.exists():  # incomplete
        for name in source.members:
            os.replace(unpacked / name, folder / name)
    else:
        os.rename(unpacked, folder)


def _fetch(
    remote: RemoteFile, path: Path, by_hand: str, progress: Progress | None, before: int, total: int
) -> None:
    def report(done: int) -> None:
        if progress is not None:
            progress(before + done, total)

    try:
        fetch(remote, path, report)
    except AntipodalError as error:
        raise AntipodalError(f"{error}. Try again, or download it manually {by_hand}") from error


def _unpack(archive: Path, source: RemoteDataset, folder: Path) -> None:
    """Extract the expected members only; paths, links and modes in the archive are ignored."""
    missing = dict(source.members)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                name = member.name.removeprefix(f"{source.folder}/")
                content = tar.extractfile(member) if member.isreg() else None
                if content is not None and missing.get(name) == member.size:
                    with replacing(folder / name) as file:
                        shutil.copyfileobj(content, file)
                    del missing[name]
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise AntipodalError(f"cannot unpack {archive}: {error}") from error
    if missing:
        name = min(missing)
        raise AntipodalError(
            f"cannot unpack {archive}: it has no {source.folder}/{name} of {missing[name]:,} bytes"
        )

"""Fetch a dataset from where it is published, into the folder that its loader reads."""

import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from antipodal.datasets.fetch import RemoteFile, fetch
from antipodal.datasets.location import data_directory
from antipodal.errors import AntipodalError
from antipodal.storage.files import replacing

Progress = Callable[[int, int], None]


class RemoteDataset(NamedTuple):
    """Where a dataset comes from.

    Parameters
    ----------
    folder : str
        Where it goes, in the data directory.
    files : tuple of RemoteFile
        The files of the dataset; or an archive of them, if there are members.
    members : mapping of str to int
        The files of the archive, which has them in `folder`, and their sizes.
    """

    folder: str
    files: tuple[RemoteFile, ...]
    members: Mapping[str, int] = {}

    def is_at(self, folder: Path) -> bool:
        """Whether the folder has all of the dataset; of members only the sizes are known."""
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
    """Download a dataset unless it is there, and return the folder that its loader reads.

    Parameters
    ----------
    name : "cifar10", "fashion-mnist" or "mnist"
        The last two are for `idx`.
    dir : path, optional
        The data directory, made if need be; the dataset gets a folder in it. By default what the
        environment variable ANTIPODAL_DATA names, else `antipodal` in the user's cache directory.
    progress : callable, optional
        Called as progress(done, total), in bytes, as they arrive.

    Raises
    ------
    AntipodalError
        If it cannot be had; the message says what to do by hand. What has arrived is kept, and the
        next call goes on from there.
    """
    if name not in SOURCES:
        raise ValueError(f"name must be one of {', '.join(SOURCES)}: got {name!r}")
    source, directory = SOURCES[name], data_directory(dir)
    folder = directory / source.folder
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _alone_in(directory):
            if source.is_at(directory):
                return directory
            if not source.is_at(folder):
                with _work_folder(folder) as work:
                    get = _get_archive if source.members else _get_files
                    get(source, folder, work, progress)
    except OSError as error:  # of the disk: `fetch` has dealt with those of the network
        raise AntipodalError(f"cannot write {directory}: {error.strerror or error}") from error
    return folder


@contextmanager
def _work_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder beside it for all that is not complete; it stays if the work is cut short.

    Then the next attempt goes on from what is in it, if anything is.
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


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Wait until no other process downloads into the directory, where the system has locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every network file system has them
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


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
    if not remote.is_at(archive):  # it may be, put there by hand
        archive = work / remote.name
        by_hand = f"and unpack it in {folder.parent}, so that there is a file {folder / first}"
        _fetch(remote, archive, by_hand, progress, 0, remote.size)
    unpacked = work / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)  # left behind by a process that was killed
    unpacked.mkdir()
    _unpack(archive, source, unpacked)
    if folder.exists():  # with files that are missing or cut short
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
        raise AntipodalError(f"{error}. Try again, or get it by hand {by_hand}") from error


def _unpack(archive: Path, source: RemoteDataset, folder: Path) -> None:
    """Copy the members to names that we give: no path, link or mode in the archive has a say."""
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

"""Write files so that a reader, or a crash, never sees half of one."""

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from antipodal.errors import AntipodalError

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

_SUFFIX = ".unfinished"
_NAME_LENGTH = 40  # of a temporary name: the whole of a long one would be too long with more to it


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the place of `path` when the block ends well.

    The data is on the disk before the name is. If anything goes wrong the temporary file is
    removed and what was at `path` before is still there. A link stays, and the file it leads to
    is replaced, or made; a file that is replaced keeps its mode, and its owner where the system
    lets us. What is not a file (a device, a pipe with a name) is written to as it is. What earlier
    calls left because they were killed is removed.
    """
    with _naming(path):
        place = _find_place(path)
        if place is None:
            with open(path, "wb") as stream:
                yield stream
            return
        with _replacing(place) as temporary, open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def replacing_by_name(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Do the same for what writes to a name, as SQLite does: give the name of an empty file."""
    with _naming(path):
        place = _find_place(path)
        if place is None:
            raise AntipodalError(f"cannot write {path}: it is no file")
        with _replacing(place) as temporary:
            yield Path(temporary)
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())


@contextmanager
def _replacing(place: "_Place") -> Iterator[str]:
    """Give the name of a temporary file, which takes its place when the block ends well."""
    target, old = place
    prefix = f".{target.name[:_NAME_LENGTH]}."
    _remove_abandoned(target.parent, prefix)
    temporary, lock = _make_locked(target.parent, prefix)
    try:
        yield temporary
        _set_mode(temporary, old)
        os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    finally:
        if lock is not None:
            os.close(lock)  # not before it has its name: others would take it for abandoned
    sync_directory(target.parent)


def _make_locked(folder: Path, prefix: str) -> tuple[str, int | None]:
    """Make a temporary file, and lock it: the lock ends with the process that holds it."""
    while True:
        handle, name = tempfile.mkstemp(dir=folder, prefix=prefix, suffix=_SUFFIX)
        if fcntl is None:
            os.close(handle)
            return name, None
        with suppress(OSError):  # a file system may have no locks: then nothing is cleared away
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return name, handle
        os.close(handle)  # somebody took it for abandoned before it was locked


def _remove_abandoned(folder: Path, prefix: str) -> None:
    """Remove temporary files that nobody holds the lock of: their processes are dead."""
    if fcntl is None:
        return
    for name in os.listdir(folder):
        if name.startswith(prefix) and name.endswith(_SUFFIX):
            with suppress(OSError):
                handle = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(folder / name)
                finally:
                    os.close(handle)


@contextmanager
def alone_in(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Wait until no other process is in such a block for the folder, where the system can tell."""
    with ExitStack() as stack:
        with suppress(OSError):  # a file system may have no locks
            if fcntl is not None:
                handle = os.open(folder, os.O_RDONLY)
                stack.callback(os.close, handle)
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def check_writable(path: str | os.PathLike[str]) -> None:
    """See that `replacing` can write to `path`, and leave nothing there: call before long work."""
    with _naming(path):
        place = _find_place(path)
        if place is not None:
            with tempfile.TemporaryFile(dir=place.target.parent):
                pass


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Make a folder, if it is not there, that files can be written to: call before long work."""
    folder = Path(path)
    with _naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    return folder


class _Place(NamedTuple):
    """A file to make or to replace: its path behind all links, and what it is now, if there."""

    target: Path
    old: os.stat_result | None


def _find_place(path: str | os.PathLike[str]) -> _Place | None:
    """Return what is to be replaced, or None for what can only be written to as it is."""
    target = Path(os.path.realpath(path))
    try:
        old = os.stat(path)
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise AntipodalError(
                f"cannot write {path}: there is no folder {target.parent}"
            ) from None
        return _Place(target, None)
    if stat.S_ISDIR(old.st_mode):
        raise AntipodalError(f"cannot write {path}: it is a folder, and a file is expected")
    if not os.access(path, os.W_OK):
        raise AntipodalError(f"cannot write {path}: no permission to change the file")
    # /dev/stdout leads to an open file, which need not have a name any more.
    named = target.exists() and os.path.samestat(old, os.stat(target))
    return _Place(target, old) if stat.S_ISREG(old.st_mode) and named else None


@contextmanager
def _naming(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise AntipodalError(f"cannot write {path}: {error.strerror or error}") from error


def _set_mode(path: str, old: os.stat_result | None) -> None:
    """Give a new file the mode it would have had from the start, or that of the one before."""
    if old is None:
        os.chmod(path, 0o666 & ~_umask())
        return
    own = getattr(os, "chown", None)  # not on Windows
    if own is not None:
        with suppress(PermissionError):
            own(path, -1, old.st_gid)
    os.chmod(path, stat.S_IMODE(old.st_mode))
    if own is not None and old.st_uid != os.stat(path).st_uid:  # last: then it is not ours
        with suppress(PermissionError):
            own(path, old.st_uid, -1)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def sync_directory(directory: Path) -> None:
    """Make the new name itself durable, where the system can."""
    try:
        handle = os.open(directory, os.O_RDONLY)
    except OSError:  # on Windows, or in a folder that we may write to, but not list
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that cannot
            raise
    finally:
        os.close(handle)

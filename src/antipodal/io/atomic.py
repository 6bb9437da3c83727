"""Crash-safe writes: a reader never sees a partly written file."""

import errno
import os
import secrets
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
_PREFIX_LENGTH = 40  # characters of the target's name: the whole name could exceed the limit


@contextmanager
def replacing(path: str | os.PathLike[str], *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a binary file that replaces `path` when the block ends without an exception.

    If the block raises, the temporary file is removed and `path` is unchanged. A symbolic link is
    kept: the file it points to is replaced or created. A replaced file keeps its mode and, where
    permitted, its owner and group. A new file has `mode`, less the umask. A character device or a
    named pipe is written in place. Temporary files of earlier writers that were killed are removed.

    Raises
    ------
    AntipodalError
        The file cannot be written. The message names `path` and the reason.
    """
    with _errors_naming(path):
        destination = _inspect(path)
        if destination.in_place:
            with _open_in_place(path) as stream:
                yield stream
            return
        with _temporary_file(destination, mode) as temporary, open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def replacing_by_name(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Replace `path` as `replacing` does, but yield the path of the empty temporary file.

    This is for libraries that open files themselves, such as SQLite. A device or a pipe is an
    error.
    """
    with _errors_naming(path):
        destination = _inspect(path)
        if destination.in_place:
            raise AntipodalError(f"cannot write {path}: it is not a regular file")
        with _temporary_file(destination) as temporary:
            yield Path(temporary)
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise AntipodalError if `replacing` could not write `path`. Call it before long work."""
    with _errors_naming(path):
        destination = _inspect(path)
        if not destination.in_place:
            with tempfile.TemporaryFile(dir=destination.target.parent):
                pass


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Create a folder if it is missing, and check that it is writable. Call before long work."""
    folder = Path(path)
    with _errors_naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    return folder


@contextmanager
def folder_lock(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Hold an exclusive lock on a folder, on systems and file systems that have locks."""
    with ExitStack() as stack:
        with suppress(OSError):  # not every file system has locks
            if fcntl is not None:
                handle = os.open(folder, os.O_RDONLY)
                stack.callback(os.close, handle)
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def locked_file(folder: Path, prefix: str, suffix: str, mode: int) -> Iterator[str]:
    """Yield the path of a new file that is locked while the block runs, and then removed.

    The lock is released when the process ends, even if it is killed. `locked_files` returns the
    locked files.
    """
    name, lock = _create_locked(folder, prefix, suffix, mode)
    try:
        yield name
    finally:
        try:
            with suppress(FileNotFoundError):  # the block may have renamed the file
                os.unlink(name)
        finally:
            if lock is not None:
                os.close(lock)  # even after a disk error, so that a retry removes the file


def locked_files(folder: Path, prefix: str, suffix: str) -> list[Path]:
    """Return the files of `locked_file` of running processes, and remove the others.

    Windows has no such locks: nothing is returned or removed there.
    """
    locked: list[Path] = []
    if fcntl is None or not folder.is_dir():
        return locked
    for name in os.listdir(folder):
        if name.startswith(prefix) and name.endswith(suffix):
            with suppress(OSError):
                handle = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:  # locked, or on a file system without locks
                    locked.append(folder / name)
                else:
                    os.unlink(folder / name)
                finally:
                    os.close(handle)
    return locked


def sync_directory(directory: Path) -> None:
    """Sync a folder to disk, so that new names in it survive a crash, where supported."""
    try:
        handle = os.open(directory, os.O_RDONLY)
    except OSError:  # Windows, or a folder that is writable but not readable
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not supported by the file system
            raise
    finally:
        os.close(handle)


class _Destination(NamedTuple):
    """The target of a write, from a single `stat` call.

    `target` is the path with all links resolved. `old` is the status of the existing file, or None
    if it is missing.
    """

    target: Path
    old: os.stat_result | None
    in_place: bool = False


def _inspect(path: str | os.PathLike[str]) -> _Destination:
    """Decide how to write `path`.

    The decision uses a single `stat` result, since other processes may replace or delete the file
    between two calls.
    """
    target = Path(os.path.realpath(path))
    try:
        old = os.stat(path)
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise AntipodalError(
                f"cannot write {path}: the folder {target.parent} does not exist"
            ) from None
        return _Destination(target, None)
    if stat.S_ISDIR(old.st_mode):
        raise AntipodalError(f"cannot write {path}: it is a folder, not a file")
    if stat.S_ISCHR(old.st_mode) or stat.S_ISFIFO(old.st_mode):
        return _Destination(target, old, in_place=True)
    if not stat.S_ISREG(old.st_mode):
        raise AntipodalError(f"cannot write {path}: it is not a regular file, device or pipe")
    # /dev/stdout and /dev/fd/N can refer to an open file without a name. Linux marks its path.
    if old.st_nlink == 0 and target.name.endswith(" (deleted)"):
        return _Destination(target, old, in_place=True)
    _check_permission(path)
    return _Destination(target, old)


def _check_permission(path: str | os.PathLike[str]) -> None:
    """Refuse to replace a read-only file, although renaming would succeed.

    `os.access` cannot distinguish a read-only file from one that has just been deleted.
    """
    try:
        os.close(os.open(path, os.O_WRONLY))
    except FileNotFoundError:
        pass
    except PermissionError:
        raise AntipodalError(f"cannot write {path}: no permission to change the file") from None


def _open_in_place(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a device, a pipe or a file without a name. Never create a file."""
    handle = os.open(path, os.O_WRONLY)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        os.ftruncate(handle, 0)
    return os.fdopen(handle, "wb")


@contextmanager
def _temporary_file(destination: _Destination, mode: int = 0o666) -> Iterator[str]:
    """Yield the path of an empty temporary file, and rename it to the target afterwards."""
    target, old, _ = destination
    prefix = f".{target.name[:_PREFIX_LENGTH]}."
    locked_files(target.parent, prefix, _SUFFIX)  # removes those of killed writers
    # The kernel applies the umask to a new file. A replacement is private until it has the old
    # file's mode.
    mode = mode if old is None else 0o600
    with locked_file(target.parent, prefix, _SUFFIX, mode) as temporary:
        yield temporary
        if old is not None:
            _copy_mode_and_owner(old, temporary)
        os.replace(temporary, target)  # locked: an unlocked temporary file counts as abandoned
    sync_directory(target.parent)


def _create_locked(folder: Path, prefix: str, suffix: str, mode: int) -> tuple[str, int | None]:
    """Create a file with a random name and lock it; return its path and the open lock."""
    while True:
        name = os.fspath(folder / f"{prefix}{secrets.token_hex(8)}{suffix}")
        try:
            handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            continue
        if fcntl is None:
            os.close(handle)
            return name, None
        with suppress(OSError):  # without locks, abandoned files are never removed
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return name, handle
        os.close(handle)  # removed as abandoned by another process, before it was locked


def _copy_mode_and_owner(old: os.stat_result, path: str) -> None:
    """Copy the mode and, where permitted, owner and group from the file to be replaced."""
    chown = getattr(os, "chown", None)  # missing on Windows
    if chown is not None:
        with suppress(PermissionError):
            chown(path, -1, old.st_gid)
    os.chmod(path, stat.S_IMODE(old.st_mode))
    if chown is not None and old.st_uid != os.stat(path).st_uid:
        with suppress(PermissionError):
            chown(path, old.st_uid, -1)  # last: only the owner may change the mode


@contextmanager
def _errors_naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an OSError into an AntipodalError that names `path`."""
    try:
        yield
    except OSError as error:
        raise AntipodalError(f"cannot write {path}: {error.strerror or error}") from error

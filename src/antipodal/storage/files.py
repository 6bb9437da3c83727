"""Write files so that a reader, or a crash, never sees half of one."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from antipodal.errors import AntipodalError


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the place of `path` when the block ends well.

    The data is on the disk before the name is. If anything goes wrong the temporary file is
    removed and what was at `path` before is still there.
    """
    target = Path(path)
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
        _sync_directory(target.parent)
    except BaseException as error:
        if temporary is not None:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        if isinstance(error, OSError):
            raise AntipodalError(f"cannot write {target}: {error.strerror or error}") from error
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_directory(directory: Path) -> None:
    """Make the new name itself durable, where the system can."""
    with suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

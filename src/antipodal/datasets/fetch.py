"""Get one file over HTTP: whole, with the checksum that is published for it, or not at all.

Pooch gets it, checks it and gives it its name. What is added here: a download goes on where it
was cut, and no more bytes are taken than the file should have.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from antipodal.errors import AntipodalError

_TIMEOUT = 30.0  # seconds without a byte
_CHUNK = 1 << 13  # what a cut may lose
_RANGE_NOT_SATISFIABLE = 416

Report = Callable[[int], None]


class RemoteFile(NamedTuple):
    """A file and what is published about it."""

    url: str
    size: int
    md5: str  # tells damage, and is what the authors give

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.url.rpartition("/")[2]

    def is_at(self, path: Path) -> bool:
        """Whether `path` is this file, to the byte."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        from pooch import file_hash  # here: importing it takes its time

        return bool(file_hash(path, alg="md5") == self.md5)


def fetch(remote: RemoteFile, path: Path, report: Report) -> None:
    """Get the file, and give it its name when it is all there.

    Until then it is `path` with ``.part`` added. A cut connection leaves that for the next call,
    which asks the server for the rest. `report` is told the number of bytes so far.
    """
    import pooch
    from requests import ConnectionError, RequestException

    part = path.with_name(f"{path.name}.part")

    def go_on(url: str, target: str, _: object) -> None:
        if not remote.is_at(part):  # it may be: killed before it got its name
            with part.open("ab") as file:
                arrived = _Arrived(remote, file, report)
                headers = {
                    "User-Agent": "antipodal",
                    "Accept-Encoding": "identity",
                    "Range": f"bytes={arrived.done}-",
                }
                get = pooch.HTTPDownloader(
                    chunk_size=_CHUNK, timeout=_TIMEOUT, headers=headers,
                    hooks={"response": arrived.begin},
                )  # fmt: skip
                get(url, arrived, None)
            if arrived.done < remote.size:
                raise ConnectionError("the server sent no more")
        os.replace(part, target)

    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("WARNING")  # it would print lines of its own
    try:
        pooch.retrieve(remote.url, f"md5:{remote.md5}", path.name, path.parent, downloader=go_on)
    except RequestException as error:
        reason, done = _cause(error), part.stat().st_size
        if done:
            reason += (
                f", the connection was cut after {done:,} of {remote.size:,} bytes, and the next "
                "attempt goes on from there"
            )
        raise _failure(remote, reason) from error
    except ValueError as error:  # of pooch, which has removed the file
        reason = f"its checksum is not the published one, MD5 {remote.md5}"
        raise _failure(remote, reason) from error
    finally:
        logger.setLevel(level)


class _Arrived:
    """What has arrived of a file: the end of it that pooch writes to."""

    def __init__(self, remote: RemoteFile, file: BinaryIO, report: Report) -> None:
        self.remote, self.file, self.report = remote, file, report
        self.done = file.tell()
        if self.done >= remote.size:  # it was looked at, and is something else
            self._start_over()

    def begin(self, response: Any, **_: object) -> None:
        """See what the server is about to send: the rest, or all of it."""
        if response.is_redirect:
            return
        if not response.ok:
            response.close()
            if response.status_code == _RANGE_NOT_SATISFIABLE:  # there is nothing to go on from
                self._start_over()
            reason = f"the server says {response.status_code} {response.reason}"
            raise _failure(self.remote, reason)
        # It is the compressed file that is published: nothing may unpack it on the way.
        response.raw.headers.pop("Content-Encoding", None)
        if response.headers.get("Content-Range", "").partition("-")[0] != f"bytes {self.done}":
            self._start_over()
        length = response.headers.get("Content-Length", "")
        if length.isdecimal() and self.done + int(length) != self.remote.size:
            response.close()
            self._refuse(f"{self.done + int(length):,}")

    def write(self, chunk: bytes) -> None:
        """Append what has arrived."""
        if self.done + len(chunk) > self.remote.size:
            self._refuse("more")
        self.file.write(chunk)
        self.done += len(chunk)
        self.report(self.done)

    def flush(self) -> None:
        """Leave nothing to lose when the process is killed."""
        self.file.flush()

    def _start_over(self) -> None:
        self.file.truncate(0)
        self.done = 0

    def _refuse(self, found: str) -> None:
        self._start_over()
        expected = f"it should have {self.remote.size:,} bytes, and the server has {found}"
        raise _failure(self.remote, expected)


def _cause(error: BaseException) -> str:
    """Say what the system said: what requests makes of it would name its own objects."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(getattr(error, "strerror", None) or error)


def _failure(remote: RemoteFile, reason: str) -> AntipodalError:
    return AntipodalError(f"cannot download {remote.url}: {reason}")

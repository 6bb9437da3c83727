"""Get one file over HTTP: whole, with the checksum that is published for it, or not at all."""

import hashlib
import os
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from antipodal.errors import AntipodalError

_TIMEOUT = 30.0  # seconds without a byte
_CHUNK = 1 << 18
_RANGE_NOT_SATISFIABLE = 416


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
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
        return digest.hexdigest() == self.md5


def fetch(remote: RemoteFile, path: Path, report: Callable[[int], None]) -> None:
    """Get the file, and give it its name when it is all there.

    Until then it is `path` with ``.part`` added. A cut connection leaves that for the next call,
    which asks the server for the rest. `report` is told the number of bytes so far.
    """
    part = path.with_name(f"{path.name}.part")
    if not remote.is_at(part):  # it may be: killed before it got its name
        part.touch()
        try:
            with part.open("ab") as file:
                _receive(remote, file, report)
        finally:
            if part.stat().st_size == 0:  # nothing to go on from
                part.unlink()
        if not remote.is_at(part):
            part.unlink()
            raise _failure(remote, f"its checksum is not the published one, MD5 {remote.md5}")
    os.replace(part, path)


def _receive(remote: RemoteFile, file: BinaryIO, report: Callable[[int], None]) -> None:
    """Write what `file` lacks, or everything if the server does not know how to go on."""
    done = file.tell()
    with _open(remote, done) as response:
        if response.headers.get("Content-Range", "").partition("-")[0] != f"bytes {done}":
            done = 0
        file.truncate(done)
        length = response.headers.get("Content-Length", "")
        if length.isdecimal() and done + int(length) != remote.size:
            file.truncate(0)
            raise _failure(
                remote,
                f"it should have {remote.size:,} bytes, and the server has {done + int(length):,}",
            )
        while done < remote.size:
            try:
                chunk = response.read1(_CHUNK)  # what is there, so that little is lost in a cut
            except (OSError, HTTPException) as error:
                raise _cut(remote, done, f"{error}, ") from error
            if not chunk:
                raise _cut(remote, done)
            file.write(chunk)
            done += len(chunk)
            report(done)


def _open(remote: RemoteFile, start: int) -> HTTPResponse:
    """Ask for the file from byte `start` on; a server without ranges answers with all of it."""
    headers = {"User-Agent": "antipodal", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        response: HTTPResponse = urlopen(Request(remote.url, headers=headers), timeout=_TIMEOUT)
    except HTTPError as error:
        error.close()
        if start and error.code == _RANGE_NOT_SATISFIABLE:
            return _open(remote, 0)
        raise _failure(remote, f"the server says {error.code} {error.reason}") from error
    except (OSError, HTTPException) as error:
        raise _failure(remote, str(getattr(error, "reason", error))) from error
    return response


def _failure(remote: RemoteFile, reason: str) -> AntipodalError:
    return AntipodalError(f"cannot download {remote.url}: {reason}")


def _cut(remote: RemoteFile, done: int, reason: str = "") -> AntipodalError:
    return _failure(
        remote,
        f"{reason}the connection was cut after {done:,} of {remote.size:,} bytes, and the next "
        "attempt goes on from there",
    )

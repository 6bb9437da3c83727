"""Processes that decode images: few, each started when it is needed, and killed when it is not."""

import subprocess
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from starlette.exceptions import HTTPException

from antipodal.service import decoder
from antipodal.service.calls import caller, check_wanted, stopped_by
from antipodal.service.limits import Limits

_PROGRAM = Path(decoder.__file__)


class _EndedError(ValueError):
    """The process that decodes has ended, and nobody ended it."""


class Decoders:
    """Turn files of images into bytes that describe them, in at most `limits.threads` processes.

    They end when nobody refers to these any more.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._turns = threading.BoundedSemaphore(limits.threads)
        self._idle: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._pixels: Counter[bytes | None] = Counter()  # that are decoded now, by who asked
        self.close = weakref.finalize(self, _end_all, self._idle)

    @classmethod
    def shared(cls, limits: Limits) -> "Decoders":
        """Return those that all models of this process with these limits have together."""
        with _sharing:
            found = _shared.get(limits)
            if found is None:
                found = _shared[limits] = cls(limits)
            return found

    def __call__(self, files: Sequence[bytes], size: Sequence[int] | None) -> list[bytes]:
        """Return what describes each image: see `decoder.describe`.

        If nobody waits for it any more, the process is killed, whatever it is doing.
        """
        limits = self._limits
        job = {
            "size": size,
            "pixels": limits.pixels,
            "request_pixels": limits.request_pixels,
            "seconds": limits.seconds,
        }
        with self._turns, self._process() as process, stopped_by(process.kill):
            try:
                jobs, answers = _pipes(process)
                decoder.write(jobs, job, files)
                n_pixels = _answer(answers)[0]["pixels"]
                with self._share(n_pixels, jobs):
                    decoder.write(jobs, {"go": True})
                    return _answer(answers)[1]
            except (EOFError, OSError):
                check_wanted()  # it was killed because nobody waits
                raise _EndedError(
                    "the images cannot be decoded: the process that tried to has ended. "
                    "Is one of them broken?"
                ) from None

    @contextmanager
    def _process(self) -> Iterator[subprocess.Popen[bytes]]:
        """Lend a process to one thread; it is kept for later if it did as it was told."""
        process = self._idle_one() or _start()
        try:
            yield process
        except (ValueError, HTTPException) as error:
            if isinstance(error, _EndedError):
                _end(process)
            else:
                self._idle.append(process)  # it has said what is wrong, and waits for the next job
            raise
        except BaseException:
            _end(process)
            raise
        self._idle.append(process)

    def _idle_one(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.poll() is None:
                    return process
                _end(process)
        return None

    @contextmanager
    def _share(self, n_pixels: int, jobs: IO[bytes]) -> Iterator[None]:
        """Count the pixels that are decoded for one key; refuse what is too much at a time."""
        who, most = caller.get(), self._limits.key_pixels
        with self._lock:
            held = self._pixels[who]
            fits = who is None or not held or held + n_pixels <= most  # None: there are no keys
            self._pixels[who] += n_pixels * fits
        if not fits:
            decoder.write(jobs, {"go": False})
            raise HTTPException(
                429,
                f"images of at most {most:,} pixels are decoded for one key at a time: "
                "try again when the others are done",
                {"Retry-After": "1"},
            )
        try:
            yield
        finally:
            with self._lock:
                self._pixels[who] -= n_pixels
                if not self._pixels[who]:
                    del self._pixels[who]


_shared: "weakref.WeakValueDictionary[Limits, Decoders]" = weakref.WeakValueDictionary()
_sharing = threading.Lock()


def _start() -> subprocess.Popen[bytes]:
    """Start a process that ends with its standard input, and gets no Ctrl-C of a terminal."""
    return subprocess.Popen(
        [sys.executable, "-P", str(_PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _answer(answers: IO[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    head, parts = decoder.read(answers)
    if "error" in head:
        raise ValueError(head["error"])
    return head, parts


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in _pipes(process):
        with suppress(OSError):  # what was not sent yet
            pipe.close()
    process.wait()


def _end_all(processes: list[subprocess.Popen[bytes]]) -> None:
    while processes:
        _end(processes.pop())

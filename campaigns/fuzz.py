"""Fuzzing of files, filters and addresses: a million mutated inputs.

Each input is a valid one with its structure changed and its checksum recomputed. It must be
rejected with a documented error or be usable. Any other exception, more than 5 s of CPU time, and
more than 1 GB of additional memory are failures. If the checksum is not recomputed, a wrong result
is a failure.
"""

import multiprocessing
import os
import random
import resource
import signal
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from campaign import Part, main
from fuzz_antipodal_files import Checkpoint, Index, Model, StoreFile
from fuzz_data_files import ArrowBody, Codes, JsonLines, Parquet, Records
from fuzz_targets import Target
from fuzz_text_inputs import Filters, KeyFile, Urls

SECONDS = 5.0
BYTES = 10**9
MOST_FAILURES = 200  # stop after this number of failures
SIZES = {
    "where": 200_000,
    "urls": 230_000,
    "keys": 100_000,
    "jsonlines": 100_000,
    "arrow": 100_000,
    "records": 70_000,
    "codes": 60_000,
    "index": 50_000,
    "model": 40_000,
    "store": 20_000,
    "checkpoint": 15_000,
    "parquet": 15_000,
}  # a million in total
TARGETS: dict[str, type[Target]] = {
    "where": Filters,
    "urls": Urls,
    "keys": KeyFile,
    "jsonlines": JsonLines,
    "arrow": ArrowBody,
    "records": Records,
    "codes": Codes,
    "index": Index,
    "model": Model,
    "store": StoreFile,
    "checkpoint": Checkpoint,
    "parquet": Parquet,
}
processes = multiprocessing.get_context("forkserver")


class TooSlowError(BaseException):
    """Timeout of a case; not an Exception, so that no handler hides it."""


def fuzz(
    kind: str, size: int, seed: int, target: Any = None, seconds: float = SECONDS
) -> dict[str, Any]:
    """Run cases in this process, each with a limit of CPU time."""
    with _folder() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target = target or TARGETS[kind](Path(folder))
        return _try(kind, range(size), seed, target, lambda n: None, seconds)


def _folder() -> tempfile.TemporaryDirectory[str]:
    """Create a folder in memory, if available, where syncs are fast."""
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)


def _try(
    kind: str,
    numbers: range,
    seed: int,
    target: Any,
    progress: Callable[[int], None],
    seconds: float = SECONDS,
) -> dict[str, Any]:
    outcomes: Counter[str] = Counter()
    failures: list[str] = []

    def too_slow(*_: Any) -> None:
        raise TooSlowError(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGPROF, too_slow)
    try:
        for number in numbers:
            progress(number)
            signal.setitimer(signal.ITIMER_PROF, seconds)
            try:
                is_used = target.case(random.Random(f"{seed} {kind} {number}"))
                outcomes["used" if is_used else "refused"] += 1
            except (Exception, TooSlowError) as error:
                if isinstance(error, Exception) and target.refused(error):
                    outcomes["refused"] += 1
                else:
                    failures.append(f"case {number}: {type(error).__name__}: {str(error)[:300]}")
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            if len(failures) >= MOST_FAILURES:
                break
    finally:
        signal.signal(signal.SIGPROF, before)
    return {**outcomes, "failures": failures}


def guarded(kind: str) -> Callable[[int, int], dict[str, Any]]:
    """Return a part that runs cases in a separate process with a memory limit.

    If a case ends the process, it counts as a failure and a new process continues with the next.
    """

    def run(size: int, seed: int) -> dict[str, Any]:
        outcomes: Counter[str] = Counter()
        failures: list[str] = []
        first = 0
        while first < size and len(failures) < MOST_FAILURES:
            receiver, sender = processes.Pipe(duplex=False)
            at = processes.Value("q", first)
            child = processes.Process(target=_child, args=(kind, first, size, seed, at, sender))
            child.start()
            sender.close()
            try:
                found = receiver.recv()
                first = size
            except EOFError:
                child.join()
                found = {"failures": [f"case {at.value} ended the process: {child.exitcode}"]}
                first = at.value + 1
            child.join()
            failures += found.pop("failures")
            outcomes.update(found)
        return {**outcomes, "failures": failures}

    return run


def _child(kind: str, first: int, size: int, seed: int, at: Any, results: Any) -> None:
    with _folder() as folder:
        warnings.simplefilter("ignore")
        target = TARGETS[kind](Path(folder))
        n_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (n_bytes + BYTES, n_bytes + BYTES))
        results.send(
            _try(kind, range(first, size), seed, target, lambda n: setattr(at, "value", n))
        )


if __name__ == "__main__":
    main("fuzz", {kind: Part(guarded(kind), size) for kind, size in SIZES.items()})

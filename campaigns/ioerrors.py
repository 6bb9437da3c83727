"""I/O errors at every file system call of 50 operations.

Faults: disk full (ENOSPC), once or permanently; I/O errors (EIO), once or permanently; short
writes, followed by the rest or by ENOSPC. A failed operation must raise a one-line error of this
package. The files must be in the state before or after the operation, and the operation must
succeed when retried.
"""

import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import faultydisk
from antipodal.errors import AntipodalError
from campaign import Part, main
from faultydisk import BROKEN, FULL, SHORT, FaultyDisk
from operations import NOTHING, THINGS, Looks, Operation, Work

FAULTS = {
    "full for a moment": (FULL, False),
    "full from then on": (FULL, True),
    "broken for a moment": (BROKEN, False),
    "broken from then on": (BROKEN, True),
    "short, then the rest": (SHORT, False),
    "short, then full": (SHORT, True),
}


def break_disk(size: int, seed: int, every: int = 1) -> dict[str, Any]:
    """Run operations on a disk that fails at every call, or at every n-th call."""
    found: dict[str, Any] = faultydisk.call("ioerrors", "break_own_disk", size, seed, every)
    return found


def break_own_disk(n_operations: int, seed: int, every: int) -> dict[str, Any]:
    """Run the operations in this process, which must have a faulty disk."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        before, now = Work(folder / "before", seed), Work(folder / "now", seed)
        before.folder.mkdir()
        trial = _Trial(before, now, every)
        states = dict(NOTHING)
        on_both = zip(before.operations(n_operations), now.operations(n_operations), strict=True)
        for number, (operation, tried) in enumerate(on_both):
            for fault in FAULTS:
                trial.try_all_points(tried, fault, number, states)
            before.do(operation)
            before.close()
            states[operation.thing] = operation.steps[-1]
    return trial.report(n_operations)


class _Trial:
    """Operations on copies of a folder with a faulty disk."""

    def __init__(self, before: Work, work: Work, every: int) -> None:
        self._before, self._work, self._every = before.folder, work, every
        self._disk = FaultyDisk(work.folder)
        self._look = Looks(work.folder.parent)
        self._points = 0
        self._outcomes: Counter[str] = Counter()
        self._messages: Counter[str] = Counter()
        self._failures: list[str] = []

    def report(self, n_operations: int) -> dict[str, Any]:
        """Return the counts and failures."""
        return {
            "operations": n_operations,
            "points": self._points,
            "outcomes": dict(self._outcomes),
            "messages": dict(self._messages.most_common()),
            "failures": self._failures,
        }

    def try_all_points(
        self, operation: Operation, fault: str, number: int, now: dict[str, Any]
    ) -> None:
        """Make each call of an operation fail once."""
        at = n_calls = (number + len(fault)) % min(self._every, 6)  # a save has about six calls
        while at <= n_calls:
            shutil.copytree(self._before, self._work.folder, copy_function=_copy)
            n_calls = self._try(operation, fault, at, now)
            shutil.rmtree(self._work.folder)
            at += self._every
            self._points += 1

    def _try(self, operation: Operation, fault: str, at: int, now: dict[str, Any]) -> int:
        """Run an operation with one failing call; return the number of calls that could fail."""
        work = self._work
        work.open_existing()
        how, lasting = FAULTS[fault]
        self._disk.fail(at, how, lasting=lasting)
        error = _error_of(work, operation)
        n_calls, failed_syncs = self._disk.heal()
        problem = self._judge(error) or self._compare(operation, error, now)
        # SQLite ignores failures that do not affect durability: a sync of the folder of its log,
        # or a checkpoint on close, which the next connection repeats.
        is_in_sqlite = operation.thing in ("store", "collection", "attached")
        if failed_syncs and error is None and not is_in_sqlite:
            problem = problem or "no error although a sync failed"
        if again := _error_of(work, operation):
            problem = problem or f"the retry failed: {again!r}"
        work.close()
        problem = problem or self._compare(operation, None, now)
        if left := [path.name for path in work.folder.glob(".*.unfinished")]:
            problem = problem or f"temporary file left: {left[0]}"
        if problem:
            self._failures.append(f"{operation.name}, {fault} at call {at}, {error!r}: {problem}")
        return n_calls

    def _judge(self, error: Exception | None) -> str:
        """Return the defect of an error, if any."""
        if error is None:
            return ""
        if not isinstance(error, AntipodalError) or "\n" in str(error):
            return "not an error of this package, or more than one line"
        self._messages[re.sub(rf"{self._before.parent}\S*/", "", str(error))] += 1
        return ""

    def _compare(self, operation: Operation, error: Exception | None, now: dict[str, Any]) -> str:
        """Check all files; return the first deviation, if any."""
        files = {path.name: path.read_bytes() for path in self._work.folder.iterdir()}
        for thing in THINGS:
            found = self._look(files, thing)
            if isinstance(found, Exception):
                return f"the {thing} cannot be read: {found!r}"
            may_be = [now[thing]]
            if thing == operation.thing:
                may_be = operation.steps[-1:] if error is None else [now[thing], *operation.steps]
                outcome = "no error" if error is None else "an error, and the files are as before"
                if error is not None and found == operation.steps[-1] != now[thing]:
                    outcome = "an error, and yet all is done"
                self._outcomes[outcome] += 1
            if found not in may_be:
                return f"the {thing} is in neither the old nor the new state"
        return ""


def _copy(source: str, target: str) -> None:
    Path(target).write_bytes(Path(source).read_bytes())


def _error_of(work: Work, operation: Operation) -> Exception | None:
    try:
        work.do(operation)
    except Exception as error:
        return error
    return None


if __name__ == "__main__":
    main("ioerrors", {"files": Part(break_disk, 50)})

"""Race writers, readers and deleters of the same files: every file that is read must be complete.

Three processes with two threads each save one model, one index and one feature cache again and
again, while three processes load and check them. A loaded file must be one of the saved versions,
and no save may fail. In the part `deletion`, another process deletes the files: then a missing file
is the only error allowed. The processes run with a strict umask, and every new file must have the
mode that it leaves. Readers also search indexes that they mapped before the file was replaced.
"""

import multiprocessing
import os
import random
import stat
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from antipodal import LSH, AntipodalError, HammingIndex, load
from antipodal.datasets import Dataset
from antipodal.io.model_file import read_model_file, write_model_file
from campaign import Part, main

WRITERS, READERS, THREADS = 3, 3, 2
TURN = 100  # operations on one file before all processes turn to the next
VERSIONS = 6  # of the model and of the index
UMASK = 0o027
LONGEST_PAUSE = 0.004  # seconds between two deletions
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["torch", "antipodal.datasets", "antipodal.index.hamming"])

_RNG = np.random.default_rng(0)
ROWS = _RNG.standard_normal((30, 6)).astype(np.float32)
IMAGES = _RNG.integers(0, 256, (2, 8, 8), dtype=np.uint8)
QUERY = np.zeros((1, 4), np.uint8)
GIST = {"orientations": (2, 1), "grid": 1}


class File(NamedTuple):
    """A file of a race. `check` loads it and returns an error message, or an empty string."""

    path: Path
    save: Callable[[int], None]
    check: Callable[[], str]


def make_files(folder: Path) -> list[File]:
    """Return the three files. Saving any version number below VERSIONS creates them."""
    return [_model(folder / "model"), _index(folder / "index"), _feature_cache(folder)]


def _model(path: Path) -> File:
    hashers = [LSH(8 * (1 + n), random_state=n).fit(ROWS) for n in range(VERSIONS)]
    codes = [hasher.encode(ROWS).tobytes() for hasher in hashers]

    def check() -> str:
        return "" if load(path).encode(ROWS).tobytes() in codes else "not a saved model"

    return File(path, lambda version: hashers[version].save(path), check)


def _index(path: Path) -> File:
    indexes = []
    for version in range(VERSIONS):
        rng = np.random.default_rng(version)
        index = HammingIndex(32)
        index.add(rng.integers(0, 256, (2000 * version + 10, 4), dtype=np.uint8))
        indexes.append(index)
    answers = [_nearest(index) for index in indexes]
    mapped: list[tuple[HammingIndex, Any]] = []

    def check() -> str:
        if mapped:
            index, before = mapped.pop()
            if _nearest(index) != before:
                return "an open index changed"
        index = HammingIndex.load(path)
        answer = _nearest(index)
        mapped.append((index, answer))
        return "" if answer in answers else "not a saved index"

    return File(path, lambda version: indexes[version].save(path), check)


def _nearest(index: HammingIndex) -> tuple[list[int], list[int]]:
    found = index.search(QUERY, 5)
    return found.ids[0].tolist(), found.distances[0].tolist()


def _feature_cache(folder: Path) -> File:
    data = Dataset("images", None, np.arange(len(IMAGES)), IMAGES, folder)
    expected = data.with_gist(**GIST).features
    (path,) = (folder / ".antipodal").glob("gist-*")
    header, arrays = read_model_file(path, "features")

    def check() -> str:
        features = data.with_gist(**GIST).features  # computed and saved if the file is missing
        if not np.array_equal(features, expected):
            return "wrong features"
        stored = read_model_file(path, "features")[1]["features"]
        return "" if np.array_equal(stored, expected) else "wrong features in the file"

    return File(path, lambda version: write_model_file(path, "features", header, arrays), check)


class Race:
    """The operations of one process, counted, with their errors."""

    def __init__(self, files: list[File], remaining: Any, *, deletion: bool) -> None:
        self._files, self._remaining, self._deletion = files, remaining, deletion
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    def write(self, draw: random.Random) -> None:
        """Save files until no operations remain."""
        while (file := self._take("saves")) is not None:
            try:
                file.save(draw.randrange(VERSIONS))
            except Exception as error:
                self.failures.append(f"save of {file.path.name}: {error!r}")

    def read(self, draw: random.Random) -> None:
        """Load and check files until no operations remain."""
        while (file := self._take("loads")) is not None:
            try:
                problem = file.check()
                mode = stat.S_IMODE(os.stat(file.path).st_mode)
                if mode != 0o666 & ~UMASK:
                    problem += f" mode {mode:o}"
            except (AntipodalError, FileNotFoundError) as error:
                is_missing = FileNotFoundError in (type(error), type(error.__cause__))
                if is_missing and self._deletion:
                    self.counts["missing"] += 1
                    continue
                problem = repr(error)
            except Exception as error:
                problem = repr(error)
            if problem:
                self.failures.append(f"load of {file.path.name}: {problem}")

    def delete(self, draw: random.Random) -> None:
        """Delete files at random moments until no operations remain."""
        while (file := self._take("deletions")) is not None:
            time.sleep(draw.uniform(0, LONGEST_PAUSE))
            file.path.unlink(missing_ok=True)

    def _take(self, name: str) -> File | None:
        """Count an operation and return its file. All processes turn to the next file together."""
        with self._remaining.get_lock():
            if self._remaining.value == 0:
                return None
            self._remaining.value -= 1
            self.counts[name] += 1
            return self._files[self._remaining.value // TURN % len(self._files)]


def run_process(
    folder: str, job: str, seed: int, remaining: Any, deletion: bool, go: Any, results: Connection
) -> None:
    """Run one process of a race: say that it is ready, then send its counts and failures."""
    import torch

    torch.set_num_threads(1)
    os.umask(UMASK)
    warnings.simplefilter("error")  # the feature cache warns if it cannot be saved
    race = Race(make_files(Path(folder)), remaining, deletion=deletion)
    threads = [
        threading.Thread(target=getattr(race, job), args=(random.Random(f"{seed} {thread}"),))
        for thread in range(THREADS if job == "write" else 1)
    ]
    results.send("ready")
    go.wait()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.send((race.counts, race.failures))


def race(size: int, seed: int, *, deletion: bool) -> dict[str, Any]:
    """Run `size` operations; return their counts and the failures."""
    jobs = ["write"] * WRITERS + ["read"] * READERS + ["delete"] * deletion
    remaining, go = processes.Value("q", size), processes.Event()
    counts: Counter[str] = Counter()
    failures: list[str] = []
    # In memory syncs take no time, so that saves overlap more often.
    in_memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=in_memory) as folder:
        before = os.umask(UMASK)
        try:
            files = make_files(Path(folder))
            for file in files:
                file.save(0)
        finally:
            os.umask(before)
        racers = []
        for number, job in enumerate(jobs):
            receive, send = processes.Pipe(duplex=False)
            arguments = (folder, job, seed + number, remaining, deletion, go, send)
            process = processes.Process(target=run_process, args=arguments)
            process.start()
            send.close()
            racers.append((job, process, receive))
        for _, _, receive in racers:
            receive.poll(None)  # until it is ready, or dead
        go.set()
        for job, process, receive in racers:
            try:
                receive.recv()
                its_counts, its_failures = receive.recv()
                counts += its_counts
                failures += its_failures
            except EOFError:
                process.join()
                failures.append(f"process to {job}: exit code {process.exitcode}")
            process.join()
        expected = {file.path.name for file in files} | {".antipodal"}
        left = {path.name for path in Path(folder).rglob("*")} - expected
        failures += [f"left over: {name}" for name in sorted(left)]
    return {
        "saves": counts["saves"],
        "loads": counts["loads"],
        "deletions": counts["deletions"],
        "loads of a missing file": counts["missing"],
        "failures": failures,
    }


def race_replacement(size: int, seed: int) -> dict[str, Any]:
    """Race writers and readers: no operation may fail."""
    return race(size, seed, deletion=False)


def race_deletion(size: int, seed: int) -> dict[str, Any]:
    """Race writers, readers and a deleter: only loads may fail, because the file is missing."""
    return race(size, seed, deletion=True)


if __name__ == "__main__":
    main(
        "races",
        {"replacement": Part(race_replacement, 50_000), "deletion": Part(race_deletion, 50_000)},
    )

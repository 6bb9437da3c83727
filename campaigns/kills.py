"""SIGKILL of writers of stores and collections at random times, followed by a check.

A writer performs a known sequence of operations and acknowledges each; the first creates the store
or collection. After a kill the store must contain all acknowledged operations, and all or nothing
of the operation in progress. An interrupted creation does not open, and the next writer resumes it.
Searches must match brute force. Milvus replaces items by deleting them first, so items of the
operation in progress may be missing; these are counted.
"""

import logging
import multiprocessing
import random
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from antipodal.errors import StoreError
from campaign import Part, main
from servers import running_engines
from store_processes import MilvusProcesses, PostgresProcesses, SqliteProcesses, StoreProcesses
from workloads import Attached, Codes, Created, State, Workload

# Children are forked from a small process with all imports done.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["antipodal.collection", "antipodal.stores.sqlite"])

HANG = 600  # seconds that only a hang exceeds
KILLS_OF_A_STORE = 8  # then a new one is started


def write_until_killed(workload: Workload, url: str, first: int, acknowledge: Connection) -> None:
    """Perform operations from this number on, and acknowledge each."""
    warnings.filterwarnings("ignore", message="pkg_resources is deprecated")  # by Milvus Lite
    logging.disable()  # by clients of servers that are killed
    try:
        number = first
        if number == 0:
            opened = workload.start(url, lambda *_: acknowledge.send(-1))
        else:
            opened = workload.open(url)
            number -= 1
        with opened:
            while True:
                acknowledge.send(number)
                number += 1
                workload.do(opened, number)
    except StoreError as error:  # the engine was killed
        acknowledge.send(str(error))


@dataclass
class Written:
    """A store that is written, its contents, and the number of its last operation."""

    workload: Workload
    url: str
    state: State = field(default_factory=dict)
    last: int = -1


def kill_writers(size: int, seed: int, engine: StoreProcesses) -> dict[str, Any]:
    """Kill writers or engine processes and compare the store with the acknowledgements."""
    moments = random.Random(seed)
    workloads = [Codes(), Created("int8" if engine.keeps_vectors else None), Attached()]
    stores: dict[Workload, Written] = {}
    killed: Counter[str] = Counter()
    at_work = acknowledged_in_all = half = 0
    failures: list[str] = []
    for number in range(size):
        turn, place = divmod(number, len(workloads))
        workload = workloads[place]
        if turn % KILLS_OF_A_STORE == 0 or workload not in stores:
            stores[workload] = Written(workload, engine.url(f"kills_{number}"))
        store = stores[workload]
        engine.settle()
        acknowledged, victim, problem = _one_kill(store, moments, engine)
        engine.settle()
        killed[f"{victim}, {type(workload).__name__}" + " in creation" * (acknowledged < 0)] += 1
        at_work += acknowledged > store.last
        acknowledged_in_all += acknowledged - store.last
        for one in range(store.last + 1, acknowledged + 1):
            store.state = workload.after(store.state, one)
        store.last, more = acknowledged, workload.after(store.state, acknowledged + 1)
        found, wrong = _read(store, moments)
        problem = problem or wrong
        if found == more:
            store.state, store.last = more, store.last + 1
        elif found != store.state and not problem:
            if not engine.is_atomic and is_half(found, store.state, more):
                half += 1  # the next writer starts with the same operation
            else:
                problem = difference(found, store.state, more)
        if problem:
            failures.append(f"kill {number}, of the {victim}, {store.url}: {problem}")
            del stores[workload]
    return {
        "kills": size,
        "killed": dict(sorted(killed.items())),
        "kills after an acknowledgement": at_work,
        "acknowledged": acknowledged_in_all,
        "half there": half,
        "failures": failures,
    }


def _read(store: Written, moments: random.Random) -> tuple[State, str]:
    """Return the contents of a store, and any error; nothing if its creation is not complete."""
    try:
        opened = store.workload.open(store.url)
    except StoreError as error:
        return {}, f"it does not open: {error}" if store.last >= 0 else ""
    with opened:
        try:
            found = store.workload.contents(opened)
            return found, store.workload.wrong_answers(opened, found, moments)
        except StoreError as error:
            return {}, f"it cannot be read: {error}"


def _one_kill(
    store: Written, moments: random.Random, engine: StoreProcesses
) -> tuple[int, str, str]:
    """Start a writer and kill a process.

    Return the last acknowledged operation, the process killed, and any error before the kill.
    """
    receiver, sender = processes.Pipe(duplex=False)
    arguments = (store.workload, store.url, store.last + 1, sender)
    writer = processes.Process(target=write_until_killed, args=arguments)
    writer.start()
    sender.close()
    acknowledged, problem = store.last, ""
    for _ in range(moments.randrange(8)):  # none: killed while opening the store
        said = receiver.recv()
        if isinstance(said, str):
            # On busy cores, Milvus Lite may not start in the time that its client waits.
            if engine.is_atomic or acknowledged > store.last:
                problem = f"the writer failed before the kill: {said}"
            break
        acknowledged = said
    time.sleep(moments.uniform(0, 0.03))
    victim = engine.kill(moments, writer)
    writer.join(HANG)
    if writer.exitcode is None:
        problem = "the writer hangs"
        writer.kill()
        writer.join()
    try:
        while True:
            said = receiver.recv()
            acknowledged = said if isinstance(said, int) else acknowledged
    except (EOFError, ConnectionResetError):
        return acknowledged, victim, problem


def is_half(found: State, before: State, after: State) -> bool:
    """Return whether each item is as before or after an operation; touched ones may be missing."""
    touched = {number for number in {*before, *after} if before.get(number) != after.get(number)}
    return found.keys() <= before.keys() | after.keys() and all(
        found.get(number) in (before.get(number), after.get(number))
        or (number in touched and number not in found)
        for number in {*before, *after}
    )


def difference(found: State, before: State, after: State) -> str:
    """Describe how a store differs from its two valid states."""
    lost = sum(found.get(number) != value for number, value in before.items())
    half = sum(found.get(number) != value for number, value in after.items())
    return (
        f"{len(found)} items: {lost} differ from the acknowledged state, {half} from the "
        "result of the operation in progress"
    )


def kill_sqlite(size: int, seed: int) -> dict[str, Any]:
    """Kill writers of SQLite stores."""
    with tempfile.TemporaryDirectory() as folder:
        return kill_writers(size, seed, SqliteProcesses(Path(folder)))


def kill_postgresql(size: int, seed: int) -> dict[str, Any]:
    """Kill writers of PostgreSQL stores and server processes."""
    with running_engines() as engines:
        return kill_writers(size, seed, PostgresProcesses(engines))


def kill_milvus(size: int, seed: int) -> dict[str, Any]:
    """Kill writers of Milvus Lite stores and the servers that they start."""
    with running_engines() as engines:
        return kill_writers(size, seed, MilvusProcesses(engines))


if __name__ == "__main__":
    main(
        "kills",
        {
            "sqlite": Part(kill_sqlite, 1000),
            "postgresql": Part(kill_postgresql, 300),
            "milvus": Part(kill_milvus, 100),
        },
    )

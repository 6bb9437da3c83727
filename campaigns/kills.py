"""SIGKILL of store writers at random times, followed by a check of the store.

A writer performs a known sequence of operations and acknowledges each. After a kill the store must
contain all acknowledged operations, and all or nothing of the operation in progress. Searches must
match brute force. Milvus replaces items by deleting them first, so items of the operation in
progress may be missing; these are counted.
"""

import logging
import multiprocessing
import random
import tempfile
import time
import warnings
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from antipodal.errors import StoreError
from antipodal.stores import Store, open_store
from campaign import Part, main
from servers import running_engines
from store_processes import MilvusProcesses, PostgresProcesses, SqliteProcesses, StoreProcesses

# Children are forked from a small process with all imports done.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["antipodal.stores.sqlite"])

BATCH = 20
HANG = 600  # seconds that only a hang exceeds
N_BITS = 32
KILLS_OF_A_STORE = (
    50  # then a new store is started, because all items are compared after every kill
)

State = dict[int, tuple[bytes, dict[str, Any]]]


def operation(number: int) -> tuple[str, np.ndarray, np.ndarray, list[dict[str, Any]]]:
    """Return an operation, mostly a batch of 20 new items and 20 shared by all batches."""
    own = np.arange(BATCH) + (number + 1) * BATCH
    if number % 5 == 4:
        ids = own - 2 * BATCH  # added two operations ago
        return "delete", ids, np.empty((0, 4), np.uint8), []
    ids = np.concatenate([own, np.arange(BATCH)])
    codes = np.random.default_rng(number).integers(0, 256, (2 * BATCH, 4), dtype=np.uint8)
    return "upsert", ids, codes, [{"batch": number, "text": "x" * (number % 300)}] * len(ids)


def change(state: State, number: int) -> State:
    """Return the state after an operation."""
    what, ids, codes, metadata = operation(number)
    if what == "delete":
        gone = set(ids.tolist())
        return {key: value for key, value in state.items() if key not in gone}
    new = zip(ids.tolist(), codes, metadata, strict=True)
    return {**state, **{key: (code.tobytes(), fields) for key, code, fields in new}}


def write_until_killed(url: str, first: int, acknowledge: Connection) -> None:
    """Perform operations from this number on, and acknowledge each."""
    warnings.filterwarnings("ignore", message="pkg_resources is deprecated")  # by Milvus Lite
    logging.disable()  # by clients of servers that are killed
    try:
        with open_store(url, n_bits=N_BITS) as store:
            acknowledge.send(first - 1)  # ready to start
            number = first
            while True:
                what, ids, codes, metadata = operation(number)
                if what == "delete":
                    store.delete(ids)
                else:
                    store.upsert(ids, codes, metadata)
                acknowledge.send(number)
                number += 1
    except StoreError as error:  # the engine was killed
        acknowledge.send(str(error))


def kill_writers(size: int, seed: int, engine: StoreProcesses) -> dict[str, Any]:
    """Kill writers or engine processes and compare the store with the acknowledgements."""
    moments = random.Random(seed)
    url, state, last = "", {}, -1  # contents of the store and the number of its last operation
    killed: Counter[str] = Counter()
    at_work = acknowledged_in_all = half = 0
    failures: list[str] = []
    for number in range(size):
        if number % KILLS_OF_A_STORE == 0:
            url, state, last = engine.url(f"kills_{number}"), {}, -1
        engine.settle()
        acknowledged, victim, problem = _one_kill(url, last, moments, engine)
        engine.settle()
        killed[victim] += 1
        at_work += acknowledged > last
        acknowledged_in_all += acknowledged - last
        for one in range(last + 1, acknowledged + 1):
            state = change(state, one)
        last, more = acknowledged, change(state, acknowledged + 1)
        with open_store(url, n_bits=N_BITS) as store:
            found = contents(store)
            problem = problem or wrong_answers(store, found, moments)
        if found == more:
            state, last = more, last + 1
        elif found != state:
            if not engine.is_atomic and is_half(found, state, more):
                half += 1  # the next writer starts with the same operation
            else:
                problem = problem or difference(found, state, more)
        if problem:
            failures.append(f"kill {number}, of the {victim}: {problem}")
            url, state, last = engine.url(f"kills_{number}_again"), {}, -1
    return {
        "kills": size,
        "killed": dict(killed),
        "kills after an acknowledgement": at_work,
        "acknowledged": acknowledged_in_all,
        "half there": half,
        "failures": failures,
    }


def _one_kill(
    url: str, last: int, moments: random.Random, engine: StoreProcesses
) -> tuple[int, str, str]:
    """Start a writer and kill a process.

    Return the last acknowledged operation, the process killed, and any error before the kill.
    """
    receiver, sender = processes.Pipe(duplex=False)
    writer = processes.Process(target=write_until_killed, args=(url, last + 1, sender))
    writer.start()
    sender.close()
    acknowledged, problem = last, ""
    for _ in range(moments.randrange(8)):  # none: killed while opening the store
        said = receiver.recv()
        if isinstance(said, str):
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


def contents(store: Store) -> State:
    """Return all items of a store by id."""
    with store.snapshot() as now:
        ids = np.concatenate([np.empty(0, np.int64), *(batch.ids for batch in now.batches())])
        items = now.get(ids)
    rows = zip(items.ids.tolist(), items.codes, items.metadata, strict=True)
    return {number: (code.tobytes(), fields) for number, code, fields in rows}


def wrong_answers(store: Store, state: State, moments: random.Random) -> str:
    """Compare searches with brute force over the items; return the first deviation, if any."""
    if store.count() != len(state):
        return f"count() is {store.count()}, but the store has {len(state)} items"
    query = np.frombuffer(moments.randbytes(N_BITS // 8), np.uint8)[None]
    target = int.from_bytes(query.tobytes(), "big")
    expected = sorted(
        ((int.from_bytes(code, "big") ^ target).bit_count(), number)
        for number, (code, _) in state.items()
    )
    found = store.search(query, 10)
    pairs = list(zip(found.distances[0].tolist(), found.ids[0].tolist(), strict=True))
    if pairs != expected[:10]:
        return f"search returned {pairs}, brute force {expected[:10]}"
    return ""


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

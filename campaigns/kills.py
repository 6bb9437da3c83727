"""Kill who writes to a store, with SIGKILL at random moments, and look at what is there.

A writer does one operation after another and says when each has returned. What the store must hold
after each is known. After a kill it holds all that was acknowledged, and either all or nothing of
the operation that was under way; searches answer as brute force does.
"""

import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from antipodal.stores import Store, open_store
from campaign import Part, main

# Children are forked from a small process that has imported what they need.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["antipodal.stores.sqlite"])

BATCH = 20
N_BITS = 32
KILLS_OF_A_STORE = 50  # then a new one is begun: what it must hold is compared after every kill

State = dict[int, tuple[bytes, dict[str, Any]]]


def operation(number: int) -> tuple[str, np.ndarray, np.ndarray, list[dict[str, Any]]]:
    """Return what a writer does: mostly a batch of 20 new items and 20 that all batches share."""
    own = np.arange(BATCH) + (number + 1) * BATCH
    if number % 5 == 4:
        ids = own - 2 * BATCH  # new two operations ago
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
    """Do one operation after another, from this number on."""
    with open_store(url, n_bits=N_BITS) as store:
        acknowledge.send(first - 1)  # it is about to begin
        number = first
        while True:
            what, ids, codes, metadata = operation(number)
            if what == "delete":
                store.delete(ids)
            else:
                store.upsert(ids, codes, metadata)
            acknowledge.send(number)
            number += 1


def kill_writers(
    size: int, seed: int, new_store: Callable[[int], str], kill: Callable[[random.Random, Any], str]
) -> dict[str, Any]:
    """Kill writers, and compare what they left with what they acknowledged.

    Parameters
    ----------
    new_store : callable
        Returns the address of a store that is not there yet, given the number of the first kill.
    kill : callable
        Kills a writer, or what it needs, and returns what was killed.
    """
    moments = random.Random(seed)
    url, state, last = "", {}, -1  # what is there, and the number of its last operation
    killed: dict[str, int] = {}
    at_work = acknowledged_in_all = 0
    failures: list[str] = []
    for number in range(size):
        if number % KILLS_OF_A_STORE == 0:
            url, state, last = new_store(number), {}, -1
        acknowledged, victim = _one_kill(url, last, moments, kill)
        killed[victim] = killed.get(victim, 0) + 1
        at_work += acknowledged > last
        acknowledged_in_all += max(acknowledged - last, 0)
        for one in range(last + 1, acknowledged + 1):
            state = change(state, one)
        last, more = max(acknowledged, last), change(state, max(acknowledged, last) + 1)
        found, problem = what_is_there(url, moments)
        if found == more:
            state, last = more, last + 1
        elif found != state:
            problem = problem or difference(found, state, more)
        if problem:
            failures.append(f"kill {number} of {victim}: {problem}")
            url, state, last = new_store(number), {}, -1
    return {
        "kills": size,
        "killed": killed,
        "kills after an acknowledgement": at_work,
        "acknowledged": acknowledged_in_all,
        "failures": failures,
    }


def _one_kill(
    url: str, last: int, moments: random.Random, kill: Callable[[random.Random, Any], str]
) -> tuple[int, str]:
    """Let a writer begin, kill it, and return the last operation that it acknowledged."""
    receiver, sender = processes.Pipe(duplex=False)
    writer = processes.Process(target=write_until_killed, args=(url, last + 1, sender))
    writer.start()
    sender.close()
    acknowledged = last
    for _ in range(moments.randrange(8)):  # none: it is killed while it opens the store
        acknowledged = receiver.recv()
    time.sleep(moments.uniform(0, 0.03))
    victim = kill(moments, writer)
    writer.join()
    try:
        while True:
            acknowledged = receiver.recv()
    except (EOFError, ConnectionResetError):
        return acknowledged, victim


def what_is_there(url: str, moments: random.Random) -> tuple[State, str]:
    """Return all items of a store, and what is wrong with its answers, if anything."""
    with open_store(url, n_bits=N_BITS) as store:
        found = contents(store)
        return found, wrong_answers(store, found, moments)


def contents(store: Store) -> State:
    """Return all items of a store, by their ids."""
    with store.snapshot() as now:
        ids = np.concatenate([np.empty(0, np.int64), *(batch.ids for batch in now.batches())])
        items = now.get(ids)
    rows = zip(items.ids.tolist(), items.codes, items.metadata, strict=True)
    return {number: (code.tobytes(), fields) for number, code, fields in rows}


def wrong_answers(store: Store, state: State, moments: random.Random) -> str:
    """Compare answers with brute force over the items; say what is wrong, if anything."""
    if store.count() != len(state):
        return f"it counts {store.count()} items, and has {len(state)}"
    query = np.frombuffer(moments.randbytes(N_BITS // 8), np.uint8)[None]
    target = int.from_bytes(query.tobytes(), "big")
    expected = sorted(
        ((int.from_bytes(code, "big") ^ target).bit_count(), number)
        for number, (code, _) in state.items()
    )
    found = store.search(query, 10)
    pairs = list(zip(found.distances[0].tolist(), found.ids[0].tolist(), strict=True))
    if pairs != expected[:10]:
        return f"it answers {pairs}, brute force {expected[:10]}"
    return ""


def difference(found: State, before: State, after: State) -> str:
    """Say how a store differs from the two states that it may be in."""
    lost = sum(found.get(number) != value for number, value in before.items())
    half = sum(found.get(number) != value for number, value in after.items())
    return (
        f"{len(found)} items, of which {lost} are not as acknowledged; {half} are not as the "
        "operation under way would have made them"
    )


def kill_sqlite(size: int, seed: int) -> dict[str, Any]:
    """Kill writers of SQLite stores."""
    with tempfile.TemporaryDirectory() as folder:
        return kill_writers(
            size, seed, lambda number: f"sqlite:///{folder}/{number}.db", _kill_the_writer
        )


def _kill_the_writer(moments: random.Random, writer: Any) -> str:
    writer.kill()
    return "writer"


if __name__ == "__main__":
    main("kills", {"sqlite": Part(kill_sqlite, 1000)})

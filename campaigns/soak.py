"""Soak test of a service under load, with restarts, restores and model switches.

A writer adds and deletes items; readers search by k and by radius and compare the results with
brute force. Meanwhile the service is stopped, killed and restarted, its store is backed up and
restored, and `antipodal switch` alternates between two models with their own stores. No
acknowledged write may be lost and no response may be wrong. In the last third of the time the
service runs undisturbed, and neither its memory nor its number of file descriptors may grow.

The size is in seconds.
"""

import http.client
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from antipodal import LSH, open_store
from antipodal.io.model_file import model_identity
from antipodal.stores.transfer import back_up, restore
from campaign import Part, main
from services import READ, WRITE, Answer, Service, ask, is_alive, is_refused_well

N_BITS, N_IDS, BATCH = 32, 3_000, 20
NAME = "live"  # name of the mount
HANG = 600  # seconds that only a hang exceeds
MOST_GROWTH = 1.1  # allowed growth of memory during the last third
MOST_NEW_DESCRIPTORS = 5
LEAST_SAMPLES = 8
LEAST_ANSWERS = 10  # searches to check, even if the time is over

Items = dict[int, tuple[str, int]]  # id -> code and turn


class World:
    """A model, its store and the expected items."""

    def __init__(self, folder: Path, number: int) -> None:
        self.model, self.url = folder / f"model{number}", f"sqlite:///{folder}/codes{number}.db"
        LSH(N_BITS, random_state=number).fit(np.eye(8)).save(self.model)
        self.identity = model_identity(self.model)
        open_store(self.url, n_bits=N_BITS, model=self.identity).close()
        self.items: Items = {}
        self.sent: set[tuple[int, str, int]] = set()
        self.kept: tuple[Path, Items] | None = None  # the last backup and its items


class Soak:
    """State shared by all threads."""

    def __init__(self, service: Service, worlds: list[World], seed: int, last: float) -> None:
        self.service, self.worlds, self.last = service, worlds, last
        self.world = worlds[0]
        self.coming: World | None = None  # responses may already come from this one
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.lock = threading.Lock()  # guards the items
        self.turn = 0
        self.writing = threading.Lock()  # held while a batch is in progress
        self.reading = [threading.Lock(), threading.Lock()]  # one per reader
        self.restarting = threading.Event()

    def answering(self) -> set[World]:
        """Return the worlds that a response may come from; requires `lock`."""
        return {self.world} if self.coming is None else {self.world, self.coming}

    def fail(self, text: str) -> None:
        """Record a failure."""
        if len(self.failures) < 50:
            self.failures.append(text)

    def stopped(self) -> ExitStack:
        """Wait for requests in progress and block new ones."""
        stack = ExitStack()
        for lock in (self.writing, *self.reading):
            stack.enter_context(lock)
        return stack


# ------------------------------------------------------------------------------ load


def write(soak: Soak, source: random.Random) -> None:
    """Add or delete batches sequentially."""
    connection = None
    while time.monotonic() < soak.last:
        with soak.writing:
            connection = connection or new_connection(soak)
            if not _write_batch(soak, source, connection):
                connection.close()
                connection = None
        time.sleep(0.005)
    if connection is not None:
        connection.close()


def _write_batch(soak: Soak, source: random.Random, connection: Any) -> bool:
    """Send a batch and determine its outcome if unacknowledged; return whether it is valid."""
    world, soak.turn = soak.world, soak.turn + 1
    ids = source.sample(range(N_IDS), BATCH)
    new: Items = {}
    if source.random() < 0.75:
        new = {number: (f"{source.getrandbits(N_BITS):08x}", soak.turn) for number in ids}
        items = [
            {"id": number, "code": code, "metadata": {"turn": turn}}
            for number, (code, turn) in new.items()
        ]
        method, body = "PUT", {"items": items}
    else:
        method, body = "DELETE", {"ids": ids}
    with soak.lock:
        before = {number: world.items.pop(number) for number in ids if number in world.items}
        world.sent |= {(number, *value) for number, value in new.items()}
    answer = try_to_ask(soak, connection, method, f"/{NAME}/v1/items", body, WRITE)
    if answer is not None and answer.status == 200:
        soak.counts["batches acknowledged"] += 1
        result = answer.json()
        wanted = {"deleted": len(before)}
        if new:
            wanted = {"upserted": BATCH, "replaced": len(before)}
        if result != wanted:
            soak.fail(f"a batch returned {result}, not {wanted}")
        after = new
    else:
        soak.counts["batches not acknowledged"] += 1
        after = _found_out(soak, ids, before, new)
    with soak.lock:
        world.items |= after
    return answer is not None


def _found_out(soak: Soak, ids: list[int], before: Items, new: Items) -> Items:
    """Check that an unacknowledged batch was applied completely or not at all."""
    last = time.monotonic() + HANG
    while True:
        found = _items(soak, ids)
        if found is not None and found in (before, new):
            return found
        if time.monotonic() > last:  # not merely in progress
            soak.fail(f"a batch is partially applied: {found}, not {before} or {new}")
            return found or {}
        time.sleep(0.2)


def _items(soak: Soak, ids: list[int]) -> Items | None:
    """Return the existing items, or None if the service does not respond."""
    found = {}
    connection = new_connection(soak)
    try:
        for number in ids:
            answer = try_to_ask(soak, connection, "GET", f"/{NAME}/v1/items/{number}", None, READ)
            if answer is None or answer.status not in (200, 404):
                return None
            if answer.status == 200:
                item = answer.json()
                found[number] = (item["code"], item["metadata"]["turn"])
    finally:
        connection.close()
    return found


def read(soak: Soak, source: random.Random, reader: int) -> None:
    """Search by k or by radius and compare with the expected items."""
    connection = None
    while time.monotonic() < soak.last or soak.counts["answers checked"] < LEAST_ANSWERS:
        with soak.reading[reader]:
            connection = connection or new_connection(soak)
            if not _search(soak, source, connection):
                connection.close()
                connection = None
        time.sleep(0.005)
    if connection is not None:
        connection.close()


def _search(soak: Soak, source: random.Random, connection: Any) -> bool:
    query = source.getrandbits(N_BITS)
    bound = source.choice([{"k": 10}, {"k": 100}, {"radius": 8}, {"radius": 12}])
    with soak.lock:
        before = {world: dict(world.items) for world in soak.worlds}
        answering = soak.answering()
    asked = {"code": f"{query:08x}", **bound}
    answer = try_to_ask(soak, connection, "POST", f"/{NAME}/v1/search", asked, READ)
    if answer is None or answer.status != 200:
        return answer is not None
    hits = [
        (hit["distance"], hit["id"], hit["code"], hit["metadata"]["turn"])
        for hit in answer.json()["results"]
    ]
    with soak.lock:
        stable = [
            {n: value for n, value in before[world].items() if world.items.get(n) == value}
            for world in answering | soak.answering()
            if all(hit[1:] in world.sent for hit in hits)
        ]
    soak.counts["answers checked"] += 1
    wrong = [what_is_wrong(query, bound, hits, items) for items in stable]
    if all(wrong):  # also if no world ever had all of these items
        soak.fail(f"a search for {query:08x} with {bound}: {wrong or hits[:3]}")
    return True


def what_is_wrong(
    query: int, bound: dict[str, int], hits: list[tuple[int, int, str, int]], stable: Items
) -> str:
    """Compare a response with the items that were not written during the request."""
    keys = [hit[:2] for hit in hits]
    if keys != sorted(set(keys)):
        return "the hits are not in order"
    for distance, number, code, _ in hits:
        if distance != (int(code, 16) ^ query).bit_count():
            return f"{number} is not at distance {distance}"
    ids = np.fromiter(stable, np.int64, len(stable))
    codes = np.array([int(stable[number][0], 16) for number in ids.tolist()], np.uint32)
    distances = np.bitwise_count(codes ^ np.uint32(query))
    if "k" in bound and len(hits) == bound["k"]:
        last = keys[-1]
        due = (distances < last[0]) | ((distances == last[0]) & (ids <= last[1]))
    else:
        due = distances <= bound.get("radius", N_BITS)
    returned = {hit[1]: hit[2:] for hit in hits}
    missing = [n for n in ids[due].tolist() if returned.get(n) != stable[n]]
    return f"{missing[:5]} are missing or outdated" if missing else ""


def new_connection(soak: Soak) -> http.client.HTTPConnection:
    """Return a connection that opens on first use."""
    return http.client.HTTPConnection("127.0.0.1", soak.service.port, timeout=HANG)


def try_to_ask(soak: Soak, connection: Any, *request: Any) -> Answer | None:
    """Send a request; return None if the connection fails during a restart."""
    was_restarting = soak.restarting.is_set()
    try:
        answer = ask(connection, *request)
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        if not was_restarting and not soak.restarting.is_set():
            # The server may close an idle connection at any time.
            soak.counts[f"connections lost, {type(error).__name__}"] += 1
        time.sleep(0.05)
        return None
    soak.counts[f"answers {answer.status}"] += 1
    if not is_refused_well(answer) or answer.status not in (200, 404, 503):
        soak.fail(f"{request[:2]}: {answer.status} {answer.body[:300]!r}")
    return answer


# ------------------------------------------------------------------------ disturbances


def restart(soak: Soak, number: int) -> None:
    """Stop the service with a signal under load and restart it."""
    soak.restarting.set()
    pids = soak.service.pids()
    soak.service.end(number)
    last = time.monotonic() + HANG
    while any(map(is_alive, pids)) and time.monotonic() < last:
        time.sleep(0.1)
    if left := [pid for pid in pids if is_alive(pid)]:
        soak.fail(f"processes of the service are still running: {left}")
    soak.service.start()
    soak.restarting.clear()


def stop_it(soak: Soak) -> None:
    """Stop the service with SIGTERM."""
    restart(soak, signal.SIGTERM)


def kill_it(soak: Soak) -> None:
    """Stop the service with SIGKILL."""
    restart(soak, signal.SIGKILL)


def back_it_up(soak: Soak) -> None:
    """Back up the store while readers search; no batch is in progress."""
    path = soak.service.folder / "backup"
    with soak.writing, open_store(soak.world.url) as store:
        made = back_up(store, path.with_suffix(f".{soak.worlds.index(soak.world)}"))
        if made.items != len(soak.world.items):
            soak.fail(f"a backup has {made.items} items, not {len(soak.world.items)}")
        kept = path.with_suffix(f".{soak.worlds.index(soak.world)}"), dict(soak.world.items)
        soak.world.kept = kept


def restore_it(soak: Soak) -> None:
    """Restore the last backup while the service has the store open."""
    if soak.world.kept is None:
        back_it_up(soak)
        time.sleep(1)
    with soak.stopped():
        assert soak.world.kept is not None
        path, items = soak.world.kept
        restore(path, soak.world.url)
        soak.world.items = dict(items)
    compare_all(soak)


def switch_model(soak: Soak) -> None:
    """Switch the mount to the other model and store while readers search."""
    with soak.writing:
        new = soak.worlds[1 - soak.worlds.index(soak.world)]
        with soak.lock:
            soak.coming = new
        point_to(new, soak.service.folder)
        last = time.monotonic() + HANG
        while _served(soak) != new.identity:
            if time.monotonic() > last:
                soak.fail(f"the service did not switch within {HANG} s")
                return
            time.sleep(0.1)
        with soak.lock:
            soak.world, soak.coming = new, None


def point_to(world: World, folder: Path) -> None:
    """Point the mount to this world in the mount file."""
    mount = f"{NAME}={world.model},{world.url}"
    command = [sys.executable, "-m", "antipodal", "switch", str(folder / "mounts.json"), mount]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _served(soak: Soak) -> str:
    """Return the identity of the model currently served."""
    answer = soak.service.ask("GET", f"/{NAME}/v1/store", None, READ)
    return str(answer.json()["model"]) if answer.status == 200 else ""


def compare_all(soak: Soak) -> None:
    """Compare all items of the service with the expected ones."""
    with soak.stopped():
        everything = {"code": "00000000", "radius": 32}
        answer = soak.service.ask("POST", f"/{NAME}/v1/search", everything, READ)
        found = {
            hit["id"]: (hit["code"], hit["metadata"]["turn"]) for hit in answer.json()["results"]
        }
        if found != soak.world.items:
            n_wrong = sum(found.get(n) != value for n, value in soak.world.items.items())
            soak.fail(f"{len(found)} items of {len(soak.world.items)}: {n_wrong} lost or outdated")
    soak.counts["full comparisons"] += 1


EVENTS = (stop_it, kill_it, back_it_up, restore_it, switch_model)


def run_soak(size: int, seed: int) -> dict[str, Any]:
    """Load and disturb a service for some seconds."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        service = Service(
            folder, "--max-results", "100000", "--mounts", str(folder / "mounts.json")
        )
        worlds = [World(folder, 0), World(folder, 1)]
        point_to(worlds[0], folder)
        service.start()
        stack.callback(service.end)
        soak = Soak(service, worlds, seed, time.monotonic() + size)
        targets = [
            lambda: write(soak, random.Random(seed)),
            *(lambda r=r: read(soak, random.Random(seed + 1 + r), r) for r in range(2)),
        ]
        threads = [threading.Thread(target=guarded, args=(soak, target)) for target in targets]
        for thread in threads:
            thread.start()
        samples = disturb(soak, size)
        for thread in threads:
            thread.join()
        compare_all(soak)
        service.end()
        for error in service.errors():
            soak.fail(f"in the log: {error}")
        return {
            **dict(sorted(soak.counts.items())),
            "items": [len(world.items) for world in worlds],
            "megabytes": [round(one[0]) for one in samples],
            "descriptors": [one[1] for one in samples],
            "failures": soak.failures,
        }


def guarded(soak: Soak, target: Any) -> None:
    """Run the load of a thread; any exception is recorded as a failure."""
    try:
        target()
    except BaseException as error:
        soak.fail(f"a thread ended: {type(error).__name__}: {error}")


def disturb(soak: Soak, size: int) -> list[tuple[float, int]]:
    """Disturb the service for two thirds of the time, then measure; return the measurements."""
    undisturbed = soak.last - size / 3
    order = list(EVENTS)
    while time.monotonic() < undisturbed and not soak.failures:
        soak.random.shuffle(order)
        for event in order:
            if time.monotonic() < undisturbed:
                time.sleep(soak.random.uniform(0, min(10, size / 15)))
                event(soak)
                soak.counts[event.__name__.replace("_", " ")] += 1
                compare_all(soak)
    samples = []
    while time.monotonic() < soak.last:
        time.sleep(max(0.1, size / 3 / (2 * LEAST_SAMPLES)))
        samples.append((soak.service.megabytes(), soak.service.descriptors()))
    if len(samples) >= LEAST_SAMPLES:
        third = len(samples) // 3
        early, late = samples[third : 2 * third], samples[-third:]
        before, after = (sum(one[0] for one in some) / len(some) for some in (early, late))
        if after > MOST_GROWTH * before:
            soak.fail(f"memory grew from {before:.0f} to {after:.0f} MB")
        most = [max(one[1] for one in some) for some in (early, late)]
        if most[1] > most[0] + MOST_NEW_DESCRIPTORS:
            soak.fail(f"descriptors grew from {most[0]} to {most[1]}")
    return samples


if __name__ == "__main__":
    main("soak", {"service": Part(run_soak, 1_800)})

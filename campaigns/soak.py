"""Soak test of a service under load, with restarts, restores and model switches.

A writer adds and deletes items; readers search by k, by radius, with reranking and for words, and
compare the results with brute force. Meanwhile the service is stopped, killed and restarted, its
store is backed up and restored, and `antipodal switch` alternates between a store of codes with its
model and a collection with string ids and kept vectors. No acknowledged write may be lost and no
response may be wrong. In the last third of the time the service runs undisturbed, and neither its
memory nor its number of file descriptors may grow.

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

from antipodal import LSH, Collection, open_store
from antipodal.io.model_file import model_identity
from antipodal.stores.transfer import back_up, restore
from antipodal.stores.vectors import pack_vectors, unpack_vectors
from campaign import Part, main
from services import READ, WRITE, Answer, Service, ask, is_alive, is_refused_well
from workloads import contents

N_BITS, N_FEATURES, N_IDS, BATCH = 32, 8, 3_000, 20
NAME = "live"  # name of the mount
HANG = 600  # seconds that only a hang exceeds
MOST_GROWTH = 1.1  # allowed growth of memory during the last third
MOST_NEW_DESCRIPTORS = 5
LEAST_SAMPLES = 8
LEAST_ANSWERS = 10  # searches to check, even if the time is over

Items = dict[int, tuple[str, int]]  # id -> code and turn


class World:
    """A store of codes, its model, and the expected items."""

    def __init__(self, folder: Path) -> None:
        path, self.url = folder / "model", f"sqlite:///{folder}/codes.db"
        self.model: Any = LSH(N_BITS, random_state=0).fit(np.eye(N_FEATURES))
        self.model.save(path)
        self.mount, self.identity = f"{path},{self.url}", model_identity(path)
        open_store(self.url, n_bits=N_BITS, model=self.identity).close()
        self.items: Items = {}
        self.sent: set[tuple[int, str, int]] = set()
        self.kept: tuple[Path, Items] | None = None  # the last backup and its items

    bounds: tuple[dict[str, int], ...] = ({"k": 10}, {"k": 100}, {"radius": 8}, {"radius": 12})

    def id_of(self, number: int) -> Any:
        """Return the id of an item in the store."""
        return number

    def codes(self, numbers: list[int], turn: int, source: random.Random) -> list[str]:
        """Return the codes of new items."""
        return [f"{source.getrandbits(N_BITS):08x}" for _ in numbers]

    def fields(self, number: int, code: str, turn: int) -> dict[str, Any]:
        """Return the fields of a new item in a request."""
        return {"code": code}

    def keys(self, query: np.ndarray, ids: np.ndarray, codes: list[str]) -> np.ndarray:
        """Return the keys by which items are ordered: the distance, then the id."""
        bits = np.array([int(code, 16) for code in codes], np.uint32)
        target = np.uint32(int(self.model.encode(query).tobytes().hex(), 16))
        return np.asarray(np.bitwise_count(bits ^ target) + ids / 10**6)

    def key_of_hit(self, hit: dict[str, Any], number: int) -> float:
        """Return the key of a result."""
        return float(hit["distance"] + number / 10**6)

    def stored(self, soak: "Soak") -> Items:
        """Return all items, by a search of the service."""
        everything = {"code": "00000000", "radius": N_BITS}
        answer = soak.service.ask("POST", f"/{NAME}/v1/search", everything, READ)
        return {
            hit["id"]: (hit["code"], hit["metadata"]["turn"]) for hit in answer.json()["results"]
        }


class VectorWorld(World):
    """A collection with string ids and kept vectors, and the expected items."""

    bounds = ({"k": 10}, {"k": 100}, {"k": 10, "rerank": 4})

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.mount, self.url = f"{folder}/vectors.db", f"sqlite:///{folder}/vectors.db"
        rows = np.random.default_rng(0).standard_normal((200, N_FEATURES)).astype(np.float32)
        ids = [f"created-{n}" for n in range(len(rows))]
        options = {"ids": ids, "bits": N_BITS, "keep_vectors": "int8"}
        with Collection.create(self.url, rows, **options) as docs:
            self.model, self.identity = docs.model, docs.identity
            docs.delete(ids)

    def id_of(self, number: int) -> str:
        """Return the id of an item in the collection."""
        return f"item-{number}"

    def codes(self, numbers: list[int], turn: int, source: random.Random) -> list[str]:
        """Return the codes of new items."""
        rows = np.array([vector(number, turn) for number in numbers])
        return [code.tobytes().hex() for code in self.model.encode(rows)]

    def fields(self, number: int, code: str, turn: int) -> dict[str, Any]:
        """Return the fields of a new item in a request."""
        return {"vector": vector(number, turn).tolist()}

    def keys(self, query: np.ndarray, ids: np.ndarray, codes: list[str]) -> np.ndarray:
        """Return the keys by which items are ordered: the negative score."""
        packed = np.frombuffer(bytes.fromhex("".join(codes)), np.uint8).reshape(-1, N_BITS // 8)
        signs = 2.0 * np.unpackbits(packed, axis=1) - 1
        return np.asarray(-(signs @ self.model.query(query)[0] + self.model.score_offset(query)))

    def key_of_hit(self, hit: dict[str, Any], number: int) -> float:
        """Return the key of a result."""
        return -float(hit["score"])

    def stored(self, soak: "Soak") -> Items:
        """Return all items, read from the file; the kept vectors must be those that were sent."""
        with open_store(self.url) as store:
            found = contents(store, keeps_vectors=True)
        items = {}
        for key, (data, fields) in found.items():
            number, turn = int(key.removeprefix("item-")), fields["turn"]
            items[number] = (data[: N_BITS // 8].hex(), turn)
            if data[N_BITS // 8 :] != pack_vectors(vector(number, turn)[None], "int8")[0]:
                soak.fail(f"the vector of {key} is not that of turn {turn}")
        return items


def vector(number: int, turn: int) -> np.ndarray:
    """Return the vector of an item."""
    return np.random.default_rng([number, turn]).standard_normal(N_FEATURES).astype(np.float32)


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
        codes = world.codes(ids, soak.turn, source)
        new = {number: (code, soak.turn) for number, code in zip(ids, codes, strict=True)}
        items = [
            {"id": world.id_of(number), "metadata": {"turn": turn, "text": word_of(turn)}}
            | world.fields(number, code, turn)
            for number, (code, turn) in new.items()
        ]
        method, body = "PUT", {"items": items}
    else:
        method, body = "DELETE", {"ids": [world.id_of(number) for number in ids]}
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
            path = f"/{NAME}/v1/items/{soak.world.id_of(number)}"
            answer = try_to_ask(soak, connection, "GET", path, None, READ)
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
            if not source.choice([_search, _search, _search, _find])(soak, source, connection):
                connection.close()
                connection = None
        time.sleep(0.005)
    if connection is not None:
        connection.close()


def _search(soak: Soak, source: random.Random, connection: Any) -> bool:
    query = np.array([[source.gauss(0, 1) for _ in range(N_FEATURES)]], np.float32)
    with soak.lock:
        before = {world: dict(world.items) for world in soak.worlds}
        answering = soak.answering()
        bound = source.choice(soak.world.bounds)
    asked = {"vector": query[0].tolist(), **bound}
    answer = try_to_ask(soak, connection, "POST", f"/{NAME}/v1/search", asked, READ)
    with soak.lock:
        answering |= soak.answering()
        if answer is None or answer.status != 200:
            if answer is not None and answer.status == 422 and len(answering) == 1:
                soak.fail(f"a search with {bound}: {answer.body[:300]!r}")
            return answer is not None
        hits = answer.json()["results"]
        numbers = [int(str(hit["id"]).removeprefix("item-")) for hit in hits]
        stable = {
            world: {n: value for n, value in before[world].items() if world.items.get(n) == value}
            for world in answering
            if all(
                hit["id"] == world.id_of(n)
                and (n, hit["code"], hit["metadata"]["turn"]) in world.sent
                for n, hit in zip(numbers, hits, strict=True)
            )
        }
    soak.counts["answers checked"] += 1
    soak.counts[f"answers checked, {' '.join(bound)}"] += 1
    wrong = [
        what_is_wrong(world, query, bound, numbers, hits, items) for world, items in stable.items()
    ]
    if all(wrong):  # also if no world ever had all of these items
        soak.fail(f"a search for {query} with {bound}: {wrong or hits[:3]}")
    return True


def _find(soak: Soak, source: random.Random, connection: Any) -> bool:
    """Find the items of a turn by their word; return whether the connection is valid."""
    with soak.lock:
        before = {world: dict(world.items) for world in soak.worlds}
        answering = soak.answering()
    turn = source.choice([turn for _, turn in before[soak.world].values()] or [soak.turn])
    asked = {"text": word_of(turn), "limit": 100}
    answer = try_to_ask(soak, connection, "POST", f"/{NAME}/v1/find", asked, READ)
    if answer is None or answer.status != 200:
        return answer is not None
    with soak.lock:
        answering |= soak.answering()
        found = {
            (hit["id"], hit["code"], hit["metadata"]["turn"]) for hit in answer.json()["items"]
        }
        wrong = []
        for world in answering:
            sent = {(world.id_of(n), code, turn) for n, code, turn in world.sent}
            due = {
                (world.id_of(n), *value)
                for n, value in before[world].items()
                if value[1] == turn and world.items.get(n) == value
            }
            is_right = due <= found <= sent and all(one[2] == turn for one in found)
            wrong.append("" if is_right else f"{due - found} are missing, {found - sent} unknown")
    soak.counts["answers checked"] += 1
    soak.counts["answers checked, words"] += 1
    if all(wrong):
        soak.fail(f"a search for the word {word_of(turn)}: {wrong}")
    return True


def word_of(turn: int) -> str:
    """Return the word of the items written in a turn; none is the beginning of another."""
    return f"turn{turn:09d}"


def what_is_wrong(
    world: World,
    query: np.ndarray,
    bound: dict[str, int],
    numbers: list[int],
    hits: list[dict[str, Any]],
    stable: Items,
) -> str:
    """Compare a response with the items that were not written during the request."""
    found = np.array([world.key_of_hit(hit, n) for n, hit in zip(numbers, hits, strict=True)])
    if (np.diff(found) < 0).any() or len(set(numbers)) < len(numbers):
        return "the hits are not in order"
    if "rerank" in bound:
        rows = np.array(
            [vector(n, h["metadata"]["turn"]) for n, h in zip(numbers, hits, strict=True)]
        )
        rows = unpack_vectors(
            pack_vectors(rows.reshape(-1, N_FEATURES), "int8"), N_FEATURES, "int8"
        )
        lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(query)
        is_right = np.allclose(-found, rows @ query[0] / lengths, atol=1e-5)
        return "" if is_right else f"scores {-found} are not the cosines"
    own = world.keys(query, np.array(numbers, np.int64), [hit["code"] for hit in hits])
    if not np.allclose(found, own, rtol=0, atol=1e-6):
        return f"the keys are {found}, expected {own}"
    ids = np.fromiter(stable, np.int64, len(stable))
    keys = world.keys(query, ids, [stable[number][0] for number in ids.tolist()])
    if "k" in bound and len(hits) == bound["k"]:
        due = keys < found[-1] - 1e-7  # less than the difference of two ids
    else:
        due = keys < bound.get("radius", N_BITS) + 0.5
    returned = {
        n: (hit["code"], hit["metadata"]["turn"]) for n, hit in zip(numbers, hits, strict=True)
    }
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
    if not is_refused_well(answer) or answer.status not in (200, 404, 422, 503):
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
    mount = f"{NAME}={world.mount}"
    command = [sys.executable, "-m", "antipodal", "switch", str(folder / "mounts.json"), mount]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _served(soak: Soak) -> str:
    """Return the identity of the model currently served."""
    answer = soak.service.ask("GET", f"/{NAME}/v1/store", None, READ)
    return str(answer.json()["model"]) if answer.status == 200 else ""


def compare_all(soak: Soak) -> None:
    """Compare all items of the world that is served with the expected ones."""
    with soak.stopped():
        found = soak.world.stored(soak)
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
        worlds = [VectorWorld(folder), World(folder)]
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

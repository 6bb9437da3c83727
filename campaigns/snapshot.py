"""Snapshot consistency of searches while codes, metadata and membership change together.

Every item stores the number of its state in its metadata. All items of a service response, of a
search of a collection, of a search for words, or of several searches on one snapshot, must belong
to one state and match brute force on it. Milvus has no snapshots; inconsistent responses are
counted there.
"""

import logging
import multiprocessing
import random
import tempfile
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from antipodal import LSH, Collection
from antipodal.collection.settings import Settings
from antipodal.service.browse import find_items
from antipodal.service.engine import Engine
from antipodal.service.schemas import FindRequest, SearchRequest
from antipodal.stores import Store, open_store
from antipodal.stores.items import metadata_text
from antipodal.stores.snapshot import ItemBatch
from antipodal.stores.vectors import pack_vectors
from campaign import Part, main
from servers import running_engines
from workloads import expected_scores, unlike

N_BITS = 16
READERS = 3
processes = multiprocessing.get_context("forkserver")

State = dict[int, tuple[int, dict[str, Any]]]  # id -> code as a number, metadata


def state(number: int) -> State:
    """Return a state: item 0 keeps its code; others are added, removed and get new codes."""
    ids = [0, 1, *range(10, 10 + 3 * (number % 4))]
    parity = ("even", "odd")[number % 2]
    metadata = {"state": number, "even": number % 2 == 0, "text": f"an {parity} state"}
    return {one: (1 if one == 0 else hash((number, one)) % 2**N_BITS, metadata) for one in ids}


def write(store: Store, number: int) -> None:
    """Change a store from one state to the next; every fourth state has fewer items."""
    items = state(number)
    ids = np.array(list(items))
    codes = np.array([code for code, _ in items.values()], ">u2").view(np.uint8).reshape(-1, 2)
    metadata = [fields for _, fields in items.values()]
    if number % 4:
        store.upsert(ids, codes, metadata)
    else:
        store._replace_all(iter([ItemBatch(ids, codes, list(map(metadata_text, metadata)))]))


def write_on(url: str, write: Callable[[Any, int], None], began: Any, stop: Any) -> None:
    """Change a store, or the collection in it, from state to state."""
    with open_store(url) as store:
        written = Collection.of_store(store) if write is write_vectors else store
        number = 1
        while not stop.is_set():
            write(written, number)
            began.set()
            number += 1


@contextmanager
def writing(url: str, write: Callable[[Any, int], None]) -> Iterator[None]:
    """Write from another process, or a thread for Milvus Lite."""
    in_thread = url.startswith("milvus")
    event = threading.Event if in_thread else processes.Event
    began, stop = event(), event()
    kind = threading.Thread if in_thread else processes.Process
    writer = kind(target=write_on, args=(url, write, began, stop))
    writer.start()
    began.wait()
    try:
        yield
    finally:
        stop.set()
        writer.join()


class Reader(threading.Thread):
    """Client that alternates kinds of searches and compares each response with brute force."""

    def __init__(self, share: int, seed: int):
        super().__init__()
        self._share, self.draw = share, random.Random(seed)
        self.answers = 0
        self.states: set[int] = set()
        self.torn: list[str] = []

    def run(self) -> None:
        """Search until the required number of responses is reached."""
        while self.answers < self._share:
            try:
                problem = self.ask()
            except Exception as error:
                problem = repr(error)
            self.answers += 1
            if problem:
                self.torn.append(problem)

    @abstractmethod
    def ask(self) -> str:
        """Search once; return the deviation from brute force, if any."""


class CodeReader(Reader):
    """Client of a store of codes, through the service or on a snapshot."""

    def __init__(self, share: int, seed: int, store: Store, engine: Engine):
        super().__init__(share, seed)
        self._store, self._engine = store, engine

    def ask(self) -> str:
        """Search once."""
        kinds = [self._ask_service, self._ask_service, self._ask_snapshot, self._ask_words]
        return self.draw.choice(kinds)()

    def _ask_service(self) -> str:
        query = self.draw.getrandbits(N_BITS)
        where = self.draw.choice([None, {"even": True}, {"even": False}])
        radius = self.draw.choice([None, 6])
        request = SearchRequest(
            code=f"{query:04x}",
            where=where,
            **({"k": 3} if radius is None else {"radius": radius, "histogram": where is None}),
        )
        answer = self._engine.search(request)
        numbers = {result["metadata"]["state"] for result in answer["results"]}
        if not numbers:  # an empty result does not identify its state
            return ""
        if len(numbers) > 1:
            return f"items of states {sorted(numbers)}"
        number = numbers.pop()
        self.states.add(number)
        found = [(result["distance"], result["id"]) for result in answer["results"]]
        near = _by_distance(state(number), query)
        if where is not None and where["even"] != (number % 2 == 0):
            return f"state {number} does not pass {where}"
        expected = near[:3] if radius is None else [hit for hit in near if hit[0] <= radius]
        if found != expected:
            return f"state {number}: found {found}, brute force {expected}"
        counts = [sum(distance == d for distance, _ in near) for d in range(N_BITS + 1)]
        if answer.get("histogram") not in (None, counts):
            return f"state {number}: histogram {answer['histogram']}, brute force {counts}"
        return ""

    def _ask_words(self) -> str:
        parity = self.draw.choice(["even", "odd"])
        answer = find_items(self._engine, FindRequest(text=f"state {parity}", limit=100))
        numbers = {item["metadata"]["state"] for item in answer["items"]}
        if not numbers:  # the state has the other parity
            return ""
        if len(numbers) > 1:
            return f"items of states {sorted(numbers)} with the word {parity}"
        number = numbers.pop()
        self.states.add(number)
        if ("even", "odd")[number % 2] != parity:
            return f"state {number} does not have the word {parity}"
        expected = state(number)
        found = {item["id"]: int(item["code"], 16) for item in answer["items"]}
        if found != {one: code for one, (code, _) in expected.items()}:
            return f"state {number}: the word {parity} found {found}"
        if (answer["looked_at"], answer["total"]) != (len(expected), len(expected)):
            return f"state {number}: {answer['looked_at']} searched of {answer['total']} items"
        return ""

    def _ask_snapshot(self) -> str:
        query = self.draw.getrandbits(N_BITS)
        code = np.array([[query >> 8, query & 255]], np.uint8)
        with self._store.snapshot() as now:
            n_items = now.count()
            near = now.search(code, 100)
            items = now.get([0, 1, *range(10, 22)])
            n_even = now.count({"even": True})
        numbers = {fields["state"] for fields in items.metadata}
        if len(numbers) != 1:
            return f"items of states {sorted(numbers)}"
        number = numbers.pop()
        self.states.add(number)
        expected = state(number)
        found = list(zip(near.distances[0].tolist(), near.ids[0].tolist(), strict=True))
        codes = [int.from_bytes(code.tobytes(), "big") for code in items.codes]
        n_even_expected = len(expected) if number % 2 == 0 else 0
        if found != _by_distance(expected, query) or (n_items, n_even) != (
            len(expected),
            n_even_expected,
        ):
            return f"state {number}: found {found}, of {n_items} items, {n_even} even"
        if dict(zip(items.ids.tolist(), codes, strict=True)) != {
            one: code for one, (code, _) in expected.items()
        }:
            return f"state {number}: wrong codes"
        return ""


def _by_distance(items: State, query: int) -> list[tuple[int, int]]:
    return sorted(((code ^ query).bit_count(), one) for one, (code, _) in items.items())


def ask(url: str, size: int, seed: int) -> dict[str, Any]:
    """Search codes during writes; return the number of responses and the inconsistent ones."""
    rows = np.random.default_rng(0).standard_normal((40, 20))
    hasher = LSH(N_BITS, random_state=0).fit(rows)
    with open_store(url, n_bits=N_BITS) as store:
        write(store, 0)
        engine = Engine(Collection(store, hasher, Settings()))
        return _ask(url, write, size, seed, lambda *given: CodeReader(*given, store, engine))


def _ask(
    url: str,
    write: Callable[[Any, int], None],
    size: int,
    seed: int,
    make: Callable[[int, int], Reader],
) -> dict[str, Any]:
    readers = [make(-(-size // READERS), seed + number) for number in range(READERS)]
    with writing(url, write):
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    return {
        "answers": sum(reader.answers for reader in readers),
        "states": len(set().union(*(reader.states for reader in readers))),
        "failures": [problem for reader in readers for problem in reader.torn],
    }


# -------------------------------------------------------------------------------- collections

N_VECTORS, N_DELETED = 12, 4


def write_vectors(docs: Collection, number: int) -> None:
    """Replace all vectors of a collection; delete some of every other state."""
    ids, rows, metadata = vectors_of(number)
    docs.upsert(rows, ids, metadata)
    if number % 2:
        docs.delete(ids[-N_DELETED:])


def vectors_of(number: int) -> tuple[list[str], np.ndarray, list[dict[str, Any]]]:
    """Return the ids, vectors and metadata of a state."""
    rows = np.random.default_rng(number).standard_normal((N_VECTORS, 8)).astype(np.float32)
    metadata = [{"state": number, "even": number % 2 == 0}] * N_VECTORS
    return [f"item {n}" for n in range(N_VECTORS)], rows, metadata


class VectorReader(Reader):
    """Client that searches a collection, with and without filters and reranking."""

    def __init__(self, share: int, seed: int, docs: Collection):
        super().__init__(share, seed)
        self._docs = docs

    def ask(self) -> str:
        """Search once."""
        rng = np.random.default_rng(self.draw.getrandbits(32))
        query = rng.standard_normal((1, 8)).astype(np.float32)
        where = self.draw.choice([None, {"even": True}, {"even": False}])
        rerank = self.draw.choice([None, 4])
        found = self._docs.search(query, 5, where=where, rerank=rerank, metadata=True)
        numbers = {fields["state"] for fields in found.metadata[0]}
        if not numbers:
            return "" if where else "no results"
        if len(numbers) > 1:
            return f"items of states {sorted(numbers)}"
        number = numbers.pop()
        self.states.add(number)
        if where is not None and where["even"] != (number % 2 == 0):
            return f"state {number} does not pass {where}"
        ids, rows, _ = vectors_of(number)
        codes, kept = self._docs.model.encode(rows), pack_vectors(rows, "int8")
        items = [(code.tobytes() + vector, {}) for code, vector in zip(codes, kept, strict=True)]
        problem = ""
        for n in (N_VECTORS, N_VECTORS - N_DELETED) if number % 2 else (N_VECTORS,):
            state = dict(zip(ids[:n], items[:n], strict=True))
            problem = unlike(found, expected_scores(self._docs, state, query, rerank is not None))
            if not problem:
                return ""
        return f"state {number}, {rerank=}: {problem}"


def ask_collection(url: str, size: int, seed: int) -> dict[str, Any]:
    """Search vectors during writes; return the number of responses and the inconsistent ones."""
    ids, rows, metadata = vectors_of(0)
    options = {"ids": ids, "metadata": metadata, "bits": N_BITS, "keep_vectors": "int8"}
    with Collection.create(url, rows, **options) as docs:
        return _ask(url, write_vectors, size, seed, lambda *given: VectorReader(*given, docs))


# --------------------------------------------------------------------------------------- parts


def ask_sqlite(size: int, seed: int) -> dict[str, Any]:
    """Search a SQLite store."""
    with tempfile.TemporaryDirectory() as folder:
        return ask(f"sqlite:///{Path(folder)}/codes.db?timeout=60", size, seed)


def ask_postgresql(size: int, seed: int) -> dict[str, Any]:
    """Search a PostgreSQL store."""
    with running_engines() as engines:
        return ask(engines.url("postgresql", "snapshot"), size, seed)


def ask_sqlite_collection(size: int, seed: int) -> dict[str, Any]:
    """Search a collection in a SQLite file."""
    with tempfile.TemporaryDirectory() as folder:
        return ask_collection(f"sqlite:///{Path(folder)}/codes.db?timeout=60", size, seed)


def ask_postgresql_collection(size: int, seed: int) -> dict[str, Any]:
    """Search a collection in PostgreSQL."""
    with running_engines() as engines:
        return ask_collection(engines.url("postgresql", "snapshot"), size, seed)


def ask_milvus(size: int, seed: int) -> dict[str, Any]:
    """Search a Milvus Lite store, which has no snapshots: count inconsistent responses."""
    logging.disable()
    with running_engines() as engines:
        found = ask(engines.url("milvus", "snapshot"), size, seed)
    return {**found, "torn": len(found["failures"]), "failures": []}


if __name__ == "__main__":
    main(
        "snapshot",
        {
            "sqlite": Part(ask_sqlite, 100_000),
            "postgresql": Part(ask_postgresql, 100_000),
            "sqlite-collection": Part(ask_sqlite_collection, 30_000),
            "postgresql-collection": Part(ask_postgresql_collection, 30_000),
            "milvus": Part(ask_milvus, 10_000),
        },
    )

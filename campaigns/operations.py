"""Operations on files for the disk fault tests, with the expected state after each step.

A folder contains a store, its backup, an index, a model, a training checkpoint, a collection, and a
store to which the model is attached. An operation changes one of them in one step, or for a long
load in several steps, each durable by itself.
"""

import hashlib
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from antipodal import LSH, Collection, HammingIndex, load, open_store
from antipodal.errors import AntipodalError, NoStoreError, StoreError
from antipodal.stores.base import MODEL
from antipodal.stores.transfer import back_up, restore
from workloads import N_BITS, Created, State, contents, wrong_answers

THINGS = ("store", "backup", "index", "model", "checkpoint", "collection", "attached")
NOTHING: dict[str, Any] = dict.fromkeys(THINGS) | {"store": {}, "collection": {}}
N_MODEL_BITS = 16
ROWS = np.random.default_rng(0).standard_normal((30, 6)).astype(np.float32)
N_ITEMS = 25


class Operation(NamedTuple):
    """An operation, and the expected result of `look` after each step."""

    name: str
    thing: str
    steps: list[Any]
    do: Callable[[], None]


class Work:
    """Operations on the files of a folder, determined by a seed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self._rng = folder, np.random.default_rng(seed)
        self._store: Any = None
        self._collection: Any = None
        self._n_changes = 0  # operations on the collection
        self.acknowledge: Callable[[], None] = lambda: None  # called after each step

    def operations(self, n: int) -> Iterator[Operation]:
        """Yield n operations with their expected results, without performing them."""
        makers = [
            self._upsert, self._change_collection, self._save_model, self._attach, self._delete,
            self._change_collection, self._save_index, self._load, self._change_collection,
            self._upsert, self._reopen, self._change_collection, self._save_checkpoint,
            self._change_collection, self._back_up, self._restore,
        ]  # fmt: skip
        now = dict(NOTHING)
        for number in islice(count(), n):
            operation = makers[number % len(makers)](now)
            yield operation
            now[operation.thing] = operation.steps[-1]

    def do(self, operation: Operation) -> None:
        """Perform an operation and acknowledge its last step; a load acknowledges each step."""
        operation.do()
        self.acknowledge()

    def open(self) -> Any:
        """Return the open store."""
        if self._store is None:
            self._store = open_store(f"sqlite:///{self.folder}/store.db", n_bits=N_BITS)
        return self._store

    def open_collection(self) -> Any:
        """Return the open collection, after completing its creation."""
        if self._collection is None:
            url = f"sqlite:///{self.folder}/collection.db"
            try:
                self._collection = workload().open(url)
            except StoreError:  # its creation is not complete
                self._collection = workload().start(url, lambda *_: None)
        return self._collection

    def open_existing(self) -> None:
        """Open the store and the collection, if they exist."""
        if (self.folder / "store.db").exists():
            self.open()
        if (self.folder / "collection.db").exists():
            self.open_collection()

    def close(self) -> None:
        """Close the store and the collection."""
        both = self._store, self._collection
        self._store = self._collection = None
        for opened in both:
            if opened is not None:
                opened.close()

    # ------------------------------------------------------------------- operations

    def _upsert(self, now: dict[str, Any]) -> Operation:
        ids, codes, metadata = self._items()
        after = _with(now["store"], ids, codes, metadata)
        return Operation(
            "upsert", "store", [after], lambda: self.open().upsert(ids, codes, metadata)
        )

    def _delete(self, now: dict[str, Any]) -> Operation:
        ids = self._rng.permutation(list(now["store"]))[: N_ITEMS // 2]
        gone = set(ids.tolist())
        after = {number: item for number, item in now["store"].items() if number not in gone}
        return Operation("delete", "store", [after], lambda: self.open().delete(ids))

    def _load(self, now: dict[str, Any]) -> Operation:
        parts = [self._items(first=1000 * part) for part in range(3)]
        steps, state = [], now["store"]
        for part in parts:
            state = _with(state, *part)
            steps.append(state)
        ids, codes = (np.concatenate(columns) for columns in list(zip(*parts, strict=True))[:2])
        metadata = [fields for part in parts for fields in part[2]]

        def do() -> None:
            self.open().load(
                ids,
                codes,
                metadata,
                batch_size=N_ITEMS,
                progress=lambda done: self.acknowledge() if done < len(ids) else None,
            )

        return Operation("load", "store", steps, do)

    def _reopen(self, now: dict[str, Any]) -> Operation:
        def do() -> None:
            self.close()  # checkpoints the logs
            self.open_existing()

        return Operation("reopen", "store", [now["store"]], do)

    def _back_up(self, now: dict[str, Any]) -> Operation:
        def do() -> None:
            back_up(self.open(), self.folder / "backup.db")

        return Operation("backup", "backup", [now["store"]], do)

    def _restore(self, now: dict[str, Any]) -> Operation:
        def do() -> None:
            restore(self.folder / "backup.db", f"sqlite:///{self.folder}/store.db")

        return Operation("restore", "store", [now["backup"]], do)

    def _save_index(self, now: dict[str, Any]) -> Operation:
        ids, codes, _ = self._items()

        def do() -> None:
            index = HammingIndex(N_BITS)
            index.add(codes, ids)
            index.save(self.folder / "index")

        return Operation("index save", "index", [_by_distance(ids, codes)], do)

    def _save_model(self, now: dict[str, Any]) -> Operation:
        hasher = LSH(N_MODEL_BITS, random_state=int(self._rng.integers(2**31))).fit(ROWS)

        def do() -> None:
            hasher.save(self.folder / "model")

        return Operation("model save", "model", [hasher.encode(ROWS).tobytes()], do)

    def _save_checkpoint(self, now: dict[str, Any]) -> Operation:
        from antipodal.paper.training import save_checkpoint  # importing PyTorch takes seconds

        encoder, optimizer = training(int(self._rng.integers(2**31)))
        history = {"loss": [1.0], "validation_loss": [], "best_epoch": 0}

        def do() -> None:
            path = self.folder / "checkpoint"
            save_checkpoint(path, "run", encoder, optimizer, history, encoder.state_dict())

        return Operation("checkpoint save", "checkpoint", [_weights(encoder)], do)

    def _change_collection(self, now: dict[str, Any]) -> Operation:
        number, self._n_changes = self._n_changes, self._n_changes + 1
        after = workload().after(now["collection"], number)

        def do() -> None:
            collection = self.open_collection()
            if number:
                workload().do(collection, number)

        return Operation("change" if number else "creation", "collection", [after], do)

    def _attach(self, now: dict[str, Any]) -> Operation:
        def do() -> None:
            url = f"sqlite:///{self.folder}/attached.db"
            with open_store(url, n_bits=N_MODEL_BITS) as store:
                Collection.attach(store, self.folder / "model")

        return Operation("attach", "attached", [now["model"]], do)

    def _items(self, first: int = 0) -> tuple[np.ndarray, np.ndarray, list[dict[str, Any]]]:
        ids = first + self._rng.permutation(2 * N_ITEMS)[:N_ITEMS]
        codes = self._rng.integers(0, 256, (N_ITEMS, N_BITS // 8), dtype=np.uint8)
        metadata = [
            {"n": int(n), "text": "x" * int(n)} for n in self._rng.integers(0, 400, N_ITEMS)
        ]
        return ids, codes, metadata


@cache
def workload() -> Created:
    """Return the operations on the collection; the first creates it."""
    return Created("int8")


class Looks:
    """Inspector of files that works on copies, and caches results by file content."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._known = folder, dict[str, Any]()

    def __call__(self, files: Mapping[str, bytes], thing: str) -> Any:
        """Return the result of `look`, or the error that it raises."""
        of_thing = {
            name: data
            for name, data in files.items()
            if name in (thing, f"{thing}.db", f"{thing}.db-wal", f"{thing}.db-journal")
        }
        key = hashlib.sha256(repr((thing, sorted(of_thing.items()))).encode()).hexdigest()
        if key not in self._known:
            with tempfile.TemporaryDirectory(dir=self._folder) as place:
                for name, data in of_thing.items():
                    (Path(place) / name).write_bytes(data)
                try:
                    self._known[key] = look(Path(place), thing, random.Random(0))
                except (AntipodalError, ValueError) as error:
                    self._known[key] = error
        return self._known[key]


def look(folder: Path, thing: str, moments: random.Random) -> Any:
    """Return the content of a file of the folder, or None if it does not exist."""
    path = folder / thing
    if thing == "collection":
        return _look_at_collection(f"sqlite:///{path}.db", moments)
    if thing == "attached":
        with suppress(NoStoreError), open_store(f"sqlite:///{path}.db") as store:
            if MODEL in store.attachments():
                return Collection.of_store(store).model.encode(ROWS).tobytes()
        return None
    if thing in ("store", "backup"):
        path = folder / f"{thing}.db"
        if thing == "backup" and not path.exists():
            return None
        with open_store(f"sqlite:///{path}", n_bits=N_BITS) as store:
            found = contents(store)
            if problem := wrong_answers(store, found, moments):
                raise ValueError(problem)
            store.upsert([-1], np.zeros((1, N_BITS // 8), np.uint8))  # usable
            store.delete([-1])
            return found
    if not path.exists():
        return None
    if thing == "index":
        found = HammingIndex.load(path).search(np.zeros((1, N_BITS // 8), np.uint8), N_ITEMS)
        return found.ids[0].tolist(), found.distances[0].tolist()
    if thing == "model":
        return load(path).encode(ROWS).tobytes()
    from antipodal.paper.training import restore_checkpoint

    encoder, optimizer = training(0)
    restore_checkpoint(path, "run", encoder, optimizer)
    return _weights(encoder)


def _look_at_collection(url: str, moments: random.Random) -> State:
    """Return the items, nothing before the creation is complete; check that it can be resumed."""
    try:
        opened = workload().open(url)
        is_created = True
    except StoreError:
        opened = workload().start(url, lambda *_: None)
        is_created = False
    with opened:
        found = workload().contents(opened)
        if problem := workload().wrong_answers(opened, found, moments):
            raise ValueError(problem)
        if not is_created and found != workload().after({}, 0):
            raise ValueError("the resumed creation has other items")
        opened.upsert(workload().rows(1)[:1], ["usable"])
        opened.delete(["usable"])
    return found if is_created else {}


def _with(
    state: State, ids: np.ndarray, codes: np.ndarray, metadata: list[dict[str, Any]]
) -> State:
    new = zip(ids.tolist(), codes, metadata, strict=True)
    return {**state, **{number: (code.tobytes(), fields) for number, code, fields in new}}


def _by_distance(ids: np.ndarray, codes: np.ndarray) -> tuple[list[int], list[int]]:
    """Return the expected result of searching for zero: ids and bit counts."""
    distances = np.unpackbits(codes, axis=1).sum(axis=1)
    order = np.lexsort((ids, distances))
    return ids[order].tolist(), distances[order].tolist()


def training(seed: int) -> tuple[Any, Any]:
    """Return a small network and its optimiser after one step."""
    import torch

    torch.manual_seed(seed)
    encoder = torch.nn.Linear(8, 8)
    optimizer = torch.optim.Adam(encoder.parameters())
    encoder(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    return encoder, optimizer


def _weights(encoder: Any) -> bytes:
    return b"".join(value.numpy().tobytes() for value in encoder.state_dict().values())

"""Workloads of the kill tests: numbered operations, and the contents expected after each.

`Codes` writes codes to a store. `Created` creates a collection of vectors with string ids, then
adds, replaces and deletes some. `Attached` does so in a store of codes that becomes a collection by
attaching its model.
"""

import random
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from antipodal import Collection, LinfHash, open_store
from antipodal.collection import create
from antipodal.errors import IdsTakenError, StoreError
from antipodal.index import SearchResult
from antipodal.stores import Store
from antipodal.stores.vectors import VectorType, pack_vectors, unpack_vectors

BATCH = 20
N_BITS = 32

# id -> code, followed by the kept vector, and metadata
State = dict[Any, tuple[bytes, dict[str, Any]]]
Items = tuple[list[Any], list[bytes], list[dict[str, Any]]]


class Workload(ABC):
    """Numbered operations on a store, mostly batches of 20 new items and 20 shared by all."""

    @abstractmethod
    def start(self, url: str, report: Callable[..., None]) -> Any:
        """Perform operation 0 on a new store, or resume it, and return the open store.

        `report` is called after each of its steps.
        """

    @abstractmethod
    def open(self, url: str) -> Any:
        """Open a store after operation 0; raise StoreError if that is not complete."""

    @abstractmethod
    def write(self, opened: Any, number: int, *, add: bool) -> None:
        """Write the items of an operation, with an error if some exist and `add` is true."""

    @abstractmethod
    def items(self, number: int) -> Items:
        """Return the items that an operation writes, with their codes, vectors and metadata."""

    @abstractmethod
    def contents(self, opened: Any) -> State:
        """Return all items."""

    @abstractmethod
    def wrong_answers(self, opened: Any, state: State, moments: random.Random) -> str:
        """Compare searches with brute force; return the first deviation, if any."""

    def do(self, opened: Any, number: int) -> None:
        """Perform an operation, from 1 on."""
        if is_deletion(number):
            opened.delete(self.ids(number))
            return
        try:
            self.write(opened, number, add=is_addition(number))
        except IdsTakenError:  # the operation of a killed writer, in an engine without transactions
            self.write(opened, number, add=False)

    def after(self, state: State, number: int) -> State:
        """Return the state after an operation."""
        if is_deletion(number):
            gone = set(self.ids(number))
            return {key: value for key, value in state.items() if key not in gone}
        keys, values, metadata = self.items(number)
        return state | dict(zip(keys, zip(values, metadata, strict=True), strict=True))

    def ids(self, number: int) -> list[Any]:
        """Return the ids of an operation."""
        own = BATCH * (number + 1) + np.arange(BATCH)
        if is_deletion(number):
            return (own - 2 * BATCH).tolist()  # added two operations ago
        if is_addition(number):
            return own.tolist()
        return [*own.tolist(), *range(BATCH)]

    def metadata(self, number: int) -> list[dict[str, Any]]:
        """Return the metadata of an operation."""
        return [{"batch": number, "text": "x" * (number % 300)}] * len(self.ids(number))


def is_deletion(number: int) -> bool:
    """Return whether an operation deletes items."""
    return number % 5 == 4


def is_addition(number: int) -> bool:
    """Return whether an operation adds items without replacing any."""
    return number % 5 == 2


class Codes(Workload):
    """Codes in a store."""

    def start(self, url: str, report: Callable[..., None]) -> Store:
        """Create a store and write the first batch."""
        store = self.open(url)
        report()
        self.write(store, 0, add=False)
        return store

    def open(self, url: str) -> Store:
        """Open a store."""
        return open_store(url, n_bits=N_BITS)

    def write(self, opened: Store, number: int, *, add: bool) -> None:
        """Write the items of an operation."""
        ids, codes, metadata = self.ids(number), self._codes(number), self.metadata(number)
        if add:
            opened.add(codes, ids, metadata)
        else:
            opened.upsert(ids, codes, metadata)

    def items(self, number: int) -> Items:
        """Return the items of an operation."""
        codes = [code.tobytes() for code in self._codes(number)]
        return self.ids(number), codes, self.metadata(number)

    def _codes(self, number: int) -> np.ndarray:
        shape = (len(self.ids(number)), N_BITS // 8)
        return np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)

    def contents(self, opened: Store) -> State:
        """Return all items."""
        return contents(opened)

    def wrong_answers(self, opened: Store, state: State, moments: random.Random) -> str:
        """Compare a search with brute force."""
        return wrong_answers(opened, state, moments)


class Created(Workload):
    """Vectors in a collection with string ids, whose creation fits its model."""

    n_created, n_features, n_bits = 100, 8, 16
    rows_at_once = 30  # in the creation

    def __init__(self, keep_vectors: VectorType | None) -> None:
        self._keep = keep_vectors
        with (
            tempfile.TemporaryDirectory() as folder,
            self._created(f"{folder}/reference.db", lambda *_: None) as reference,
        ):
            self.model = reference.model

    def _created(self, url: str, report: Callable[..., None]) -> Collection:
        keys, rows, metadata = self.ids(0), self.rows(0), self.metadata(0)
        create._BATCH_ROWS = self.rows_at_once
        return Collection.create(
            url,
            rows,
            ids=keys,
            metadata=metadata,
            model=LinfHash.asymmetric(self.n_bits, random_state=0),
            keep_vectors=self._keep,
            progress=report,
        )

    def start(self, url: str, report: Callable[..., None]) -> Collection:
        """Create the collection, unless an earlier process completed it."""
        return self._created(url, report)

    def open(self, url: str) -> Collection:
        """Open the collection."""
        return Collection.open(url)  # type: ignore[return-value]

    def write(self, opened: Collection, number: int, *, add: bool) -> None:
        """Write the items of an operation, and search among them."""
        write = opened.add if add else opened.upsert
        write(self.rows(number), self.ids(number), self.metadata(number))
        opened.search(self.rows(number)[:1], 3, where={"batch": number}, metadata=True)

    def ids(self, number: int) -> list[str]:
        """Return the ids of an operation; the creation has more items."""
        numbers = range(-self.n_created, 0) if number == 0 else super().ids(number)
        return [f"item {one}" for one in numbers]

    def rows(self, number: int) -> np.ndarray:
        """Return the vectors of an operation."""
        shape = (len(self.ids(number)), self.n_features)
        return np.random.default_rng(number).standard_normal(shape).astype(np.float32)

    def items(self, number: int) -> Items:
        """Return the items of an operation."""
        rows = self.rows(number)
        kept = [b""] * len(rows) if self._keep is None else pack_vectors(rows, self._keep)
        codes = [code.tobytes() for code in self.model.encode(rows)]
        values = [code + vector for code, vector in zip(codes, kept, strict=True)]
        return self.ids(number), values, self.metadata(number)

    def contents(self, opened: Collection) -> State:
        """Return all items."""
        return contents(opened.store, keeps_vectors=self._keep is not None)

    def wrong_answers(self, opened: Collection, state: State, moments: random.Random) -> str:
        """Compare searches, with and without reranking, with brute force."""
        return wrong_scores(opened, state, np.random.default_rng(moments.getrandbits(32)))


class Attached(Created):
    """Codes in a store with string ids, which becomes a collection when its model is attached."""

    def __init__(self) -> None:
        super().__init__(None)
        self._model_bytes = self.model.to_bytes()

    def start(self, url: str, report: Callable[..., None]) -> Collection:
        """Load the codes of the first batch, and attach the model."""
        store = open_store(url, n_bits=self.n_bits, id_type="string")
        report()
        codes, at_once = self.model.encode(self.rows(0)), self.rows_at_once
        store.load(self.ids(0), codes, self.metadata(0), batch_size=at_once, progress=report)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            path.write_bytes(self._model_bytes)
            return Collection.attach(store, path)


def contents(store: Store, *, keeps_vectors: bool = False) -> State:
    """Return all items of a store by id."""
    with store.snapshot() as now:
        ids = np.concatenate([np.empty(0, np.int64), *(batch.ids for batch in now.batches())])
        keys = now.named(SearchResult(ids, np.zeros(len(ids), np.int32))).ids
        items = now.get(keys)
        kept = now.kept_vectors(ids) if keeps_vectors else dict.fromkeys(ids.tolist(), b"")
    if items.ids.tolist() != keys.tolist() or kept.keys() != set(ids.tolist()):
        raise StoreError("items without a code, id or vector")
    values = [
        code.tobytes() + kept[number]
        for number, code in zip(ids.tolist(), items.codes, strict=True)
    ]
    return dict(zip(keys.tolist(), zip(values, items.metadata, strict=True), strict=True))


def wrong_answers(store: Store, state: State, moments: random.Random) -> str:
    """Compare a search for a code with brute force; return the deviation, if any."""
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


def wrong_scores(docs: Collection, state: State, rng: np.random.Generator) -> str:
    """Compare searches of a collection with brute force; return the first deviation, if any."""
    if len(docs) != len(state):
        return f"the length is {len(docs)}, but the collection has {len(state)} items"
    query = rng.standard_normal((1, docs.n_features)).astype(np.float32)
    for rerank in (None, len(state)) if docs.keep_vectors and state else (None,):
        found = docs.search(query, 10, rerank=rerank)
        scores = expected_scores(docs, state, query, rerank is not None)
        if len(found.ids[0]) != min(10, len(state)):
            return f"{rerank=}: {len(found.ids[0])} results of {len(state)} items"
        if problem := unlike(found, scores):
            return f"{rerank=}: {problem}"
    return ""


def unlike(found: SearchResult, scores: dict[Any, float]) -> str:
    """Compare the results of a query with the scores of all items; return the deviation, if any."""
    best = sorted(scores.values(), reverse=True)[: found.ids.shape[1]]
    own = [scores.get(key, np.nan) for key in found.ids[0].tolist()]
    for expected in (best, own):  # items of equal score may have any order
        if len(expected) != found.ids.shape[1] or not np.allclose(found.scores[0], expected):
            return f"scores {found.scores[0]}, brute force {expected}"
    return ""


def expected_scores(
    docs: Collection, state: State, query: np.ndarray, reranked: bool
) -> dict[Any, float]:
    """Return the score of each item: of its code, or the cosine of its kept vector."""
    n_bytes = docs.n_bits // 8
    if reranked:
        kept = [value[n_bytes:] for value, _ in state.values()]
        rows = unpack_vectors(kept, docs.n_features, docs.keep_vectors).astype(np.float64)
        lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(query)
        scores = rows @ query[0].astype(np.float64) / lengths
    else:
        codes = np.frombuffer(b"".join(value[:n_bytes] for value, _ in state.values()), np.uint8)
        signs = 2.0 * np.unpackbits(codes).reshape(len(state), docs.n_bits) - 1
        scores = signs @ docs.model.query(query)[0] + docs.model.score_offset(query)
    return dict(zip(state, scores.tolist(), strict=True))

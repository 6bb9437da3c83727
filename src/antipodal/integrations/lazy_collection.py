"""`LazyCollection`: a collection created by its first vectors, for stores that start empty."""

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.client import Client
from antipodal.collection import Collection
from antipodal.errors import AntipodalError, NoStoreError
from antipodal.hashers.linfhash import LinfHash
from antipodal.stores.vectors import VectorType
from antipodal.validation import check_whole

Place = str | os.PathLike[str] | Collection | Client | None

MIN_FIT_ROWS = 1_000
_RANDOM_ROWS = 256


class Hit(NamedTuple):
    """A stored item: its id, its score if it is a search result, and its metadata."""

    id: str
    score: float
    metadata: dict[str, Any]


class LazyCollection:
    """A collection that may not exist yet, with string ids.

    If the first call stores at least 1,000 vectors, the model is fitted to them. Otherwise codes
    use a random frame, which needs no data: recall is lower without reranking. `Collection.refit`
    then writes a collection with a fitted model.

    Parameters
    ----------
    place : path, URL, Collection, Client or None
        A collection, or the place to open or create it; None for a temporary file.
    bytes : int
        Bytes per code of a new collection.
    keep_vectors : "float32", "float16", "int8" or None
        Type of the vectors that a new collection keeps for reranking.
    rerank : int
        Oversampling factor of searches, if vectors are kept.
    """

    def __init__(
        self,
        place: Place = None,
        *,
        bytes: int = 48,
        keep_vectors: VectorType | None = "int8",
        rerank: int = 4,
    ) -> None:
        check_whole(bytes, "bytes", 1)
        check_whole(rerank, "rerank", 1)
        self.bytes, self.keep_vectors, self.rerank = bytes, keep_vectors, rerank
        self.current: Collection | Client | None = None
        self._creating = threading.Lock()
        if isinstance(place, (Collection, Client)):
            self.current, self.place = place, str(place.place)
            return
        if place is None:
            folder = tempfile.mkdtemp(prefix="antipodal-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            place = Path(folder, "collection.db")
        self.place = os.fspath(place)
        with suppress(NoStoreError):
            self.current = Collection.open(place)

    @property
    def collection(self) -> Collection | Client:
        """The collection; AntipodalError before the first vectors."""
        if self.current is None:
            raise AntipodalError(f"{self.place} is empty: the first vectors create the collection")
        return self.current

    def upsert(
        self, vectors: ArrayLike, ids: Sequence[str], metadata: Sequence[Mapping[str, Any]]
    ) -> None:
        """Store vectors, replacing items with the same ids."""
        if not len(ids):
            return
        rows = np.asarray(vectors, np.float32)
        with self._creating:
            if self.current is None:
                model: dict[str, Any] = {"bytes": self.bytes}
                if np.count_nonzero(rows.any(axis=1)) < MIN_FIT_ROWS:  # without rows of zeros
                    model = {"model": random_model(rows.shape[-1], 8 * self.bytes)}
                self.current = Collection.create(
                    self.place, rows, ids=ids, metadata=metadata,
                    keep_vectors=self.keep_vectors, **model,
                )  # fmt: skip
                return
        self.current.upsert(rows, self._known_type(ids), metadata)

    def delete(self, ids: Sequence[str]) -> None:
        """Delete items; unknown ids are ignored."""
        if self.current is not None:
            self.current.delete(self._known_type(list(dict.fromkeys(ids))))

    def get(self, ids: Sequence[str]) -> list[Hit]:
        """Return the items with these ids, in the order given, without unknown ids."""
        if self.current is None:
            return []
        items = self.current.get(self._known_type(list(dict.fromkeys(ids))))
        return [
            Hit(str(i), 0.0, fields)
            for i, fields in zip(items.ids.tolist(), items.metadata, strict=True)
        ]

    def search(self, query: ArrayLike, k: int, where: Mapping[str, Any] | None = None) -> list[Hit]:
        """Return the k nearest items of one query, best first; scores are cosines."""
        if self.current is None:
            return []
        rerank = None if self.current.keep_vectors is None else self.rerank
        rows = np.asarray(query, np.float32)[None]
        found = self.current.search(rows, k, where=where, rerank=rerank, metadata=True)
        scores = found.scores
        if scores is None:  # Hamming search: the cosine of the codes as ±1
            scores = 1 - 2 * found.distances / self.current.n_bits
        assert found.metadata is not None
        rows_found = zip(found.ids[0].tolist(), scores[0].tolist(), found.metadata[0], strict=True)
        return [Hit(str(i), score, fields) for i, score, fields in rows_found]

    def matching(self, where: Mapping[str, Any] | None = None) -> list[Hit]:
        """Return all items that match a filter, in insertion order."""
        count = 0 if self.current is None else self.current.count(where)
        if self.current is None or not count:
            return []
        zeros = np.zeros((1, self.current.n_features), np.float32)  # all items have equal scores
        found = self.current.search(zeros, count, where=where, metadata=True)
        assert found.metadata is not None
        return [
            Hit(str(i), 0.0, fields)
            for i, fields in zip(found.ids[0].tolist(), found.metadata[0], strict=True)
        ]

    def vectors(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """Return the kept vectors of items, or else their reconstructions."""
        if not isinstance(self.collection, Collection):
            raise AntipodalError(f"{self.place} is a service, which does not return vectors")
        return self.collection.vectors(self._known_type(ids))

    def close(self) -> None:
        """Close the collection; closing twice is allowed."""
        if self.current is not None:
            self.current.close()

    def _known_type(self, ids: Sequence[str]) -> list[Any]:
        """Convert ids to integers where possible, if the collection has integer ids."""
        if self.collection.id_type == "string":
            return list(ids)
        return [int(i) if i.removeprefix("-").isdecimal() else i for i in ids]


def random_model(n_features: int, n_bits: int) -> LinfHash:
    """Return `LinfHash.asymmetric` with a random frame and mean 0, which needs no data."""
    half = np.random.default_rng(0).standard_normal((_RANDOM_ROWS // 2, n_features))
    model = LinfHash.asymmetric(n_bits, random_state=0)
    model.set_params(n_refits=0, neighbours=False)
    fitted: LinfHash = model.fit(np.concatenate([half, -half]).astype(np.float32))
    return fitted

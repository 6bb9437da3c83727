"""Engine of the service: a collection, without HTTP. It is thread-safe."""

import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes, code_width, from_hex, to_hex
from antipodal.collection import Collection
from antipodal.errors import AntipodalError
from antipodal.evaluation.metrics import bit_health
from antipodal.hashers.base import BaseHasher
from antipodal.service.encoding import InputEncoder
from antipodal.service.limits import Limits
from antipodal.service.schemas import (
    CheckRequest,
    CountRequest,
    EncodeRequest,
    IdsRequest,
    SearchOptions,
    SearchRequest,
    UpsertRequest,
)
from antipodal.service.search import Search, check_where, described, named_items
from antipodal.stores import Items, Store
from antipodal.stores.items import check_unique_ids
from antipodal.stores.text_search import WordIndex
from antipodal.stores.vectors import pack_vectors

_HEALTH_SAMPLE = 1_000


class Engine:
    """A collection, with the limits and image features of a service.

    Parameters
    ----------
    collection : Collection
        It is closed with the engine.
    images : str, optional
        Features of images: see `ImageFeatures`. Without it, images are refused.
    scores : mapping, optional
        Evaluation scores of the model, for the model card.
    is_read_only : bool
        Whether the service omits the routes that write.
    """

    def __init__(
        self,
        collection: Collection,
        *,
        images: str | None = None,
        scores: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        is_read_only: bool = False,
    ) -> None:
        self.collection, self.limits = collection, limits or Limits()
        self.is_read_only = is_read_only
        self._scores = scores
        self._encoder = InputEncoder(self.hasher, images, self.limits.pixels)
        self.words = WordIndex(self.store)

    @property
    def hasher(self) -> BaseHasher:
        """The model."""
        return self.collection.model

    @property
    def store(self) -> Store:
        """The store of the codes."""
        return self.collection.store

    @classmethod
    def open(
        cls,
        place: str | os.PathLike[str],
        model: str | os.PathLike[str] | None = None,
        *,
        images: str | None = None,
        scores: Mapping[str, Any] | None = None,
        embed: str | None = None,
        limits: Limits | None = None,
        read_only: bool = False,
    ) -> Self:
        """Open a collection, or a store of codes with its model file.

        With a model, a missing store is created unless `read_only`.
        """
        collection = Collection.open_with(place, model, embed=embed, read_only=read_only)
        try:
            return cls(
                collection, images=images, scores=scores, limits=limits, is_read_only=read_only
            )
        except BaseException:
            collection.close()
            raise

    def close(self) -> None:
        """Close the collection."""
        self.words.close()
        self.collection.close()

    def check(self) -> None:
        """Raise StoreError if the store does not respond. The in-memory index is not used."""
        self.store.get([0] if self.store.id_type == "int64" else ["0"])

    def warm_up(self, radius: int | None = None) -> None:
        """Load the index into memory, and prepare the store for a search radius, if given."""
        row = np.ones((1, self.hasher.n_features_in_), np.float32)
        self.collection.search(row, 1)
        self.hasher.encode(row)
        if radius is not None:
            self.store.prepare(radius)

    def encode(self, request: EncodeRequest) -> dict[str, Any]:
        """Return the codes of vectors or of an image."""
        if request.vectors is not None:
            self.limits.check_batch(len(request.vectors), "vectors")
            return self._encoded(self._encoder.encode(self._encoder.rows(request.vectors)))
        (image,) = request.images or [""]
        return self._encoded(self._encoder.encode(self._encoder.image_features(image)))

    def encode_image(self, file: bytes) -> dict[str, Any]:
        """Return the code of an image file."""
        return self._encoded(self._encoder.encode(self._encoder.image_features(file)))

    def encode_rows(self, rows: NDArray[np.float32]) -> Codes:
        """Return the packed codes of vectors."""
        self.limits.check_batch(len(rows), "vectors")
        return self._encoder.encode(rows)

    def search(self, request: SearchRequest) -> dict[str, Any] | None:
        """Return the results of one query or many; None if the query is an unknown id."""
        return Search(self.collection, self._encoder, self.limits, request).answer()

    def search_rows(self, rows: NDArray[np.float32], options: SearchOptions) -> dict[str, Any]:
        """Return the results of query vectors."""
        if options.histogram:
            raise ValueError("histogram needs a single query, in a JSON body")
        answer = Search(self.collection, self._encoder, self.limits, options, rows).answer()
        assert answer is not None
        return answer

    def check_drift(self, request: CheckRequest | NDArray[np.float32]) -> dict[str, Any]:
        """Compare the codes of new vectors with those of the vectors at fit time."""
        given = request.vectors if isinstance(request, CheckRequest) else request
        self.limits.check_batch(len(given), "vectors")
        rows = given if isinstance(given, np.ndarray) else self._encoder.rows(given)
        try:
            drift = self.collection.check(rows)
        except AntipodalError as error:  # a collection without a record of its vectors
            raise ValueError(str(error)) from None
        return asdict(drift) | {"has_drifted": drift.has_drifted, "message": str(drift)}

    def image_rows(self, request: UpsertRequest) -> NDArray[np.float32]:
        """Return the features of the items that are images."""
        images = [item.image for item in request.items if item.image is not None]
        return np.concatenate([self._encoder.image_features(image) for image in images])

    def upsert(
        self, request: UpsertRequest, of_images: NDArray[np.float32] | None = None
    ) -> dict[str, int]:
        """Store all items, or none if one of them is not valid."""
        items, kind = request.items, self.collection.keep_vectors
        self.limits.check_batch(len(items), "items")
        ids = check_unique_ids([item.id for item in items], self.store.id_type)
        by_code = [i for i, item in enumerate(items) if item.code is not None]
        by_image = [i for i, item in enumerate(items) if item.image is not None]
        by_vector = [i for i, item in enumerate(items) if item.vector is not None]
        if by_code and kind is not None:
            raise ValueError("this collection keeps vectors for reranking: send vectors, not codes")
        rows = np.empty((len(items), self.hasher.n_features_in_), np.float32)
        rows[by_vector] = self._encoder.rows([items[i].vector or [] for i in by_vector])
        if by_image:
            rows[by_image] = self.image_rows(request) if of_images is None else of_images
        codes = np.empty((len(items), code_width(self.store.n_bits)), np.uint8)
        with_rows = sorted(by_vector + by_image)
        codes[with_rows] = self._encoder.encode(rows[with_rows])
        codes[by_code] = from_hex((items[i].code or "" for i in by_code), self.store.n_bits)
        vectors = None if kind is None else pack_vectors(rows, kind)
        metadata = None if request.keep_metadata else [item.metadata for item in items]
        if request.replace:
            replaced = self.store.upsert(
                ids, codes, metadata, vectors=vectors, keep_metadata=request.keep_metadata
            )
        else:
            replaced = 0
            self.store.add(codes, ids, metadata, vectors=vectors)
        return {"upserted": len(items), "replaced": replaced}

    def delete(self, request: IdsRequest) -> dict[str, int]:
        """Delete items."""
        self.limits.check_batch(len(request.ids), "ids")
        return {"deleted": self.store.delete(list(dict.fromkeys(request.ids)))}

    def items(self, request: IdsRequest) -> list[dict[str, Any]]:
        """Return the items with the given ids, in their order. Unknown ids are omitted."""
        self.limits.check_batch(len(request.ids), "ids")
        return self.described(self.store.get(request.ids))

    def count(self, request: CountRequest) -> dict[str, int]:
        """Count the items, or those that match a filter."""
        if request.where is not None:
            check_where(request.where)
        return {"count": self.store.count(request.where)}

    def about(self) -> dict[str, Any]:
        """Return the properties of the store and the limits that `Client` needs."""
        limits, collection = self.limits, self.collection
        return {
            "n_bits": self.store.n_bits,
            "n_features": collection.n_features,
            "model": collection.identity,
            "scoring": self.hasher.scoring,
            "id_type": collection.id_type,
            "keep_vectors": collection.keep_vectors,
            "texts": collection.accepts_texts,
            "next_id": self.store.next_id(),
            "limits": {
                name: getattr(limits, name)
                for name in ("body", "binary_body", "batch", "k", "results", "found")
            },
        }

    def item(self, text: str) -> dict[str, Any] | None:
        """Return the item with an id, given as text, or None."""
        number: str | int = text
        if self.store.id_type == "int64":
            if not re.fullmatch(r"-?[0-9]{1,19}", text) or not -(2**63) <= int(text) < 2**63:
                raise ValueError(f"ids of this collection are integers of 64 bits: got {text!r}")
            number = int(text)
        found = self.described(self.store.get([number]))
        return found[0] if found else None

    def sample(self, limit: int, seed: int) -> list[dict[str, Any]]:
        """Return a random sample of the items, reproducible by its seed."""
        if not 1 <= limit <= self.limits.k:
            raise ValueError(f"limit must be from 1 to {self.limits.k}: got {limit}")
        return self.described(self.draw(limit, seed))

    def card(self) -> dict[str, Any]:
        """Return the model card."""
        codes = self.draw(_HEALTH_SAMPLE, 0).codes
        health = None
        if len(codes):
            found = bit_health(codes, self.store.n_bits)
            health = {
                "bit_balance": found.bit_balance,
                "bit_correlation": found.bit_correlation,
                "distinct_codes": found.distinct_codes,
                "sample": len(codes),
            }
        return {
            "method": type(self.hasher).__name__,
            "n_bits": self.store.n_bits,
            "n_features": int(self.hasher.n_features_in_),
            "parameters": self.hasher.get_params(deep=False),
            "identity": self.collection.identity,
            "scoring": self.hasher.scoring,
            "id_type": self.collection.id_type,
            "keep_vectors": self.collection.keep_vectors,
            "texts": self.collection.accepts_texts,
            "items": self.store.count(),
            "images": self._encoder.accepts_images,
            "scores": self._scores,
            "bit_health": health,
        }

    def draw(self, limit: int, seed: int) -> Items:
        """Draw a uniform sample; in a very large store, the items nearest to random codes."""
        rng, n_bits = np.random.default_rng(seed), self.store.n_bits
        with self.store.snapshot() as now:
            n_codes = 1 if now.count() <= self.limits.histogram else limit
            codes = rng.integers(0, 256, (n_codes, code_width(n_bits)), np.uint8)
            codes[:, -1] &= (0xFF << -n_bits % 8) & 0xFF
            if n_codes == 1:
                every = now._radius(codes, n_bits, None).ids
                ids = rng.choice(np.sort(every), min(limit, len(every)), replace=False)
            else:
                ids = np.unique(now._search(codes, 1, None).ids)
            return named_items(now._items_of(ids), self.store.id_type)

    def described(self, items: Items) -> list[dict[str, Any]]:
        """Return items in the form of a response."""
        return described(items, self.store.n_bits)

    def _encoded(self, codes: Codes) -> dict[str, Any]:
        return {"n_bits": self.store.n_bits, "codes": to_hex(codes, self.store.n_bits)}

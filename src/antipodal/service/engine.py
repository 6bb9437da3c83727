"""Engine of the service: a model and its store, without HTTP. It is thread-safe."""

import os
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes, code_width, from_hex, to_hex
from antipodal.evaluation.metrics import bit_health
from antipodal.hashers.base import BaseHasher
from antipodal.hashers.registry import load
from antipodal.io.model_file import model_identity
from antipodal.service.encoding import InputEncoder
from antipodal.service.limits import Limits
from antipodal.service.schemas import (
    CountRequest,
    EncodeRequest,
    IdsRequest,
    SearchRequest,
    UpsertRequest,
)
from antipodal.service.search import Search, check_where, described
from antipodal.stores import Items, Store, open_store
from antipodal.validation import Ids

_HEALTH_SAMPLE = 1_000


class Engine:
    """A fitted hasher and the store of its codes.

    Parameters
    ----------
    hasher : BaseHasher
        Fitted.
    store : Store
        A store of codes of the same length.
    identity : str
        SHA-256 of the model file, for the model card.
    images : str, optional
        Features of images: see `ImageFeatures`. Without it, images are refused.
    scores : mapping, optional
        Evaluation scores of the model, for the model card.
    is_read_only : bool
        Whether the service omits the routes that write.
    """

    def __init__(
        self,
        hasher: BaseHasher,
        store: Store,
        *,
        identity: str = "",
        images: str | None = None,
        scores: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        is_read_only: bool = False,
    ) -> None:
        if hasher.n_bits != store.n_bits:
            raise ValueError(
                f"the model has codes of {hasher.n_bits} bits, the store of {store.n_bits} bits"
            )
        self.hasher, self.store, self.limits = hasher, store, limits or Limits()
        self.is_read_only = is_read_only
        self._identity, self._scores = identity, scores
        self._encoder = InputEncoder(hasher, images, self.limits.pixels)

    @classmethod
    def open(
        cls,
        model: str | os.PathLike[str],
        url: str,
        *,
        images: str | None = None,
        scores: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        read_only: bool = False,
    ) -> Self:
        """Open a model file and its store. A missing store is created unless `read_only`."""
        hasher, identity = load(model), model_identity(model)
        store = open_store(url, n_bits=hasher.n_bits, model=identity, read_only=read_only)
        try:
            return cls(
                hasher,
                store,
                identity=identity,
                images=images,
                scores=scores,
                limits=limits,
                is_read_only=read_only,
            )
        except BaseException:
            store.close()
            raise

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def check(self) -> None:
        """Raise StoreError if the store does not answer. No index in memory is used."""
        self.store.get([0])

    def warm_up(self, radius: int | None = None) -> None:
        """Load the index into memory, and prepare the store for a search radius, if given."""
        width = code_width(self.store.n_bits)
        self.store.search(np.zeros((1, width), np.uint8), 1)
        self.hasher.encode(np.zeros((1, self.hasher.n_features_in_), np.float32))
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
        return Search(self._encoder, self.store, self.limits, request).answer()

    def image_codes(self, request: UpsertRequest) -> Codes:
        """Return the codes of the items that are images."""
        images = [item.image for item in request.items if item.image is not None]
        return np.concatenate(
            [self._encoder.encode(self._encoder.image_features(image)) for image in images]
        )

    def upsert(self, request: UpsertRequest, of_images: Codes | None = None) -> dict[str, int]:
        """Store all items, or none if one of them is not valid."""
        items = request.items
        self.limits.check_batch(len(items), "items")
        codes = np.empty((len(items), code_width(self.store.n_bits)), np.uint8)
        by_vector = [i for i, item in enumerate(items) if item.vector is not None]
        by_image = [i for i, item in enumerate(items) if item.image is not None]
        by_code = [i for i, item in enumerate(items) if item.code is not None]
        codes[by_vector] = self._encoder.encode(
            self._encoder.rows([items[i].vector or [] for i in by_vector])
        )
        if by_image:
            codes[by_image] = self.image_codes(request) if of_images is None else of_images
        codes[by_code] = from_hex((items[i].code or "" for i in by_code), self.store.n_bits)
        done = self.store.load(
            np.array([item.id for item in items], np.int64),
            codes,
            None if request.keep_metadata else [item.metadata for item in items],
            replace=request.replace,
            keep_metadata=request.keep_metadata,
            batch_size=self.limits.batch,  # a single transaction
        )
        return {"upserted": len(items), "replaced": done.replaced}

    def delete(self, request: IdsRequest) -> dict[str, int]:
        """Delete items."""
        return {"deleted": self.store.delete(np.unique(self._ids(request)))}

    def items(self, request: IdsRequest) -> list[dict[str, Any]]:
        """Return the items with the given ids, in their order. Unknown ids are omitted."""
        return self.described(self.store.get(self._ids(request)))

    def count(self, request: CountRequest) -> dict[str, int]:
        """Count the items, or those that match a filter."""
        if request.where is not None:
            check_where(request.where)
        return {"count": self.store.count(request.where)}

    def about(self) -> dict[str, Any]:
        """Return the properties of the store and the limits that `Client` needs."""
        limits = self.limits
        return {
            "n_bits": self.store.n_bits,
            "model": self._identity,
            "next_id": self.store.next_id(),
            "limits": {
                name: getattr(limits, name) for name in ("body", "batch", "k", "results", "found")
            },
        }

    def item(self, number: int) -> dict[str, Any] | None:
        """Return one item, or None."""
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
            "identity": self._identity,
            "items": self.store.count(),
            "images": self._encoder.accepts_images,
            "scores": self._scores,
            "bit_health": health,
        }

    def draw(self, limit: int, seed: int) -> Items:
        """Draw a uniform sample; in a very large store, the items nearest to random codes."""
        rng, store = np.random.default_rng(seed), self.store
        n_items = store.count()
        width, padding = code_width(store.n_bits), -store.n_bits % 8
        n_codes = 1 if n_items <= self.limits.histogram else limit
        codes = rng.integers(0, 256, (n_codes, width), np.uint8)
        codes[:, -1] &= (0xFF << padding) & 0xFF
        if n_codes == 1:
            every = store.radius(codes, store.n_bits).ids
            ids = rng.choice(np.sort(every), min(limit, len(every)), replace=False)
        else:
            ids = np.unique(store.search(codes, 1).ids)
        return store.get(ids)

    def described(self, items: Items) -> list[dict[str, Any]]:
        """Return items in the form of a response."""
        return described(items, self.store.n_bits)

    def _encoded(self, codes: Codes) -> dict[str, Any]:
        return {"n_bits": self.store.n_bits, "codes": to_hex(codes, self.store.n_bits)}

    def _ids(self, request: IdsRequest) -> Ids:
        self.limits.check_batch(len(request.ids), "ids")
        return np.array(request.ids, np.int64)

"""What the service does, without HTTP: a model and a store, asked by many threads."""

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
from antipodal.service.coding import Coder
from antipodal.service.limits import Limits
from antipodal.service.schemas import (
    CountRequest,
    EncodeRequest,
    IdsRequest,
    SearchRequest,
    UpsertRequest,
)
from antipodal.service.searching import Search, check_where, described
from antipodal.stores import Items, Store, open_store
from antipodal.validation import Ids

_HEALTH_SAMPLE = 1_000


class Engine:
    """A fitted hasher beside the store of its codes.

    Parameters
    ----------
    hasher : BaseHasher
        Fitted.
    store : Store
        Of codes of its length.
    identity : str
        That tells the model from others, for the model card.
    images : str, optional
        How images become features: see `ImageFeatures`.
    scores : mapping, optional
        What the model was measured to be worth, for the model card.
    is_read_only : bool
        Whether the service has no routes that write.
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
                f"the model makes codes of {hasher.n_bits} bits, the store keeps {store.n_bits}"
            )
        self.hasher, self.store, self.limits = hasher, store, limits or Limits()
        self.is_read_only = is_read_only
        self._identity, self._scores = identity, scores
        self._coder = Coder(hasher, images, self.limits)

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
        """Open the store for the model in a file; make it if there is none, unless to read only."""
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
        """Close the store, and end what decodes images."""
        self._coder.close()
        self.store.close()

    def check(self) -> None:
        """Raise StoreError if the store does not answer; what is in memory is not asked."""
        self.store.get([0])

    def warm_up(self, radius: int | None = None) -> None:
        """Read what the first search would wait for; prepare the store for a radius, if given."""
        width = code_width(self.store.n_bits)
        self.store.search(np.zeros((1, width), np.uint8), 1)
        self.hasher.encode(np.zeros((1, self.hasher.n_features_in_), np.float32))
        if radius is not None:
            self.store.prepare(radius)

    def encode(self, request: EncodeRequest) -> dict[str, Any]:
        """Return the codes of vectors or images."""
        if request.vectors is not None:
            self.limits.check_batch(len(request.vectors), "vectors")
            codes = self._coder.encode(self._coder.rows(request.vectors))
        else:
            codes = self._coder.encode(self._coder.features(request.images or []))
        return {"n_bits": self.store.n_bits, "codes": to_hex(codes, self.store.n_bits)}

    def encode_rows(self, rows: NDArray[np.float32]) -> Codes:
        """Return the packed codes of a table of vectors."""
        self.limits.check_batch(len(rows), "vectors")
        return self._coder.encode(rows)

    def search(self, request: SearchRequest) -> dict[str, Any] | None:
        """Return the answer to one query or to many; None if it is by an id that is not there."""
        return Search(self._coder, self.store, self.limits, request).answer()

    def codes_of_images(self, request: UpsertRequest) -> Codes:
        """Return the codes of those items that are images."""
        images = [item.image for item in request.items if item.image is not None]
        return self._coder.encode(self._coder.features(images))

    def upsert(self, request: UpsertRequest, of_images: Codes | None = None) -> dict[str, int]:
        """Keep items; what is wrong with one of them keeps out all."""
        items = request.items
        self.limits.check_batch(len(items), "items")
        codes = np.empty((len(items), code_width(self.store.n_bits)), np.uint8)
        by_vector = [i for i, item in enumerate(items) if item.vector is not None]
        by_image = [i for i, item in enumerate(items) if item.image is not None]
        by_code = [i for i, item in enumerate(items) if item.code is not None]
        codes[by_vector] = self._coder.encode(
            self._coder.rows([items[i].vector or [] for i in by_vector])
        )
        if by_image:
            codes[by_image] = self.codes_of_images(request) if of_images is None else of_images
        codes[by_code] = from_hex((items[i].code or "" for i in by_code), self.store.n_bits)
        done = self.store.load(
            np.array([item.id for item in items], np.int64),
            codes,
            None if request.keep_metadata else [item.metadata for item in items],
            replace=request.replace,
            keep_metadata=request.keep_metadata,
            batch_size=self.limits.batch,  # all of them: none is kept without the others
        )
        return {"upserted": len(items), "replaced": done.replaced}

    def delete(self, request: IdsRequest) -> dict[str, int]:
        """Remove items."""
        return {"deleted": self.store.delete(np.unique(self._ids(request)))}

    def items(self, request: IdsRequest) -> list[dict[str, Any]]:
        """Return the items with these ids, in this order; those that are not there are left out."""
        return self.described(self.store.get(self._ids(request)))

    def count(self, request: CountRequest) -> dict[str, int]:
        """Count the items, or those that pass a filter."""
        if request.where is not None:
            check_where(request.where)
        return {"count": self.store.count(request.where)}

    def about(self) -> dict[str, Any]:
        """Return what a client must know to use the store as one of its own."""
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
        """Return some items, the same for the same seed while the items are the same."""
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
            "parameters": self.hasher.get_params(),
            "identity": self._identity,
            "items": self.store.count(),
            "images": self._coder.takes_images,
            "scores": self._scores,
            "bit_health": health,
        }

    def draw(self, limit: int, seed: int) -> Items:
        """Draw items: evenly, or where there are very many, those nearest to random codes."""
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
        """Return items as they are answered."""
        return described(items, self.store.n_bits)

    def _ids(self, request: IdsRequest) -> Ids:
        self.limits.check_batch(len(request.ids), "ids")
        return np.array(request.ids, np.int64)

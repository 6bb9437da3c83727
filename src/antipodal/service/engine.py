"""What the service does, without HTTP: a model and a store, asked by many threads."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from antipodal.checks import Ids
from antipodal.codes import Codes, code_width, from_hex, to_hex
from antipodal.evaluation.metrics import bit_health
from antipodal.hashers import BaseHasher, load
from antipodal.index import Neighbours
from antipodal.index.rescore import OVERSAMPLE, rescored
from antipodal.index.scan import Distances
from antipodal.service.imagefeatures import ImageFeatures
from antipodal.service.limits import Limits
from antipodal.service.problems import UnavailableError
from antipodal.service.schemas import DeleteRequest, EncodeRequest, SearchRequest, UpsertRequest
from antipodal.storage.modelfile import model_identity
from antipodal.stores import Items, Snapshot, Store, open_store
from antipodal.stores.where import matches, parse_where

_TRIES = 20
_HEALTH_SAMPLE = 1_000
_NO_IMAGES = (
    "this service takes no images: it was started without --images, which says how the features "
    "of the model are made. Send vectors"
)


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
    ) -> None:
        if hasher.n_bits != store.n_bits:
            raise ValueError(
                f"the model makes codes of {hasher.n_bits} bits, the store keeps {store.n_bits}"
            )
        self.hasher, self.store, self.limits = hasher, store, limits or Limits()
        self._identity, self._scores = identity, scores
        self._images = None if images is None else ImageFeatures(images, self.limits)
        if self._images is not None and self._images.n_features != hasher.n_features_in_:
            raise ValueError(
                f"{images} makes {self._images.n_features} features, the model was fitted on "
                f"{hasher.n_features_in_}: it was not fitted on such features"
            )

    @classmethod
    def open(
        cls,
        model: str | os.PathLike[str],
        url: str,
        *,
        images: str | None = None,
        scores: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
    ) -> Self:
        """Open the store for the model in a file; make it if there is none."""
        hasher, identity = load(model), model_identity(model)
        store = open_store(url, n_bits=hasher.n_bits, model=identity)
        try:
            return cls(
                hasher, store, identity=identity, images=images, scores=scores, limits=limits
            )
        except BaseException:
            store.close()
            raise

    def encode(self, request: EncodeRequest) -> dict[str, Any]:
        """Return the codes of vectors or images."""
        if request.vectors is not None:
            self.limits.check_batch(len(request.vectors), "vectors")
            codes = self._encode(self._rows(request.vectors))
        else:
            codes = self._encode(self._features(request.images or []))
        return {"n_bits": self.store.n_bits, "codes": self._hex(codes)}

    def search(self, request: SearchRequest) -> dict[str, Any] | None:
        """Return the answer to one query, or None if it is by an id that is not there."""
        k = 10 if request.k is None else request.k
        if k > self.limits.k:
            raise ValueError(f"k must be at most {self.limits.k}: got {k}")
        if request.where is not None:
            _check_where(request.where)
        code, values = self._query(request)
        if code is None:
            return None
        for _ in range(_TRIES):
            with self.store.snapshot() as now:
                found = self._answer(now, request, k, code, values)
            if found is not None:
                return {"code": self._hex(code)[0], **found}
        raise UnavailableError("the items found are being replaced too quickly: try again")

    def upsert(self, request: UpsertRequest) -> dict[str, int]:
        """Keep items; what is wrong with one of them keeps out all."""
        items = request.items
        self.limits.check_batch(len(items), "items")
        codes = np.empty((len(items), code_width(self.store.n_bits)), np.uint8)
        by_vector = [i for i, item in enumerate(items) if item.vector is not None]
        by_image = [i for i, item in enumerate(items) if item.image is not None]
        by_code = [i for i, item in enumerate(items) if item.code is not None]
        codes[by_vector] = self._encode(self._rows([items[i].vector or [] for i in by_vector]))
        codes[by_image] = self._encode(self._features([items[i].image or "" for i in by_image]))
        codes[by_code] = from_hex((items[i].code or "" for i in by_code), self.store.n_bits)
        ids = np.array([item.id for item in items], np.int64)
        self.store.upsert(ids, codes, [item.metadata for item in items])
        return {"upserted": len(items)}

    def delete(self, request: DeleteRequest) -> dict[str, int]:
        """Remove items."""
        self.limits.check_batch(len(request.ids), "ids")
        return {"deleted": self.store.delete(np.unique(np.array(request.ids, np.int64)))}

    def item(self, number: int) -> dict[str, Any] | None:
        """Return one item, or None."""
        found = self._described(self.store.get([number]))
        return found[0] if found else None

    def sample(self, limit: int, seed: int) -> list[dict[str, Any]]:
        """Return some items, the same for the same seed while the items are the same."""
        if not 1 <= limit <= self.limits.k:
            raise ValueError(f"limit must be from 1 to {self.limits.k}: got {limit}")
        return self._described(self._sample(limit, seed))

    def card(self) -> dict[str, Any]:
        """Return the model card."""
        codes = self._sample(_HEALTH_SAMPLE, 0).codes
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
            "images": self._images is not None,
            "scores": self._scores,
            "bit_health": health,
        }

    # ----------------------------------------------------------------------------- searching

    def _query(self, request: SearchRequest) -> tuple[Codes | None, NDArray[np.float32] | None]:
        """Return the query's code, (1, width), and its real values if they are known."""
        if request.id is not None:
            codes = self.store.get([request.id]).codes
            return (codes if len(codes) else None), None
        if request.code is not None:
            return from_hex([request.code], self.store.n_bits), None
        if request.vector is not None:
            rows = self._rows([request.vector])
        else:
            rows = self._features([request.image or ""])
        values = None if request.rescore is None else self.hasher.query(rows)
        return self.hasher.encode(rows), values

    def _answer(
        self,
        store: Snapshot,
        request: SearchRequest,
        k: int,
        code: Codes,
        values: NDArray[np.float32] | None,
    ) -> dict[str, Any] | None:
        """Search once. None: what was found has changed before it could be fetched, in Milvus."""
        where = request.where
        answer: dict[str, Any] = {}
        n_wanted = k if values is None else k * OVERSAMPLE
        if request.histogram:
            n_items = store.count(where)
            if n_items > self.limits.histogram:
                raise ValueError(
                    f"a histogram is counted over at most {self.limits.histogram:,} items: there "
                    f"are {n_items:,}. Narrow them by where, or leave histogram out"
                )
        if request.histogram or request.radius is not None:
            # With a histogram, one pass over all distances answers the rest as well.
            reach = store.n_bits if request.histogram else request.radius or 0
            ball = store.radius(code, reach, where=where)
            ids, distances = ball.ids, ball.distances
            if request.histogram:
                answer["histogram"] = np.bincount(distances, minlength=store.n_bits + 1).tolist()
            if request.radius is None:
                total = min(k, len(ids))
            else:
                total = int(np.searchsorted(distances, request.radius, side="right"))
                n_wanted = min(total, self.limits.results)
            ids, distances = ids[:n_wanted], distances[:n_wanted]
        else:
            near = store.search(code, n_wanted, where=where)
            ids, distances = near.ids[0], near.distances[0]
            total = min(k, len(ids))
        items = store.get(ids)
        if not self._still(items, ids, distances, code, where):
            return None
        results = self._described(items)
        for result, distance in zip(results, distances.tolist(), strict=True):
            result["distance"] = distance
        if values is not None and len(ids):
            candidates = Neighbours(ids[None], distances[None])
            best = rescored(candidates, k, values, store.n_bits, lambda: items.codes[None])
            scores = [] if best.scores is None else best.scores[0].tolist()
            known = dict(zip(ids.tolist(), results, strict=True))
            results = [
                known[number] | {"score": score}
                for number, score in zip(best.ids[0].tolist(), scores, strict=True)
            ]
        return {"results": results, "total": total, **answer}

    def _still(
        self,
        items: Items,
        ids: Ids,
        distances: Distances,
        code: Codes,
        where: Mapping[str, Any] | None,
    ) -> bool:
        """Say whether the items are those that were found: nobody wrote them in between."""
        if not np.array_equal(items.ids, ids):
            return False
        if not np.array_equal(np.bitwise_count(items.codes ^ code).sum(axis=1), distances):
            return False
        if where is None:
            return True
        tree = parse_where(where)
        return all(matches(tree, metadata) for metadata in items.metadata)

    # ------------------------------------------------------------------------------- details

    def _rows(self, vectors: Sequence[Sequence[float]]) -> NDArray[np.float32]:
        """Return vectors as a table, each of the width that the model was fitted on."""
        n_features = self.hasher.n_features_in_
        for place, vector in enumerate(vectors):
            if len(vector) != n_features:
                raise ValueError(
                    f"vectors must have {n_features} values, as those the model was fitted on: "
                    f"vector {place} has {len(vector)}"
                )
        with np.errstate(over="ignore"):  # too large for float32: the hasher names the row
            return np.array(vectors, np.float64).reshape(-1, n_features).astype(np.float32)

    def _features(self, images: Sequence[str]) -> NDArray[Any]:
        if not images:
            return np.empty((0, self.hasher.n_features_in_))
        if self._images is None:
            raise ValueError(_NO_IMAGES)
        self.limits.check_batch(len(images), "images")
        return self._images(images)

    def _encode(self, rows: NDArray[Any]) -> Codes:
        if not len(rows):  # hashers, as scikit-learn's estimators, want at least one
            return np.empty((0, code_width(self.store.n_bits)), np.uint8)
        return self.hasher.encode(rows)

    def _sample(self, limit: int, seed: int) -> Items:
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

    def _described(self, items: Items) -> list[dict[str, Any]]:
        return [
            {"id": number, "code": code, "metadata": metadata}
            for number, code, metadata in zip(
                items.ids.tolist(), self._hex(items.codes), items.metadata, strict=True
            )
        ]

    def _hex(self, codes: Codes) -> list[str]:
        return to_hex(codes, self.store.n_bits)


def _check_where(where: Mapping[str, Any]) -> None:
    """Say that it is the filter which is wrong, in words that begin with its name."""
    try:
        parse_where(where)
    except (TypeError, ValueError) as error:
        raise ValueError(f"where is not a valid filter: {error}") from None

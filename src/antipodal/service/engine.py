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
from antipodal.service.calls import check_wanted
from antipodal.service.hitlists import HitLists
from antipodal.service.imagefeatures import ImageFeatures
from antipodal.service.limits import Limits
from antipodal.service.prefixes import FirstBits, prefix_mask
from antipodal.service.problems import UnavailableError
from antipodal.service.schemas import (
    CountRequest,
    EncodeRequest,
    IdsRequest,
    SearchRequest,
    UpsertRequest,
)
from antipodal.storage.modelfile import model_identity
from antipodal.stores import Items, Snapshot, Store, open_store
from antipodal.stores.where import matches, parse_where

_TRIES = 20
_HEALTH_SAMPLE = 1_000
_BALLS_AT_ONCE = 16  # each may hold every item
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
        if self._images is not None:
            self._images.close()
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
            codes = self._encode(self._rows(request.vectors))
        else:
            codes = self._encode(self._features(request.images or []))
        return {"n_bits": self.store.n_bits, "codes": self._hex(codes)}

    def encode_rows(self, rows: NDArray[np.float32]) -> Codes:
        """Return the packed codes of a table of vectors."""
        self.limits.check_batch(len(rows), "vectors")
        return self._encode(rows)

    def search(self, request: SearchRequest) -> dict[str, Any] | None:
        """Return the answer to one query or to many; None if it is by an id that is not there."""
        k = 10 if request.k is None else request.k
        if k > self.limits.k:
            raise ValueError(f"k must be at most {self.limits.k}: got {k}")
        if request.where is not None:
            _check_where(request.where)
        codes, values = self._queries(request)
        if codes is None:
            return None
        if request.radius is None and len(codes) * k > self.limits.found:
            raise ValueError(
                f"a request may find at most {self.limits.found:,} items: got {len(codes)} queries "
                f"for {k} each. Send them in parts"
            )
        answers: list[dict[str, Any]] = []
        size = len(codes) if request.radius is None else _BALLS_AT_ONCE
        for start in range(0, len(codes), size):
            check_wanted()
            part = slice(start, start + size)
            some = None if values is None else values[part]
            answers += self._answers(request, k, codes[part], some, len(codes))
        return answers[0] if request.is_single else {"searches": answers}

    def codes_of_images(self, request: UpsertRequest) -> Codes:
        """Return the codes of those items that are images."""
        images = [item.image for item in request.items if item.image is not None]
        return self._encode(self._features(images))

    def upsert(self, request: UpsertRequest, of_images: Codes | None = None) -> dict[str, int]:
        """Keep items; what is wrong with one of them keeps out all."""
        items = request.items
        self.limits.check_batch(len(items), "items")
        codes = np.empty((len(items), code_width(self.store.n_bits)), np.uint8)
        by_vector = [i for i, item in enumerate(items) if item.vector is not None]
        by_image = [i for i, item in enumerate(items) if item.image is not None]
        by_code = [i for i, item in enumerate(items) if item.code is not None]
        codes[by_vector] = self._encode(self._rows([items[i].vector or [] for i in by_vector]))
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
            _check_where(request.where)
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
            "images": self._images is not None,
            "scores": self._scores,
            "bit_health": health,
        }

    # ----------------------------------------------------------------------------- searching

    def _queries(self, request: SearchRequest) -> tuple[Codes | None, NDArray[np.float32] | None]:
        """Return the queries' codes and, if they are known and needed, their real values."""
        if request.id is not None:
            codes = self.store.get([request.id]).codes
            return (codes if len(codes) else None), None
        if request.code is not None or request.codes is not None:
            given = request.codes if request.code is None else [request.code]
            self.limits.check_batch(len(given or []), "codes")
            return from_hex(given or [], self.store.n_bits), None
        if request.image is not None:
            rows = self._features([request.image])
        else:
            vectors = request.vectors if request.vector is None else [request.vector]
            self.limits.check_batch(len(vectors or []), "vectors")
            rows = self._rows(vectors or [])
        values = None if request.rescore is None else self.hasher.query(rows)
        return self._encode(rows), values

    def _answers(
        self,
        request: SearchRequest,
        k: int,
        codes: Codes,
        values: NDArray[np.float32] | None,
        n_queries: int,
    ) -> list[dict[str, Any]]:
        """Search, and in Milvus again for those whose hits changed before they were fetched."""
        answers: list[dict[str, Any]] = [{}] * len(codes)
        left = np.arange(len(codes))
        for _ in range(_TRIES):
            with self.store.snapshot() as now:
                seen = (
                    now if request.prefix is None else FirstBits(now, request.prefix, self.limits)
                )
                found = self._found(seen, request, k, codes[left], values is not None, n_queries)
                if not request.items and values is None:
                    return self._answered(found, found.bare(), codes)
                items = now.get(np.unique(found.ids))
            good = self._unchanged(found, items, codes[left], request)
            done, found = left[good], found.of(good)
            scores = None
            if values is not None:
                found, scores = self._rescored(found, items, k, values[done], request)
            results = self._with_items(found, items) if request.items else found.bare()
            for result, score in zip(results, scores or [], strict=False):
                result["score"] = score
            for place, answer in zip(
                done, self._answered(found, results, codes[done]), strict=True
            ):
                answers[place] = answer
            left = left[~good]
            if not len(left):
                return answers
        raise UnavailableError("the items found are being replaced too quickly: try again")

    def _found(
        self,
        store: Snapshot,
        request: SearchRequest,
        k: int,
        codes: Codes,
        is_rescored: bool,
        n_queries: int,
    ) -> HitLists:
        """Search once."""
        where = request.where
        histogram = None
        n_near = k * OVERSAMPLE if is_rescored else k
        first, n_wanted = (0, n_near) if is_rescored else (request.offset, request.limit or n_near)
        if request.histogram:
            self.limits.check_counted(store.count(where))
        elif request.radius is None:
            near = store.search(codes, n_near, where=where)
            totals = np.full(len(codes), min(k, near.ids.shape[1]))
            window = slice(first, first + n_wanted)
            ids, distances = near.ids[:, window], near.distances[:, window]
            counts = np.full(len(codes), ids.shape[1])
            return HitLists(ids.ravel(), distances.ravel(), counts, totals, None)
        # With a histogram, one pass over all distances answers the rest as well.
        reach = store.n_bits if request.histogram else request.radius or 0
        ball = store.radius(codes, reach, where=where)
        if request.histogram:
            histogram = np.bincount(ball.distances, minlength=store.n_bits + 1).tolist()
        totals = np.diff(ball.offsets)
        if request.radius is None:
            there, totals = np.minimum(totals, n_near), np.minimum(totals, k)
        else:
            if request.histogram:
                totals = np.array([np.searchsorted(ball.distances, request.radius, side="right")])
            there = totals
            most = min(self.limits.results, max(1, self.limits.found // n_queries))
            n_wanted = min(request.limit or most, most)
        counts = np.clip(there - first, 0, n_wanted)
        kept = np.repeat(ball.offsets[:-1] + first - np.cumsum(counts) + counts, counts)
        kept += np.arange(len(kept))
        return HitLists(ball.ids[kept], ball.distances[kept], counts, totals, histogram)

    def _rescored(
        self,
        found: HitLists,
        items: Items,
        k: int,
        values: NDArray[np.float32],
        request: SearchRequest,
    ) -> tuple[HitLists, list[float]]:
        """Put the hits of each query, which are equally many, into a finer order."""
        if not len(found.ids):
            return found, []
        table = (len(values), len(found.ids) // len(values))
        candidates = Neighbours(found.ids.reshape(table), found.distances.reshape(table))
        codes = items.codes[np.searchsorted(items.ids, candidates.ids)]
        best = rescored(candidates, k, values, self.store.n_bits, lambda: codes)
        window = slice(request.offset, request.offset + (request.limit or k))
        ids, distances = best.ids[:, window], best.distances[:, window]
        scores = [] if best.scores is None else best.scores[:, window].ravel().tolist()
        counts = np.full(len(values), ids.shape[1])
        return found._replace(ids=ids.ravel(), distances=distances.ravel(), counts=counts), scores

    def _with_items(self, found: HitLists, items: Items) -> list[dict[str, Any]]:
        known = self.described(items)
        places = np.searchsorted(items.ids, found.ids)
        return [
            known[place] | {"distance": distance}
            for place, distance in zip(places.tolist(), found.distances.tolist(), strict=True)
        ]

    def _answered(
        self, found: HitLists, results: list[dict[str, Any]], codes: Codes
    ) -> list[dict[str, Any]]:
        """Give each query its results."""
        ends = np.cumsum(found.counts).tolist()
        begins = [0, *ends][:-1]
        totals, names = found.totals.tolist(), self._hex(codes)
        answers: list[dict[str, Any]] = [
            {"code": code, "results": results[begin:end], "total": total}
            for code, begin, end, total in zip(names, begins, ends, totals, strict=True)
        ]
        if found.histogram is not None:
            answers[0]["histogram"] = found.histogram
        return answers

    def _unchanged(
        self, found: HitLists, items: Items, codes: Codes, request: SearchRequest
    ) -> NDArray[np.bool_]:
        """Say of each query whether its hits are still what was found: nobody wrote them since."""
        good = np.ones(len(codes), np.bool_)
        if not len(found.ids):
            return good
        query = np.repeat(np.arange(len(codes)), found.counts)
        if not len(items.ids):
            good[query] = False
            return good
        tree = None if request.where is None else parse_where(request.where)
        passing = [tree is None or matches(tree, metadata) for metadata in items.metadata]
        places = np.minimum(np.searchsorted(items.ids, found.ids), len(items.ids) - 1)
        compared = prefix_mask(request.prefix or self.store.n_bits, codes.shape[1])
        differing = np.bitwise_count((items.codes[places] ^ codes[query]) & compared).sum(axis=1)
        same = (items.ids[places] == found.ids) & (differing == found.distances)
        good[query[~(same & np.array(passing)[places])]] = False
        return good

    # ------------------------------------------------------------------------------- details

    def _ids(self, request: IdsRequest) -> Ids:
        self.limits.check_batch(len(request.ids), "ids")
        return np.array(request.ids, np.int64)

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

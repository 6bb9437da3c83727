"""Browsing a store: items by words, the fields of metadata, and a map of codes (t-SNE)."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from antipodal.codes import Codes, unpack
from antipodal.evaluation.metrics import hamming_distances
from antipodal.service.engine import Engine
from antipodal.service.schemas import FindRequest, IdsRequest
from antipodal.service.search import named_items
from antipodal.stores.filters import kind

_SAMPLE = 1_000  # items from which the fields are inferred
_MAX_FIELDS = 100
_MAX_VALUES = 30  # values listed per field, most frequent first
_MAX_VALUE_LENGTH = 80  # characters of a listed value
_PICTURE = "data:image/"


def sample_fields(engine: Engine) -> dict[str, Any]:
    """Describe the metadata fields of a sample of the items."""
    metadata = engine.draw(_SAMPLE, 0).metadata
    return {"sample": len(metadata), "fields": describe_fields(metadata)}


def find_items(engine: Engine, request: FindRequest) -> dict[str, Any]:
    """Return the most relevant items whose metadata contain all words of a text."""
    found = engine.words.find(request.text, request.limit)
    items = named_items(found.items, engine.store.id_type)
    return {
        "items": engine.described(items),
        "looked_at": found.n_searched,
        "total": found.n_items,
    }


def describe_fields(metadata: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Describe the fields of metadata, most frequent first.

    A field of a nested object is named as in a filter, "outer.inner". Its `kind` is that of its
    values: number, string, boolean, null, container or picture, or "mixed" if they differ.
    """
    found: dict[str, list[Any]] = {}
    for fields in metadata:
        for name, value in _leaves(fields):
            found.setdefault(name, []).append(value)
    frequent = sorted(found, key=lambda name: -len(found[name]))[:_MAX_FIELDS]
    return [_described(name, found[name]) for name in frequent]


def _leaves(fields: Mapping[str, Any], outer: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{outer}{name}.")
        else:
            yield f"{outer}{name}", value


def _described(name: str, values: list[Any]) -> dict[str, Any]:
    kinds = {_kind(value) for value in values} - {"null"} or {"null"}
    texts = [value for value in values if isinstance(value, str)]
    numbers = [value for value in values if kind(value) == "number"]
    short = Counter(
        (kind(value), value)
        for value in values
        if _kind(value) in ("string", "number", "boolean") and len(str(value)) <= _MAX_VALUE_LENGTH
    )
    return {
        "name": name,
        "kind": kinds.pop() if len(kinds) == 1 else "mixed",
        "items": len(values),
        "distinct": len(short),
        "values": [
            {"value": value, "items": n} for (_, value), n in short.most_common(_MAX_VALUES)
        ],
        "least": min(numbers, default=None),
        "most": max(numbers, default=None),
        "length": sum(map(len, texts)) / len(texts) if texts else None,
    }


def _kind(value: Any) -> str:
    return "picture" if isinstance(value, str) and value.startswith(_PICTURE) else kind(value)


MAX_MAP_ITEMS = 2_000
DEFAULT_MAP_ITEMS = 1_000
_MIN_CODES = 12  # fewer codes have no neighbourhoods to preserve
_PERPLEXITY = 20
_STEPS = 500
_SEED = 0
_CACHED = 4  # maps
_MAX_NAME = 200  # characters of a name or value of a point
_NAMES = ("title", "name", "text", "caption", "label")  # fields that name an item
_NEAREST = 3  # items of the sample that determine the position of another item
_GOLDEN_ANGLE = np.pi * (3 - np.sqrt(5))

Places = NDArray[np.float64]  # (n, 2), from -1 to 1


class Map(NamedTuple):
    """Items of a sample, their codes and positions, and the number of distinct codes."""

    ids: NDArray[Any]
    codes: Codes
    places: Places
    distinct: int


class Maps:
    """A cache of the latest maps of a store, by its version.

    A store without versions is identified by its number of items: there, a map is reused until
    that number changes.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._maps: OrderedDict[tuple[object, int], Map] = OrderedDict()
        self._making = threading.Lock()

    def of_sample(self, limit: int) -> Map:
        """Return a map of at most `limit` items."""
        with self._engine.store.snapshot() as now:
            version = (now.version, now.count())
        with self._making:
            if (version, limit) not in self._maps:
                items = self._engine.draw(limit, _SEED)
                places, distinct = lay_out(items.codes, self._engine.store.n_bits)
                self._maps[version, limit] = Map(items.ids, items.codes, places, distinct)
                while len(self._maps) > _CACHED:
                    self._maps.popitem(last=False)
            return self._maps[version, limit]


def map_points(engine: Engine, maps: Maps, field: str, limit: int) -> dict[str, Any]:
    """Return a map of the store as points, with the value of a metadata field for each."""
    laid_out = maps.of_sample(limit)
    items = engine.store.get(laid_out.ids)
    place_of = dict(zip(laid_out.ids.tolist(), laid_out.places.tolist(), strict=True))
    points = [
        {
            "id": number,
            "x": place_of[number][0],
            "y": place_of[number][1],
            "name": _name(metadata),
            "value": _value(metadata, field),
        }
        for number, metadata in zip(items.ids.tolist(), items.metadata, strict=True)
    ]
    return {"points": points, "distinct": laid_out.distinct, "total": engine.store.count()}


def map_places(engine: Engine, maps: Maps, request: IdsRequest) -> dict[str, Any]:
    """Return the positions of items, also of those outside the sample of the map.

    An item outside the sample is placed among the items of the sample with the most similar codes.
    """
    laid_out = maps.of_sample(DEFAULT_MAP_ITEMS)
    place_of = dict(zip(laid_out.ids.tolist(), laid_out.places, strict=True))
    places = []
    for item in engine.items(request):
        place = place_of.get(item["id"])
        if place is None:
            code = np.frombuffer(bytes.fromhex(item["code"]), np.uint8)[None]
            distances = hamming_distances(code, laid_out.codes)[0]
            place = laid_out.places[np.argsort(distances, kind="stable")[:_NEAREST]].mean(axis=0)
        places.append({"id": item["id"], "x": float(place[0]), "y": float(place[1])})
    return {"places": places}


def lay_out(codes: Codes, n_bits: int) -> tuple[Places, int]:
    """Return positions in the square from -1 to 1, and the number of distinct codes.

    Distinct codes are placed by t-SNE of their Hamming distances, initialised by classical
    scaling. Items with the same code are arranged in a spiral around its position, so that no
    item hides another.
    """
    if not len(codes):
        return np.empty((0, 2)), 0
    different, which, counts = np.unique(codes, axis=0, return_inverse=True, return_counts=True)
    places = classical_scaling(different, n_bits)
    if len(different) >= _MIN_CODES:
        from sklearn.manifold import TSNE  # not at the top: it takes seconds and 150 MB

        start = 1e-4 * places / max(float(places[:, 0].std()), 1e-12)
        embedding = TSNE(
            metric="precomputed",
            init=start.astype(np.float32),
            perplexity=min(_PERPLEXITY, (len(different) - 1) / 3),
            max_iter=_STEPS,
            random_state=_SEED,
        )
        distances = hamming_distances(different, different).astype(float)
        with threadpool_limits(1, user_api="openmp"):  # barriers are slow on busy cores
            places = embedding.fit_transform(distances)
    places = _into_square(places)
    which = which.ravel()
    order = np.argsort(which, kind="stable")
    seed = np.empty(len(codes))
    seed[order] = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    spread = 0.7 / np.sqrt(max(len(codes), 1)) * np.sqrt(seed)
    angle = _GOLDEN_ANGLE * seed
    around = np.column_stack((np.cos(angle), np.sin(angle))) * spread[:, None]
    return _into_square(places[which] + around), len(different)


def classical_scaling(codes: Codes, n_bits: int) -> Places:
    """Place codes such that squared distances in the plane approximate Hamming distances.

    Hamming distances are squared Euclidean distances between bit vectors, so that classical
    scaling is a projection on the first two principal components of the bits.
    """
    bits = unpack(codes, n_bits).astype(np.float64)
    left, sizes, _ = np.linalg.svd(bits - bits.mean(axis=0), full_matrices=False)
    places = np.zeros((len(codes), 2))
    n_axes = min(2, len(sizes))
    places[:, :n_axes] = left[:, :n_axes] * sizes[:n_axes]
    return places


def _into_square(places: NDArray[np.floating]) -> Places:
    """Centre positions and scale them by the larger side."""
    low, high = places.min(axis=0), places.max(axis=0)
    side = max(float((high - low).max()), 1e-12)
    return np.asarray((places - (low + high) / 2) * (2 / side), np.float64)


def _name(metadata: dict[str, Any]) -> str | None:
    for field in _NAMES:
        value = metadata.get(field)
        if isinstance(value, str) or (isinstance(value, int | float) and value is not True):
            return str(value)[:_MAX_NAME]
    return None


def _value(metadata: dict[str, Any], field: str) -> str | int | float | bool | None:
    """Return a scalar value of a field, which may be nested; otherwise None."""
    value: Any = metadata
    for name in field.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, str):
        return value[:_MAX_NAME]
    return value if isinstance(value, int | float) else None

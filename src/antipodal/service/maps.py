"""A map: codes laid out in the plane such that near codes are near."""

import threading
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.manifold import TSNE

from antipodal.codes import Codes, unpack
from antipodal.evaluation.metrics import hamming_distances
from antipodal.service.engine import Engine
from antipodal.validation import Ids

MOST_ITEMS = 2_000
_FEWEST_CODES = 12  # below that there are no neighbourhoods to keep
_PERPLEXITY = 20
_STEPS = 500
_SEED = 0
_KEPT = 4
_GOLDEN_ANGLE = np.pi * (3 - np.sqrt(5))

Places = NDArray[np.float64]  # (n, 2), from -1 to 1


class Map(NamedTuple):
    """Items of a sample, where each is, and of how many different codes they are."""

    ids: Ids
    places: Places
    distinct: int


class Maps:
    """The last maps of an engine's store, each of one version of it.

    An engine that does not count its versions is known by its number of items alone: there, a
    map stays while that number does.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kept: OrderedDict[tuple[object, int], Map] = OrderedDict()
        self._making = threading.Lock()

    def of_sample(self, limit: int) -> Map:
        """Return a map of up to `limit` items."""
        with self._engine.store.snapshot() as now:
            version = (now.version, now.count())
        with self._making:
            if (version, limit) not in self._kept:
                items = self._engine.draw(limit, _SEED)
                places, distinct = lay_out(items.codes, self._engine.store.n_bits)
                self._kept[version, limit] = Map(items.ids, places, distinct)
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            return self._kept[version, limit]


def lay_out(codes: Codes, n_bits: int) -> tuple[Places, int]:
    """Place codes in the square from -1 to 1; return the places, and how many codes differ.

    Different codes are placed by a neighbour embedding (t-SNE) of their Hamming distances, begun
    from their classical scaling. Items that share a code are spread around its place, as seeds in
    a sunflower, or they would hide each other.
    """
    if not len(codes):
        return np.empty((0, 2)), 0
    different, which, counts = np.unique(codes, axis=0, return_inverse=True, return_counts=True)
    places = classical_scaling(different, n_bits)
    if len(different) >= _FEWEST_CODES:
        start = 1e-4 * places / max(float(places[:, 0].std()), 1e-12)
        embedding = TSNE(
            metric="precomputed",
            init=start.astype(np.float32),
            perplexity=min(_PERPLEXITY, (len(different) - 1) / 3),
            max_iter=_STEPS,
            random_state=_SEED,
        )
        places = embedding.fit_transform(hamming_distances(different, different).astype(float))
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
    """Place codes such that squared distances in the plane are nearest to Hamming distances.

    Hamming distances are squared Euclidean distances between bits: their classical scaling is
    that of the principal components of the bits.
    """
    bits = unpack(codes, n_bits).astype(np.float64)
    left, sizes, _ = np.linalg.svd(bits - bits.mean(axis=0), full_matrices=False)
    places = np.zeros((len(codes), 2))
    n_axes = min(2, len(sizes))
    places[:, :n_axes] = left[:, :n_axes] * sizes[:n_axes]
    return places


def _into_square(places: NDArray[np.floating]) -> Places:
    """Centre places, and scale them by the larger side."""
    low, high = places.min(axis=0), places.max(axis=0)
    side = max(float((high - low).max()), 1e-12)
    return np.asarray((places - (low + high) / 2) * (2 / side), np.float64)

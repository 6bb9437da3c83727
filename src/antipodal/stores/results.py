"""Hits of single queries, joined into one search result."""

from typing import TypeAlias

import numpy as np

from antipodal.index import Ball, Neighbours
from antipodal.index.scan import Distances
from antipodal.validation import Ids

ItemHits: TypeAlias = list[tuple[Ids, Distances]]  # of each query, ordered by (distance, id)


def by_distance_and_id(ids: Ids, distances: Distances) -> tuple[Ids, Distances]:
    """Sort one query's hits."""
    order = np.lexsort((ids, distances))
    return ids[order], distances[order]


def nearest(hits: ItemHits) -> Neighbours:
    """Join hits of equal number into the table that `search` returns."""
    shape = (len(hits), len(hits[0][0]) if hits else 0)
    ids = np.array([i for i, _ in hits], np.int64).reshape(shape)
    distances = np.array([d for _, d in hits], np.int32).reshape(shape)
    return Neighbours(ids, distances)


def within(hits: ItemHits) -> Ball:
    """Join the hits of each query into the lists that `radius` returns."""
    offsets = np.zeros(len(hits) + 1, np.int64)
    np.cumsum([len(ids) for ids, _ in hits], out=offsets[1:])
    return Ball(
        offsets,
        np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in hits)]),
        np.concatenate([np.empty(0, np.int32), *(distances for _, distances in hits)]),
    )

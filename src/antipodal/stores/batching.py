"""Batches of items, in the size that is wanted."""

from collections.abc import Iterator

import numpy as np

from antipodal.stores.snapshot import ItemBatch


def resized(batches: Iterator[ItemBatch], size: int) -> Iterator[ItemBatch]:
    """Yield the same items in batches of that size; the last may be smaller."""
    waiting: list[ItemBatch] = []
    n_waiting = 0
    for batch in batches:
        waiting.append(batch)
        n_waiting += len(batch.ids)
        while n_waiting >= size:
            joined = _joined(waiting)
            yield _part(joined, slice(size))
            waiting = [_part(joined, slice(size, None))]
            n_waiting -= size
    if n_waiting:
        yield _joined(waiting)


def _joined(parts: list[ItemBatch]) -> ItemBatch:
    return ItemBatch(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.codes for part in parts]),
        [text for part in parts for text in part.texts],
    )


def _part(batch: ItemBatch, part: slice) -> ItemBatch:
    return ItemBatch(batch.ids[part], batch.codes[part], batch.texts[part])

"""A store as if its codes had their first bits only: how a shorter code would answer."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes, code_width
from antipodal.index import Ball, HammingIndex, Neighbours
from antipodal.service.limits import Limits
from antipodal.stores.filters import Where
from antipodal.stores.snapshot import ItemBatch, Snapshot
from antipodal.validation import Ids


class FirstBits(Snapshot):
    """What a snapshot answers by the first `n_bits` of its codes; queries are whole codes.

    No engine searches by a part of a code: all codes are fetched, so there must not be more of
    them than a histogram counts.
    """

    def __init__(self, whole: Snapshot, n_bits: int, limits: Limits) -> None:
        if n_bits > whole.n_bits:
            raise ValueError(f"prefix must be at most {whole.n_bits}, as codes are: got {n_bits}")
        n_items = whole.count()
        if n_items > limits.histogram:
            raise ValueError(
                f"a prefix is searched among at most {limits.histogram:,} items: there are "
                f"{n_items:,}"
            )
        self.place, self.n_bits, self._whole = whole.place, whole.n_bits, whole
        self._mask = prefix_mask(n_bits, code_width(whole.n_bits))
        ids, codes = whole.all_codes()
        self._index = HammingIndex(whole.n_bits)  # with zeros behind the prefix, on both sides
        self._index.add(codes & self._mask, ids)

    def batches(self) -> Iterator[ItemBatch]:
        """Yield all items, some at a time, with their whole codes."""
        return self._whole.batches()

    def _get(self, ids: Ids) -> dict[int, tuple[bytes, dict[str, Any]]]:
        return self._whole._get(ids)

    def _search(self, codes: Codes, k: int, where: Where | None) -> Neighbours:
        return self._index.search(codes & self._mask, k, allowed=self._allowed(where))

    def _radius(self, codes: Codes, r: int, where: Where | None) -> Ball:
        return self._index.radius(codes & self._mask, r, allowed=self._allowed(where))

    def _count(self, where: Where | None) -> int:
        return self._whole._count(where)

    def _allowed(self, where: Where | None) -> Ids | None:
        if where is None:
            return None
        anywhere = np.zeros((1, len(self._mask)), np.uint8)
        return np.sort(self._whole._radius(anywhere, self.n_bits, where).ids)


def prefix_mask(n_bits: int, width: int) -> NDArray[np.uint8]:
    """Return packed ones for the first bits, and zeros after them."""
    return np.packbits(np.arange(8 * width) < n_bits)

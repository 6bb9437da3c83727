"""What a search of many queries has found, before it is told."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodal.index.scan import Distances
from antipodal.validation import Ids


class HitLists(NamedTuple):
    """Hits of all queries one after the other, and how many each has, here and in all."""

    ids: Ids
    distances: Distances
    counts: NDArray[np.int64]
    totals: NDArray[np.int64]
    histogram: list[int] | None

    def of(self, queries: NDArray[np.bool_]) -> "HitLists":
        """Return what was found for some of the queries."""
        hits = np.repeat(queries, self.counts)
        chosen = self.counts[queries], self.totals[queries]
        return HitLists(self.ids[hits], self.distances[hits], *chosen, self.histogram)

    def bare(self) -> list[dict[str, Any]]:
        """Return the hits without their items."""
        return [
            {"id": number, "distance": distance}
            for number, distance in zip(self.ids.tolist(), self.distances.tolist(), strict=True)
        ]

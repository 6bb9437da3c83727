"""Vectors in one byte per feature, as stores keep them to put candidates in order."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.auditing.truth import Metric, Rows, prepared
from antipodal.checks import Ids
from antipodal.hashers.parts.rows import row_blocks


class Int8Vectors:
    """Rows of X rounded to 255 steps, from minus to plus the largest value of each feature."""

    def __init__(self, X: Rows, metric: Metric) -> None:
        self.X, self.metric = X, metric
        self.largest = np.zeros(X.shape[1], np.float32)
        for block in row_blocks(X):
            rows = np.abs(prepared(X[block], metric)).max(axis=0)
            np.maximum(self.largest, rows, out=self.largest)

    def __getitem__(self, ids: Ids) -> NDArray[Any]:
        """Return rounded rows."""
        rows = prepared(self.X[ids].reshape(-1, self.X.shape[1]), self.metric)
        step = np.where(self.largest > 0, self.largest, 1) / 127
        rounded: NDArray[Any] = (np.round(rows / step) * step).reshape(*ids.shape, -1)
        return rounded

"""Reduction of inner-product and Euclidean search to cosine search."""

from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.validation import check_finite

Reducible = Literal["dot", "euclidean"]
Floats = NDArray[np.float64]

_ROUNDING = 1e-5  # relative excess of a length that is due to the dtype of the rows


class CosineReduction:
    """Extend vectors so that cosines rank them by inner product or by Euclidean distance.

    `LinfHash.asymmetric` and collections compare cosines. For the inner product ⟨q, x⟩, items get
    one more dimension, which makes all of them equally long, and queries a zero [Neyshabur2015]:

        x' = [x, √(L² - ‖x‖²)] / L,    q' = [q, 0]       L = max ‖x‖

    For the Euclidean distance, vectors are shifted and scaled to a mean square of 1. Up to a
    constant of the query, -‖q - x‖² / 2 is the inner product of [q, 1] with [x, (1 - ‖x‖²) / 2],
    which is then reduced in the same way. The order is exact. Codes of the extended vectors have
    lower recall than codes for cosines, since they must also approximate the new dimensions.

    Parameters
    ----------
    metric : {"dot", "euclidean"}
        Inner product or Euclidean distance.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(100, 8))
    >>> reduction = CosineReduction("dot").fit(X)
    >>> items, queries = reduction.items(X), reduction.queries(X[:3])
    >>> bool((np.argmax(queries @ items.T, axis=1) == np.argmax(X[:3] @ X.T, axis=1)).all())
    True
    """

    mean_: Floats
    scale_: float
    length_: float

    def __init__(self, metric: Reducible) -> None:
        if metric not in get_args(Reducible):
            raise ValueError(
                f"metric must be one of {get_args(Reducible)}: got {metric!r}. The cosine needs no "
                "reduction"
            )
        self.metric = metric

    def fit(self, X: ArrayLike) -> Self:
        """Learn the largest length, and for distances the mean and the scale, of items (m, n)."""
        rows = self._rows(X, None)
        if not len(rows):
            raise ValueError("X must have at least one row")
        is_distance = self.metric == "euclidean"
        self.mean_ = rows.mean(axis=0) if is_distance else np.zeros(rows.shape[1])
        square = np.square(rows - self.mean_).sum(axis=1).mean()
        self.scale_ = float(np.sqrt(square)) if is_distance and square > 0 else 1.0
        lengths = np.linalg.norm(self._extended(rows), axis=1)
        self.length_ = float(lengths.max()) or 1.0
        return self

    def items(self, X: ArrayLike) -> NDArray[np.float32]:
        """Return items of length 1, (m, n + 1), or (m, n + 2) for distances.

        Raises
        ------
        ValueError
            An item is longer than all items of `fit`: the cosine would not have the same order.
        """
        rows = self._extended(self._rows(X, len(self.mean_))) / self.length_
        squares = np.square(rows).sum(axis=1)
        longer = np.flatnonzero(squares > 1 + _ROUNDING)
        if len(longer):
            ratio = np.sqrt(squares[longer[0]])
            raise ValueError(
                f"row {longer[0]} is {ratio:.3g} times as long as the longest row of fit: fit "
                "again with all rows, and encode all rows again"
            )
        missing = np.sqrt(np.maximum(1 - squares, 0))
        return np.concatenate([rows, missing[:, None]], axis=1).astype(np.float32)

    def queries(self, Q: ArrayLike) -> NDArray[np.float32]:
        """Return queries with the same number of dimensions as `items`."""
        rows = (self._rows(Q, len(self.mean_)) - self.mean_) / self.scale_
        ends = [1.0, 0.0] if self.metric == "euclidean" else [0.0]
        tail = np.tile(ends, (len(rows), 1))
        return np.concatenate([rows, tail], axis=1).astype(np.float32)

    def _extended(self, rows: Floats) -> Floats:
        """Return items whose inner product with queries has the order of the metric."""
        if self.metric == "dot":
            return rows
        scaled = (rows - self.mean_) / self.scale_
        squares = np.square(scaled).sum(axis=1, keepdims=True)
        return np.concatenate([scaled, (1 - squares) / 2], axis=1)

    def _rows(self, X: ArrayLike, n_features: int | None) -> Floats:
        rows: NDArray[Any] = np.asarray(X)
        if rows.ndim != 2 or rows.dtype.kind not in "fiu":
            raise ValueError(
                f"X must be a numeric array (rows, dimensions): got {rows.dtype} of shape "
                f"{rows.shape}"
            )
        if n_features is not None and rows.shape[1] != n_features:
            raise ValueError(f"X must have {n_features} dimensions: got {rows.shape[1]}")
        check_finite(rows)
        return rows.astype(np.float64)

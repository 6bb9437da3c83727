"""Rows to store: vectors with their ids and metadata, read in blocks."""

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.io.vectors import VectorFile, open_vectors
from antipodal.stores.ids import IdType, check_unique_ids, id_type_of
from antipodal.stores.loading import check_length
from antipodal.stores.metadata import Metadata
from antipodal.validation import check_finite

_ROWS_AT_ONCE = 4096

Block = tuple[NDArray[Any], NDArray[Any] | None, list[Any] | None]


class Rows:
    """Vectors with ids and metadata.

    Parameters
    ----------
    vectors : array, VectorFile or path
    ids : integers or strings, optional
    metadata : iterable of mappings, optional
    """

    def __init__(
        self, vectors: Any, ids: ArrayLike | None = None, metadata: Metadata | None = None
    ) -> None:
        if isinstance(vectors, (str, os.PathLike)):
            vectors = open_vectors(os.fspath(vectors))
        self.vectors: Any = vectors if isinstance(vectors, VectorFile) else np.asanyarray(vectors)
        if not isinstance(self.vectors, VectorFile):
            _check_table(self.vectors)
        self.n_rows: int = self.vectors.shape[0]
        self.n_features: int = self.vectors.shape[1]
        self.id_type: IdType = "int64" if ids is None else id_type_of(ids)
        self.ids = None if ids is None else check_unique_ids(ids, self.id_type)
        if self.ids is not None and len(self.ids) != self.n_rows:
            raise ValueError(
                f"there must be one id for each of {self.n_rows} vectors: got {len(self.ids)}"
            )
        if isinstance(metadata, (str, bytes, Mapping)):
            raise TypeError(
                "metadata must be a sequence of JSON objects, one per vector: got one "
                f"{type(metadata).__name__}"
            )
        check_length(metadata, self.n_rows)
        self.metadata = metadata

    def check(self, id_type: IdType, n_features: int) -> None:
        """Raise an error unless the rows match the features and ids of a collection."""
        if self.n_features != n_features:
            raise ValueError(
                f"vectors must have {n_features} values, as those of the collection: got "
                f"{self.n_features}. Are they of another embedding model?"
            )
        if self.ids is not None or id_type == "string":
            check_unique_ids([] if self.ids is None else self.ids, id_type)
        if self.ids is None and id_type == "string" and self.n_rows:
            raise ValueError("ids are required: this collection has string ids, and got none")

    def check_finite(self) -> None:
        """Raise ValueError for NaN or infinity in any row."""
        start = 0
        for rows in self._vector_blocks(_ROWS_AT_ONCE):
            check_finite(rows, "vectors", np.arange(start, start + len(rows)))
            start += len(rows)

    def blocks(self, size: int, first: int = 0) -> Iterator[Block]:
        """Yield vectors, ids and metadata in blocks, from row `first` on."""
        objects = None if self.metadata is None else iter(self.metadata)
        if objects is not None:
            next(islice(objects, first, first), None)
        start = 0
        for rows in self._vector_blocks(size):
            stop = start + len(rows)
            kept = rows[max(first - start, 0) :]
            if len(kept):
                check_finite(kept, "vectors", np.arange(stop - len(kept), stop))
                ids = None if self.ids is None else self.ids[stop - len(kept) : stop]
                yield kept, ids, None if objects is None else list(islice(objects, len(kept)))
            start = stop

    def sample(self, size: int, seed: int) -> NDArray[Any]:
        """Return up to `size` random rows, in their order."""
        if self.n_rows <= size:
            chosen = np.arange(self.n_rows)
        else:
            chosen = np.sort(np.random.default_rng(seed).choice(self.n_rows, size, replace=False))
        if isinstance(self.vectors, VectorFile):
            rows = self.vectors.take(chosen)
        else:
            rows = np.asarray(self.vectors[chosen])
        check_finite(rows, "vectors", chosen)
        return rows

    def _vector_blocks(self, size: int) -> Iterator[NDArray[Any]]:
        if isinstance(self.vectors, VectorFile):
            yield from self.vectors.blocks(size)
            return
        for start in range(0, self.n_rows, size):
            yield np.asarray(self.vectors[start : start + size])


def _check_table(vectors: NDArray[Any]) -> None:
    if vectors.ndim != 2 or vectors.shape[1] == 0:
        raise ValueError(
            f"vectors must have shape (rows, dimensions): got {vectors.shape}. Is one vector "
            "missing its brackets?"
        )
    if vectors.dtype.kind not in "fiu":
        raise TypeError(f"vectors must be real numbers: got {vectors.dtype}")

"""Which rows train, which are queries and which are searched; saved and read back."""

import os
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from antipodal.errors import AntipodalError
from antipodal.storage.arrays import open_npz
from antipodal.storage.files import replacing

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Split:
    """Row numbers of a dataset, in ascending order and without repeats.

    Parameters
    ----------
    train, query, database : int64 arrays
        Queries are in neither of the other two. Training rows may be in the database.
    pairs : int64 array (P, 2), optional
        Training pairs, as positions in `train`: ``fit(X[split.train])`` sees no query, and
        ``split.train[split.pairs]`` are rows of the dataset.
    similar : bool array (P,), optional
        Whether each pair is similar.
    concepts : int64 array, optional
        The columns of multi-hot labels that count, ascending: relevance is to share one of
        ``labels[:, split.concepts]``.
    """

    train: Rows
    query: Rows
    database: Rows
    pairs: Rows | None = None
    similar: NDArray[np.bool_] | None = None
    concepts: Rows | None = None

    def __post_init__(self) -> None:
        for name in ("train", "query", "database", "concepts"):
            rows = getattr(self, name)
            if rows is not None:
                _check_ascending(name, rows)
        for name in ("train", "database"):
            shared = np.intersect1d(self.query, getattr(self, name), assume_unique=True)
            if len(shared):
                raise ValueError(
                    f"query and {name} must have no row in common: both have row {shared[0]}"
                )
        if (self.pairs is None) != (self.similar is None):
            raise ValueError("pairs and similar must be given together")
        if self.pairs is not None and self.similar is not None:
            _check_pairs(self.pairs, self.similar, len(self.train))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the split to one .npz file."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        with replacing(path) as file:
            np.savez(file, **{name: a for name, a in arrays.items() if a is not None})

    @classmethod
    def load(cls, path: str | os.PathLike[str], n_rows: int | None = None) -> Self:
        """Read what `save` wrote; with `n_rows`, also check that it fits a dataset so long."""
        with open_npz(path) as file:
            arrays: dict[str, NDArray[Any]] = {name: file[name] for name in file.files}
        names = {field.name for field in fields(cls)}
        if not {"train", "query", "database"} <= arrays.keys() <= names:
            found = ", ".join(sorted(arrays)) or "nothing"
            raise AntipodalError(
                f"{path} is not a saved split: it must hold train, query and database, and holds "
                f"{found}"
            )
        try:
            split = cls(**{name: _restored(name, array) for name, array in arrays.items()})
            last = max(rows.max(initial=0) for rows in (split.train, split.query, split.database))
            if n_rows is not None and last >= n_rows:
                raise ValueError(f"it names row {last}, and the dataset has {n_rows} rows")
        except ValueError as error:
            raise AntipodalError(f"{path} is not a valid split: {error}") from error
        return split


def _restored(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Integers of any width as int64; booleans, and whatever will be refused, as they are."""
    return array.astype(np.int64) if array.dtype.kind == "i" else array


def _check_ascending(name: str, rows: NDArray[Any]) -> None:
    if rows.ndim != 1 or rows.dtype != np.int64:
        raise ValueError(f"{name} must be int64 (n,): got {rows.dtype} {rows.shape}")
    if len(rows) == 0:
        raise ValueError(f"{name} is empty")
    if rows[0] < 0:
        raise ValueError(f"{name} must be numbers from 0: got {rows[0]}")
    if (rows[1:] <= rows[:-1]).any():
        raise ValueError(f"{name} must be ascending, without repeats")


def _check_pairs(pairs: NDArray[Any], similar: NDArray[Any], n_train: int) -> None:
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype != np.int64:
        raise ValueError(f"pairs must be int64 (P, 2): got {pairs.dtype} {pairs.shape}")
    if similar.shape != (len(pairs),) or similar.dtype != np.bool_:
        raise ValueError(
            f"similar must be bool ({len(pairs)},): got {similar.dtype} {similar.shape}"
        )
    if pairs.size and (pairs.min() < 0 or pairs.max() >= n_train):
        raise ValueError(
            f"pairs must be positions in train, 0 to {n_train - 1}: "
            f"got values from {pairs.min()} to {pairs.max()}"
        )
    if (pairs[:, 0] == pairs[:, 1]).any():
        raise ValueError("pairs must be of two different rows")

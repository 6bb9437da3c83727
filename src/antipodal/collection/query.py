"""Queries of a collection: codes or float queries for its store."""

import warnings
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import Codes
from antipodal.hashers.base import BaseHasher


@dataclass
class Query:
    """Queries of a store: codes for Hamming scoring, or values for asymmetric scoring.

    Attributes
    ----------
    codes : uint8 (n, ⌈n_bits / 8⌉), optional
    values : float64 (n, n_bits), optional
    offsets : float64 (n,), optional
        Added to the scores of each query, so that they estimate cosines.
    rows : (n, n_features), optional
        Vectors for reranking.
    excluded : int64 (n,), optional
        The integer id of an item to exclude from the results of each query.
    """

    codes: Codes | None = None
    values: NDArray[np.float64] | None = None
    offsets: NDArray[np.float64] | None = None
    rows: NDArray[Any] | None = None
    excluded: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        values = self.codes if self.values is None else self.values
        return 0 if values is None else len(values)

    def part(self, part: slice | NDArray[np.intp]) -> Self:
        """Return some of the queries."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        return type(self)(
            **{name: None if array is None else array[part] for name, array in arrays.items()}
        )


def chosen_scoring(model: BaseHasher, scoring: str | None) -> str:
    """Return the scoring of a search; warn about Hamming search of asymmetric codes."""
    if scoring not in (None, "hamming", "asymmetric"):
        raise ValueError(f"scoring must be hamming or asymmetric: got {scoring!r}")
    if scoring == "hamming" and model.scoring == "asymmetric":
        warnings.warn(
            f"the codes of {type(model).__name__} are designed for asymmetric search: recall by "
            "Hamming distance is far lower",
            stacklevel=3,
        )
    return scoring or model.scoring

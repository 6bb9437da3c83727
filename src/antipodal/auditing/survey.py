"""Look through all rows once: which are not finite, which are zero, which are there twice."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.hashers.parts.rows import row_blocks
from antipodal.storage.scratch import mapped_rows

_NAMED = 5  # rows that are named, of each kind


@dataclass(frozen=True)
class Survey:
    """Rows of a set of vectors that deserve a second look."""

    rows: int
    features: int
    not_finite: NDArray[np.int64]
    zero: NDArray[np.int64]
    equal: int  # rows that an earlier one has already

    def remarks(self) -> list[str]:
        """Say what is unusual, a sentence for each kind."""
        said = []
        if len(self.not_finite):
            said.append(f"Rows that are not finite, left out: {_named(self.not_finite)}.")
        if len(self.zero):
            said.append(f"Rows of zeros, which have no direction: {_named(self.zero)}.")
        if self.equal:
            said.append(
                f"Rows equal to an earlier one, which no code tells apart: {self.equal:,} of "
                f"{self.rows:,}."
            )
        return said


def _named(rows: NDArray[np.int64]) -> str:
    return f"{len(rows):,} ({', '.join(map(str, rows[:_NAMED]))}{', …' * (len(rows) > _NAMED)})"


def survey(X: NDArray[Any]) -> Survey:
    """Read all rows once; of each, 8 bytes of a digest are kept to find equal ones."""
    not_finite, zero = [], []
    digests = np.empty(len(X), np.uint64)
    for block in row_blocks(X):
        rows = np.ascontiguousarray(X[block])
        numbers = np.arange(block.start, block.start + len(rows))
        not_finite.append(numbers[~np.isfinite(rows).all(axis=1)])
        zero.append(numbers[~rows.any(axis=1)])
        digests[numbers] = _digests(rows)
    return Survey(
        len(X), X.shape[1], np.concatenate(not_finite), np.concatenate(zero),
        len(X) - len(np.unique(digests)),
    )  # fmt: skip


def _digests(rows: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a sum of the rows' bytes, by pairs and with random weights: equal for equal rows."""
    raw = rows.view(np.uint8)
    pairs = np.zeros((len(raw), -(-raw.shape[1] // 2)), np.uint16)
    pairs.view(np.uint8)[:, : raw.shape[1]] = raw
    weights = np.random.default_rng(0).integers(1, 2**63, pairs.shape[1], np.uint64) * 2 + 1
    sums: NDArray[np.uint64] = pairs.astype(np.uint64) @ weights
    return sums


def without(X: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """Return X without some rows, which are copied to a temporary file and mapped."""
    kept = np.ones(len(X), bool)
    kept[rows] = False
    blocks = (X[block][kept[block]] for block in row_blocks(X))
    return mapped_rows(blocks, (int(kept.sum()), X.shape[1]), X.dtype, "the rows that are finite")

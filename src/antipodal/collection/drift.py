"""Drift: quality of the codes of new vectors, compared with fit time."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.codes import unpack
from antipodal.hashers.base import BaseHasher

SAMPLE = 2_000  # rows whose codes are measured
MIN_ROWS = 100  # also the number of rows that are compared with each other
_K = 10
_ERROR_RATIO = 1.15  # of the reconstruction errors, above which vectors have drifted
_RECALL_DROP = 0.05  # for models without reconstruction


@dataclass(frozen=True)
class CodeQuality:
    """Quality of the codes of some rows.

    Attributes
    ----------
    rows : int
        Number of rows.
    recall : float
        Recall@10 of each row among 100 rows, which does not depend on the number of rows.
    error : float, optional
        Mean squared distance of the rows, scaled to length 1, from their reconstruction; None for
        models without reconstruction.
    """

    rows: int
    recall: float
    error: float | None


def code_quality(model: BaseHasher, vectors: NDArray[Any]) -> CodeQuality:
    """Measure the codes of up to 2,000 random rows."""
    if len(vectors) < MIN_ROWS:
        raise ValueError(f"at least {MIN_ROWS} vectors are needed: got {len(vectors)}")
    chosen = np.random.default_rng(0).permutation(len(vectors))[:SAMPLE]
    rows = np.asarray(vectors[chosen], np.float64)
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1), 1e-30)[:, None]
    codes = model.encode(rows)
    signs = 2.0 * unpack(codes, model.n_bits) - 1
    queries = model.query(rows) if model.scoring == "asymmetric" else signs
    groups = [slice(i, i + MIN_ROWS) for i in range(0, len(rows) - MIN_ROWS + 1, MIN_ROWS)]
    recalls = [
        _recall(unit[group] @ unit[group].T, queries[group] @ signs[group].T) for group in groups
    ]
    error = None
    if model.scoring == "asymmetric" and hasattr(model, "reconstruct"):
        error = float(np.square(unit - model.reconstruct(codes)).sum(axis=1).mean())
    return CodeQuality(len(rows), float(np.mean(recalls)), error)


def _recall(cosines: NDArray[np.float64], scores: NDArray[np.float64]) -> float:
    """Return recall@10 of the rows of a group among the others."""
    for values in (cosines, scores):
        np.fill_diagonal(values, -np.inf)  # a row is no neighbour of itself
    worst = np.partition(cosines, -_K, axis=1)[:, -_K]
    found = np.argsort(-scores, axis=1, kind="stable")[:, :_K]
    return float((np.take_along_axis(cosines, found, axis=1) >= worst[:, None] - 1e-9).mean())


@dataclass(frozen=True)
class Drift:
    """Quality of the codes of new vectors, compared with that at fit time.

    The text form has the measured values and the recommended action.
    """

    before: CodeQuality
    now: CodeQuality
    can_refit: bool

    @property
    def has_drifted(self) -> bool:
        """Whether the codes of the new vectors are clearly worse than those at fit time."""
        if self.before.error is not None and self.now.error is not None:
            return self.now.error > _ERROR_RATIO * self.before.error
        return self.now.recall < self.before.recall - _RECALL_DROP

    def __str__(self) -> str:
        parts = []
        if self.before.error is not None and self.now.error is not None:
            parts.append(
                f"reconstruction error {self.now.error:.3f}, {self.before.error:.3f} at fit time"
            )
        parts.append(
            f"recall@{_K} among {MIN_ROWS} rows {self.now.recall:.3f}, "
            f"{self.before.recall:.3f} at fit time"
        )
        if not self.has_drifted:
            return f"No drift: {'; '.join(parts)}."
        action = (
            "Collection.refit writes a new collection with a model fitted to the kept vectors"
            if self.can_refit
            else "create a new collection from the original and the new vectors"
        )
        return f"The vectors have drifted: {'; '.join(parts)}. To restore recall, {action}."

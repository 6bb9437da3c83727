"""What a classifier believes of rows without labels, for a network to learn from.

    p_i = the class probabilities of a support vector machine        a row without a label
    p_i ← ¾p_i + ¼ mean of p_j over the ten nearest rows j           which are mostly of its class
    p_i = 1 for its own classes, 0 elsewhere                         a row with a label

The teacher is fitted inside `fit` and forgotten: encoding does not need it.
"""

import warnings
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from antipodal.hashers.base import block_rows, map_blocks
from antipodal.hashers.parts.rows import draw_rows
from antipodal.hashers.parts.svm import fit_svm, label_table, svm_probabilities

Float32Array = NDArray[np.float32]

_MOST_LABELLED = 5000  # rows that the machines are fitted to: their memory grows with the square
_FEWEST_A_CLASS = 3  # labelled rows, on average, that probabilities can be calibrated with
_PENALTY = 5.0  # C of the machines, as in `ClassifierLSH`
_NEAREST, _SHARE = 10, 0.25
_BLOCK_ROWS = 1024


def can_teach(labels: NDArray[Any]) -> bool:
    """Return whether labels are enough to calibrate probabilities; if not, warn that they are not.

    Without a teacher a network learns from the labelled rows alone.
    """
    table = label_table(labels)
    n_classes = int(table.any(axis=0).sum())
    if table.sum() >= _FEWEST_A_CLASS * n_classes:
        return True
    warnings.warn(
        f"{len(labels)} labelled rows of {n_classes} classes are too few to calibrate a classifier "
        "with: the rows without labels are not used",
        UserWarning,
        stacklevel=4,
    )
    return False


def beliefs(
    labelled: Float32Array,
    labels: NDArray[Any],
    unlabelled: Float32Array,
    rng: np.random.RandomState,
) -> Float32Array:
    """Return p of all rows, the labelled ones first, (l + u, c); rows are scaled."""
    known = label_table(labels).astype(np.float32)
    shown = draw_rows(len(labelled), _MOST_LABELLED, rng, labels)
    teacher = fit_svm(labelled[shown], labels[shown], _PENALTY, None, rng)
    believed = np.empty((len(unlabelled), known.shape[1]), np.float32)
    believed[:, len(teacher.offsets) :] = 0.0  # classes that no shown row is of
    probabilities = svm_probabilities(teacher, block_rows(len(unlabelled)))
    for start, values in map_blocks(probabilities, unlabelled):
        believed[start : start + len(values), : values.shape[1]] = values
    means = _mean_of_nearest(
        unlabelled,
        np.concatenate([unlabelled, labelled[shown]]),
        np.concatenate([believed, known[shown]]),
    )
    believed += _SHARE * (means - believed)
    return np.concatenate([known, believed])


def sharpened(p: Float32Array, power: float, *, exclusive: bool) -> Float32Array:
    """Return p^a, of classes over its sum, of concepts over p^a + (1 - p)^a: surer for a > 1."""
    if power == 1:
        return p
    raised = np.power(p, np.float32(power))
    total = raised.sum(axis=1, keepdims=True)
    if not exclusive:
        total = raised + np.power(1 - p, np.float32(power))
    surer: Float32Array = raised / total
    return surer


def _mean_of_nearest(
    queries: Float32Array, rows: Float32Array, values: Float32Array
) -> Float32Array:
    """Return the mean value of the rows nearest to each query.

    The queries are the first rows: a query does not count among those nearest to itself.
    """
    index = faiss.IndexFlatL2(rows.shape[1])
    index.add(rows)
    n_nearest = min(_NEAREST, len(rows) - 1)
    means = np.empty((len(queries), values.shape[1]), np.float32)
    for start in range(0, len(queries), _BLOCK_ROWS):
        block = queries[start : start + _BLOCK_ROWS]
        _, found = index.search(block, n_nearest + 1)
        others = found != np.arange(start, start + len(block))[:, None]
        others[:, -1] &= ~others.all(axis=1)  # one too many where many rows are equal to the query
        total = np.einsum("qk,qkc->qc", others.astype(np.float32), values[found])
        means[start : start + len(block)] = total / n_nearest
    return means

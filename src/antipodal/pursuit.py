"""Orthogonal matching pursuit: a sample as a sum of few atoms, for all samples at once."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating[Any]]
IntArray = NDArray[np.intp]


class SparseCodes(NamedTuple):
    """X (m, n_atoms), by the s places that a sample may use."""

    atoms: IntArray  # (m, s): which atom, or -1 where the place is empty
    values: FloatArray  # (m, s): times what, 0 where the place is empty


def pursue(gram: FloatArray, Dty: FloatArray, sparsity: int) -> SparseCodes:
    """Orthogonal matching pursuit from DᵀD and Dᵀy, a row per sample. [Rubinstein2008]

        i ← argmaxᵢ |dᵢᵀr|                  the atom most like what is left of y
        q ← (dᵢ - Σⱼ qⱼ qⱼᵀdᵢ) / ‖·‖         what is new in it
        r ← r - q qᵀr

    Only products with D are formed: `Dtr` is Dᵀr, `Dtq` all Dᵀqⱼ, `fresh` the ‖·‖² of every atom.
    The coefficients solve the triangle Σₗ (qⱼᵀdₗ) xₗ = qⱼᵀy.

    scikit-learn's `orthogonal_mp_gram` goes sample by sample, 30 times slower, with thresholds
    that are absolute: it stops, and warns, where a sample is small or is coded exactly already.
    """
    (m, n_atoms), eps = Dty.shape, np.finfo(Dty.dtype).eps
    rows = np.arange(m)
    atoms, qty = np.full((m, sparsity), -1), np.zeros((m, sparsity), Dty.dtype)
    Dtr, fresh = Dty.copy(), np.ones_like(Dty)
    Dtq = np.zeros((m, sparsity, n_atoms), Dty.dtype)
    rounding = 32 * eps * np.abs(Dty).max(axis=1)
    for j in range(sparsity):
        likeness = np.where(fresh > np.sqrt(eps), np.abs(Dtr), 0)  # 0: a sum of chosen atoms
        i = likeness.argmax(axis=1)
        found = likeness[rows, i] > rounding
        scale = found / np.sqrt(np.maximum(fresh[rows, i], eps))
        Dtq[:, j] = gram[i] - (Dtq[rows, None, :j, i] @ Dtq[:, :j])[:, 0]
        Dtq[:, j] *= scale[:, None]
        qty[:, j] = scale * Dtr[rows, i]
        Dtr -= qty[:, j, None] * Dtq[:, j]
        fresh -= Dtq[:, j] ** 2
        atoms[found, j] = i[found]
    triangle = np.take_along_axis(Dtq, atoms[:, None], axis=2)
    x = np.zeros_like(qty)
    for j in reversed(range(sparsity)):
        known = np.sum(triangle[:, j, j + 1 :] * x[:, j + 1 :], axis=1)
        np.divide(qty[:, j] - known, triangle[:, j, j], out=x[:, j], where=atoms[:, j] >= 0)
    return SparseCodes(atoms, x)


def decode(codes: SparseCodes, D: FloatArray) -> FloatArray:
    """Return XDᵀ, the samples that the codes stand for."""
    X = np.zeros((len(codes.atoms), D.shape[1]), D.dtype)
    for atom, value in zip(codes.atoms.T, codes.values.T, strict=True):
        X[np.arange(len(X)), atom] += value  # an empty place adds 0 to the last atom
    return X @ D.T

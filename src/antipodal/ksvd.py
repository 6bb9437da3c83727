"""Learn a dictionary in which every sample is a sum of few atoms: K-SVD.

    min_{D,X} ‖Y - X Dᵀ‖_F  subject to  ‖x‖₀ ≤ s for every row x of X,  ‖d‖ = 1 for every column d of D

Each sweep codes the samples with the atoms as they are (orthogonal matching pursuit), then improves
one atom at a time together with the coefficients of the samples that use it. [Aharon2006], with
the approximate atom update and the batch pursuit of [Rubinstein2008].
"""

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Generic, NamedTuple, TypeVar, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array, check_random_state, gen_batches
from torch import Tensor

FloatArray = NDArray[np.floating[Any]]
Array = TypeVar("Array", Tensor, NDArray[Any])

_SAME = 0.99  # atoms whose |cosine| is above this do each other's work
_BLOCK = 2**18  # numbers in a temporary array: bounds memory, and stays in the cache


@dataclass(frozen=True)
class KSVDResult(Generic[Array]):
    """What `ksvd` learned.

    `dictionary` (n_features, n_atoms) has unit columns. `errors` holds ‖Y - X Dᵀ‖_F / ‖Y‖_F after
    each sweep; each entry is below the one before. It has fewer than `n_iter` entries when a sweep
    found nothing left to gain.
    """

    dictionary: Array
    errors: NDArray[np.float64]


class _Codes(NamedTuple):
    """X, of which only the s places a sample may use are stored, -1 marking one left empty."""

    atoms: NDArray[np.intp]  # (m, s)
    values: FloatArray  # (m, s)


@overload
def ksvd(
    Y: Tensor, n_atoms: int, *, sparsity: int, n_iter: int = ..., random_state: Any = ...
) -> KSVDResult[Tensor]: ...
@overload
def ksvd(
    Y: ArrayLike, n_atoms: int, *, sparsity: int, n_iter: int = ..., random_state: Any = ...
) -> KSVDResult[NDArray[Any]]: ...
def ksvd(
    Y: ArrayLike | Tensor,
    n_atoms: int,
    *,
    sparsity: int,
    n_iter: int = 30,
    random_state: Any = None,
) -> KSVDResult[Any]:
    """Learn n_atoms atoms, of which a sum of `sparsity` comes close to each row of Y.

    A sweep trades atoms for samples, codes, and updates the atoms. It first trades boldly: atoms
    that nobody uses, copies of another atom and the least used atom. Where that would raise the
    error it is undone, and only unused atoms are traded, which cannot raise it: each sample keeps
    its code unless the new one is better, and an atom update only descends.

    Parameters
    ----------
    Y : array-like or Tensor of shape (n_samples, n_features)
        Memory beyond Y is one array of its size, the residual, and 2 × sparsity numbers a sample.
    n_atoms : int
        Columns of the dictionary; more than n_features or n_samples is allowed.
    sparsity : int
        Most atoms that a sample may use, from 1 to n_atoms.
    n_iter : int
        Most sweeps to make.
    random_state : int, RandomState instance or None
        Chooses the samples that the first dictionary is made of.

    Returns
    -------
    KSVDResult
        A tensor's dictionary is a tensor of the same dtype and device.

    Examples
    --------
    >>> learned = ksvd([[3, 0], [0, 2], [1, 0]], n_atoms=2, sparsity=1, random_state=0)
    >>> abs(learned.dictionary).sum(axis=1)
    array([1., 1.])
    """
    if isinstance(Y, Tensor):
        dtype = Y.dtype if Y.dtype.is_floating_point else torch.get_default_dtype()
        array = Y.detach().cpu().to(torch.promote_types(dtype, torch.float32)).numpy()
        found = ksvd(
            array, n_atoms, sparsity=sparsity, n_iter=n_iter, random_state=random_state
        )
        return KSVDResult(torch.from_numpy(found.dictionary).to(Y.device, dtype), found.errors)

    samples = _check_samples(Y)
    _check_count("n_atoms", n_atoms)
    _check_count("n_iter", n_iter)
    _check_count("sparsity", sparsity)
    if sparsity > n_atoms:
        raise ValueError(
            f"sparsity must be at most n_atoms = {n_atoms}: got {sparsity}. Are the two swapped?"
        )
    rng = check_random_state(random_state)
    D = _first_dictionary(samples, n_atoms, rng)
    shape = len(samples), sparsity
    codes = _Codes(np.full(shape, -1), np.zeros(shape, D.dtype))
    residual, length = samples.copy(), float(np.linalg.norm(samples))
    errors = [np.inf]
    choices: list[NDArray[np.intp]] = [np.array([], np.intp)]
    for left in reversed(range(n_iter)):
        for spare in choices:
            worst_first = np.argsort(-np.sum(residual**2, axis=1), kind="stable")
            new_D = _place_samples(samples, D, spare, worst_first)
            new_codes = _code(samples, new_D, codes, residual, spare)
            _update_atoms(new_D, new_codes, residual)
            error = float(np.linalg.norm(residual)) / length
            if error < errors[-1]:
                break
            residual = samples - _decode(D, codes)
        else:
            break  # even the sweep that cannot raise the error did not lower it
        D, codes = new_D, new_codes
        errors.append(error)
        unused, idle = _spare_atoms(D, codes)
        # an atom traded in the last sweep would stay the sample that it was made of
        choices = [idle, unused] if left > 1 else [unused]
    return KSVDResult(np.ascontiguousarray(D), np.array(errors[1:]))


def _check_samples(Y: ArrayLike) -> FloatArray:
    samples: FloatArray = check_array(Y, dtype=[np.float64, np.float32], input_name="Y")
    peak = np.abs(samples).max()
    if peak == 0:
        raise ValueError(
            f"Y must have a non-zero entry: all {samples.size} are zero. Were the features read?"
        )
    # dictionary and relative error do not depend on the scale, but squares of it may overflow
    return samples if 1e-6 < peak < 1e6 else samples / peak


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer: got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1: got {value}")


def _first_dictionary(Y: FloatArray, n_atoms: int, rng: np.random.RandomState) -> FloatArray:
    """Samples in random order, none the copy of another; random directions if they run out."""
    D = rng.standard_normal((n_atoms, Y.shape[1])).astype(Y.dtype).T
    D /= np.linalg.norm(D, axis=0)
    return _place_samples(Y, D, range(n_atoms), rng.permutation(len(Y)))


def _place_samples(
    Y: FloatArray, D: FloatArray, places: Iterable[int], order: Iterable[int]
) -> FloatArray:
    """Put samples, in this order, into these columns of D, passing over copies of an atom."""
    D = D.copy(order="F")  # columns are read and written one at a time
    candidates = iter(order)
    for k in places:
        for i in candidates:
            length = np.linalg.norm(Y[i])
            if length > 0 and np.all(np.abs(Y[i] @ D) <= _SAME * length):
                D[:, k] = Y[i] / length
                break
    return D


def _spare_atoms(D: FloatArray, codes: _Codes) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Atoms that no sample uses; and these with copies of an earlier atom and the least used."""
    used = codes.atoms >= 0
    energy = np.bincount(codes.atoms[used], codes.values[used] ** 2, minlength=D.shape[1])
    copies = np.any(np.triu(np.abs(D.T @ D), 1) > _SAME, axis=0)
    return np.flatnonzero(energy == 0), np.flatnonzero(copies | (energy <= energy.min()))


def _code(
    Y: FloatArray, D: FloatArray, codes: _Codes, residual: FloatArray, spare: NDArray[np.intp]
) -> _Codes:
    """Code the samples anew, where that is better or the old code used a spare atom."""
    gram, sparsity = D.T @ D, codes.atoms.shape[1]
    atoms, values = codes.atoms.copy(), codes.values.copy()
    for block in gen_batches(len(Y), max(1, _BLOCK // max(D.shape[1] * sparsity, D.shape[0]))):
        new = _pursue(gram, Y[block] @ D, sparsity)
        left = Y[block] - _decode(D, new)
        better = np.sum(left**2, axis=1) < np.sum(residual[block] ** 2, axis=1)
        better |= np.isin(atoms[block], spare).any(axis=1)
        atoms[block][better], values[block][better] = new.atoms[better], new.values[better]
        residual[block][better] = left[better]
    return _Codes(atoms, values)


def _decode(D: FloatArray, codes: _Codes) -> FloatArray:
    """X Dᵀ."""
    X = np.zeros((len(codes.atoms), D.shape[1]), D.dtype)
    rows = np.arange(len(X))
    for atom, value in zip(codes.atoms.T, codes.values.T, strict=True):
        X[rows, atom] += value  # an empty place has value 0
    return X @ D.T


def _pursue(gram: FloatArray, Dty: FloatArray, sparsity: int) -> _Codes:
    """Orthogonal matching pursuit, for all rows at once. [Rubinstein2008]

        i ← argmaxᵢ |dᵢᵀr|                        the atom most like what is left
        q ← (dᵢ - Σⱼ (qⱼᵀdᵢ) qⱼ) / ‖·‖             the part of it that is new
        r ← r - (qᵀr) q

    in products with D only: V holds Dᵀqⱼ, `fresh` the squared length of what is new in each atom,
    Dtr is Dᵀr. The coefficients then solve Σₗ (qⱼᵀdₗ) xₗ = qⱼᵀy, a triangle.

    scikit-learn's `orthogonal_mp_gram` takes the samples one by one, which is 30 times slower, and
    its thresholds are absolute: it warns and stops early on small or exactly coded samples.
    """
    m, eps = len(Dty), np.finfo(Dty.dtype).eps
    rows = np.arange(m)
    Dtr, fresh = Dty.copy(), np.ones_like(Dty)
    V = np.zeros((m, sparsity, len(gram)), Dty.dtype)
    atoms, along = np.full((m, sparsity), -1), np.zeros((m, sparsity), Dty.dtype)
    rounding = 32 * eps * np.abs(Dty).max(axis=1)
    for j in range(sparsity):
        score = np.where(fresh > np.sqrt(eps), np.abs(Dtr), 0)  # not a sum of chosen atoms
        i = score.argmax(axis=1)
        going = score[rows, i] > rounding
        scale = np.where(going, 1 / np.sqrt(np.maximum(fresh[rows, i], eps)), 0)[:, None]
        q = scale * (gram[i] - (V[rows, None, :j, i] @ V[:, :j])[:, 0])
        along[:, j] = scale[:, 0] * Dtr[rows, i]
        Dtr -= along[:, j, None] * q
        fresh -= q**2
        V[:, j] = q
        atoms[going, j] = i[going]
    triangle = np.take_along_axis(V, atoms[:, None], axis=2)  # (m, s, s): qⱼᵀdₗ
    x = np.zeros_like(along)
    for j in reversed(range(sparsity)):
        known = np.sum(triangle[:, j, j + 1 :] * x[:, j + 1 :], axis=1)
        np.divide(along[:, j] - known, triangle[:, j, j], out=x[:, j], where=atoms[:, j] >= 0)
    return _Codes(atoms, x)


def _update_atoms(D: FloatArray, codes: _Codes, residual: FloatArray) -> None:
    """Improve the atoms, one after the other, in place. [Rubinstein2008]

        d ← Eᵀx / ‖Eᵀx‖,  x ← E d

    x is what the samples that use d multiply it with, E = R + x dᵀ what they leave without it.
    """
    size = max(1, _BLOCK // len(D))
    for k in range(D.shape[1]):
        rows, places = np.nonzero(codes.atoms == k)
        x, d = codes.values[rows, places], D[:, k].copy()
        blocks = list(gen_batches(len(rows), size)) if len(rows) else []
        Ex = sum((residual[rows[b]].T @ x[b] for b in blocks), (x @ x) * d)
        length = np.linalg.norm(Ex)
        if length == 0:
            continue  # unused
        D[:, k] = Ex / length
        for b in blocks:
            E = residual[rows[b]] + np.outer(x[b], d)
            new = E @ D[:, k]
            residual[rows[b]] = E - np.outer(new, D[:, k])
            codes.values[rows[b], places[b]] = new

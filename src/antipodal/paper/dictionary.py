"""Dictionary learning: K-SVD with orthogonal matching pursuit."""

from collections.abc import Iterable
from numbers import Integral
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array, check_random_state
from torch import Tensor

from antipodal.threads import one_thread

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


Array = TypeVar("Array", Tensor, NDArray[Any])

_SAME = 0.99  # atoms whose |cosine| is above this do each other's work
_BLOCK = 2**18  # numbers in a temporary array: bounds the memory, and stays in the cache


class KSVDResult(NamedTuple, Generic[Array]):
    """What `ksvd` learned: `dictionary` (n_features, n_atoms), and the error after each sweep.

    The columns of the dictionary have length 1. `errors` are relative, ‖Y - XDᵀ‖_F / ‖Y‖_F, and
    never rise; there are fewer than `n_iter` of them when a sweep found nothing left to gain.
    """

    dictionary: Array
    errors: NDArray[np.float64]


def ksvd(
    Y: Array, n_atoms: int, *, sparsity: int, n_iter: int = 30, random_state: Any = None
) -> KSVDResult[Array]:
    """Learn n_atoms atoms, so that a sum of `sparsity` of them comes close to each row of Y.

    Matching pursuit may code a sample worse than it was, and a traded atom may have been of more
    use than the sample in its place. So a sweep is tried in three ways until the error falls:
    with idle atoms (unused, copies of another, the least used) traded for badly represented
    samples; with only the unused atoms traded; and with each sample keeping its code unless the
    new one is better. The last cannot raise the error, because an atom update only descends.

    Parameters
    ----------
    Y : array-like or Tensor of shape (n_samples, n_features)
        The samples. Beyond them, the residual takes as much memory again; the rest is small.
    n_atoms : int
        Columns of the dictionary. More than n_features, or than n_samples, is allowed.
    sparsity : int
        Atoms that a sample may use, at most n_atoms.
    n_iter : int
        Sweeps to make, at most.
    random_state : int, RandomState instance or None
        Chooses the samples that become atoms.

    Returns
    -------
    KSVDResult
        Its dictionary is a tensor where Y is one, of the same dtype and device.

    Examples
    --------
    >>> learned = ksvd([[3, 0], [0, 2], [1, 0]], n_atoms=2, sparsity=1, random_state=0)
    >>> abs(learned.dictionary).sum(axis=1)
    array([1., 1.])
    """
    if isinstance(Y, Tensor):
        dtype = Y.dtype if Y.dtype.is_floating_point else torch.get_default_dtype()
        array = Y.detach().cpu().to(torch.promote_types(dtype, torch.float32)).numpy()
        learned = ksvd(array, n_atoms, sparsity=sparsity, n_iter=n_iter, random_state=random_state)
        return KSVDResult(torch.from_numpy(learned.dictionary).to(Y.device, dtype), learned.errors)
    samples = _check_samples(Y)
    _check_counts(n_atoms=n_atoms, sparsity=sparsity, n_iter=n_iter)
    if sparsity > n_atoms:
        raise ValueError(
            f"sparsity must be at most n_atoms = {n_atoms}: got {sparsity}. Are the two swapped?"
        )
    # the products are small: threads save little, and cost a lot where the machine is busy
    with one_thread():
        return _learn(samples, n_atoms, sparsity, n_iter, check_random_state(random_state))


def _learn(
    Y: FloatArray, n_atoms: int, sparsity: int, n_iter: int, rng: np.random.RandomState
) -> KSVDResult[NDArray[Any]]:
    D = _first_dictionary(Y, n_atoms, rng)
    codes = SparseCodes(np.full((len(Y), sparsity), -1), np.zeros((len(Y), sparsity), Y.dtype))
    residual, length = Y.copy(), float(np.linalg.norm(Y))
    errors = [np.inf]
    ways = [(np.array([], np.intp), False)]
    for remaining in reversed(range(n_iter)):
        # drawn with a chance like the squared error: the worst one may be an outlier every time
        candidates = np.argsort(-_squared_lengths(residual) / rng.exponential(size=len(Y)))
        for traded, keep in ways:
            new_D = _place_samples(Y, D, traded, candidates)
            new_codes = _code(Y, new_D, codes, residual, keep=keep)
            _update_atoms(new_D, new_codes, residual)
            error = float(np.linalg.norm(residual)) / length
            if error < errors[-1]:
                break
            _restore(residual, Y, D, codes)
        else:
            break  # what is left to gain is lost in rounding
        D, codes = new_D, new_codes
        errors.append(error)
        idle, unused = _idle_atoms(D, codes)
        ways = [(idle, False), (unused, False), (unused, True)]
        if remaining == 1:
            del ways[0]  # an atom traded in the last sweep would stay the sample that it was
    return KSVDResult(np.ascontiguousarray(D), np.array(errors[1:]))


def _check_samples(Y: ArrayLike) -> FloatArray:
    samples: FloatArray = check_array(Y, dtype=[np.float64, np.float32], input_name="Y")
    peak = np.abs(samples).max()
    if peak == 0:
        raise ValueError(
            f"Y must have a non-zero entry: all {samples.size} are zero. Were the features read?"
        )
    # neither the atoms nor the relative error depend on the scale, but its square may overflow
    return samples if 1e-6 < peak < 1e6 else samples / peak


def _check_counts(**counts: object) -> None:
    for name, count in counts.items():
        if not isinstance(count, Integral) or isinstance(count, bool):
            raise TypeError(f"{name} must be an integer: got {count!r}")
        if count < 1:
            raise ValueError(f"{name} must be at least 1: got {count}")


def _first_dictionary(Y: FloatArray, n_atoms: int, rng: np.random.RandomState) -> FloatArray:
    """Normalise samples drawn at random; use random directions where too few of them differ."""
    D = rng.standard_normal((n_atoms, Y.shape[1])).astype(Y.dtype).T
    D /= np.linalg.norm(D, axis=0)
    return _place_samples(Y, D, range(n_atoms), rng.permutation(len(Y)))


def _place_samples(
    Y: FloatArray, D: FloatArray, places: Iterable[int], order: Iterable[int]
) -> FloatArray:
    """D with samples, taken in this order, in these places. Copies of an atom are passed over."""
    D = D.copy(order="F")  # columns are used one at a time
    candidates = iter(order)
    for k in places:
        for i in candidates:
            d = _unit(Y[i])
            if np.any(d) and np.abs(d @ D).max() <= _SAME:
                D[:, k] = d
                break
    return D


def _idle_atoms(D: FloatArray, codes: SparseCodes) -> tuple[IntArray, IntArray]:
    """Atoms that are unused, a copy of an earlier one, or the least used; and the unused alone."""
    filled = codes.atoms >= 0
    use = np.bincount(codes.atoms[filled], np.abs(codes.values[filled]), minlength=D.shape[1])
    idle = np.any(np.triu(np.abs(D.T @ D), 1) > _SAME, axis=0) | (use == 0)
    idle[use.argmin()] = True
    return np.flatnonzero(idle), np.flatnonzero(use == 0)


def _code(
    Y: FloatArray, D: FloatArray, codes: SparseCodes, residual: FloatArray, *, keep: bool
) -> SparseCodes:
    """Code the samples anew, all or (keep) those that it does good; also set R = Y - XDᵀ."""
    gram, (m, sparsity) = D.T @ D, codes.atoms.shape
    atoms, values = codes.atoms.copy(), codes.values.copy()
    for b in _blocks(m, sparsity * D.shape[1] + D.shape[0]):
        new = pursue(gram, Y[b] @ D, sparsity)
        left = Y[b] - decode(new, D)
        better = _squared_lengths(left) < _squared_lengths(residual[b]) if keep else slice(None)
        atoms[b][better], values[b][better] = new.atoms[better], new.values[better]
        residual[b][better] = left[better]
    return SparseCodes(atoms, values)


def _update_atoms(D: FloatArray, codes: SparseCodes, residual: FloatArray) -> None:
    """Improve each atom d and the coefficients x of the samples that use it, in place.

    d ← Eᵀx / ‖Eᵀx‖,  x ← Ed,  where E = R + xdᵀ is what is left without d [Rubinstein2008]
    """
    for k in range(D.shape[1]):
        rows, places = np.nonzero(codes.atoms == k)
        x, d = codes.values[rows, places], D[:, k].copy()
        blocks = _blocks(len(rows), len(d))
        Etx = sum((residual[rows[b]].T @ x[b] for b in blocks), start=(x @ x) * d)
        if not np.any(Etx):
            continue  # no sample uses it
        D[:, k] = _unit(Etx)
        for b in blocks:
            E = residual[rows[b]] + np.outer(x[b], d)
            codes.values[rows[b], places[b]] = Ed = E @ D[:, k]
            residual[rows[b]] = E - np.outer(Ed, D[:, k])


def _restore(residual: FloatArray, Y: FloatArray, D: FloatArray, codes: SparseCodes) -> None:
    """R = Y - XDᵀ, in place."""
    for b in _blocks(*Y.shape):
        residual[b] = Y[b] - decode(SparseCodes(codes.atoms[b], codes.values[b]), D)


def _blocks(n_rows: int, width: int) -> list[slice]:
    """Slices of so many rows that the temporary arrays made of them stay small."""
    size = max(1, _BLOCK // width)
    return [slice(start, start + size) for start in range(0, n_rows, size)]


def _squared_lengths(rows: FloatArray) -> FloatArray:
    lengths: FloatArray = np.einsum("ij,ij->i", rows, rows)  # makes no array of squares
    return lengths


def _unit(v: FloatArray) -> FloatArray:
    """Scale v to length 1, in two steps because the squares of small numbers are 0."""
    peak = np.abs(v).max()
    if peak == 0:
        return v
    scaled: FloatArray = v / peak
    return scaled / np.linalg.norm(scaled)

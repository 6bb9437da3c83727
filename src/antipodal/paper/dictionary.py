"""Dictionary learning: K-SVD with orthogonal matching pursuit."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
from array_api_compat import is_torch_array
from numpy.typing import ArrayLike, NDArray

from antipodal.threads import one_thread
from antipodal.validation import check_random_state, check_whole

if TYPE_CHECKING:
    from torch import Tensor

FloatArray = NDArray[np.floating[Any]]
IntArray = NDArray[np.intp]


class SparseCodes(NamedTuple):
    """A sparse matrix X (m, n_atoms) with up to s entries per row."""

    atoms: IntArray  # (m, s): number of the atom, or -1 for an unused entry
    values: FloatArray  # (m, s): coefficient, 0 for an unused entry


def pursue(gram: FloatArray, Dty: FloatArray, sparsity: int) -> SparseCodes:
    """Compute sparse codes by orthogonal matching pursuit from DᵀD and Dᵀy. [Rubinstein2008]

        i ← argmaxᵢ |dᵢᵀr|                   atom with the largest correlation
        q ← (dᵢ - Σⱼ qⱼ qⱼᵀdᵢ) / ‖·‖          its component orthogonal to the chosen atoms
        r ← r - q qᵀr                        residual of y

    Only products with D are formed: `Dtr` is Dᵀr, `Dtq` all Dᵀqⱼ, `novelty` the ‖·‖² of each atom.
    The coefficients solve the triangular system Σₗ (qⱼᵀdₗ) xₗ = qⱼᵀy.

    scikit-learn's `orthogonal_mp_gram` loops over samples and takes 30 times as long. Its
    thresholds are absolute: it stops with a warning at small samples and at exact codes.
    """
    (m, n_atoms), eps = Dty.shape, np.finfo(Dty.dtype).eps
    rows = np.arange(m)
    atoms, qty = np.full((m, sparsity), -1), np.zeros((m, sparsity), Dty.dtype)
    Dtr, novelty = Dty.copy(), np.ones_like(Dty)
    Dtq = np.zeros((m, sparsity, n_atoms), Dty.dtype)
    rounding = 32 * eps * np.abs(Dty).max(axis=1)
    for j in range(sparsity):
        # Atoms that are linear combinations of the chosen ones are excluded.
        correlation = np.where(novelty > np.sqrt(eps), np.abs(Dtr), 0)
        i = correlation.argmax(axis=1)
        found = correlation[rows, i] > rounding
        scale = found / np.sqrt(np.maximum(novelty[rows, i], eps))
        Dtq[:, j] = gram[i] - (Dtq[rows, None, :j, i] @ Dtq[:, :j])[:, 0]
        Dtq[:, j] *= scale[:, None]
        qty[:, j] = scale * Dtr[rows, i]
        Dtr -= qty[:, j, None] * Dtq[:, j]
        novelty -= Dtq[:, j] ** 2
        atoms[found, j] = i[found]
    triangle = np.take_along_axis(Dtq, atoms[:, None], axis=2)
    x = np.zeros_like(qty)
    for j in reversed(range(sparsity)):
        later = np.sum(triangle[:, j, j + 1 :] * x[:, j + 1 :], axis=1)
        np.divide(qty[:, j] - later, triangle[:, j, j], out=x[:, j], where=atoms[:, j] >= 0)
    return SparseCodes(atoms, x)


def decode(codes: SparseCodes, D: FloatArray) -> FloatArray:
    """Return XDᵀ, the samples reconstructed from their codes."""
    X = np.zeros((len(codes.atoms), D.shape[1]), D.dtype)
    for atom, value in zip(codes.atoms.T, codes.values.T, strict=True):
        X[np.arange(len(X)), atom] += value  # an unused entry adds 0 to the last atom
    return X @ D.T


Array = TypeVar("Array", "Tensor", NDArray[Any])

_DUPLICATE = 0.99  # |cosine| above which two atoms count as duplicates
_BLOCK = 2**18  # entries of a temporary array, which bounds the memory and fits the cache


class KSVDResult(NamedTuple, Generic[Array]):
    """Result of `ksvd`.

    Attributes
    ----------
    dictionary : (n_features, n_atoms)
        Its columns have length 1.
    errors : (n_sweeps,)
        Relative error ‖Y - XDᵀ‖_F / ‖Y‖_F after each sweep. It never increases. A sweep that does
        not lower it ends the training early, so that n_sweeps may be less than `n_iter`.
    """

    dictionary: Array
    errors: NDArray[np.float64]


def ksvd(
    Y: Array, n_atoms: int, *, sparsity: int, n_iter: int = 30, random_state: Any = None
) -> KSVDResult[Array]:
    """Learn a dictionary D in which each row of Y is a combination of a few atoms. [Rubinstein2008]

        min ‖Y - XDᵀ‖_F²  subject to  ‖x‖₀ ≤ sparsity,  ‖d‖ = 1

    A sweep computes all codes X by `pursue`, then updates one atom after another. Matching pursuit
    may code a sample worse than before, and a replaced atom may have been more useful than its
    replacement. Up to three variants of a sweep are therefore tried until the error falls:

    1. replace idle atoms (unused, duplicate, least used) by badly represented samples;
    2. replace only the unused atoms;
    3. also keep the previous code of each sample unless the new one is better, which cannot
       increase the error.

    Parameters
    ----------
    Y : array-like or Tensor of shape (n_samples, n_features)
        Samples. The residual takes the same amount of memory again.
    n_atoms : int
        Columns of the dictionary. It may exceed n_features and n_samples.
    sparsity : int
        Atoms per sample, at most n_atoms.
    n_iter : int
        Largest number of sweeps.
    random_state : int, RandomState instance or None
        Seed of the samples that become atoms.

    Returns
    -------
    KSVDResult
        Its dictionary is a tensor if Y is one, of the same dtype and device.

    Examples
    --------
    >>> learned = ksvd([[3, 0], [0, 2], [1, 0]], n_atoms=2, sparsity=1, random_state=0)
    >>> abs(learned.dictionary).sum(axis=1)
    array([1., 1.])
    """
    if is_torch_array(Y):
        import torch

        dtype = Y.dtype if Y.dtype.is_floating_point else torch.get_default_dtype()
        array = Y.detach().cpu().to(torch.promote_types(dtype, torch.float32)).numpy()
        learned = ksvd(array, n_atoms, sparsity=sparsity, n_iter=n_iter, random_state=random_state)
        return KSVDResult(torch.from_numpy(learned.dictionary).to(Y.device, dtype), learned.errors)
    samples = _check_samples(Y)
    for name, count in (("n_atoms", n_atoms), ("sparsity", sparsity), ("n_iter", n_iter)):
        check_whole(count, name, 1)
    if sparsity > n_atoms:
        raise ValueError(
            f"sparsity must be at most n_atoms = {n_atoms}: got {sparsity}. Are the two swapped?"
        )
    # The products are small: threads gain little, and cost a lot on a busy machine.
    with one_thread():
        return _learn(samples, n_atoms, sparsity, n_iter, check_random_state(random_state))


def _learn(
    Y: FloatArray, n_atoms: int, sparsity: int, n_iter: int, rng: np.random.RandomState
) -> KSVDResult[NDArray[Any]]:
    D = _first_dictionary(Y, n_atoms, rng)
    codes = SparseCodes(np.full((len(Y), sparsity), -1), np.zeros((len(Y), sparsity), Y.dtype))
    residual, length = Y.copy(), float(np.linalg.norm(Y))
    errors = [np.inf]
    variants = [(np.array([], np.intp), False)]
    for remaining in reversed(range(n_iter)):
        # Drawn with probability ∝ squared error: always taking the worst would pick outliers.
        candidates = np.argsort(-_squared_lengths(residual) / rng.exponential(size=len(Y)))
        for replaced, keep in variants:
            new_D = _place_samples(Y, D, replaced, candidates)
            new_codes = _code(Y, new_D, codes, residual, keep=keep)
            _update_atoms(new_D, new_codes, residual)
            error = float(np.linalg.norm(residual)) / length
            if error < errors[-1]:
                break
            _restore(residual, Y, D, codes)
        else:
            break  # further gains are below rounding
        D, codes = new_D, new_codes
        errors.append(error)
        idle, unused = _idle_atoms(D, codes)
        variants = [(idle, False), (unused, False), (unused, True)]
        if remaining == 1:
            del variants[0]  # an atom replaced in the last sweep would stay a single sample
    return KSVDResult(np.ascontiguousarray(D), np.array(errors[1:]))


def _check_samples(Y: ArrayLike) -> FloatArray:
    from sklearn.utils import check_array  # not at the top: it takes a second

    samples: FloatArray = check_array(Y, dtype=[np.float64, np.float32], input_name="Y")
    peak = np.abs(samples).max()
    if peak == 0:
        raise ValueError(
            f"Y must have a non-zero entry: all {samples.size} are zero. Were the features read?"
        )
    # Atoms and relative errors do not depend on the scale, but squares may overflow.
    return samples if 1e-6 < peak < 1e6 else samples / peak


def _first_dictionary(Y: FloatArray, n_atoms: int, rng: np.random.RandomState) -> FloatArray:
    """Return randomly drawn samples of length 1, and random directions if too few differ."""
    D = rng.standard_normal((n_atoms, Y.shape[1])).astype(Y.dtype).T
    D /= np.linalg.norm(D, axis=0)
    return _place_samples(Y, D, range(n_atoms), rng.permutation(len(Y)))


def _place_samples(
    Y: FloatArray, D: FloatArray, columns: Iterable[int], candidates: Iterable[int]
) -> FloatArray:
    """Return D with candidate samples in the given columns, skipping duplicates of atoms."""
    D = D.copy(order="F")  # columns are used one at a time
    remaining = iter(candidates)
    for k in columns:
        for i in remaining:
            d = _unit(Y[i])
            if np.any(d) and np.abs(d @ D).max() <= _DUPLICATE:
                D[:, k] = d
                break
    return D


def _idle_atoms(D: FloatArray, codes: SparseCodes) -> tuple[IntArray, IntArray]:
    """Return the idle atoms (unused, duplicate or least used), and the unused atoms alone."""
    filled = codes.atoms >= 0
    use = np.bincount(codes.atoms[filled], np.abs(codes.values[filled]), minlength=D.shape[1])
    idle = np.any(np.triu(np.abs(D.T @ D), 1) > _DUPLICATE, axis=0) | (use == 0)
    idle[use.argmin()] = True
    return np.flatnonzero(idle), np.flatnonzero(use == 0)


def _code(
    Y: FloatArray, D: FloatArray, codes: SparseCodes, residual: FloatArray, *, keep: bool
) -> SparseCodes:
    """Return new codes, with `keep` only where they are better; update R = Y - XDᵀ in place."""
    gram, (m, sparsity) = D.T @ D, codes.atoms.shape
    atoms, values = codes.atoms.copy(), codes.values.copy()
    for b in _blocks(m, sparsity * D.shape[1] + D.shape[0]):
        new = pursue(gram, Y[b] @ D, sparsity)
        R = Y[b] - decode(new, D)
        better = _squared_lengths(R) < _squared_lengths(residual[b]) if keep else slice(None)
        atoms[b][better], values[b][better] = new.atoms[better], new.values[better]
        residual[b][better] = R[better]
    return SparseCodes(atoms, values)


def _update_atoms(D: FloatArray, codes: SparseCodes, residual: FloatArray) -> None:
    """Update each atom d and the coefficients x of the samples that use it, in place.

    d ← Eᵀx / ‖Eᵀx‖,  x ← Ed,  with E = R + xdᵀ the residual without d [Rubinstein2008]
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
    """Compute R = Y - XDᵀ, in place."""
    for b in _blocks(*Y.shape):
        residual[b] = Y[b] - decode(SparseCodes(codes.atoms[b], codes.values[b]), D)


def _blocks(n_rows: int, width: int) -> list[slice]:
    """Return slices of rows whose temporary arrays, `width` entries per row, stay small."""
    size = max(1, _BLOCK // width)
    return [slice(start, start + size) for start in range(0, n_rows, size)]


def _squared_lengths(rows: FloatArray) -> FloatArray:
    lengths: FloatArray = np.einsum("ij,ij->i", rows, rows)  # without an array of squares
    return lengths


def _unit(v: FloatArray) -> FloatArray:
    """Return v scaled to length 1, in two steps since squares of small numbers underflow."""
    peak = np.abs(v).max()
    if peak == 0:
        return v
    scaled: FloatArray = v / peak
    return scaled / np.linalg.norm(scaled)

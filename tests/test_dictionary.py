"""K-SVD against its authors' experiment, scikit-learn, the SVD and exhaustive search."""

import tracemalloc
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.decomposition import MiniBatchDictionaryLearning, sparse_encode
from sklearn.linear_model import orthogonal_mp_gram

from antipodal.paper.dictionary import SparseCodes, _update_atoms, ksvd, pursue
from effort import fresh_examples

seeds = st.integers(0, 2**32 - 1)


def random_dictionary(rng, n_features, n_atoms):
    D = rng.standard_normal((n_features, n_atoms))
    return D / np.linalg.norm(D, axis=0)


def sparse_signals(seed, n_samples=1500, n_features=20, n_atoms=50, sparsity=3, decibels=20):
    """Return samples of a known dictionary, as in Section V-A of Aharon et al. (2006)."""
    rng = np.random.default_rng(seed)
    D = random_dictionary(rng, n_features, n_atoms)
    X = np.zeros((n_samples, n_atoms))
    for x in X:
        x[rng.choice(n_atoms, sparsity, replace=False)] = rng.standard_normal(sparsity)
    clean, noise = X @ D.T, rng.standard_normal((n_samples, n_features))
    noise *= np.linalg.norm(clean) / np.linalg.norm(noise) / 10 ** (decibels / 20)
    return clean + noise, D


@st.composite
def difficult_samples(draw):
    """Draw few, repeated, constant, zero, dependent, or badly scaled rows and columns."""
    rng = np.random.default_rng(draw(seeds))
    m, n = draw(st.integers(1, 24)), draw(st.integers(1, 8))
    rank = draw(st.integers(1, 8))
    Y = rng.standard_normal((m, rank)) @ rng.standard_normal((rank, n))
    if draw(st.booleans()):
        Y = np.round(Y)  # exact ties and duplicates
    if draw(st.booleans()):
        Y = Y[rng.integers(0, m, m)]
    if draw(st.booleans()):
        Y[:, rng.integers(n)] = 5
    if draw(st.booleans()):
        Y[rng.random(m) < 0.5] = 0
    if draw(st.booleans()):
        Y *= 10.0 ** rng.integers(-30, 1, (m, 1))
    Y = (Y * 10.0 ** draw(st.integers(-6, 6))).astype(draw(st.sampled_from(["f4", "f8"])))
    Y[0, 0] = Y[0, 0] or 1
    n_atoms = draw(st.integers(1, 12))
    return Y, n_atoms, draw(st.integers(1, n_atoms))


def dense(codes, n_atoms):
    X = np.zeros((len(codes.atoms), n_atoms))
    for x, atoms, values in zip(X, *codes, strict=True):
        for atom, value in zip(atoms, values, strict=True):
            if atom >= 0:
                assert x[atom] == 0  # an atom occurs once
                x[atom] = value
            else:
                assert value == 0
    return X


def test_the_atoms_that_generated_the_signals_are_recovered():
    recovered = []
    for seed in range(2):
        Y, D = sparse_signals(seed)
        learned = ksvd(Y, 50, sparsity=3, n_iter=80, random_state=seed)
        recovered.append(np.mean(np.abs(D.T @ learned.dictionary).max(axis=1) > 0.99))
    assert np.mean(recovered) >= 0.95, recovered


@fresh_examples(100)
@given(data=difficult_samples(), seed=seeds)
def test_the_error_never_increases_and_atoms_have_length_one(data, seed):
    Y, n_atoms, sparsity = data
    before = Y.copy()
    learned = ksvd(Y, n_atoms, sparsity=sparsity, n_iter=8, random_state=seed)
    np.testing.assert_array_equal(Y, before)
    assert learned.dictionary.shape == (Y.shape[1], n_atoms)
    assert learned.dictionary.dtype == Y.dtype
    np.testing.assert_allclose(np.linalg.norm(learned.dictionary, axis=0), 1, rtol=1e-6)
    assert 1 <= len(learned.errors) <= 8
    assert learned.errors[0] <= 1
    assert np.all(np.diff(learned.errors) <= 0)


@fresh_examples(60)
@given(seed=seeds, n_atoms=st.integers(2, 6), sparsity=st.integers(1, 3))
def test_the_error_is_attainable_with_the_dictionary(seed, n_atoms, sparsity):
    sparsity = min(sparsity, n_atoms)
    Y = np.random.default_rng(seed).standard_normal((20, 4))
    learned = ksvd(Y, n_atoms, sparsity=sparsity, n_iter=5, random_state=0)
    D, best = learned.dictionary, np.full(20, np.inf)
    for chosen in combinations(range(n_atoms), sparsity):  # exhaustive search
        basis = np.linalg.svd(D[:, chosen], full_matrices=False)[0]
        best = np.minimum(best, np.sum((Y - Y @ basis @ basis.T) ** 2, axis=1))
    optimum = np.sqrt(best.sum()) / np.linalg.norm(Y)
    assert optimum - 1e-9 <= learned.errors[-1] < 1


def test_one_atom_becomes_the_first_singular_vector():
    rng = np.random.default_rng(0)
    Y = rng.standard_normal((200, 6)) * [5, 3, 2, 1, 1, 1]
    learned = ksvd(Y, 1, sparsity=1, n_iter=100, random_state=0)
    _, values, vectors = np.linalg.svd(Y)
    assert abs(learned.dictionary[:, 0] @ vectors[0]) == pytest.approx(1, abs=1e-9)
    expected = np.sqrt(1 - values[0] ** 2 / np.sum(values**2))
    assert learned.errors[-1] == pytest.approx(expected, rel=1e-9)


def test_as_many_atoms_as_features_represent_all_samples_exactly():
    Y = np.random.default_rng(0).standard_normal((50, 8))
    assert ksvd(Y, 8, sparsity=8, random_state=0).errors[-1] < 1e-12


def test_one_atom_per_sample_represents_all_samples_exactly():
    Y = np.random.default_rng(0).standard_normal((9, 5))
    assert ksvd(Y, 12, sparsity=1, random_state=0).errors[-1] < 1e-12


def test_digits_are_coded_better_than_with_scikit_learns_dictionaries():
    Y, sparsity = load_digits().data[:900] / 16, 4

    def error(D):  # with codes of scikit-learn for both
        X = sparse_encode(Y, D.T, algorithm="omp", n_nonzero_coefs=sparsity)
        return np.linalg.norm(Y - X @ D.T) / np.linalg.norm(Y)

    learned = ksvd(Y, 32, sparsity=sparsity, random_state=0)
    ours = error(learned.dictionary)
    assert ours == pytest.approx(learned.errors[-1], rel=0.03)
    # Its fit has an l1 penalty, whose default is the best for these data.
    theirs = MiniBatchDictionaryLearning(32, fit_algorithm="cd", max_iter=10, random_state=0)
    atoms = theirs.fit(Y).components_
    assert ours < error(atoms.T / np.linalg.norm(atoms, axis=1))


@fresh_examples(100)
@given(seed=seeds, n=st.integers(4, 20), n_atoms=st.integers(1, 30), sparsity=st.integers(1, 4))
def test_pursuit_agrees_with_scikit_learns(seed, n, n_atoms, sparsity):
    rng = np.random.default_rng(seed)
    D, Y = random_dictionary(rng, n, n_atoms), rng.standard_normal((6, n))
    sparsity = min(sparsity, n_atoms)
    ours = dense(pursue(D.T @ D, Y @ D, sparsity), n_atoms)
    theirs = orthogonal_mp_gram(D.T @ D, D.T @ Y.T, n_nonzero_coefs=sparsity)
    np.testing.assert_allclose(ours, theirs.reshape(n_atoms, 6).T, atol=1e-7)


@fresh_examples(200)
@given(data=difficult_samples(), seed=seeds)
def test_the_residual_of_pursuit_is_orthogonal_to_the_chosen_atoms(data, seed):
    samples, n_atoms, sparsity = data
    Y = samples.astype(float)
    Y /= np.abs(Y).max()
    rng = np.random.default_rng(seed)
    D = random_dictionary(rng, Y.shape[1], n_atoms)[:, rng.integers(0, n_atoms, n_atoms)]
    X = dense(pursue(D.T @ D, Y @ D, sparsity), n_atoms)
    assert np.all(np.count_nonzero(X, axis=1) <= min(sparsity, Y.shape[1]))
    inner = np.abs((Y - X @ D.T) @ D) * (X != 0)
    scale = np.abs(Y @ D).max(axis=1) * np.maximum(1, np.abs(X).max(axis=1))
    assert np.all(inner.max(axis=1) <= 1e-6 * np.maximum(scale, 1e-30))


@fresh_examples(50)
@given(seed=seeds)
def test_updating_atoms_lowers_the_error_and_updates_the_residual(seed):
    rng = np.random.default_rng(seed)
    D, Y = np.asfortranarray(random_dictionary(rng, 5, 9)), rng.standard_normal((40, 5))
    codes = pursue(D.T @ D, Y @ D, 3)
    residual = Y - dense(codes, 9) @ D.T
    before = np.linalg.norm(residual)
    _update_atoms(D, codes, residual)
    np.testing.assert_allclose(residual, Y - dense(codes, 9) @ D.T, atol=1e-12)
    assert np.linalg.norm(residual) <= before


def test_an_atom_is_updated_as_the_formula_says():
    rng = np.random.default_rng(0)
    d, Y, x = random_dictionary(rng, 5, 1), rng.standard_normal((7, 5)), rng.standard_normal(7)
    codes = SparseCodes(np.zeros((7, 1), int), x[:, None].copy())
    _update_atoms(d, codes, Y - np.outer(x, d))
    np.testing.assert_allclose(d[:, 0], Y.T @ x / np.linalg.norm(Y.T @ x))
    np.testing.assert_allclose(codes.values[:, 0], Y @ d[:, 0])


def test_small_blocks_of_samples_give_the_same_dictionary(monkeypatch):
    Y, _ = sparse_signals(0, n_samples=100)
    whole = ksvd(Y, 10, sparsity=3, n_iter=3, random_state=0)
    monkeypatch.setitem(ksvd.__globals__, "_BLOCK", 200)
    blocks = ksvd(Y, 10, sparsity=3, n_iter=3, random_state=0)
    np.testing.assert_allclose(blocks.dictionary, whole.dictionary, atol=1e-8)


def test_memory_beyond_the_samples_is_about_one_copy_of_them():
    Y = (
        np.random.default_rng(0).standard_normal((20_000, 200)) + 1
    )  # they share one dominant direction
    tracemalloc.start()
    try:
        ksvd(Y, 16, sparsity=2, n_iter=2, random_state=0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * Y.nbytes


def test_the_same_seed_gives_the_same_dictionary():
    Y, _ = sparse_signals(0, n_samples=200)
    first, again, other = (ksvd(Y, 8, sparsity=2, random_state=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.dictionary, again.dictionary)
    np.testing.assert_array_equal(first.errors, again.errors)
    assert not np.array_equal(first.dictionary, other.dictionary)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_the_dictionary_does_not_depend_on_the_scale_of_the_samples(scale):
    Y, _ = sparse_signals(0, n_samples=100)
    plain, scaled = (ksvd(Z, 8, sparsity=2, n_iter=3, random_state=0) for Z in (Y, Y * scale))
    np.testing.assert_allclose(scaled.dictionary, plain.dictionary, atol=1e-8)
    np.testing.assert_allclose(scaled.errors, plain.errors, rtol=1e-8)


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
def test_tensors_give_a_tensor_of_the_same_dtype(name):
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, name)
    Y = torch.randn(30, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    learned = ksvd(Y.requires_grad_(), 4, sparsity=2, random_state=0)
    assert learned.dictionary.dtype == dtype
    expected = ksvd(Y.detach().double().numpy(), 4, sparsity=2, random_state=0)
    assert learned.errors == pytest.approx(expected.errors[: len(learned.errors)], rel=1e-3)


def test_integers_and_lists_are_accepted():
    Y = np.random.default_rng(0).integers(0, 9, (20, 4))
    learned = ksvd(Y.tolist(), 3, sparsity=2, random_state=0)
    assert learned.dictionary.dtype == np.float64


def test_integer_tensors_are_accepted():
    torch = pytest.importorskip("torch")
    Y = np.random.default_rng(0).integers(0, 9, (20, 4))
    learned = ksvd(Y, 3, sparsity=2, random_state=0)
    same = ksvd(torch.tensor(Y), 3, sparsity=2, random_state=0)
    np.testing.assert_allclose(same.dictionary, learned.dictionary, atol=1e-3)


@pytest.mark.parametrize(
    ("Y", "n_atoms", "options", "error", "message"),
    [
        ([[1.0, np.nan]], 1, {}, ValueError, r"\bY\b.*\bNaN\b"),
        ([[1.0, np.inf]], 1, {}, ValueError, r"\bY\b.*\binfinity\b"),
        ([1.0, 2.0], 1, {}, ValueError, r"\b2D\b.*\b1D\b"),
        (np.empty((0, 3)), 1, {}, ValueError, r"\b0 sample"),
        (np.empty((3, 0)), 1, {}, ValueError, r"\b0 feature"),
        (np.zeros((3, 2)), 1, {}, ValueError, r"\bY\b.*\b6\b.*\bzero\b"),
        (np.eye(3), 0, {}, ValueError, r"\bn_atoms\b.*\b1\b.*\b0\b"),
        (np.eye(3), 2.0, {}, TypeError, r"\bn_atoms\b.*\b2\.0\b"),
        (np.eye(3), True, {}, TypeError, r"\bn_atoms\b.*\bTrue\b"),
        (np.eye(3), 2, {"sparsity": 0}, ValueError, r"\bsparsity\b.*\b1\b.*\b0\b"),
        (np.eye(3), 2, {"sparsity": 3}, ValueError, r"\bsparsity\b.*\bn_atoms\b.*\b2\b.*\b3\b"),
        (np.eye(3), 2, {"n_iter": 0}, ValueError, r"\bn_iter\b.*\b1\b.*\b0\b"),
    ],
)
def test_invalid_arguments_are_named(Y, n_atoms, options, error, message):
    with pytest.raises(error, match=message):
        ksvd(Y, n_atoms, **{"sparsity": 1, **options})
    if isinstance(Y, np.ndarray):
        torch = pytest.importorskip("torch")
        with pytest.raises(error, match=message):
            ksvd(torch.tensor(Y), n_atoms, **{"sparsity": 1, **options})

import numpy as np
import pytest
from scipy.optimize import lsq_linear
from sklearn.datasets import load_digits

from antipodal import solve_linf
from antipodal.hashers.linfhash import LinfHash

DIGITS = load_digits(return_X_y=True)[0]
ISOTROPIC = np.random.default_rng(0).standard_normal((2000, 32))


def unit(X):
    Y = X - X.mean(axis=0)
    return Y / np.linalg.norm(Y, axis=1, keepdims=True)


def relative_error(X, rebuilt):
    return np.square(X - rebuilt).sum() / np.square(X - X.mean(axis=0)).sum()


def reconstruction_error(hasher, X):
    return relative_error(X, hasher.fit(X).reconstruct(hasher.encode(X)))


def projection_error(X, n_bits):
    """Return the error of random projections with the best linear reconstruction."""
    Y = X - X.mean(axis=0)
    normals = np.random.default_rng(1).standard_normal((X.shape[1], n_bits))
    signs = np.where(Y @ normals > 0, 1.0, -1.0)
    return relative_error(X, X.mean(axis=0) + signs @ np.linalg.lstsq(signs, Y, rcond=None)[0])


@pytest.mark.parametrize(("n_bits", "bound"), [(24, 0.2), (24, 0.5), (100, 0.2), (100, 0.5)])
def test_bits_are_the_signs_of_the_converged_solution_of_eq_1(n_bits, bound):
    hasher = LinfHash(n_bits, bound=bound, random_state=0).fit(DIGITS)
    D = hasher.dictionary_.astype(np.float64)
    solution = solve_linf(unit(DIGITS), D, bound / np.sqrt(n_bits), tol=1e-8)
    assert np.mean((solution.codes > 0) == hasher.transform(DIGITS)) > 0.998


def test_the_iteration_reaches_scipys_solution():
    hasher = LinfHash(12, bound=0.3, n_iter=3000, random_state=0).fit(DIGITS)
    bound = 0.3 / np.sqrt(12)
    D, ours = hasher.dictionary_.astype(np.float64), hasher.project(DIGITS[:20])
    for y, z in zip(unit(DIGITS)[:20], ours, strict=True):
        np.testing.assert_allclose(z, lsq_linear(D, y, (-bound, bound)).x, atol=1e-4)


def test_the_frame_is_tight_and_atoms_of_k_svd_have_length_one():
    D = LinfHash(100, random_state=0).fit(DIGITS).dictionary_
    np.testing.assert_allclose(D @ D.T, 100 / 64 * np.eye(64), atol=1e-5)
    D = LinfHash(16, random_state=0).fit(DIGITS).dictionary_
    np.testing.assert_allclose(np.linalg.norm(D, axis=0), 1.0, atol=1e-5)


@pytest.mark.parametrize("bound", [0.2, 0.4])
def test_reconstruction_improves_with_bits_and_beats_random_projections(bound):
    lengths = [32, 64, 128, 256]
    errors = [
        reconstruction_error(LinfHash(n, bound=bound, random_state=0), ISOTROPIC) for n in lengths
    ]
    assert all(np.diff(errors) < -0.03)
    assert all(e < projection_error(ISOTROPIC, n) for e, n in zip(errors, lengths, strict=True))


def test_with_fewer_bits_than_features_a_learned_dictionary_reconstructs_better():
    ours = reconstruction_error(LinfHash(32, bound=0.6, random_state=0), DIGITS)
    assert ours < 0.9 * projection_error(DIGITS, 32)


def test_codes_reconstruct_better_than_signs_of_dty():
    hasher = LinfHash(128, bound=0.6, random_state=0).fit(ISOTROPIC)
    D = hasher.dictionary_
    corners = np.where((ISOTROPIC - ISOTROPIC.mean(axis=0)) @ D > 0, 1.0, -1.0) @ D.T
    Y = ISOTROPIC - ISOTROPIC.mean(axis=0)
    signs = relative_error(
        ISOTROPIC, ISOTROPIC - Y + corners * (corners * Y).sum() / (corners**2).sum()
    )
    assert reconstruction_error(hasher, ISOTROPIC) < 0.75 * signs


def test_no_other_scale_reconstructs_better():
    hasher = LinfHash(48, random_state=0).fit(DIGITS)
    codes, best = hasher.encode(DIGITS), hasher.scale_
    errors = []
    for factor in (0.98, 1.0, 1.02):
        hasher.scale_ = factor * best
        errors.append(relative_error(DIGITS, hasher.reconstruct(codes)))
    assert errors[1] == min(errors)


def test_bits_do_not_depend_on_the_length_of_a_centred_row():
    hasher = LinfHash(40, random_state=0).fit(ISOTROPIC)
    rows = (ISOTROPIC - hasher.mean_)[:200]
    for factor in (1e-3, 7.0, 1e25):
        scaled = (factor * rows + hasher.mean_).astype(np.float32)
        agree = np.mean(hasher.transform(scaled) == hasher.transform(rows + hasher.mean_))
        assert agree > 0.999


def test_a_row_at_the_mean_has_a_code():
    hasher = LinfHash(8, random_state=0).fit(DIGITS)
    assert np.isfinite(hasher.project(hasher.mean_[None])).all()


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ({"bound": 0.0}, ValueError),
        ({"bound": np.inf}, ValueError),
        ({"penalty": -1.0}, ValueError),
        ({"n_iter": 0}, ValueError),
        ({"n_samples": 1.5}, TypeError),
    ],
)
def test_invalid_settings_are_rejected(setting, error):
    with pytest.raises(error, match=next(iter(setting))):
        LinfHash(8, **setting).fit(DIGITS)

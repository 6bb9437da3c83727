"""Iterative quantisation and random projections against the claims of their papers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from antipodal import ITQ, LSH

X, _ = load_digits(return_X_y=True)
X = X[:600]


@given(angle=st.floats(0.05, np.pi - 0.05), seed=st.integers(0, 2**31 - 1))
def test_bits_of_lsh_agree_with_probability_1_minus_the_angle_over_pi(angle, seed):
    rng = np.random.default_rng(seed)
    plane = np.linalg.qr(rng.standard_normal((20, 2)))[0]
    pair = np.array([[1.0, 0.0], [np.cos(angle), np.sin(angle)]]) @ plane.T
    n_bits = 4096
    hasher = LSH(n_bits, random_state=seed).fit(np.vstack([pair, -pair]))  # its mean is zero
    first, second = hasher.transform(pair)
    agree = int((first == second).sum())
    low, high = binom.interval(1 - 1e-9, n_bits, 1 - angle / np.pi)
    assert low <= agree <= high


def quantisation_error(hasher):
    """Return ‖B - VR‖² over the training rows."""
    Z = hasher.project(X).astype(np.float64)
    return np.square(np.where(Z > 0, 1, -1) - Z).sum()


@pytest.mark.parametrize("rotate", [True, False])
def test_the_objective_of_itq_decreases_with_every_iteration(rotate):
    options = {"rotate": rotate, "random_state": 0}
    errors = [quantisation_error(ITQ(24, n_iter=i, **options).fit(X)) for i in range(12)]
    assert (np.diff(errors) <= 1e-3).all()  # V is projected in float32
    assert errors[-1] < 0.999 * errors[0]


def test_the_projection_of_itq_is_a_rotation_within_the_principal_components():
    P = ITQ(24, random_state=0).fit(X).projection_.astype(np.float64)
    np.testing.assert_allclose(P.T @ P, np.eye(24), atol=1e-5)
    components = PCA(24, svd_solver="full").fit(X).components_.T
    np.testing.assert_allclose(components @ (components.T @ P), P, atol=1e-5)  # same subspace


def test_without_iterations_the_bits_of_itq_are_signs_of_scikit_learns_components():
    pca = PCA(24, svd_solver="full").fit(X)
    ours = ITQ(24, n_iter=0, rotate=False).fit(X).project(X)
    theirs = pca.transform(X)
    signs = np.sign((ours * theirs).sum(axis=0))  # the sign of a component is arbitrary
    np.testing.assert_allclose(ours * signs, theirs, atol=1e-3)

"""Kernel features: inner products, comparison with scikit-learn, networks on them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.decomposition import KernelPCA
from sklearn.metrics.pairwise import rbf_kernel

from antipodal import DeepLinf, NNHash, Training, evaluate
from antipodal.hashers.kernel_features import (
    KernelFeatures,
    kernel_feature_rows,
    learn_kernel_features,
)
from networks import network

X, Y = load_digits(return_X_y=True)
ROWS = ((X - X.mean(axis=0)) / (X.std(axis=0) + 1)).astype(np.float32)


@given(seed=st.integers(0, 2**31 - 1), n=st.integers(1, 5))
def test_with_all_rows_as_anchors_inner_products_are_the_centred_kernel(seed, n):
    rows = np.random.default_rng(seed).standard_normal((25, n)).astype(np.float32)
    kernel = learn_kernel_features(rows, n_anchors=25, seed=0)
    K = rbf_kernel(rows.astype(np.float64), gamma=kernel.gamma)
    centre = np.eye(25) - 1 / 25
    phi = kernel_feature_rows(kernel, rows).astype(np.float64)
    products = phi @ phi.T
    expected = centre @ K @ centre
    expected *= np.trace(products) / np.trace(expected)  # the scale is arbitrary
    np.testing.assert_allclose(products, expected, atol=0.02 * np.abs(expected).max())


def test_components_are_those_of_scikit_learns_kernel_pca():
    rows = ROWS[:200]
    kernel = learn_kernel_features(rows, n_anchors=200, seed=0)
    ours = kernel_feature_rows(kernel, rows)[:, :10]
    theirs = KernelPCA(10, kernel="rbf", gamma=kernel.gamma).fit_transform(rows.astype(np.float64))
    cosines = (ours * theirs).sum(axis=0)
    cosines /= np.linalg.norm(ours, axis=0) * np.linalg.norm(theirs, axis=0)
    np.testing.assert_allclose(np.abs(cosines), 1, atol=1e-3)


def test_the_components_have_mean_zero_and_mean_square_one_over_the_training_rows():
    phi = kernel_feature_rows(learn_kernel_features(ROWS, 100, seed=0), ROWS).astype(np.float64)
    np.testing.assert_allclose(phi.mean(axis=0), 0, atol=1e-3)
    assert np.square(phi).mean() == pytest.approx(1, abs=1e-3)
    variances = np.square(phi).mean(axis=0)
    assert (np.diff(variances) <= 1e-3 * variances[0]).all()  # largest variance first


def test_rows_that_are_all_equal_have_kernel_features():
    rows = np.ones((5, 3), np.float32)
    phi = kernel_feature_rows(learn_kernel_features(rows, 3, seed=0), rows)
    assert np.isfinite(phi).all()


@pytest.mark.parametrize("kind", [DeepLinf, NNHash])
def test_projections_are_the_encoder_on_kernel_features(kind):
    hasher = network(kind, 16, feature_map="kernel", n_anchors=60, n_epochs=3, random_state=0)
    hasher.set_params(scaling="each").fit(X[:300], Y[:300])
    rows = ((X - hasher.mean_) / hasher.scale_).astype(np.float32)
    kernel = KernelFeatures(hasher.anchors_, hasher.gamma_, hasher.lift_, hasher.lift_offset_)
    expected = hasher.encoder_(torch.from_numpy(kernel_feature_rows(kernel, rows)))
    np.testing.assert_allclose(hasher.project(X), expected, atol=2e-4)


def test_on_a_chessboard_the_kernel_separates_classes_that_no_line_does():
    rows = np.random.default_rng(0).uniform(0, 4, (1000, 2))
    colour = np.floor(rows).astype(int).sum(axis=1) % 2
    train, query = slice(0, 600), slice(600, None)

    def score(feature_map):
        hasher = DeepLinf(
            16,
            feature_map=feature_map,
            training=Training(n_epochs=60, dropout=0.0, weight_decay=0.1),
            random_state=0,
        )
        codes = hasher.fit(rows[train], colour[train]).encode(rows)
        found = evaluate(codes[query], codes[train], colour[query], colour[train], n_bits=16)
        return found.map

    assert score("none") < 65
    assert score("kernel") > 73


def test_an_unknown_feature_map_is_refused():
    with pytest.raises(ValueError, match=r"\bfeature_map\b.*'cubic'"):
        DeepLinf(8, feature_map="cubic").fit(X, Y)

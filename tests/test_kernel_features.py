"""Kernel features: inner products, comparison with scikit-learn, networks on them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.decomposition import KernelPCA
from sklearn.metrics.pairwise import rbf_kernel

from antipodal import DeepLinf, NNHash, OrthoHash, Training, evaluate
from antipodal.hashers.kernel_features import (
    KernelFeatures,
    kernel_feature_rows,
    learn_kernel_features,
    reduced_set,
)
from antipodal.hashers.operations import GaussianKernel, Standardise
from antipodal.hashers.pipeline import Pipeline
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


@pytest.mark.parametrize("root", [False, True])
@pytest.mark.parametrize("centred", [False, True])
def test_kernels_of_scaled_rows_are_those_of_scikit_learn(root, centred):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((500, 12)).astype(np.float32)  # of both signs
    mean, scale = rows.mean(axis=0), rows.std(axis=0)
    anchors = rng.standard_normal((30, 12)).astype(np.float32)
    kernel = GaussianKernel(anchors, 0.1, mean if centred else None)
    pipeline = Pipeline([Standardise(mean, scale, root=root), kernel])
    before = rows.copy()
    ours = pipeline.values(rows, 30)
    np.testing.assert_array_equal(rows, before)
    scaled = rows.astype(np.float64)
    scaled = np.sign(scaled) * np.sqrt(np.abs(scaled)) if root else scaled
    theirs = rbf_kernel((scaled - mean) / scale, anchors, gamma=0.1)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    for i in (0, 223, 224, 499):  # in any place of a chunk
        np.testing.assert_array_equal(pipeline.values(rows[i : i + 1], 30)[0], ours[i])


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


def distance(kernel, other, weights):
    """Return ‖Wφ - Wφ'‖² in the norm of the reproducing kernel, from the kernel of all points."""
    points = np.concatenate([kernel.anchors, other.anchors]).astype(np.float64)
    A = np.concatenate([kernel.weight @ weights.T, -other.weight @ weights.T]).astype(np.float64)
    return np.einsum("ic,ij,jc->", A, rbf_kernel(points, gamma=kernel.gamma), A)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**31 - 1))
def test_a_reduced_set_is_closer_than_the_projection_onto_as_many_anchors(seed):
    rng = np.random.default_rng(seed)
    kernel = learn_kernel_features(ROWS[rng.permutation(len(ROWS))[:150]], 120, seed=0)
    weights = rng.standard_normal((8, kernel.weight.shape[1])).astype(np.float32)
    weights /= 1 + np.arange(weights.shape[1], dtype=np.float32)
    reduced = reduced_set(kernel, weights, 20, seed=0)
    assert reduced.anchors.shape == (20, ROWS.shape[1])
    chosen = rng.permutation(120)[:20]
    K = rbf_kernel(kernel.anchors.astype(np.float64), gamma=kernel.gamma)
    onto = np.linalg.solve(K[np.ix_(chosen, chosen)], K[chosen] @ kernel.weight)
    subset = kernel._replace(anchors=kernel.anchors[chosen], weight=onto.astype(np.float32))
    assert distance(kernel, reduced, weights) < 0.8 * distance(kernel, subset, weights)


def test_a_reduced_set_changes_the_products_of_other_rows_little():
    kernel = learn_kernel_features(ROWS[:600], 600, seed=0)
    classes = np.eye(10)[Y[:600]] - 0.1
    phi = kernel_feature_rows(kernel, ROWS).astype(np.float64)
    ridge = phi[:600].T @ phi[:600] + 100 * np.eye(phi.shape[1])
    weights = np.linalg.solve(ridge, phi[:600].T @ classes).T.astype(np.float32)
    reduced = reduced_set(kernel, weights, 60, seed=0)
    exact, ours = phi[600:] @ weights.T, kernel_feature_rows(reduced, ROWS[600:]) @ weights.T
    assert np.square(exact - ours).sum() < 0.05 * np.square(exact - exact.mean(axis=0)).sum()


def test_as_many_points_as_anchors_change_nothing():
    kernel = learn_kernel_features(ROWS[:50], 30, seed=0)
    weights = np.ones((2, kernel.weight.shape[1]), np.float32)
    assert reduced_set(kernel, weights, 30, seed=0) is kernel


def test_anchors_that_are_all_equal_can_be_reduced():
    kernel = learn_kernel_features(np.ones((9, 3), np.float32), 9, seed=0)
    weights = np.ones((2, kernel.weight.shape[1]), np.float32)
    reduced = reduced_set(kernel, weights, 4, seed=0)
    assert np.isfinite(kernel_feature_rows(reduced, ROWS[:5, :3])).all()


@pytest.mark.parametrize("kind", [DeepLinf, OrthoHash])
def test_a_network_on_a_reduced_set_keeps_its_score(kind):
    scores = {}
    for n_reduced in (0, 200):
        options = {"n_reduced": n_reduced, "n_epochs": 30, "random_state": 0}
        hasher = network(kind, 32, feature_map="kernel", **options).fit(X[:500], Y[:500])
        assert len(hasher.anchors_) == (n_reduced or 500)
        codes = hasher.encode(X[500:])
        scores[n_reduced] = evaluate(codes[:200], codes[200:], Y[500:700], Y[700:], n_bits=32).map
    assert scores[200] > scores[0] - 3


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

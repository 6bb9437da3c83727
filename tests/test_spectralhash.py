"""Spectral hashing against graph Laplacians, brute force over modes and plain formulas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import eigh
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from antipodal import LSH, evaluate
from antipodal.baselines.spectralhash import SpectralHash, smoothest_modes

X, Y = load_digits(return_X_y=True)


def graph_eigenvectors(points, width):
    """Return eigenvectors of the graph Laplacian of Gaussian affinities, smoothest first."""
    W = np.exp(-cdist(points, points, "sqeuclidean") / (2 * width**2))
    D = np.diag(W.sum(axis=1))
    return eigh(D - W, D)[1]


def correlations(left, right):
    return np.abs(np.corrcoef(left.T, right.T)[: left.shape[1], left.shape[1] :])


def test_on_a_segment_the_projections_are_the_eigenvectors_of_the_graph_in_their_order():
    points = np.linspace(-3, 5, 400)[:, None]
    ours = SpectralHash(6).fit(points).project(points)
    graph = graph_eigenvectors(points, 0.1)[:, 1:7]  # without the constant one
    assert np.diag(correlations(ours, graph)).min() > 0.995


def test_on_a_rotated_box_projections_are_eigenvectors_in_order():
    across, along = np.meshgrid(np.linspace(0, 1, 20), np.linspace(0, 2.7, 54))
    box = np.column_stack([across.ravel(), along.ravel()])
    turn = np.array([[0.8, -0.6], [0.6, 0.8]])
    points = box @ turn + [5.0, -2.0]
    ours = SpectralHash(5).fit(points).project(points)
    correlation = correlations(ours, graph_eigenvectors(points, 0.08)[:, 1:16])
    assert correlation.max(axis=1).min() > 0.98
    # The eigenvectors between ours are products of waves along both sides.
    assert (np.diff(correlation.argmax(axis=1)) > 0).all()


@given(
    sides=st.lists(st.floats(0.01, 10), min_size=1, max_size=6),
    n_modes=st.integers(1, 30),
)
def test_the_modes_are_the_smoothest(sides, n_modes):
    side, mode = smoothest_modes(np.array(sides), n_modes)
    everything = sorted(k / length for length in sides for k in range(1, n_modes + 1))
    ours = mode / np.array(sides)[side]
    np.testing.assert_allclose(ours, everything[:n_modes], rtol=1e-12)
    assert len(set(zip(side.tolist(), mode.tolist(), strict=True))) == n_modes


@pytest.mark.parametrize("n_bits", [5, 64, 150])
def test_the_bits_are_signs_of_sines_along_principal_components(n_bits):
    hasher = SpectralHash(n_bits).fit(X)
    V = PCA(svd_solver="full").fit_transform(X)[:, :n_bits]
    a, b = V.min(axis=0), V.max(axis=0)
    j, k = hasher.component_, hasher.mode_
    phi = np.sin(np.pi / 2 + k * np.pi * (V[:, j] - a[j]) / (b[j] - a[j]))
    # The sign of a component is arbitrary, and that of odd modes follows it.
    sign = np.sign((phi * hasher.project(X)).sum(axis=0))
    assert (sign[k % 2 == 0] == 1).all()
    np.testing.assert_allclose(hasher.project(X), phi * sign, atol=2e-3)


def test_rows_outside_the_box_are_clipped():
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1, 1, (500, 2)) * [3, 1]
    hasher = SpectralHash(8).fit(rows)
    directions = hasher.components_.T.astype(np.float64)
    for direction, side in zip(directions, hasher.upper_ - hasher.lower_, strict=True):
        ends = [
            hasher.transform(hasher.mean_ + np.outer([1, 1.3, 40], sense * side * direction))
            for sense in (1, -1)
        ]
        for bits in ends:
            assert (bits == bits[0]).all()
        assert (ends[0][0] != ends[1][0]).any()


def test_constant_features_and_few_rows_reduce_the_components():
    rows = np.hstack([X[:6, 20:30], np.full((6, 30), 3.3)])
    hasher = SpectralHash(40).fit(rows)
    assert hasher.components_.shape[1] <= 5  # six rows span no more
    assert len(np.unique(hasher.encode(rows), axis=0)) == 6
    only = SpectralHash(40).fit(X[:6, 20:30])
    np.testing.assert_array_equal(hasher.mode_, only.mode_)


def test_rows_that_are_all_equal_are_rejected():
    with pytest.raises(ValueError, match=r"\b10\b.*\brows\b"):
        SpectralHash(4).fit(np.full((10, 3), 0.1))


def test_codes_rank_rows_of_the_same_class_better_than_random_projections_do():
    def score(hasher):
        codes = hasher.fit(X[:1000]).encode(X[1000:])
        return evaluate(codes[:300], codes[300:], Y[1000:1300], Y[1300:], n_bits=12).map

    # 39 and 37
    assert score(SpectralHash(12)) > score(LSH(12, random_state=0))

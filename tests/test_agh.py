"""AGH against dense graphs, scikit-learn and a search over the thresholds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import eigh
from scipy.optimize import minimize
from scipy.sparse import csr_array
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics.pairwise import euclidean_distances

from antipodal.baselines.agh import AGH, graph_functions, split_thresholds
from antipodal.hashers.kernel_features import cluster_centres
from antipodal.hashers.operations import SquaredDistances
from antipodal.hashers.pipeline import Pipeline
from effort import examples

X, Y = load_digits(return_X_y=True)
SEEDS = st.integers(0, 2**32 - 1)


def dense_weights(hasher, rows):
    """Return Z of the rows, computed row by row."""
    distance = euclidean_distances(rows, hasher.anchors_)
    Z = np.zeros_like(distance)
    for i, d in enumerate(distance):
        near = np.argsort(d, kind="stable")[: hasher.n_nearest]
        kernel = np.exp(-(d[near] ** 2) / hasher.bandwidth_**2)
        Z[i, near] = kernel / kernel.sum()
    return Z


def random_graph(seed, n=60, m=8, s=3):
    rng = np.random.default_rng(seed)
    Z = np.zeros((n, m))
    for i in range(n):
        Z[i, rng.choice(m, s, replace=False)] = rng.random(s) + 0.1
    return csr_array(Z / Z.sum(axis=1, keepdims=True))


@given(seed=SEEDS)
@examples(30)
def test_the_functions_are_orthogonal_eigenvectors_of_the_graph(seed):
    Z = random_graph(seed)
    values, W = graph_functions(Z, 5)
    Y = Z @ W
    n = len(Y)
    np.testing.assert_allclose(Y.T @ Y, n * np.eye(5), atol=1e-7 * n)
    np.testing.assert_allclose(Y.sum(axis=0), 0, atol=1e-7 * n)
    A = (Z / Z.sum(axis=0)).toarray() @ Z.toarray().T
    np.testing.assert_allclose(A @ Y, Y * values, atol=1e-7)
    np.testing.assert_allclose(values, eigh(A)[0][::-1][1:6], atol=1e-9)


def test_in_a_graph_of_two_components_the_constant_function_is_excluded():
    Z = csr_array(np.kron(np.eye(2), random_graph(0).toarray()))
    values, W = graph_functions(Z, 3)
    Y = Z @ W
    assert values[0] == pytest.approx(1.0)
    np.testing.assert_allclose(Y.sum(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(np.abs(Y[:, 0]), 1.0, atol=1e-6)  # the component of a row
    assert Y[0, 0] * Y[-1, 0] < 0
    above, below = split_thresholds(Z, Y[:, 0])  # no edges between the sides: their means
    assert (above, below) == pytest.approx((1.0, -1.0), abs=1e-6)


@given(seed=SEEDS, column=st.integers(0, 3))
@examples(20)
def test_thresholds_minimise_the_cut_of_the_second_layer(seed, column):
    Z = random_graph(seed)
    y = (Z @ graph_functions(Z, 4)[1])[:, column]
    L = np.eye(len(y)) - (Z / Z.sum(axis=0)).toarray() @ Z.toarray().T
    n_above, n_below = (y > 0).sum(), (y <= 0).sum()

    def second(above, below):
        return np.where(y > 0, y - above, below - y)

    above, below = split_thresholds(Z, y)
    assert second(above, below).sum() == pytest.approx(0, abs=1e-8)

    def objective(beyond):  # b⁺ free, b⁻ from the constraint that f has mean 0
        f = second(beyond[0], (n_above * beyond[0] - np.abs(y).sum()) / n_below)
        return f @ L @ f

    best = minimize(objective, [0.0], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12})
    f = second(above, below)
    assert f @ L @ f <= best.fun + 1e-8
    assert above == pytest.approx(best.x[0], abs=1e-3)


@pytest.mark.parametrize("n_nearest", [1, 2, 5])
def test_new_rows_are_projected_as_if_they_had_been_in_the_graph(n_nearest):
    rows = X[:500]
    hasher = AGH(10, layers=1, n_anchors=40, n_nearest=n_nearest, random_state=0).fit(rows)
    Z = dense_weights(hasher, rows)
    A = Z / Z.sum(axis=0) @ Z.T
    Y = hasher.project(rows)
    np.testing.assert_allclose(Y, Z @ hasher.projection_, atol=1e-3)
    np.testing.assert_allclose(A @ Y, Y * hasher.eigenvalues_, atol=1e-2)
    np.testing.assert_allclose(Y.T @ Y / len(rows), np.eye(10), atol=1e-2)
    unseen = X[500:600]
    np.testing.assert_allclose(
        hasher.project(unseen), dense_weights(hasher, unseen) @ hasher.projection_, atol=1e-3
    )


def test_the_bandwidth_is_the_mean_distance_of_the_farthest_of_the_nearest_anchors():
    hasher = AGH(10, n_anchors=40, n_nearest=3, random_state=0).fit(X)
    third = np.sort(euclidean_distances(X, hasher.anchors_), axis=1)[:, 2]
    assert hasher.bandwidth_ == pytest.approx(third.mean(), rel=1e-4)
    assert AGH(10, bandwidth=7.0, random_state=0).fit(X).bandwidth_ == 7.0


@pytest.mark.parametrize("n_bits", [7, 8])
def test_bits_of_the_second_layer_split_the_sides_of_the_first(n_bits):
    one = AGH(4, layers=1, random_state=0).fit(X)
    two = AGH(n_bits, layers=2, random_state=0).fit(X)
    first, second = two.project(X)[:, :4], two.project(X)[:, 4:]
    np.testing.assert_array_equal(first, one.project(X))
    assert second.shape == (len(X), n_bits - 4)
    above, below = two.thresholds_.T
    y = first[:, : n_bits - 4]
    np.testing.assert_array_equal(second, np.where(y > 0, y - above, below - y))


def test_centres_cluster_nearly_as_well_as_scikit_learns():
    rng = np.random.RandomState(0)
    centres = cluster_centres(X, 30, 20, rng)
    assert centres.shape == (30, 64)
    ours = (euclidean_distances(X, centres).min(axis=1) ** 2).sum()
    peer = KMeans(30, init="random", n_init=1, max_iter=20, random_state=0).fit(X)
    assert ours < 1.05 * peer.inertia_
    start = X[np.random.RandomState(0).permutation(len(X))[:30]]
    assert ours < 0.8 * (euclidean_distances(X, start).min(axis=1) ** 2).sum()


def test_centres_are_at_most_as_many_as_distinct_rows():
    rows = np.repeat(X[:7], 20, axis=0)
    centres = cluster_centres(rows, 50, 3, np.random.RandomState(0))
    np.testing.assert_allclose(centres, np.unique(X[:7], axis=0), atol=1e-5)


def test_distances_are_accurate_far_from_zero():
    anchors = (X[:20] + 4096).astype(np.float32)
    rows = X[:100] + 4096
    mean = rows.mean(axis=0).astype(np.float32)
    squared = Pipeline([SquaredDistances(anchors, mean)]).values(rows, 20)
    exact = ((X[:100, None] - X[None, :20]) ** 2).sum(axis=2)
    np.testing.assert_allclose(squared, exact, rtol=1e-4, atol=0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 3}, r"\blayers\b.*\b3\b"),
        ({"n_anchors": 1}, r"\bn_anchors\b.*\b2\b.*\b1\b"),
        ({"n_nearest": 0}, r"\bn_nearest\b.*\b1\b.*\b0\b"),
        ({"bandwidth": 0.0}, r"\bbandwidth\b.*\b0\.0\b"),
        ({"n_anchors": 20, "layers": 1}, r"\b20 eigenvectors\b.*\b19\b"),
        ({"n_anchors": 10}, r"\b10 eigenvectors\b.*\b20 bits\b.*\b2 layer"),
    ],
)
def test_invalid_options_and_too_few_anchors_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        AGH(20, **options, random_state=0).fit(X)


def test_rows_that_are_all_equal_or_too_large_are_rejected():
    with pytest.raises(ValueError, match=r"\b1 anchors\b.*\b9 rows\b.*\b0\b"):
        AGH(2).fit(np.ones((9, 3)))
    with pytest.raises(ValueError, match="float32"):
        AGH(2).fit(X * 1e20)

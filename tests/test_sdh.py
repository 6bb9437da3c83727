"""SDH and FSDH against brute force, scikit-learn's Ridge and their objectives in dense matrices."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import rbf_kernel

from antipodal import evaluate
from antipodal.baselines.sdh import (
    SDH,
    KernelRegression,
    code_weights,
    descend_bits,
    label_matrix,
    label_weights,
    regress_codes,
    regress_labels,
)
from effort import examples

X, Y = load_digits(return_X_y=True)
SEEDS = st.integers(0, 2**32 - 1)
RIDGE = 0.05


def problem(seed, multilabel=False, n=40, m=6, n_bits=5):
    rng = np.random.default_rng(seed)
    labels = rng.random((n, 4)) < 0.3 if multilabel else rng.permutation(np.arange(n) % 3)
    dense = np.float64(labels) if multilabel else np.eye(3)[labels]
    K = rng.standard_normal((n, m)).astype(np.float32)
    K -= K.mean(axis=0)
    B = np.where(rng.random((n, n_bits)) < 0.5, -1.0, 1.0)
    return labels, dense, K, B, rng


def ridge_fit(A, targets, penalty, intercept=False):
    """Return coefficients, penalty and predictions of scikit-learn's Ridge."""
    model = Ridge(alpha=penalty, fit_intercept=intercept, solver="svd").fit(A, targets)
    price = penalty * np.square(model.coef_).sum()
    return model.coef_.T, price, model.predict(A)


def objective(fast, dense, K, B, regularization, fidelity):
    """Return the objective of codes B with the optimal W, P and p."""
    inputs, outputs = (dense, B) if fast else (B, dense)
    _, price, predicted = ridge_fit(inputs, outputs, regularization)
    K = K.astype(np.float64)
    ridge = RIDGE * np.square(K).sum() / K.shape[1]
    _, kernel_price, F = ridge_fit(K, B, ridge, intercept=True)
    labels_term = np.square(outputs - predicted).sum() + price
    return labels_term + fidelity * (np.square(B - F).sum() + kernel_price)


@given(seed=SEEDS, multilabel=st.booleans(), fast=st.booleans(), fidelity=st.floats(1e-5, 2))
@examples(30)
def test_the_objective_never_increases(seed, multilabel, fast, fidelity):
    labels, dense, K, B, _ = problem(seed, multilabel)
    learn = regress_codes if fast else regress_labels
    Ys, regression = label_matrix(labels), KernelRegression(K, RIDGE)
    values = [objective(fast, dense, K, B, 0.5, fidelity)]
    for n_iter in range(1, 8):
        codes = learn(B, Ys, regression, 0.5, fidelity, n_iter)
        assert set(np.unique(codes)) <= {-1.0, 1.0}
        values.append(objective(fast, dense, K, codes, 0.5, fidelity))
    assert (np.diff(values) <= 1e-5 * values[0]).all()
    assert values[-1] < values[0]


@given(seed=SEEDS)
@examples(30)
def test_no_other_choice_of_one_bit_of_all_rows_is_better(seed):
    rng = np.random.default_rng(seed)
    n, n_bits = 6, 4
    W, Q = rng.standard_normal((n_bits, 3)), rng.standard_normal((n, n_bits))
    start = np.where(rng.random((n, n_bits)) < 0.5, -1.0, 1.0)

    def cost(B):
        return np.square(B @ W).sum() - 2 * (B * Q).sum()

    B = descend_bits(start, Q, W)
    assert cost(B) <= cost(start) + 1e-9
    for k in range(n_bits):
        for column in product((-1.0, 1.0), repeat=n):
            other = B.copy()
            other[:, k] = column
            assert cost(other) >= cost(B) - 1e-9


@given(seed=SEEDS)
@examples(30)
def test_a_single_bit_is_optimal(seed):
    """With one bit the B-step of SDH is exact: ‖Y - BW‖² + ν‖B - F‖² itself is enumerated."""
    rng = np.random.default_rng(seed)
    labels, W = rng.random((8, 3)), rng.standard_normal((1, 3))
    F, fidelity = rng.standard_normal((8, 1)), 0.3

    def cost(B):
        return np.square(labels - B @ W).sum() + fidelity * np.square(B - F).sum()

    found = descend_bits(np.ones((8, 1)), labels @ W.T + fidelity * F, W)
    best = min(cost(np.array(bits)[:, None]) for bits in product((-1.0, 1.0), repeat=8))
    assert cost(found) == pytest.approx(best)


@given(seed=SEEDS, fidelity=st.floats(0.01, 5))
@examples(30)
def test_the_fast_codes_are_the_best_for_their_weights(seed, fidelity):
    """The entries of B are independent in ‖B - YW‖² + ν‖B - F‖²: flip each."""
    labels, dense, K, B, _ = problem(seed, n=12, n_bits=3)
    YW = ridge_fit(dense, B, 0.5)[2]
    ridge = RIDGE * np.square(K).sum() / K.shape[1]
    F = ridge_fit(K, B, ridge, intercept=True)[2]
    found = regress_codes(B, label_matrix(labels), KernelRegression(K, RIDGE), 0.5, fidelity, 1)
    kept, flipped = (np.square(C - YW) + fidelity * np.square(C - F) for C in (found, -found))
    assert (kept <= flipped + 1e-4).all()


@given(seed=SEEDS, multilabel=st.booleans(), penalty=st.floats(0.01, 100))
@examples(30)
def test_weights_and_projections_are_those_of_scikit_learns_ridge(seed, multilabel, penalty):
    labels, dense, K, B, _ = problem(seed, multilabel)
    Ys = label_matrix(labels)
    np.testing.assert_array_equal(Ys.toarray(), dense)
    W = label_weights(B, Ys, penalty)
    np.testing.assert_allclose(W, ridge_fit(B, dense, penalty)[0], atol=1e-9)
    W = code_weights(Ys, penalty)(Ys.T @ B)
    np.testing.assert_allclose(W, ridge_fit(dense, B, penalty)[0], atol=1e-9)
    regression = KernelRegression(K, penalty)
    K = K.astype(np.float64)
    ridge = penalty * np.square(K).sum() / K.shape[1]
    P, _, F = ridge_fit(K, B, ridge, intercept=True)
    np.testing.assert_allclose(regression.solve(B)[0], P, atol=1e-5)
    np.testing.assert_allclose(regression.predict(B), F, atol=1e-4)


@pytest.mark.parametrize("fast", [True, False])
def test_projections_are_centred_kernels_times_the_projection(fast):
    hasher = SDH(12, fast=fast, n_anchors=40, random_state=0).fit(X[:300], Y[:300])
    kernels = rbf_kernel(X, hasher.anchors_, gamma=1 / hasher.bandwidth_**2)
    expected = (kernels - hasher.kernel_mean_) @ hasher.projection_ + hasher.offset_
    np.testing.assert_allclose(hasher.project(X), expected, atol=1e-4)
    assert {tuple(a) for a in hasher.anchors_} <= {tuple(x) for x in X[:300]}
    squared = ((X[:300, None] - hasher.anchors_) ** 2).sum(axis=2)
    assert hasher.bandwidth_ == pytest.approx(np.sqrt(squared.mean()), rel=1e-5)
    in_sample = rbf_kernel(X[:300], hasher.anchors_, gamma=1 / hasher.bandwidth_**2)
    np.testing.assert_allclose(hasher.kernel_mean_, in_sample.mean(axis=0), atol=1e-6)


def test_fast_codes_of_a_class_are_equal_without_fidelity():
    regression = KernelRegression(np.float32(X[:300] - X[:300].mean(axis=0)), RIDGE)
    start = np.where(np.random.default_rng(0).random((300, 16)) < 0.5, -1.0, 1.0)
    B = regress_codes(start, label_matrix(Y[:300]), regression, 1.0, 1e-9, 10)
    assert len(np.unique(np.column_stack([Y[:300], B]), axis=0)) == 10


def test_features_far_from_zero_give_the_same_bits():
    near = SDH(16, n_anchors=50, random_state=0).fit(X[:300], Y[:300])
    far = SDH(16, n_anchors=50, random_state=0).fit(X[:300] + 4096, Y[:300])
    assert (near.transform(X) == far.transform(X + 4096)).mean() > 0.99


@pytest.mark.parametrize("fast", [True, False])
def test_unseen_rows_of_a_class_are_neighbours(fast):
    hasher = SDH(32, fast=fast, n_anchors=200, random_state=0).fit(X[:900], Y[:900])
    codes = hasher.encode(X[900:])
    assert evaluate(codes, codes, Y[900:], Y[900:], n_bits=32).map > 85  # chance: 10


@pytest.mark.parametrize("fast", [True, False])
def test_unseen_rows_that_share_a_concept_are_neighbours(fast):
    concepts = np.column_stack([Y % 2 == 0, Y < 5, Y % 3 == 0, Y > 7])
    hasher = SDH(32, fast=fast, n_anchors=200, random_state=0).fit(X[:900], concepts[:900])
    has_any = concepts.any(axis=1)[900:]
    codes, true = hasher.encode(X[900:][has_any]), concepts[900:][has_any]
    scores = evaluate(codes, codes, true, true, n_bits=32)
    shared = (np.float64(true) @ np.float64(true).T > 0).mean()
    assert scores.map > 100 * shared + 15


@pytest.mark.parametrize("fast", [True, False])
def test_multi_hot_classes_are_the_same_problem_as_classes(fast):
    one_hot = np.eye(10, dtype=int)[Y[:300]]
    by_class = SDH(8, fast=fast, n_anchors=50, random_state=0).fit(X[:300], Y[:300])
    by_concept = SDH(8, fast=fast, n_anchors=50, random_state=0).fit(X[:300], one_hot)
    np.testing.assert_array_equal(by_class.transform(X), by_concept.transform(X))


def test_rows_beyond_the_limit_are_drawn_evenly_from_the_classes(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "antipodal.baselines.sdh.label_matrix",
        lambda labels: seen.append(labels) or label_matrix(labels),
    )
    skewed = np.concatenate([np.flatnonzero(Y == 0)[:100], np.flatnonzero(Y == 1)[:8]])
    hasher = SDH(4, n_samples=40, random_state=0).fit(X[skewed], Y[skewed])
    np.testing.assert_array_equal(np.bincount(seen[0]), [32, 8])
    assert len(hasher.anchors_) == 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ridge": 0.0}, r"\bridge\b.*\b0\.0"),
        ({"regularization": -1.0}, r"\bregularization\b.*-1\.0"),
        ({"fidelity": float("nan")}, r"\bfidelity\b.*\bnan\b"),
        ({"bandwidth": -1.0}, r"\bbandwidth\b.*-1\.0"),
        ({"n_anchors": 0}, r"\bn_anchors\b.*\b1\b.*\b0\b"),
        ({"n_samples": 1}, r"\bn_samples\b.*\b2\b.*\b1\b"),
        ({"n_iter": 0}, r"\bn_iter\b.*\b1\b.*\b0\b"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        SDH(4, **options).fit(X, Y)


def test_fast_is_true_or_false():
    with pytest.raises(TypeError, match=r"\bfast\b.*'yes'"):
        SDH(4, fast="yes").fit(X, Y)


def test_labels_are_required():
    with pytest.raises(ValueError, match=r"\by\b.*\bNone\b"):
        SDH(4).fit(X)


@pytest.mark.parametrize("fast", [True, False])
def test_equal_rows_are_encoded_and_too_large_features_rejected(fast):
    hasher = SDH(4, fast=fast).fit(np.ones((6, 3)), [0, 0, 0, 1, 1, 1])
    assert hasher.encode(np.ones((2, 3))).shape == (2, 1)
    with pytest.raises(ValueError, match="float32"):
        SDH(4, fast=fast).fit(X[:50] * 1e20, Y[:50])

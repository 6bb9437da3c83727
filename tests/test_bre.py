import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from antipodal import evaluate
from antipodal.baselines.bre import (
    BRE,
    best_weight,
    descend,
    distance_partners,
    improve_bit,
    label_partners,
)
from effort import examples

X, Y = load_digits(return_X_y=True)
FAST = {"n_anchors": 20, "n_partners": 20, "n_sweeps": 2, "random_state": 0}


def total_of(cost, J):
    return cost.sum(axis=1) - np.bincount(J.ravel(), cost.ravel(), len(cost))


def cost_of(bits, cost, J):
    return sum(
        cost[i, j]
        for i, row in enumerate(J)
        for j, other in enumerate(row)
        if bits[i] != bits[other]
    )


@examples(150)
@given(
    seed=st.integers(0, 2**32 - 1),
    m=st.integers(2, 12),
    k=st.integers(1, 5),
    zeros=st.booleans(),
    copies=st.booleans(),
)
def test_the_best_weight_is_found_between_and_beyond_the_thresholds(seed, m, k, zeros, copies):
    rng = np.random.default_rng(seed)
    rest, column, cost = rng.standard_normal(m), rng.standard_normal(m), rng.standard_normal((m, k))
    if zeros:
        column[rng.random(m) < 0.3] = 0.0
    if copies:
        rest[m // 2 :], column[m // 2 :] = rest[0], column[0]
    J = rng.integers(0, m, (m, k))
    current = rng.standard_normal()
    found = best_weight(current, rest, column, cost, J, total_of(cost, J))

    moving = column != 0
    t = np.unique(np.concatenate([-rest[moving] / column[moving], [-1e3, 1e3]]))
    candidates = [*((t[1:] + t[:-1]) / 2), t[0] - 1, t[-1] + 1, current]
    costs = [cost_of(rest + w * column > 0, cost, J) for w in candidates]
    assert cost_of(rest + found * column > 0, cost, J) == pytest.approx(min(costs), abs=1e-9)


@examples(20)
@given(seed=st.integers(0, 2**32 - 1))
def test_every_accepted_weight_lowers_the_cost(seed):
    rng = np.random.default_rng(seed)
    m, k, q = 30, 4, 8
    K, cost, J = (
        rng.standard_normal((m, q)),
        rng.standard_normal((m, k)),
        rng.integers(0, m, (m, k)),
    )
    w = rng.standard_normal(q)
    costs = [cost_of(K @ w > 0, cost, J)]
    for i in range(q):
        rest = K @ w - w[i] * K[:, i]
        w[i], before = best_weight(w[i], rest, K[:, i], cost, J, total_of(cost, J)), w[i]
        costs.append(cost_of(K @ w > 0, cost, J))
        assert costs[-1] < costs[-2] - 1e-12 if w[i] != before else costs[-1] == costs[-2]


def test_an_improved_bit_is_the_bit_of_its_weights():
    rng = np.random.RandomState(0)
    K, cost, J = rng.randn(40, 6), rng.randn(40, 5), rng.randint(0, 40, (40, 5))
    w = rng.randn(6)
    before = cost_of(K @ w > 0, cost, J)
    bits = improve_bit(w, K, cost, J, rng)
    np.testing.assert_array_equal(bits, K @ w > 0)
    assert cost_of(bits, cost, J) < before


@pytest.mark.parametrize("labelled", [True, False])
def test_the_error_decreases_with_every_sweep_and_is_that_of_the_bits(labelled):
    rng = np.random.RandomState(0)
    Z = X[:300] - X[:300].mean(axis=0)
    Z /= np.linalg.norm(Z, axis=1, keepdims=True)
    pairs = label_partners(Y[:300], 20, rng) if labelled else distance_partners(Z, 20, rng)
    anchors = np.stack([rng.permutation(300)[:15] for _ in range(12)])
    K = Z @ Z.T
    W, errors = descend(K, anchors, pairs, 3, rng)
    assert all(np.diff(errors) <= 0)
    assert errors[-1] < 0.95 * errors[0]
    bits = np.stack([K[:, a] @ w > 0 for a, w in zip(anchors, W, strict=True)], axis=1)
    distance = (bits[:, None] != bits[pairs.rows]).mean(axis=2)
    assert errors[-1] == pytest.approx(np.square(pairs.target - distance).mean(), rel=1e-9)


def test_encoding_is_the_formula():
    hasher = BRE(6, **FAST).fit(X[:200], Y[:200])
    Z = (X[:200] - hasher.mean_) / hasher.feature_scale_
    Z /= np.linalg.norm(Z, axis=1, keepdims=True)
    squared = np.square(Z[:, None] - hasher.landmarks_).sum(axis=2)
    values = np.exp(-hasher.gamma * squared) @ hasher.weights_.astype(float) + hasher.offsets_
    np.testing.assert_allclose(hasher.project(X[:200]), values, atol=1e-3)
    assert (np.count_nonzero(hasher.weights_, axis=0) <= 20).all()  # its own landmarks only


def test_partners_by_label_are_similar_and_dissimilar_rows():
    rng = np.random.RandomState(0)
    rows, target = label_partners(Y[:100], 9, rng)
    np.testing.assert_array_equal(Y[rows] != Y[:100, None], target == 1)
    assert (target.sum(axis=1) == 5).all()
    assert (rows != np.arange(100)[:, None]).all()
    concepts = rng.random_sample((60, 5)) < 0.3
    concepts[np.arange(60), rng.randint(0, 5, 60)] = True
    rows, target = label_partners(concepts, 8, rng)
    share = (concepts[:, None] & concepts[rows]).any(axis=2)
    itself = rows == np.arange(60)[:, None]  # where no row is similar, or none dissimilar
    np.testing.assert_array_equal(share[~itself], target[~itself] == 0)
    others = ~(concepts[:, None] & concepts).any(axis=2)
    np.testing.assert_array_equal(itself[:, 4:].all(axis=1), ~others.any(axis=1))


def test_a_row_alone_with_its_label_is_allowed():
    rows, target = label_partners(np.array([0, 0, 0, 1]), 4, np.random.RandomState(0))
    np.testing.assert_array_equal(rows[3, :2], 3)
    np.testing.assert_array_equal(target[3], [0, 0, 1, 1])


def test_partners_by_distance_are_nearest_and_random_rows():
    rng = np.random.RandomState(0)
    Z = rng.randn(50, 4)
    Z /= np.linalg.norm(Z, axis=1, keepdims=True)
    rows, target = distance_partners(Z, 10, rng)
    squared = np.square(Z[:, None] - Z).sum(axis=2)
    np.testing.assert_allclose(target, np.take_along_axis(squared, rows, axis=1) / 4, atol=1e-12)
    np.testing.assert_array_equal(np.sort(rows[:, :5]), np.sort(np.argsort(squared)[:, 1:6]))
    assert (rows != np.arange(50)[:, None]).all()


def test_learned_weights_beat_random_ones_and_labels_help():
    train, test = slice(0, 600), slice(600, 1200)

    def score(y, n_sweeps):
        codes = BRE(24, **FAST | {"n_sweeps": n_sweeps}).fit(X[train], y).encode(X[test])
        return evaluate(codes, codes, Y[test], Y[test], n_bits=24).map

    assert score(Y[train], 2) > score(None, 2) + 5
    assert score(None, 2) > score(None, 0)


@pytest.mark.parametrize(
    ("setting", "error"),
    [({"n_anchors": 0}, ValueError), ({"gamma": 0.0}, ValueError), ({"n_sweeps": 1.5}, TypeError)],
)
def test_invalid_settings_are_rejected(setting, error):
    with pytest.raises(error, match=next(iter(setting))):
        BRE(8, **setting).fit(X)

"""Bit descent and the dictionary fitted to its codes."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.metrics.pairwise import cosine_similarity

from antipodal import HammingIndex, LinfHash, load
from antipodal.hashers import bit_descent, bit_flips, compiled, linfhash, pipeline
from antipodal.hashers.bit_descent import (
    RIDGE,
    Correction,
    refit_dictionary,
    rescale_dictionary,
)
from antipodal.hashers.bit_flips import NEAR_WEIGHT, OWN_WEIGHT, BitFlips, NearFlips
from antipodal.hashers.near_rows import N_NEAR, NearRows, NearScores
from antipodal.hashers.neighbourhoods import NeighbourFlips, Neighbourhoods

DIGITS = load_digits(return_X_y=True)[0]


def unit_rows(X):
    X = X.astype(np.float32)
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def problem(seed, m=6, n=5, n_bits=9):
    rng = np.random.default_rng(seed)
    Y = rng.standard_normal((m, n))
    Y /= np.linalg.norm(Y, axis=1, keepdims=True)
    D, offset = rng.standard_normal((n, n_bits)) / n, 0.3 * rng.standard_normal(n)
    return Y, D, offset, rng.choice([-1.0, 1.0], (m, n_bits))


def objective(y, D, offset, b, weight):
    v = offset + D @ b
    return np.sum((y - v) ** 2) + weight * (v @ v - 1) ** 2


def descend_by_loops(y, D, offset, b, weight):
    b = b.copy()
    while True:
        flipped = [np.where(np.arange(len(b)) == j, -b, b) for j in range(len(b))]
        values = [objective(y, D, offset, c, weight) for c in flipped]
        if not min(values) < objective(y, D, offset, b, weight) - 1e-6:
            return b
        b = flipped[int(np.argmin(values))]


@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(8))
def test_descent_gives_the_same_signs_as_loops_over_rows_and_bits(seed, weight):
    Y, D, offset, signs = problem(seed)
    ours = BitFlips(D, weight).run(Y, offset, signs.copy())
    for y, b, found in zip(Y, signs, ours, strict=True):
        np.testing.assert_array_equal(found, descend_by_loops(y, D, offset, b, weight))


def test_the_optimal_code_is_not_changed():
    Y, D, offset, _ = problem(0, m=3, n_bits=8)
    corners = [np.array(c, float) for c in itertools.product([-1, 1], repeat=8)]
    best = [min(corners, key=lambda b, y=y: objective(y, D, offset, b, 1.0)) for y in Y]
    found = BitFlips(D).run(Y, offset, np.array(best))
    np.testing.assert_array_equal(found, best)


@pytest.mark.parametrize("window", [1, 3, 50])
def test_the_window_does_not_change_the_result(monkeypatch, window):
    Y, D, offset, signs = problem(1, m=50)
    whole = BitFlips(D).run(Y, offset, signs.copy())
    monkeypatch.setattr(bit_flips, "_WINDOW", window)
    np.testing.assert_array_equal(BitFlips(D).run(Y, offset, signs.copy()), whole)


def tabu_by_loops(y, D, offset, b, weight, n_steps, tenure):
    """Search with the objective recomputed for every candidate."""
    b, best, free_at = b.copy(), b.copy(), np.zeros(len(b), int)
    for t in range(n_steps):
        values = [
            objective(y, D, offset, np.where(np.arange(len(b)) == j, -b, b), weight)
            if t > free_at[j] or free_at[j] == 0
            else np.inf
            for j in range(len(b))
        ]
        j = int(np.argmin(values))
        b[j] = -b[j]
        free_at[j] = t + tenure
        if values[j] < objective(y, D, offset, best, weight) - 1e-6:
            best = b.copy()
    return best


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("seed", range(4))
def test_tabu_search_gives_the_same_signs_as_loops_over_rows_and_bits(seed, weight):
    Y, D, offset, signs = problem(seed, n_bits=40)
    search = BitFlips(D, weight, n_steps=30)
    assert search.tenure == 10
    search.tenure = 4
    ours = search.run(Y, offset, signs.copy())
    for y, b, found in zip(Y, signs, ours, strict=True):
        np.testing.assert_array_equal(found, tabu_by_loops(y, D, offset, b, weight, 30, 4))


def test_tabu_search_leaves_local_minima_of_the_descent():
    Y, D, offset, signs = problem(0, m=300, n=12, n_bits=48)
    greedy = BitFlips(D).run(Y, offset, signs.copy())
    found = BitFlips(D, n_steps=100).run(Y, offset, greedy.copy())
    values = [
        np.array([objective(y, D, offset, b, 1.0) for y, b in zip(Y, codes, strict=True)])
        for codes in (greedy, found)
    ]
    assert (values[1] <= values[0] + 1e-9).all()
    assert values[1].mean() < 0.9 * values[0].mean()


def test_tabu_search_of_a_row_does_not_depend_on_the_others():
    Y, D, offset, signs = (x.astype(np.float32) for x in problem(3, m=700, n_bits=40))
    search = BitFlips(D, n_steps=20)
    whole = search.run(Y, offset, signs.copy())
    for part in (slice(0, 1), slice(255, 258), slice(500, 700)):
        np.testing.assert_array_equal(search.run(Y[part], offset, signs[part].copy()), whole[part])


def compile_searches(monkeypatch, interpreted):
    if not interpreted:
        pytest.importorskip("numba")
    searches = compiled.make_searches(lambda f: f) if interpreted else compiled._compile()
    monkeypatch.setattr(bit_flips, "compiled_searches", lambda n_rows: searches)


@pytest.mark.parametrize("interpreted", [True, False])
@pytest.mark.parametrize(("n_bits", "weight"), [(1, 1), (7, 1), (40, 1), (64, 0)])
def test_the_compiled_search_gives_the_same_bits(monkeypatch, interpreted, n_bits, weight):
    Y, D, offset, signs = problem(5, m=30, n_bits=n_bits)
    Y[0], D[:, n_bits // 2], D[:, n_bits // 3] = 0, 0, D[:, 0]  # equal changes: the first bit
    Y, D, offset, signs = (x.astype(np.float32) for x in (Y, D, offset, signs))
    flips = BitFlips(D, weight, n_steps=50)
    expected = flips.run(Y, offset, signs.copy())
    compile_searches(monkeypatch, interpreted)
    np.testing.assert_array_equal(flips.run(Y, offset, signs.copy()), expected)


def test_the_search_is_compiled_after_many_rows(monkeypatch):
    monkeypatch.setattr(compiled, "_n_rows", 0)
    monkeypatch.setattr(compiled, "_compile", lambda: print)
    assert compiled.compiled_searches(20_000) is None
    assert compiled.compiled_searches(20_000) is print


def test_a_correction_is_stored_as_a_binary_number():
    rng = np.random.default_rng(0)
    Y = rng.standard_normal((300, 20)).astype(np.float32)
    Y /= np.linalg.norm(Y, axis=1, keepdims=True)
    V = (Y + 0.1 * rng.standard_normal(Y.shape)).astype(np.float32)
    correction = Correction(weight=0.5, low=-0.1, step=0.02, slope=1.2, offset=0.03)
    signs = correction.signs(Y, V, 4)
    k = (signs > 0) @ [8, 4, 2, 1]
    exact = -0.5 * np.sum(V * (V - Y), axis=1)
    np.testing.assert_array_equal(k, np.clip(np.rint((exact + 0.1) / 0.02), 0, 15))
    np.testing.assert_allclose(
        signs @ correction.query_values(4) + correction.constant(4), 1.2 * (0.02 * k - 0.1) + 0.03
    )


def test_models_of_version_0_8_use_their_own_search():
    written = {"n_bits": 128, "descent": True, "correction_bits": 4}
    restored = LinfHash.read_parameters(written)
    assert (restored["effort"], restored["length_weight"]) == (0.25, 0.0)
    assert "correction_bits" not in restored
    flips = LinfHash(**restored, random_state=0).fit(DIGITS[:500]).pipeline()[1].levels[0].search
    assert (flips.weight, flips.n_steps) == (1, 0)  # a level without a correction


def near_problem(m=60, n=12, n_bits=30, seed=0):
    """Rows in clusters, a dictionary, initial signs, training rows and near scores."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((5, n))
    Y = unit_rows(centres[rng.integers(0, 5, m + 400)] + 0.4 * rng.standard_normal((m + 400, n)))
    D = (rng.standard_normal((n, n_bits)) / n).astype(np.float32)
    offset = Y.mean(axis=0)
    near = NearRows.fit(Y[m:], offset, np.random.RandomState(seed))
    signs = rng.choice(np.float32([-1, 1]), (m, n_bits))
    return Y[:m], D, offset, signs, near, NearScores(0.9, 0.05, 0.4)


def scores_objective(y, D, offset, b, Q, scores):
    """The objective of `NearFlips` and `NeighbourFlips` for queries Q, without its expansion."""
    v = offset + D @ b
    errors = np.mean((Q @ (v - scores.slope * y) - scores.offset) ** 2)
    own = OWN_WEIGHT * (y @ v - scores.slope - scores.offset) ** 2
    weight = NEAR_WEIGHT * len(y) * scores.square / (1 - scores.square)
    return np.sum((y - v) ** 2) + weight * errors + own


def search_by_loops(objective, b, n_steps, tenure):
    """Search with the objective recomputed for every candidate."""
    b, best, free_at = b.astype(float), b.astype(float), np.zeros(len(b), int)
    for t in range(n_steps):
        flipped = [np.where(np.arange(len(b)) == j, -b, b) for j in range(len(b))]
        values = np.array([objective(c) for c in flipped])
        values[(free_at > 0) & (t <= free_at)] = np.inf
        j = int(np.argmin(values))
        b, free_at[j] = flipped[j], t + tenure
        if values[j] < objective(best) - 1e-6:
            best = b.copy()
    return best


def test_near_rows_are_the_nearest_of_the_training_rows():
    rng = np.random.default_rng(0)
    Y = unit_rows(rng.standard_normal((500, 7)) + np.eye(7)[0])
    Y[:, 3] = 0  # a feature without variance
    near = NearRows.fit(Y[:480], Y.mean(axis=0), np.random.RandomState(0))
    Q = near.rows(np.arange(480))
    order = [np.argmin(np.square(Q - y).sum(axis=1)) for y in Y[:480]]
    np.testing.assert_array_equal(np.sort(order), np.arange(480))  # every row is there
    assert np.square(Q[order] - Y[:480]).sum(axis=1).mean() < 0.02  # with four bits
    assert (np.diff(near.ends, prepend=0) >= N_NEAR).all()
    assert near.ends[-1] == 480
    found = near.nearest(Y[480:])  # four lists: all of them are searched
    for y, numbers in zip(Y[480:], found, strict=True):
        cosines = np.sort(Q @ y)[::-1]
        assert len(np.unique(numbers)) == N_NEAR
        np.testing.assert_allclose(np.sort(Q[numbers] @ y)[::-1], cosines[:N_NEAR], atol=1e-5)
    X = rng.standard_normal((20, 7)).astype(np.float32)
    expected = np.einsum("mrn,mn->mr", Q[found], X)
    np.testing.assert_allclose(near.products(found, X), expected, atol=1e-5)
    assert NearRows.fit(Y[:299], Y.mean(axis=0), np.random.RandomState(0)) is None


def test_the_nearest_lists_have_most_of_the_near_rows():
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((100, 24))
    Y = unit_rows(centres[rng.integers(0, 100, 3000)] + 0.7 * rng.standard_normal((3000, 24)))
    near = NearRows.fit(Y[:2900], Y.mean(axis=0), np.random.RandomState(0))
    assert 20 <= len(near.ends) <= 29
    Q = near.rows(np.arange(2900))
    nearest = np.argsort(-(Y[2900:] @ Q.T), axis=1)[:, :N_NEAR]
    pairs = zip(near.nearest(Y[2900:]), nearest, strict=True)
    assert np.mean([np.isin(found, true).mean() for found, true in pairs]) > 0.85


def test_near_rows_of_short_codes_are_selected_from_more_rows():
    rng = np.random.default_rng(0)
    Y = unit_rows(rng.standard_normal((9000, 24)))
    near = NearRows.fit(Y, Y.mean(axis=0), np.random.RandomState(0))
    assert [near.reach(n_bits) for n_bits in (0, 6, 12, 24)] == [60, 42, 24, 24]
    ordered = np.argsort(-(Y[:50] @ near.rows(np.arange(9000)).T), axis=1)
    narrow, wide = (near.nearest(Y[:50], reach) for reach in (24, 60))
    for row in range(50):
        assert narrow[row, 0] == wide[row, 0] == ordered[row, 0]
        assert len(np.unique(wide[row])) == N_NEAR
    mean = [near.products(rows, Y[:50]).mean() for rows in (narrow, wide)]
    assert mean[1] < mean[0] - 0.02
    for part in (slice(0, 1), slice(7, 30)):
        np.testing.assert_array_equal(near.nearest(Y[part], 60), wide[part])
    np.testing.assert_array_equal(near.nearest(Y[:9], 5000).shape, (9, N_NEAR))  # more than exist


@pytest.mark.parametrize("n", [1, 6, 7])
def test_packed_rows_have_four_bits_per_feature(n):
    rng = np.random.default_rng(0)
    Y, mean = unit_rows(rng.standard_normal((700, n))), np.zeros(n, np.float32)
    near = NearRows.fit(Y, mean, np.random.RandomState(0))
    packed = near.pack()
    assert packed.shape == (700, (n + 1) // 2)
    again = NearRows.unpack(mean, near.steps, packed, near.ends)
    np.testing.assert_array_equal(again.values, near.values)
    np.testing.assert_array_equal(again.nearest(Y[:9]), near.nearest(Y[:9]))


def test_equal_training_rows_are_near_rows():
    Y = np.repeat(unit_rows(np.eye(4)[:2]), 200, axis=0)
    near = NearRows.fit(Y, Y.mean(axis=0), np.random.RandomState(0))
    cosines = near.products(near.nearest(Y), Y)
    np.testing.assert_allclose(cosines, cosines[0, 0], atol=1e-5)
    assert cosines[0, 0] > 0.8


def test_near_scores_are_fitted_to_near_rows():
    rng = np.random.default_rng(0)
    Y = unit_rows(rng.standard_normal((300, 8)))
    w = rng.standard_normal(8).astype(np.float32)
    V = (0.8 * Y + 0.1 * w).astype(np.float32)  # ⟨q, v⟩ = 0.8⟨q, y⟩ + 0.1⟨q, w⟩
    near = np.argsort(-(Y @ Y.T), axis=1)[:, 1:21]
    cosines = np.take_along_axis(Y @ Y.T, near, axis=1)[:100].ravel()
    scores = np.take_along_axis(V @ Y.T, near, axis=1)[:100].ravel()
    expected = *np.polyfit(cosines, scores, 1), np.square(cosines).mean()
    np.testing.assert_allclose(NearScores.fit(Y, V[:100]), expected, rtol=1e-3, atol=1e-4)
    assert NearScores.fit(Y[:3], V[:3]) == NearScores()  # too few rows
    assert NearScores.fit(Y, -V[:100])[:2] == (1, 0)


@pytest.mark.parametrize("seed", range(4))
def test_near_flips_find_codes_as_good_as_loops_over_rows_and_bits(seed):
    Y, D, offset, signs, near, scores = near_problem(m=8, seed=seed)
    search = NearFlips(D, near, scores, n_steps=12)
    queries = near.rows(near.nearest(Y))
    ours = search.run(Y, offset, signs.copy())
    values = []
    for y, b, found, Q in zip(Y, signs, ours, queries, strict=True):

        def objective(b, y=y, Q=Q):
            return scores_objective(y, D, offset, b, Q, scores)

        best = search_by_loops(objective, b, 12, search.tenure)
        values.append([objective(found), objective(best), objective(b)])
    found, best, initial = np.array(values).T
    # Products are rounded, so nearly equal changes may be ordered differently.
    assert np.mean(np.abs(found / best - 1) < 0.02) >= 0.75
    assert found.sum() < 1.05 * best.sum() < 0.5 * initial.sum()


@pytest.mark.parametrize("seed", range(4))
def test_models_of_version_0_13_search_by_neighbourhoods(seed):
    Y, D, offset, signs, _, scores = near_problem(m=8, seed=seed)
    groups = [Y[:4], Y[4:]]
    near = Neighbourhoods(
        np.array([group.mean(axis=0) for group in groups]),
        np.array([group / 2 for group in groups], np.float16),  # AᵀA is the mean of qqᵀ
    )
    search = NeighbourFlips(D, near, scores, n_steps=12)
    ours = search.run(Y, offset, signs.copy())
    for y, b, found, i in zip(Y, signs, ours, near.nearest(Y), strict=True):

        def objective(b, y=y, Q=groups[i]):
            return scores_objective(y, D, offset, b, Q, scores)

        best = search_by_loops(objective, b, 12, search.tenure)
        np.testing.assert_allclose(objective(found), objective(best), rtol=1e-3)


def test_near_flips_of_a_row_do_not_depend_on_the_others_or_on_the_memory(monkeypatch):
    Y, D, offset, signs, near, scores = near_problem(m=300)
    search = NearFlips(D, near, scores, n_steps=15)
    whole = search.run(Y, offset, signs.copy())
    assert (whole != signs).any(axis=1).all()
    for part in (slice(0, 1), slice(100, 103), slice(17, 300)):
        fresh = NearFlips(D, near, scores, n_steps=15)  # without products from before
        np.testing.assert_array_equal(fresh.run(Y[part], offset, signs[part].copy()), whole[part])
    monkeypatch.setattr(bit_flips, "_NEAR_WINDOW", 7)
    np.testing.assert_array_equal(search.run(Y, offset, signs.copy()), whole)
    per_row = np.tile(offset, (len(Y), 1))
    np.testing.assert_array_equal(search.run(Y, per_row, signs.copy()), whole)


@pytest.mark.parametrize("interpreted", [True, False])
@pytest.mark.parametrize("n_bits", [1, 7, 40, 64])
def test_compiled_near_flips_give_the_same_bits(monkeypatch, interpreted, n_bits):
    Y, D, offset, signs, near, scores = near_problem(m=30, n_bits=n_bits)
    D[:, n_bits // 2], D[:, n_bits // 3] = 0, D[:, 0]  # equal changes: the first bit
    search = NearFlips(D, near, scores, n_steps=25)
    expected = search.run(Y, offset, signs.copy())
    compile_searches(monkeypatch, interpreted)
    np.testing.assert_array_equal(search.run(Y, offset, signs.copy()), expected)


@pytest.mark.parametrize(
    "forged",
    [
        {"near_ends_": np.array([100, 110, 500])},
        {"near_ends_": np.array([100, 400])},
        {"near_ends_": np.empty(0, np.int64)},
        {"near_steps_": np.full(64, -1, np.float32)},
        {"near_steps_": np.full(64, np.nan, np.float32)},
        {"near_steps_": np.full(64, np.inf, np.float32)},
        {"near_ends_": np.array([100.5, 500])},
        {"near_rows_": np.zeros((500, 33), np.uint8)},
        {"near_rows_": np.zeros((500, 32), np.int8)},
        {"near_scores_": np.ones((2, 3))},
        {"near_scores_": -np.ones((1, 3))},
        {"near_scores_": np.array([[0, 0.1, 0.4]])},
    ],
)
def test_near_rows_that_do_not_fit_are_refused(forged):
    hasher = LinfHash.asymmetric(32, random_state=0).fit(DIGITS[:500])
    hasher.check_restored()
    vars(hasher).update(forged)
    with pytest.raises(ValueError, match=next(iter(forged))):
        hasher.check_restored()


def test_few_training_rows_are_no_near_rows(tmp_path):
    hasher = LinfHash.asymmetric(32, random_state=0).fit(DIGITS[:299])
    assert len(hasher.near_rows_) == 0
    hasher.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").encode(DIGITS), hasher.encode(DIGITS))


def test_neighbours_lower_the_errors_of_scores_of_near_rows():
    train, X, Q = DIGITS[:800], DIGITS[800:1600], DIGITS[1600:]
    truth = cosine_similarity(Q, X)
    near = np.argsort(-truth, axis=1)[:, :20]
    spreads = []
    for neighbours in (False, True):
        hasher = LinfHash.asymmetric(128, random_state=0).set_params(neighbours=neighbours)
        scores = hasher.fit(train).query(Q) @ (2.0 * hasher.transform(X) - 1).T
        error = np.take_along_axis(scores - truth, near, axis=1)
        spreads.append((error - error.mean(axis=1, keepdims=True)).std())
    assert spreads[1] < 0.9 * spreads[0]


def test_the_dictionary_is_that_of_ridge_regression_and_vectors_have_length_one():
    Y, _, offset, signs = problem(2, m=200)
    D = refit_dictionary(Y, offset, signs)
    ridge = np.linalg.solve(signs.T @ signs + 200 * RIDGE * np.eye(9), signs.T @ (Y - offset)).T
    np.testing.assert_allclose(D, ridge)
    D = rescale_dictionary(D, offset, signs)
    np.testing.assert_allclose(D / ridge, (D / ridge)[0, 0])
    np.testing.assert_allclose(np.square(offset + signs @ D.T).sum(axis=1).mean(), 1.0)


def recall(hasher, X, Q):
    index = HammingIndex(hasher.n_bits)
    index.add(hasher.encode(X))
    nearest = np.argsort(-cosine_similarity(Q, X), axis=1)[:, :10]
    found = index.search(vectors=hasher.query(Q), k=10).ids
    return np.mean([np.isin(f, n).mean() for f, n in zip(found, nearest, strict=True)])


def test_the_last_refit_uses_all_rows_in_blocks(monkeypatch):
    settings = {"n_bits": 48, "descent": True, "effort": 0.5, "random_state": 0}
    refits = []

    def refit(Y, mean, signs):
        D = refit_dictionary(Y, mean, signs)
        gram = signs.T @ signs / len(Y) + RIDGE * np.eye(signs.shape[1])
        expected = np.linalg.solve(gram.astype(float), signs.T @ (Y - mean) / len(Y))
        np.testing.assert_allclose(D, expected.T, atol=1e-4)
        refits.append(Y)
        return D

    monkeypatch.setattr(bit_descent, "refit_dictionary", refit)
    for module in (bit_descent, linfhash):
        monkeypatch.setattr(module, "FIRST_ROWS", 500)
    grown = LinfHash(**settings).fit(DIGITS[:1600])
    assert [len(Y) for Y in refits] == [500, 800, 1200, 1600]
    assert len(np.unique(refits[-1], axis=0)) == len(np.unique(DIGITS[:1600], axis=0))
    assert not np.array_equal(refits[0], unit_rows(DIGITS[:500]))  # in random order
    few = LinfHash(n_samples=500, **settings).fit(DIGITS[:1600])
    assert [len(Y) for Y in refits[4:]] == [500] * 4
    errors = []
    for hasher in (grown, few):
        rebuilt = hasher.reconstruct(hasher.encode(DIGITS[:1600]))
        errors.append(np.square(unit_rows(DIGITS[:1600]) - rebuilt).sum())
    assert errors[0] < errors[1]


def test_the_asymmetric_setting_has_a_higher_recall():
    train, X, Q = DIGITS[:800], DIGITS[800:1600], DIGITS[1600:]
    shares = {
        name: recall(hasher.fit(train), X, Q)
        for name, hasher in {
            "asymmetric": LinfHash.asymmetric(128, random_state=0),
            "random frame": LinfHash.asymmetric(128, random_state=0).set_params(n_refits=0),
            "Hamming": LinfHash(128, random_state=0),
        }.items()
    }
    assert shares["asymmetric"] > shares["random frame"] + 0.02 > shares["Hamming"] + 0.02
    assert shares["asymmetric"] > 0.8


@pytest.mark.parametrize("n_bits", [16, 64, 128])
def test_scores_estimate_cosines_and_codes_reconstruct_directions(n_bits):
    hasher = LinfHash.asymmetric(n_bits, random_state=0).fit(DIGITS)
    units = DIGITS / np.linalg.norm(DIGITS, axis=1, keepdims=True)
    rebuilt = hasher.reconstruct(hasher.encode(DIGITS))
    assert abs(np.linalg.norm(rebuilt, axis=1).mean() - 1) < 0.02
    signs = 2.0 * hasher.transform(DIGITS) - 1
    scores = hasher.query(DIGITS[:50]) @ signs.T + hasher.score_offset(DIGITS[:50])[:, None]
    error = np.sqrt(np.mean((scores - units[:50] @ units.T) ** 2))
    assert error < {16: 0.1, 64: 0.05, 128: 0.03}[n_bits]
    plain = LinfHash.asymmetric(n_bits, random_state=0).set_params(neighbours=False).fit(DIGITS)
    signs = 2.0 * plain.transform(DIGITS[:9]) - 1
    scores = plain.query(DIGITS[:50]) @ signs.T + plain.score_offset(DIGITS[:50])[:, None]
    rebuilt = plain.reconstruct(plain.encode(DIGITS[:9]))
    np.testing.assert_allclose(scores, units[:50] @ rebuilt.T, atol=1e-4)


def test_bits_do_not_depend_on_length_dtype_or_other_rows(tmp_path):
    X = DIGITS.astype(np.float16)
    hasher = LinfHash.asymmetric(48, random_state=0).fit(X)
    codes = hasher.encode(X)
    np.testing.assert_array_equal(hasher.encode(DIGITS), codes)
    np.testing.assert_array_equal(hasher.encode(4 * DIGITS), codes)
    np.testing.assert_array_equal(hasher.encode(X[5:6]), codes[5:6])
    hasher.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.encode(X), codes)
    np.testing.assert_array_equal(loaded.query(X[:9]), hasher.query(X[:9]))
    again = LinfHash.asymmetric(48, random_state=0).fit(DIGITS)
    np.testing.assert_array_equal(again.encode(X), codes)


def test_codes_of_wide_rows_do_not_depend_on_the_number_of_threads(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 1200))[rng.integers(0, 20, 1000)]
    X += 0.5 * rng.standard_normal(X.shape)
    monkeypatch.setattr(bit_descent.BitDescent, "block_rows", 32)
    hasher = LinfHash.asymmetric(32, random_state=0).fit(X[:320])
    expected = np.concatenate([hasher.encode(X[i : i + 32]) for i in range(0, 1000, 32)])
    for n_threads in (1, 4):
        monkeypatch.setattr(pipeline, "usable_cores", lambda n=n_threads: n)
        again = LinfHash.asymmetric(32, random_state=0).fit(X[:320])  # computes its tables
        np.testing.assert_array_equal(again.encode(X), expected)


def test_constant_rows_and_rows_of_zeros_have_codes():
    for X in (np.ones((20, 4)), np.zeros((20, 4))):
        hasher = LinfHash.asymmetric(8, random_state=0).fit(X)
        assert np.isfinite(hasher.query(X)).all()
        assert len(np.unique(hasher.encode(X))) == 1


def test_scores_are_products_with_reconstructions():
    hasher = LinfHash(100, random_state=0).fit(DIGITS)
    signs = 2.0 * hasher.transform(DIGITS[:30]) - 1
    rebuilt = hasher.reconstruct(hasher.encode(DIGITS[:30])) - hasher.mean_
    expected = (DIGITS[:30] - hasher.mean_) @ rebuilt.T
    np.testing.assert_allclose(hasher.query(DIGITS[:30]) @ signs.T, expected, rtol=1e-3, atol=0.5)


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ({"n_refits": -1}, ValueError),
        ({"descent": "yes"}, TypeError),
        ({"neighbours": True}, ValueError),
        ({"neighbours": 1, "descent": True}, TypeError),
    ],
)
def test_invalid_settings_are_rejected(setting, error):
    with pytest.raises(error, match=next(iter(setting))):
        LinfHash(8, **setting).fit(DIGITS)


@pytest.mark.parametrize(
    ("n_features", "n_bits", "nested", "expected"),
    [
        (384, 384, (), [384]),
        (384, 671, (), [671]),
        (384, 672, (), [192, 672]),
        (384, 768, (), [288, 768]),
        (384, 1536, (), [288, 912, 1536]),
        (384, 768, (192, 384), [192, 384, 768]),
        (384, 1536, (384,), [384, 960, 1536]),
        (384, 1536, (768,), [288, 768, 1536]),
        (3, 112, (), [32, 112]),  # as many as with 64 features
        (3, 111, (), [111]),
        (5, 1, (), [1]),
    ],
)
def test_later_levels_have_more_bits_than_features(n_features, n_bits, nested, expected):
    X = np.random.default_rng(0).standard_normal((20, n_features)).astype(np.float32)
    hasher = LinfHash.asymmetric(n_bits, nested=nested, random_state=0)
    hasher.set_params(n_refits=0, effort=0.0).fit(X)
    assert hasher.levels_ == expected


@given(st.integers(1, 200), st.lists(st.integers(1, 2000), min_size=1, unique=True))
def test_levels_end_at_the_requested_lengths(n_features, lengths):
    *nested, n_bits = sorted(lengths)
    levels = LinfHash.asymmetric(n_bits, nested=tuple(nested))._lengths(n_features)
    assert set(lengths) <= set(levels)
    widths = np.diff([0, *levels])
    assert (widths > 0).all()
    assert widths.max() < 2.5 * max(n_features, 64) + 1


def test_only_levels_of_requested_lengths_search_for_likely_queries(tmp_path):
    hasher = LinfHash.asymmetric(240, nested=(120,), random_state=0).fit(DIGITS)
    hasher.save(tmp_path / "model")
    for model in (hasher, load(tmp_path / "model")):
        searches = {
            n: level.near is not None
            for n, level in zip(model.levels_, model.pipeline()[1].levels, strict=True)
        }
        assert searches == {40: False, 120: True, 240: True}
        assert (model.near_scores_.any(axis=1) == list(searches.values())).all()
    short = hasher.prefix(40)
    assert short.pipeline()[1].levels[0].near is None
    np.testing.assert_array_equal(short.transform(DIGITS), hasher.transform(DIGITS)[:, :40])


def test_a_prefix_is_a_hasher_of_the_first_bits(tmp_path):
    hasher = LinfHash.asymmetric(210, nested=(24, 48), random_state=0).fit(DIGITS)
    assert hasher.levels_ == [24, 48, 129, 210]
    bits = hasher.transform(DIGITS)
    for n_bits in (24, 48, 129):
        short = hasher.prefix(n_bits)
        np.testing.assert_array_equal(short.transform(DIGITS), bits[:, :n_bits])
        short.save(tmp_path / "short")
        loaded = load(tmp_path / "short")
        np.testing.assert_array_equal(loaded.transform(DIGITS), bits[:, :n_bits])
        np.testing.assert_array_equal(loaded.query(DIGITS), short.query(DIGITS))
        assert loaded.get_params()["nested"] == tuple(n for n in (24, 48) if n < n_bits)
    np.testing.assert_array_equal(
        hasher.prefix(129).prefix(48).transform(DIGITS), hasher.prefix(48).transform(DIGITS)
    )
    errors = [
        np.square(
            DIGITS / np.linalg.norm(DIGITS, axis=1)[:, None] - h.reconstruct(h.encode(DIGITS))
        )
        for h in (hasher.prefix(24), hasher.prefix(48), hasher.prefix(129), hasher)
    ]
    assert all(np.diff([e.mean() for e in errors]) < 0)
    hasher.save(tmp_path / "model")
    np.testing.assert_array_equal(
        load(tmp_path / "model").prefix(48).transform(DIGITS), bits[:, :48]
    )


def test_the_shortest_prefix_is_the_code_of_that_length_and_recall_grows_with_bits():
    train, X, Q = DIGITS[:800], DIGITS[800:1600], DIGITS[1600:]
    hasher = LinfHash.asymmetric(96, nested=(24, 48), random_state=0).fit(train)
    alone = LinfHash.asymmetric(24, random_state=0).fit(train)
    np.testing.assert_array_equal(hasher.prefix(24).transform(X), alone.transform(X))
    shares = [recall(h, X, Q) for h in (alone, hasher.prefix(48), hasher)]
    assert all(np.diff(shares) > 0.05)


def test_other_prefixes_and_invalid_nested_lengths_are_rejected():
    hasher = LinfHash.asymmetric(40, nested=(16,), random_state=0).fit(DIGITS)
    with pytest.raises(ValueError, match=r"\b16\b.*\b20\b.*\bnested\b"):
        hasher.prefix(20)
    with pytest.raises(ValueError, match=r"\b16\b.*\bnested\b"):
        LinfHash(40, random_state=0).fit(DIGITS).prefix(16)
    for nested in ((40,), (16, 8), (0,)):
        with pytest.raises(ValueError, match=rf"\bnested\b.*{re.escape(str(nested))}"):
            LinfHash.asymmetric(40, nested=nested).fit(DIGITS)
    with pytest.raises(ValueError, match=r"\bnested\b.*\bdescent=True\b"):
        LinfHash(40, nested=(16,)).fit(DIGITS)

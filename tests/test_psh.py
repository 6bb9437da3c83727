"""Parameter-sensitive hashing against brute force over thresholds, pairs and sets of bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from antipodal import LSH, evaluate
from antipodal.baselines.psh import PSH, _select_bits
from antipodal.baselines.thresholds import best_cuts
from antipodal.paper.pairs import Pairs

X, Y = load_digits(return_X_y=True)
seeds = st.integers(0, 2**32 - 1)


def gap(bits, pairs, similar):
    """Return P(same bit | similar) - P(same bit | dissimilar), computed pair by pair."""
    same = [bits[i] == bits[j] for i, j in pairs]
    together = [s for s, kind in zip(same, similar, strict=True) if kind]
    apart = [s for s, kind in zip(same, similar, strict=True) if not kind]
    return sum(together) / len(together) - sum(apart) / len(apart)


def largest_gap(values, pairs, similar):
    cuts = np.unique(values)[:-1]  # x > cut gives every split of the values
    return max((gap(values > cut, pairs, similar) for cut in cuts), default=-np.inf)


def all_pairs(labels):
    pairs = [(i, j) for i in range(len(labels)) for j in range(i)]
    return pairs, [labels[i] == labels[j] for i, j in pairs]


def small_problem(seed):
    rng = np.random.default_rng(seed)
    labels = np.unique(np.r_[0, 0, 1, rng.integers(0, 4, 12)], return_inverse=True)[1]
    rows = rng.integers(0, 6, (15, 3)).astype(np.float32)  # many values are equal
    rows[:, 2] *= rng.standard_normal(15)
    return rng, rows, labels


def check_cuts(rows, cuts, pairs, similar):
    for column, threshold, found in zip(rows.T, cuts.thresholds, cuts.gaps, strict=True):
        assert found == pytest.approx(largest_gap(column, pairs, similar), abs=1e-12)
        assert gap(column > threshold, pairs, similar) == pytest.approx(found, abs=1e-12)


@given(seeds)
def test_the_thresholds_are_those_of_a_search_over_all_thresholds_and_all_pairs(seed):
    _, rows, labels = small_problem(seed)
    cuts = best_cuts(rows, np.eye(3, dtype=np.float32), labels)
    check_cuts(rows, cuts, *all_pairs(labels))


@given(seeds)
def test_the_thresholds_are_those_of_a_search_over_all_thresholds_and_listed_pairs(seed):
    rng, rows, _ = small_problem(seed)
    pairs, similar = rng.integers(0, 15, (30, 2)), np.arange(30) < rng.integers(1, 30)
    listed = Pairs(pairs, similar)
    cuts = best_cuts(rows, np.eye(3, dtype=np.float32), listed)
    check_cuts(rows, cuts, pairs, similar)


def test_a_constant_value_cannot_be_split_and_its_bit_is_zero():
    cuts = best_cuts(
        np.full((4, 1), 7, np.float32), np.ones((1, 1), np.float32), np.array([0, 0, 1, 1])
    )
    assert cuts.gaps == -np.inf
    assert cuts.thresholds == 7


def test_neighbouring_float32_values_are_separated():
    low = np.float32(1.5)
    rows = np.array([[low], [low], [np.nextafter(low, np.float32(2))]] * 2)
    cuts = best_cuts(rows, np.ones((1, 1), np.float32), np.array([0, 0, 1] * 2))
    np.testing.assert_array_equal(rows[:, 0] > cuts.thresholds, [False, False, True] * 2)


def test_the_block_size_does_not_change_the_result(monkeypatch):
    rows, directions = X[:50].astype(np.float32), np.eye(64, dtype=np.float32)[:, 10:30]
    whole = best_cuts(rows, directions, Y[:50])
    monkeypatch.setattr("antipodal.baselines.thresholds._BLOCK_ENTRIES", 150)
    for ours, expected in zip(best_cuts(rows, directions, Y[:50]), whole, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_the_gap_of_each_fitted_bit_is_that_of_its_training_bits():
    rows, labels = X[:60], Y[:60]
    hasher = PSH(6, n_projections=20, random_state=0).fit(rows, labels)
    pairs, similar = all_pairs(labels)
    for bits, found in zip(hasher.transform(rows).T, hasher.gaps_, strict=True):
        assert gap(bits, pairs, similar) == pytest.approx(found, abs=1e-12)
        assert found > 0.05


@given(seeds)
def test_each_bit_added_separates_the_distances_best(seed):
    rng = np.random.default_rng(seed)
    split = rng.random((40, 8)) < rng.random(8)
    similar, dissimilar = split[:20], split[20:]
    gaps = dissimilar.mean(axis=0) - similar.mean(axis=0)
    centred = np.vstack([similar - similar.mean(axis=0), dissimilar - dissimilar.mean(axis=0)])
    chosen = _select_bits(gaps, centred.astype(np.float32), 4)
    assert len(set(chosen)) == 4

    def separation(bits):
        near, far = similar[:, bits].sum(axis=1), dissimilar[:, bits].sum(axis=1)
        return (far.mean() - near.mean()) / np.sqrt(max(near.var() + far.var(), 1 / 20))

    for i in range(4):
        free = [j for j in range(8) if j not in chosen[:i]]
        best = max(separation([*chosen[:i], j]) for j in free)
        assert separation(chosen[: i + 1]) == pytest.approx(best, abs=1e-5)


def test_duplicates_of_one_good_feature_do_not_fill_the_code():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 50)
    strong, weak = labels // 2, labels % 2
    copies = strong[:, None] + 0.05 * rng.standard_normal((200, 20))
    rows = np.hstack([copies, weak[:, None] + 0.4 * rng.standard_normal((200, 1))])
    hasher = PSH(4, n_projections=0, random_state=0).fit(rows, labels)
    ends = rows.reshape(4, 50, 21).mean(axis=1)
    assert len(np.unique(hasher.transform(ends), axis=0)) == 4


def test_concepts_that_are_classes_lead_to_nearly_the_gaps_of_classes():
    one_hot = np.eye(10, dtype=int)[Y]
    by_class = PSH(16, n_projections=50, random_state=0).fit(X, Y)
    by_concept = PSH(16, n_projections=50, random_state=0).fit(X, one_hot)
    assert by_concept.gaps_.mean() == pytest.approx(by_class.gaps_.mean(), abs=0.02)


def test_codes_of_unseen_rows_rank_their_class_far_better_than_random_projections_do():
    def score(hasher):
        codes = hasher.fit(X[:1000], Y[:1000]).encode(X[1000:])
        return evaluate(codes[:300], codes[300:], Y[1000:1300], Y[1300:], n_bits=32).map

    # 68 and 50; the 32 candidates of largest gap, with duplicates, reach 64.
    assert score(PSH(32, random_state=0)) > score(LSH(32, random_state=0)) + 10


def test_invalid_training_data_are_rejected():
    with pytest.raises(ValueError, match=r"\by\b.*\bNone\b"):
        PSH(8).fit(X)
    with pytest.raises(ValueError, match=r"\b8\b.*\b6\b"):
        PSH(8, n_projections=0).fit(X[:, 20:23], Y)
    with pytest.raises(ValueError, match=r"\b8\b.*\b0\b"):
        PSH(8).fit(np.ones((10, 3)), Y[:10] // 5)
    with pytest.raises(ValueError, match=r"\bn_projections\b.*\b0\b.*-1\b"):
        PSH(8, n_projections=-1).fit(X, Y)
    with pytest.raises(ValueError, match=r"\bn_pairs\b.*\b2\b.*\b1\b"):
        PSH(8, n_pairs=1).fit(X, Y)


def test_nan_in_an_unused_feature_is_rejected():
    hasher = PSH(2, n_projections=0, random_state=0).fit(X, Y)
    unused = np.flatnonzero((hasher.directions_ == 0).all(axis=1))
    rows = X[:5].copy()
    rows[3, unused[0]] = np.nan
    with pytest.raises(ValueError, match=r"\brow 3\b"):
        hasher.encode(rows)

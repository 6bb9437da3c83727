"""LDAHash against sums over all pairs, scikit-learn's discriminant analysis and brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from antipodal import LSH, evaluate
from antipodal.baselines.ldahash import LDAHash, covariances_of_classes

X, Y = load_digits(return_X_y=True)


def covariance_of_pairs(rows, labels, similar_pairs):
    products = [
        np.outer(rows[i] - rows[j], rows[i] - rows[j])
        for i in range(len(rows))
        for j in range(i)
        if (labels[i] == labels[j]) == similar_pairs
    ]
    return np.mean(products, axis=0)


@given(st.integers(0, 2**32 - 1))
def test_the_covariances_are_averages_over_all_pairs(seed):
    rng = np.random.default_rng(seed)
    labels = np.unique(np.r_[0, 0, 1, rng.integers(0, 4, 12)], return_inverse=True)[1]
    rows = rng.standard_normal((15, 4)) + labels[:, None]
    similar, dissimilar = covariances_of_classes(rows, labels)
    np.testing.assert_allclose(similar, covariance_of_pairs(rows, labels, True), atol=1e-12)
    np.testing.assert_allclose(dissimilar, covariance_of_pairs(rows, labels, False), atol=1e-12)


def test_the_projection_whitens_similar_pairs_and_orders_dissimilar_ones_by_variance():
    rows, labels = X[:150], Y[:150]
    hasher = LDAHash(20, regularization=1e-3).fit(rows, labels)
    P = hasher.projection_.astype(np.float64)
    similar, dissimilar = (
        covariance_of_pairs(rows, labels, similar_pairs) for similar_pairs in (True, False)
    )
    ridge = 1e-3 * np.trace(dissimilar) / 64
    whitened = P.T @ (similar + ridge * np.eye(64)) @ P
    np.testing.assert_allclose(whitened, np.eye(20), atol=1e-5)
    spread = P.T @ dissimilar @ P
    np.testing.assert_allclose(spread, np.diag(np.diag(spread)), atol=1e-4)
    assert (np.diff(np.diag(spread)) < 0).all()


def test_without_a_ridge_the_leading_directions_are_those_of_discriminant_analysis():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 100)  # of equal size, so that both weight classes equally
    rows = rng.standard_normal((400, 6)) @ rng.standard_normal((6, 6))
    rows += 3 * rng.standard_normal((4, 6))[labels]
    ours = LDAHash(3, regularization=1e-9).fit(rows, labels).project(rows)
    theirs = LinearDiscriminantAnalysis(solver="eigen").fit(rows, labels).transform(rows)
    correlation = np.corrcoef(ours.T, theirs.T)[:3, 3:]
    np.testing.assert_allclose(np.abs(np.diag(correlation)), 1, atol=1e-5)


def test_no_threshold_has_fewer_false_negatives_and_positives():
    rows, labels = X[:60], Y[:60]
    hasher = LDAHash(5).fit(rows, labels)
    i, j = np.tril_indices(60, -1)
    similar_pairs = labels[i] == labels[j]

    def errors(bits):
        same = bits[i] == bits[j]
        return np.mean(~same[similar_pairs]) + np.mean(same[~similar_pairs])

    for values, bits in zip(hasher.project(rows).T, hasher.transform(rows).T, strict=True):
        least = min(errors(values > cut) for cut in np.sort(values)[:-1])
        assert errors(bits) == pytest.approx(least, abs=1e-12)


def test_concepts_that_are_classes_give_nearly_the_projection_of_classes():
    by_class = LDAHash(4).fit(X, Y).project(X)
    by_concept = LDAHash(4, random_state=0).fit(X, np.eye(10, dtype=int)[Y]).project(X)
    correlation = np.corrcoef(by_class.T, by_concept.T)[:4, 4:]
    assert np.abs(np.diag(correlation)).min() > 0.99


def test_as_many_bits_as_informative_directions_rank_far_better_than_random_projections():
    def score(hasher):
        codes = hasher.fit(X[:1000], Y[:1000]).encode(X[1000:])
        return evaluate(codes[:300], codes[300:], Y[1000:1300], Y[1300:], n_bits=9).map

    # 52 and 29
    assert score(LDAHash(9)) > score(LSH(9, random_state=0)) + 15


def test_rows_equal_to_their_class_mean_are_allowed():
    centres = np.random.default_rng(0).standard_normal((4, 6))
    labels = np.repeat(np.arange(4), 5)
    bits = LDAHash(4).fit(centres[labels], labels).transform(centres)
    assert len(np.unique(bits, axis=0)) == 4


def test_invalid_training_data_are_rejected():
    with pytest.raises(ValueError, match=r"\by\b.*\bNone\b"):
        LDAHash(8).fit(X)
    with pytest.raises(ValueError, match=r"\bn_bits\b.*\b65\b.*\b64\b"):
        LDAHash(65).fit(X, Y)
    with pytest.raises(ValueError, match=r"\bLDAHash\b.*\b10\b.*\brows\b"):
        LDAHash(2).fit(np.ones((10, 3)), Y[:10] // 5)
    for wrong in (0, -1, np.nan, np.inf):
        with pytest.raises(ValueError, match=rf"\bregularization\b.*{wrong}"):
            LDAHash(8, regularization=wrong).fit(X, Y)
    with pytest.raises(ValueError, match=r"\bn_pairs\b.*\b2\b.*\b0\b"):
        LDAHash(8, n_pairs=0).fit(X, Y)

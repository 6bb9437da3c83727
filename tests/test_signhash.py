import numpy as np
import pytest

from antipodal.hashers.signhash import SignHash

RNG = np.random.default_rng(0)
X = RNG.standard_normal((200, 24)) + 0.5


def test_without_rotation_a_bit_is_the_sign_of_its_feature():
    raw = SignHash(24, center=False, rotate=False).fit(X)
    np.testing.assert_array_equal(raw.transform(X), X > 0)
    centred = SignHash(24, rotate=False).fit(X)
    np.testing.assert_array_equal(centred.transform(X), X.mean(axis=0) < X)


def test_without_rotation_fewer_bits_keep_the_first_features():
    bits = SignHash(24, rotate=False).fit(X).transform(X)
    np.testing.assert_array_equal(SignHash(5, rotate=False).fit(X).transform(X), bits[:, :5])


def test_nan_in_an_unused_feature_is_rejected():
    rows = X.copy()
    rows[3, -1] = np.inf
    with pytest.raises(ValueError, match=r"\brow 3\b"):
        SignHash(5, rotate=False).fit(X).transform(rows)


def test_the_rotation_is_orthonormal_and_keeps_lengths():
    hasher = SignHash(24, random_state=0).fit(X)
    np.testing.assert_allclose(hasher.rotation_.T @ hasher.rotation_, np.eye(24), atol=1e-6)
    lengths = np.linalg.norm(X - X.mean(axis=0), axis=1)
    np.testing.assert_allclose(np.linalg.norm(hasher.project(X), axis=1), lengths, rtol=1e-5)


def test_a_rotated_bit_differs_with_the_probability_of_the_angle():
    v = np.zeros((2, 24))
    v[0, 0], v[1, :2] = 1.0, [1.0, 1.0]  # 45° apart
    differ = [
        np.diff(SignHash(24, center=False, random_state=s).fit(v).transform(v).astype(int), axis=0)
        for s in range(200)
    ]
    assert np.abs(differ).mean() == pytest.approx(0.25, abs=0.02)


def test_more_bits_than_features_are_rejected():
    with pytest.raises(ValueError, match=r"\bSignHash\b.*\bn_bits\b.*\b25\b.*\b24\b"):
        SignHash(25).fit(X)

"""Inner products and Euclidean distances by cosines, and vectors of other dtypes."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.datasets import load_digits

from antipodal import Collection, CosineReduction, LinfHash, audit, unpack

DIGITS = load_digits(return_X_y=True)[0]


def order(scores):
    return np.argsort(-scores, axis=1, kind="stable")


def cosines(Q, X):
    return 1 - cdist(Q, X, "cosine")


@pytest.mark.parametrize("seed", range(5))
def test_cosines_have_the_order_of_the_metric(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(200, 7)) * rng.gamma(2, size=(200, 1)) + 3 * rng.normal(size=7)
    Q = 5 * rng.normal(size=(20, 7))
    expected = {"dot": Q @ X.T, "euclidean": -cdist(Q, X)}
    for metric, scores in expected.items():
        reduction = CosineReduction(metric).fit(X)
        items = reduction.items(X)
        np.testing.assert_allclose(np.linalg.norm(items, axis=1), 1, rtol=1e-6)
        np.testing.assert_array_equal(
            order(cosines(reduction.queries(Q), items))[:, :20], order(scores)[:, :20]
        )


@pytest.mark.parametrize("metric", ["dot", "euclidean"])
def test_codes_of_reduced_vectors_find_more_neighbours(metric):
    rng = np.random.default_rng(0)
    X = DIGITS * rng.uniform(0.5, 2, (len(DIGITS), 1))
    X, Q = X[:1600], X[1600:]
    truth = order(Q @ X.T if metric == "dot" else -cdist(Q, X))[:, :10]
    reduction = CosineReduction(metric).fit(X)
    recalls = []
    for items, queries in ((X, Q), (reduction.items(X), reduction.queries(Q))):
        hasher = LinfHash.asymmetric(128, random_state=0).fit(items)
        scores = hasher.query(queries) @ (2.0 * unpack(hasher.encode(items), 128) - 1).T
        found = order(scores)[:, :10]
        recalls.append(np.mean([np.isin(a, b).mean() for a, b in zip(truth, found, strict=True)]))
    assert recalls[1] > recalls[0] + 0.1


def test_longer_items_and_invalid_rows_are_rejected():
    reduction = CosineReduction("dot").fit(DIGITS)
    with pytest.raises(ValueError, match="row 1 "):
        reduction.items(DIGITS[:2] * [[1], [100]])
    with pytest.raises(ValueError, match="64 dimensions"):
        reduction.queries(DIGITS[:, :3])
    for rows in (DIGITS[0], DIGITS.astype(str), np.full((2, 3), np.nan), np.empty((0, 3))):
        with pytest.raises(ValueError, match="X"):
            CosineReduction("euclidean").fit(rows)
    with pytest.raises(ValueError, match="cosine"):
        CosineReduction("cosine")


def test_equal_rows_and_zeros_are_reduced():
    for X in (np.zeros((3, 4)), np.ones((3, 4))):
        for metric in ("dot", "euclidean"):
            reduction = CosineReduction(metric).fit(X)
            np.testing.assert_allclose(np.linalg.norm(reduction.items(X), axis=1), 1, rtol=1e-6)
            assert np.isfinite(reduction.queries(X)).all()


@pytest.mark.parametrize("dtype", [np.float16, np.int8])
def test_half_precision_and_int8_vectors_are_those_of_doubles(dtype, tmp_path):
    X = (8 * DIGITS[:600] - 64).astype(dtype)  # the whole range of int8
    X[0] *= 100 if dtype == np.float16 else 1  # its length is infinite in half precision
    exact = X.astype(np.float64)
    hasher = LinfHash.asymmetric(64, random_state=0).fit(X)
    reference = LinfHash.asymmetric(64, random_state=0).fit(exact)
    np.testing.assert_array_equal(hasher.encode(X), reference.encode(exact))
    np.testing.assert_allclose(hasher.query(X), reference.query(exact), atol=1e-6)
    np.testing.assert_allclose(hasher.score_offset(X), reference.score_offset(exact), atol=1e-6)
    with (
        Collection.create(tmp_path / "a.db", X, bits=64, keep_vectors="float32") as ours,
        Collection.create(tmp_path / "b.db", exact, bits=64, keep_vectors="float32") as theirs,
    ):
        for options in ({}, {"rerank": 4}):
            found, expected = (c.search(X[:9], k=5, **options) for c in (ours, theirs))
            np.testing.assert_array_equal(found.ids, expected.ids)
            np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
    for metric in ("cosine", "dot", "euclidean"):
        options = {"bits": (64,), "methods": ["LinfHash.asymmetric"], "metric": metric}
        results = [audit(rows, baselines="none", n_queries=50, **options) for rows in (X, exact)]
        recalls = [[setting.recall for setting in result.settings] for result in results]
        np.testing.assert_allclose(*recalls, atol=0.005)


def test_vectors_that_are_not_real_numbers_are_rejected(tmp_path):
    for dtype in (bool, complex):
        with pytest.raises(TypeError):
            Collection.create(tmp_path / "a.db", DIGITS.astype(dtype), bits=64)
        with pytest.raises(ValueError, match="numeric"):
            audit(DIGITS.astype(dtype))

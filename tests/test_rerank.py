"""Reranking by vectors and by float queries."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics.pairwise import cosine_similarity, euclidean_distances

from antipodal.codes import pack, unpack
from antipodal.index import HammingIndex
from antipodal.index.rerank import Vectors, best_first, projection_scores, rerank


def make_data(seed=0, n=400, n_features=12, n_bits=10):
    """Return an index of random vectors, the vectors, queries, their codes and float queries."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, n_features)).astype(np.float32)
    Q = rng.standard_normal((6, n_features)).astype(np.float32)
    W = rng.standard_normal((n_features, n_bits)).astype(np.float32)
    index = HammingIndex(n_bits)
    index.add(pack(X @ W > 0))
    return index, X, Q, pack(Q @ W > 0), Q @ W


REFERENCES = {
    "cosine": cosine_similarity,
    "euclidean": lambda a, b: -euclidean_distances(a, b),
}


@pytest.mark.parametrize("metric", REFERENCES)
def test_reranking_all_items_equals_an_exact_vector_search(metric):
    index, X, Q, codes, _ = make_data()
    scores = REFERENCES[metric](Q.astype(np.float64), X.astype(np.float64))
    found = index.search(codes, 20, rescore=Vectors(Q, X, metric), oversample=20)
    np.testing.assert_array_equal(found.ids, np.argsort(-scores, axis=1)[:, :20])
    np.testing.assert_allclose(found.scores, -np.sort(-scores, axis=1)[:, :20], atol=1e-6)
    # Hamming distances stay with their items.
    everything = index.search(codes, 400)
    for i in range(6):
        distance = dict(zip(everything.ids[i], everything.distances[i], strict=True))
        assert [distance[j] for j in found.ids[i]] == found.distances[i].tolist()


def test_only_the_nearest_codes_are_reranked():
    index, X, Q, codes, _ = make_data()
    found = index.search(codes, 5, rescore=Vectors(Q, X), oversample=3)
    candidates = index.search(codes, 15).ids
    for row, allowed in zip(found.ids, candidates, strict=True):
        assert set(row) <= set(allowed)
    assert index.search(codes, 900, rescore=Vectors(Q, X)).ids.shape == (6, 400)
    some = index.search(codes, 5, rescore=Vectors(Q, X), allowed=[3, 1, 2])
    np.testing.assert_array_equal(np.sort(some.ids, axis=1), [[1, 2, 3]] * 6)


def test_float_queries_are_scored_with_the_signs_of_the_bits():
    index, _, _, codes, z = make_data()
    signs = 2.0 * unpack(index.codes(index.ids), 10) - 1
    scores = z @ signs.T
    found = index.search(codes, 30, rescore=z, oversample=100)
    for i in range(6):
        order = sorted(range(400), key=lambda j: (-round(scores[i, j], 4), j))
        assert found.ids[i].tolist() == order[:30]
    np.testing.assert_allclose(found.scores, np.take_along_axis(scores, found.ids, 1), atol=1e-4)


@given(seed=st.integers(0, 2**32 - 1), n_bits=st.integers(1, 70))
def test_scores_of_sign_queries_are_affine_in_the_hamming_distance(seed, n_bits):
    rng = np.random.default_rng(seed)
    bits, query = rng.random((2, 8, n_bits)) < 0.5, rng.random((2, n_bits)) < 0.5
    codes = pack(bits.reshape(-1, n_bits)).reshape(2, 8, -1)
    scores = projection_scores(np.where(query, 1, -1), codes, n_bits)
    distances = (bits != query[:, None]).sum(axis=2)
    np.testing.assert_array_equal(scores, n_bits - 2 * distances)


def test_equal_scores_are_ordered_by_id():
    scores, ids = np.array([[1.0, 2.0, 1.0, 2.0]]), np.array([[9, 8, 3, 7]])
    order = best_first(scores, ids, 3)
    assert ids[0, order[0]].tolist() == [7, 8, 3]


def test_codes_are_fetched_only_if_needed():
    index, X, Q, codes, z = make_data()
    near, fetched = index.search(codes, 20), []

    def fetch():
        fetched.append(1)
        return index.codes(near.ids.ravel()).reshape(6, 20, 2)

    by_vectors = rerank(near, 5, Vectors(Q, X), 10, fetch)
    assert not fetched
    by_values = rerank(near, 5, z, 10, fetch)
    assert fetched == [1]
    for rescore, found in ((Vectors(Q, X), by_vectors), (z, by_values)):
        np.testing.assert_array_equal(found.ids, index.search(codes, 5, rescore=rescore).ids)


def test_a_function_returns_vectors_of_ids_that_are_not_row_numbers():
    index, X, Q, codes, _ = make_data()
    other = HammingIndex(10)
    other.add(index.codes(index.ids), np.arange(400) * 1000)
    fetched = []

    def fetch(ids):
        fetched.append(len(ids))
        return X[ids // 1000]

    found = other.search(codes, 5, rescore=Vectors(Q, fetch))
    expected = index.search(codes, 5, rescore=Vectors(Q, X))
    np.testing.assert_array_equal(found.ids, expected.ids * 1000)
    assert fetched == [6 * 20]
    with pytest.raises(ValueError, match=r"\b400\b.*\bids\b"):
        other.search(codes, 5, rescore=Vectors(Q, X))


def test_results_do_not_depend_on_the_block_size(monkeypatch):
    index, X, Q, codes, z = make_data()
    whole = [index.search(codes, 9, rescore=r) for r in (Vectors(Q, X), Vectors(Q, list(X)), z)]
    monkeypatch.setattr("antipodal.index.rerank._VALUES_AT_ONCE", 500)
    parts = [index.search(codes, 9, rescore=r) for r in (Vectors(Q, X), Vectors(Q, list(X)), z)]
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.scores, other.scores)


def test_a_zero_vector_has_cosine_zero_and_an_empty_index_no_candidates():
    index, X, Q, codes, z = make_data()
    X[3] = 0
    found = index.search(codes, 1, allowed=[3], rescore=Vectors(Q, X))
    assert found.scores.tolist() == [[0.0]] * 6
    empty = HammingIndex(10)
    assert empty.search(codes, 3, rescore=Vectors(Q, X)).scores.shape == (6, 0)
    assert empty.search(codes, 3, rescore=z).scores.shape == (6, 0)


def test_invalid_vectors_and_float_queries_raise():
    index, X, Q, codes, z = make_data()

    def search(rescore, **options):
        return index.search(codes, 3, rescore=rescore, **options)

    with pytest.raises(ValueError, match=r"\bVectors\b.*\b6\b.*\(2, 12\)"):
        search(Vectors(Q[:2], X))
    with pytest.raises(ValueError, match=r"\b12\b.*\b5\b"):
        search(Vectors(Q, X[:, :5]))
    with pytest.raises(ValueError, match=r"cosine.*euclidean.*'dot'"):
        search(Vectors(Q, X, "dot"))
    with pytest.raises(ValueError, match=r"\bprojections\b.*\b10\b.*\b4\b"):
        search(z[:, :4])
    with pytest.raises(TypeError, match=r"\bprojections\b.*\bbool\b"):
        search(z > 0)
    with pytest.raises(ValueError, match=r"\bprojections\b.*\bfinite\b"):
        search(np.where(z > 0, np.nan, z))
    with pytest.raises(ValueError, match=r"\bvector\b.*\bNaN\b"):
        search(Vectors(Q, np.where(X > 3, X, np.nan)))
    with pytest.raises(ValueError, match=r"\boversample\b.*\b1\b.*\b0\b"):
        search(z, oversample=0)

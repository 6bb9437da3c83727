"""Asymmetric search, compared with sums over unpacked bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antipodal import HammingIndex, LinfHash, Vectors, open_store, pack
from antipodal.codes import unpack
from antipodal.index.asymmetric import best_rows, sign_scores
from antipodal.index.items import to_rows
from antipodal.stores import Snapshot


def brute_force(z, bits, ids, k):
    """Return the first k ids by (score, id) and their scores, in integers for exact ties."""
    signs = 2 * bits.astype(np.int64) - 1
    scores = z @ signs.T
    order = np.array([np.lexsort((ids, -row))[:k] for row in scores]).reshape(len(z), -1)
    return ids[order], np.take_along_axis(scores, order, axis=1)


@given(
    seed=st.integers(0, 2**32 - 1),
    n_bits=st.integers(1, 80),
    n_items=st.integers(0, 300),
    k=st.integers(1, 40),
    largest=st.sampled_from([0, 1, 5, 2**20]),
)
def test_results_are_ordered_by_score_and_id(seed, n_bits, n_items, k, largest):
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, (max(1, n_items // 3), n_bits), dtype=np.uint8)
    bits = bits[rng.integers(0, len(bits), n_items)]  # most codes occur several times
    ids = rng.permutation(10 * n_items)[:n_items]
    z = rng.integers(-largest, largest + 1, (5, n_bits))
    index = HammingIndex(n_bits)
    index.add(pack(bits), ids)
    found = index.search(vectors=z, k=k)
    expected, scores = brute_force(z, bits, ids, k)
    np.testing.assert_array_equal(found.ids, expected)
    np.testing.assert_array_equal(found.scores, scores)
    by_id = dict(zip(ids.tolist(), bits, strict=True))
    for query, row, distances in zip(z > 0, found.ids, found.distances, strict=True):
        assert [(by_id[i] != query).sum() for i in row.tolist()] == distances.tolist()


def test_ties_of_more_rows_than_the_first_scan_returns_are_broken_by_id():
    rng = np.random.default_rng(0)
    codes = np.repeat(rng.integers(0, 256, (2, 8), dtype=np.uint8), 500, axis=0)
    z = rng.standard_normal((3, 64)) * 1e-30
    rows, scores = best_rows(z, codes[rng.permutation(1000)], 20)
    assert (np.diff(rows, axis=1) > 0).all()
    assert (scores == scores[:, :1]).all()


@pytest.mark.parametrize("size", [1e-300, 1e-40, 1.0, 1e300])
def test_queries_of_any_magnitude_are_searched_exactly(size):
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2, (5000, 100), dtype=np.uint8)
    z = rng.standard_normal((70, 100))
    index = HammingIndex(100)
    index.add(pack(bits))
    expected = np.argsort(-(z @ (2.0 * bits - 1).T), axis=1)[:, :10]
    np.testing.assert_array_equal(index.search(vectors=z * size, k=10).ids, expected)


def test_equal_codes_have_equal_scores_at_any_position():
    rng = np.random.default_rng(2)
    code = rng.integers(0, 256, (1, 1, 9), dtype=np.uint8)
    scores = sign_scores(rng.standard_normal((1, 72)), np.repeat(code, 1001, axis=1))
    assert len(np.unique(scores)) == 1


def test_results_do_not_depend_on_the_block_size(monkeypatch):
    rng = np.random.default_rng(3)
    rows = to_rows(rng.integers(0, 256, (400, 12), dtype=np.uint8), 96)
    z = rng.standard_normal((50, 96))
    whole = best_rows(z, rows, 7)
    monkeypatch.setattr("antipodal.index.asymmetric._QUERIES_AT_ONCE", 3)
    monkeypatch.setattr("antipodal.index.asymmetric._VALUES_AT_ONCE", 1)
    for one, other in zip(whole, best_rows(z, rows, 7), strict=True):
        np.testing.assert_array_equal(one, other)


def make_index(engine="flat"):
    rng = np.random.default_rng(4)
    X = rng.standard_normal((300, 20))
    hasher = LinfHash.asymmetric(40, random_state=0).fit(X)
    index = HammingIndex(40, engine=engine)
    index.add(hasher.encode(X))
    return index, hasher, X


def test_filters_and_reranking_apply_to_asymmetric_search():
    index, hasher, X = make_index()
    z = hasher.query(X[:4])
    allowed = np.arange(0, 300, 7)
    everything = index.search(vectors=z, k=300)
    some = index.search(vectors=z, k=5, allowed=allowed).ids
    for row, all_ids in zip(some, everything.ids, strict=True):
        assert row.tolist() == all_ids[np.isin(all_ids, allowed)][:5].tolist()
    again = index.search(vectors=z, k=3, rescore=Vectors(X[:4], X), oversample=10)
    assert again.ids[:, 0].tolist() == [0, 1, 2, 3]
    candidates = everything.ids[:, :30]
    assert all(np.isin(row, near).all() for row, near in zip(again.ids, candidates, strict=True))


def test_approximate_engines_are_not_used():
    index, hasher, X = make_index("hnsw")
    exact = make_index()[0]
    z = hasher.query(X[:4])
    np.testing.assert_array_equal(index.search(vectors=z).ids, exact.search(vectors=z).ids)


def test_a_store_returns_the_same_results(tmp_path):
    index, hasher, X = make_index()
    z, ids = hasher.query(X[:6]), np.arange(300)
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=40) as store:
        store.upsert(ids, hasher.encode(X), [{"even": bool(i % 2 == 0)} for i in ids])
        for found, expected in (
            (store.search(vectors=z, k=9), index.search(vectors=z, k=9)),
            (
                store.search(vectors=z, k=9, where={"even": True}),
                index.search(vectors=z, k=9, allowed=ids[::2]),
            ),
        ):
            np.testing.assert_array_equal(found.ids, expected.ids)
            np.testing.assert_array_equal(found.distances, expected.distances)
            np.testing.assert_array_equal(found.scores, expected.scores)
        with store.snapshot() as now:  # the implementation for engines that cannot score
            found = Snapshot._asymmetric(now, z.astype(float), 9, None)
        np.testing.assert_array_equal(found.ids, index.search(vectors=z, k=9).ids)
        with pytest.raises(ValueError, match=r"\bvectors\b.*\b40\b.*\(6, 39\)"):
            store.search(vectors=z[:, :39])


def test_invalid_queries_raise():
    index, hasher, X = make_index()
    z = hasher.query(X[:4])
    with pytest.raises(ValueError, match=r"\bcodes\b.*\bvectors\b.*neither"):
        index.search(k=3)
    with pytest.raises(ValueError, match=r"\bcodes\b.*\bvectors\b.*both"):
        index.search(hasher.encode(X[:4]), 3, vectors=z)
    with pytest.raises(ValueError, match=r"\bvectors\b.*\b40\b.*\(4, 20\)"):
        index.search(vectors=X[:4], k=3)
    with pytest.raises(ValueError, match=r"\bvectors\b.*\(40,\)"):
        index.search(vectors=z[0], k=3)
    with pytest.raises(TypeError, match=r"\bvectors\b.*\bbool\b"):
        index.search(vectors=z > 0, k=3)
    with pytest.raises(ValueError, match=r"\bvectors\b.*\bNaN\b"):
        index.search(vectors=np.where(z > 0, np.nan, z), k=3)
    assert index.search(vectors=z[:0], k=3).ids.shape == (0, 3)
    assert HammingIndex(40).search(vectors=z, k=3).scores.shape == (4, 0)


def test_reranking_by_float_queries_uses_the_same_scores():
    index, hasher, X = make_index()
    z = hasher.query(X[:4])
    all_codes = index.search(vectors=z, k=12)
    candidates = index.search(hasher.encode(X[:4]), 12, rescore=z, oversample=25)
    np.testing.assert_array_equal(candidates.ids, all_codes.ids)
    np.testing.assert_array_equal(candidates.scores, all_codes.scores)
    assert unpack(index.codes([0]), 40).shape == (1, 40)

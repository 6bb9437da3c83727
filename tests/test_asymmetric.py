"""Asymmetric search, compared with sums over unpacked bits."""

import copy
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antipodal import HammingIndex, LinfHash, Vectors, open_store, pack
from antipodal.codes import unpack
from antipodal.errors import StoreError
from antipodal.index import approximate, asymmetric, fastscan
from antipodal.index.asymmetric import best_rows, sign_scores
from antipodal.index.segments import to_rows
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
        with store.snapshot() as now, pytest.raises(StoreError, match="vectors"):
            Snapshot._asymmetric(now, z.astype(float), 9, None)  # of engines that cannot score
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


@pytest.fixture
def small_runs(monkeypatch):
    """Pack from the first query on, with many small runs, so that few rows test all of it."""
    monkeypatch.setattr(fastscan, "_PACK_COST", 0)
    monkeypatch.setattr(fastscan, "_MIN_ROWS", 40)
    monkeypatch.setattr(fastscan, "_RUN_ROWS", 600)
    monkeypatch.setattr(asymmetric, "_SPARE", 8)
    monkeypatch.setattr(asymmetric, "_MIN_SHARE", 2)


def count_full_scans(monkeypatch):
    """Return a list that grows with every query for which all rows are scored."""
    calls, best_of_all = [], asymmetric._best_of_all

    def counted(*arguments):
        calls.append(arguments)
        return best_of_all(*arguments)

    monkeypatch.setattr(asymmetric, "_best_of_all", counted)
    return calls


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    n_bits=st.one_of(st.integers(1, 130), st.sampled_from([1023, 1028, 1032, 1100, 2048, 4096])),
    n_items=st.integers(1, 1500),
    k=st.integers(1, 60),
    largest=st.sampled_from([1, 3, 2**20]),
    n_distinct=st.sampled_from([3, 50, 10**4]),
    shift=st.sampled_from([-1000, -160, -1, 0, 100, 900]),
)
def test_fastscan_agrees_with_sums_over_bits(
    small_runs, seed, n_bits, n_items, k, largest, n_distinct, shift
):
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, (min(n_distinct, n_items), n_bits), dtype=np.uint8)
    bits = bits[rng.integers(0, len(bits), n_items)]
    ids = np.sort(rng.permutation(10 * n_items)[:n_items])
    z = rng.integers(-largest, largest + 1, (4, n_bits))
    z[1] *= rng.random(n_bits) < 0.1  # few bits count: many ties
    z[2] = np.abs(z).max(axis=1)[2]  # the largest sums that tables can have
    z[3] = 0
    index = HammingIndex(n_bits)
    index.add(pack(bits), ids)
    found = index.search(vectors=np.ldexp(z.astype(float), shift), k=k)
    expected, scores = brute_force(z, bits, ids, k)
    np.testing.assert_array_equal(found.ids, expected)
    np.testing.assert_array_equal(found.scores, np.ldexp(scores.astype(float), shift))
    allowed = ids[rng.random(n_items) < 0.5]
    found = index.search(vectors=z, k=k, allowed=allowed)
    kept = np.isin(ids, allowed)
    np.testing.assert_array_equal(found.ids, brute_force(z, bits[kept], ids[kept], k)[0])


@pytest.mark.parametrize("n_bits", [60, 384, 1024, 1536, 3000])
def test_the_error_of_fastscan_is_within_its_bound(n_bits):
    rng = np.random.default_rng(n_bits)
    rows = to_rows(pack(rng.integers(0, 2, (4000, n_bits), dtype=np.uint8)), n_bits)
    z = rng.standard_normal((20, n_bits)) ** 3
    z[:10] = np.sign(z[:10])  # all spans are equal: the largest sums
    z /= np.abs(z).max(axis=1, keepdims=True)
    runs = tuple(fastscan._pack(rows, 0))
    near, rough, omitted, error = fastscan._scan(z, rows, 200, runs)
    signs = 2.0 * unpack(rows[:, : -(-n_bits // 8)], n_bits) - 1
    exact = z @ signs.T
    assert (np.abs(np.take_along_axis(exact, near, axis=1) - rough) <= error[:, None]).all()
    np.put_along_axis(exact, near, -np.inf, axis=1)
    assert (exact.max(axis=1) <= omitted + error).all()
    assert (error < 0.06 * np.abs(z).sum(axis=1))[:10].all()


def test_few_candidates_are_enough_for_typical_queries(monkeypatch):
    scans = count_full_scans(monkeypatch)
    monkeypatch.setattr(fastscan, "_PACK_COST", 0)
    rng = np.random.default_rng(5)
    index = HammingIndex(384)
    index.add(rng.integers(0, 256, (20_000, 48), dtype=np.uint8))
    z = rng.standard_normal((20, 384))
    found = index.search(vectors=z, k=10)
    assert not scans
    assert index.nbytes == 2 * 20_000 * 48
    np.testing.assert_array_equal(found.ids, best_rows(z, index._segments.main.rows, 10)[0])


def test_an_error_beyond_the_bound_is_not_trusted(monkeypatch, small_runs):
    scans = count_full_scans(monkeypatch)
    monkeypatch.setattr(fastscan, "_error_bound", lambda queries, sums, n_tables: 1e-9 * sums)
    rng = np.random.default_rng(6)
    bits = rng.integers(0, 2, (2000, 64), dtype=np.uint8)
    index = HammingIndex(64)
    index.add(pack(bits))
    z = rng.standard_normal((3, 64))
    expected = np.argsort(-(z @ (2.0 * bits - 1).T), axis=1)[:, :10]
    np.testing.assert_array_equal(index.search(vectors=z).ids, expected)
    assert len(scans) == 3


def test_changes_after_packing_are_searched(small_runs):
    rng = np.random.default_rng(7)
    known = {}

    def change(ids, remove=()):
        bits = rng.integers(0, 2, (len(ids), 48), dtype=np.uint8)
        index.add(pack(bits), ids)
        known.update(zip(ids.tolist(), bits, strict=True))
        if len(remove):
            index.remove(remove)
            for i in remove.tolist():
                del known[i]

    def check():
        z = rng.integers(-9, 10, (3, 48))
        ids = np.array(sorted(known))
        expected, scores = brute_force(z, np.array([known[i] for i in ids.tolist()]), ids, 25)
        found = index.search(vectors=z, k=25)
        np.testing.assert_array_equal(found.ids, expected)
        np.testing.assert_array_equal(found.scores, scores)

    index = HammingIndex(48)
    change(np.arange(0, 140_000, 2))  # large enough that later changes stay pending
    check()
    before, saved = copy.copy(index), dict(known)
    for _ in range(3):
        top = max(known) + 1
        change(np.arange(top, top + 30))  # appended, scanned with byte tables
        change(rng.choice(np.setdiff1d(np.arange(1, 9000, 2), list(known)), 20, replace=False))
        change(np.arange(top + 100, top + 700), remove=rng.choice(sorted(known), 300, False))
        check()
    index, known = before, saved  # a snapshot shares the packed codes
    check()


def test_threads_search_while_another_one_appends(small_runs):
    rng = np.random.default_rng(8)
    bits = rng.integers(0, 2, (6000, 32), dtype=np.uint8)
    z = rng.standard_normal((4, 32))
    scores = z @ (2.0 * bits - 1).T
    index, wrong = HammingIndex(32), []
    index.add(pack(bits[:1000]))

    def search():
        while len(index) < len(bits) and not wrong:
            now = copy.copy(index)
            expected = np.argsort(-scores[:, : len(now)], axis=1, kind="stable")[:, :5]
            if not np.array_equal(now.search(vectors=z, k=5).ids, expected):
                wrong.append(len(now))

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for start in range(1000, len(bits), 100):
        index.add(pack(bits[start : start + 100]))
        index.search(vectors=z, k=5)
    for thread in threads:
        thread.join()
    assert not wrong


def test_scores_that_overflow_are_refused():
    index, hasher, X = make_index()
    z = hasher.query(X[:2]).astype(np.float64)
    huge = z / np.abs(z).max() * 1.7e308
    with pytest.raises(ValueError, match=r"\bvectors\b.*\bfinite\b"):
        index.search(vectors=huge, k=3)
    with pytest.raises(ValueError, match=r"\bfinite\b"):
        index.search(hasher.encode(X[:2]), 3, rescore=huge)
    largest = z / np.abs(z).sum(axis=1, keepdims=True) * 1.7e308  # no score overflows
    np.testing.assert_array_equal(index.search(vectors=largest).ids, index.search(vectors=z).ids)
    single = np.zeros((1, 40))
    single[0, 3] = np.finfo(np.float64).max
    assert np.isfinite(index.search(vectors=single).scores).all()


def test_zero_queries_are_answered_without_a_scan(monkeypatch):
    monkeypatch.setattr(asymmetric, "sign_scores", None)
    monkeypatch.setattr(fastscan, "_pack", None)
    index = HammingIndex(64)
    index.add(np.zeros((100_000, 8), np.uint8), np.arange(100_000) * 2)
    tracemalloc.start()
    found = index.search(vectors=np.zeros((64, 64)), k=10)
    allowed = index.search(vectors=np.zeros((64, 64)), k=10, allowed=[9, 8, 6, 2])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.ids == np.arange(10) * 2).all()
    assert (found.scores == 0).all()
    assert (allowed.ids == [2, 6, 8]).all()
    assert peak < 2**22


def clustered(rng, n_items, n_bits, n_clusters=40):
    """Return bits that differ from one of several patterns in a tenth of the places."""
    patterns = rng.integers(0, 2, (n_clusters, n_bits), dtype=np.uint8)
    flipped = rng.random((n_items, n_bits)) < 0.1
    return patterns[rng.integers(0, n_clusters, n_items)] ^ flipped


@pytest.mark.parametrize("n_bits", [64, 100, 1100])
def test_ivf_is_exact_if_all_lists_are_probed(n_bits, monkeypatch, tmp_path):
    monkeypatch.setattr(approximate, "_MIN_ROWS", 100)
    rng = np.random.default_rng(n_bits)
    bits = clustered(rng, 4000, n_bits)
    z = 2.0 * bits[:20] - 1 + rng.standard_normal((20, n_bits))
    z[3] = 0
    scores = z @ (2.0 * bits - 1).T
    index = HammingIndex(n_bits, engine="ivf", n_probe=4000)
    snapshots = []
    for stop in (2000, 2050, 4000):  # the second addition is not packed, the third one is
        index.add(pack(bits[len(index) : stop]))
        expected = np.argsort(-scores[:, :stop], axis=1, kind="stable")[:, :10]
        np.testing.assert_array_equal(index.search(vectors=z).ids, expected)
        snapshots.append((copy.copy(index), expected))
    for snapshot, found in snapshots:
        np.testing.assert_array_equal(snapshot.search(vectors=z).ids, found)
    index.save(tmp_path / "ivf.index")
    loaded = HammingIndex.load(tmp_path / "ivf.index")
    loaded.n_probe = 4000
    np.testing.assert_array_equal(loaded.search(vectors=z).ids, expected)
    assert loaded.recall(vectors=z, k=10) == 1


def test_recall_measures_the_best_scores_that_ivf_misses(monkeypatch):
    monkeypatch.setattr(approximate, "_MIN_ROWS", 100)
    rng = np.random.default_rng(9)
    bits = clustered(rng, 5000, 96)
    z = 2.0 * bits[:50] - 1 + rng.standard_normal((50, 96))
    flat, index = HammingIndex(96), HammingIndex(96, engine="ivf", n_probe=2)
    for one in (flat, index):
        one.add(pack(bits))
    found, best = index.search(vectors=z, k=20), flat.search(vectors=z, k=20)
    hits = found.scores >= best.scores[:, -1:]
    assert 0 < hits.mean() < 1
    assert index.recall(vectors=z, k=20) == pytest.approx(hits.mean())
    assert flat.recall(vectors=z, k=20) == 1
    exact = index.search(vectors=z, k=20, allowed=np.arange(4000))  # filters stay exact
    expected = flat.search(vectors=z, k=20, allowed=np.arange(4000))
    np.testing.assert_array_equal(exact.ids, expected.ids)
    with pytest.raises(ValueError, match="recall"):
        index.recall(vectors=z[:0], k=3)
    with pytest.raises(ValueError, match=r"\bcodes\b.*\bvectors\b"):
        index.recall(k=3)

"""`HammingIndex`: results against brute force, changes, engines and threads."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from antipodal import LinfHash
from antipodal.codes import pack, unpack
from antipodal.index import (
    HammingIndex,
    SearchResult,
    radius_tables,
    scan,
    segments,
)
from antipodal.index.radius_tables import BandTables
from antipodal.index.segments import to_rows
from effort import fresh_examples

SOURCE = Path(__file__).parents[1] / "src"


def brute_force(queries, codes, ids, n_bits):
    """Return the sorted (distance, id) of all items for every query, from unpacked bits."""
    bits = unpack(codes, n_bits).astype(int)
    expected = []
    for query in unpack(queries, n_bits).astype(int):
        distances = np.abs(bits - query).sum(axis=1)
        expected.append(sorted(zip(distances.tolist(), np.asarray(ids).tolist(), strict=True)))
    return expected


def clustered_codes(rng, n, n_bits, n_centres=3):
    """Return codes around a few centres, so that distances tie and codes repeat."""
    centres = rng.random((n_centres, n_bits)) < 0.5
    return pack(centres[rng.integers(0, n_centres, n)] ^ (rng.random((n, n_bits)) < 0.1))


def check_search(neighbours, expected, k):
    for ids, distances, pairs in zip(
        neighbours.ids.tolist(), neighbours.distances.tolist(), expected, strict=True
    ):
        assert list(zip(distances, ids, strict=True)) == pairs[:k]


def check_radius(result, expected, r):
    assert result.offsets[0] == 0
    assert len(result.offsets) == len(expected) + 1
    for i, pairs in enumerate(expected):
        block = slice(*result.offsets[i : i + 2])
        found = zip(result.distances[block].tolist(), result.ids[block].tolist(), strict=True)
        assert list(found) == [pair for pair in pairs if pair[0] <= r]


def check_equal(result, expected):
    for name in ("ids", "distances", "offsets"):
        np.testing.assert_array_equal(getattr(result, name), getattr(expected, name))


@fresh_examples(150)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_bits=st.integers(1, 70),
    n_items=st.integers(1, 200),
    k=st.integers(1, 250),
    r=st.integers(0, 80),
    gaps=st.booleans(),
)
def test_results_are_those_of_brute_force_including_ties(seed, n_bits, n_items, k, r, gaps):
    rng = np.random.default_rng(seed)
    codes = clustered_codes(rng, n_items, n_bits)
    queries = clustered_codes(rng, 4, n_bits)
    ids = rng.choice(np.arange(-500, 500), n_items, replace=False) if gaps else np.arange(n_items)
    index = HammingIndex(n_bits)
    index.add(codes, ids if gaps else None)
    expected = brute_force(queries, codes, ids, n_bits)
    found = index.search(queries, k)
    assert found.ids.shape == found.distances.shape == (4, min(k, n_items))
    assert found.ids.dtype == np.int64
    assert found.distances.dtype == np.int32
    check_search(found, expected, k)
    check_radius(index.radius(queries, r), expected, r)

    allowed = rng.choice(np.arange(-600, 600), 300)  # repeated, unsorted, and some unknown
    kept = np.isin(ids, allowed)
    expected = brute_force(queries, codes[kept], ids[kept], n_bits)
    check_search(index.search(queries, k, allowed=allowed), expected, k)
    check_radius(index.radius(queries, r, allowed=allowed), expected, r)


@pytest.mark.parametrize("k", [1, 10, 100, 1024, 1025, 9_999, 10_000])
def test_ties_at_the_kth_place_are_broken_by_id(k):
    rng = np.random.default_rng(k)
    codes = clustered_codes(rng, 10_000, 16)
    ids = rng.permutation(30_000)[:10_000]
    index = HammingIndex(16)
    for part in np.array_split(np.arange(10_000), 3):
        index.add(codes[part], ids[part])
    queries = clustered_codes(rng, 5, 16)
    check_search(index.search(queries, k), brute_force(queries, codes, ids, 16), k)


def test_ties_do_not_depend_on_the_heap_of_faiss(monkeypatch):
    rng = np.random.default_rng(0)
    codes, queries = clustered_codes(rng, 3_000, 40), clustered_codes(rng, 5, 40)
    index = HammingIndex(40)
    index.add(codes)
    monkeypatch.setattr(scan, "_heap_breaks_ties_by_row", lambda: False)
    monkeypatch.setattr(scan.load_faiss(), "knn_hamming", lambda *_: pytest.fail("used"))
    check_search(index.search(queries, 50), brute_force(queries, codes, range(3_000), 40), 50)


def test_the_heap_of_the_installed_faiss_breaks_ties_by_row():
    assert scan._heap_breaks_ties_by_row()


@pytest.mark.parametrize("n_bits", [12, 24, 33, 64, 100, 256, 600])
@pytest.mark.parametrize("n_bands", [1, 2, 3, 5])
def test_band_tables_find_what_brute_force_finds(n_bits, n_bands, monkeypatch):
    rng = np.random.default_rng([n_bits, n_bands])
    codes = clustered_codes(rng, 1_500, n_bits, n_centres=100)
    queries = codes[:40] ^ pack(rng.random((40, n_bits)) < 1 / n_bits)
    rows = to_rows(codes, n_bits)
    tables = BandTables(rows, n_bits, n_bands)
    expected = brute_force(queries, codes, range(1_500), n_bits)
    for r in range(n_bands):
        hits = tables.within(to_rows(queries, n_bits), r)
        check_radius(hits, expected, r)
        for few in (40, 0):  # single queries in Python, and in NumPy
            monkeypatch.setattr(radius_tables, "_FEW", few)
            for i in range(0, len(queries), 4):
                hits = tables.within(to_rows(queries[i : i + 1], n_bits), r)
                check_radius(hits, expected[i : i + 1], r)


def test_band_tables_scan_only_queries_with_too_many_candidates(monkeypatch):
    rng = np.random.default_rng(0)
    codes = pack(rng.random((20_000, 64)) < 0.5)
    codes[5_000:15_000] = codes[0]
    queries = codes[[0, 1, 7_000, 2, 19_000]]
    expected = brute_force(queries, codes, range(20_000), 64)
    scanned = []

    def recording_scan(queries, rows, radius):
        scanned.append(len(queries))
        return scan.within(queries, rows, radius)

    monkeypatch.setattr(radius_tables, "within", recording_scan)
    tables = BandTables(codes, 64, 3)
    check_radius(tables.within(queries, 2), expected, 2)
    assert scanned == [2]
    check_radius(tables.within(queries[:1], 2), expected[:1], 2)
    assert scanned == [2, 1]


def test_band_tables_compare_many_candidates_in_blocks(monkeypatch, fresh_rng):
    monkeypatch.setattr(radius_tables, "_CANDIDATES_AT_ONCE", 100)
    monkeypatch.setattr(radius_tables, "QUERIES_AT_ONCE", 37)
    codes = clustered_codes(fresh_rng, 20_000, 64, n_centres=2_000)
    tables = BandTables(codes, 64, 3)
    check_equal(tables.within(codes[:200], 2), scan.within(codes[:200], codes, 2))


def test_tables_are_built_by_a_call_that_profits_and_are_never_stale():
    rng = np.random.default_rng(0)
    codes = clustered_codes(rng, 5_000, 64, n_centres=1_000)
    index = HammingIndex(64)
    index.add(codes[:4_500])
    without_tables = index.nbytes
    for _ in range(30):
        index.radius(codes[:10], 2)
    assert index.nbytes == without_tables  # a scan is faster for each of these calls
    flips = pack(np.isin(np.arange(64), [5, 25, 50, 60])[None])  # a bit in each of 3 bands
    queries = np.tile(np.concatenate([codes[:15], codes[:15] ^ flips]), (10, 1))
    check_against_brute_force(index, queries, 2)
    assert index.nbytes > without_tables
    check_against_brute_force(index, queries, 4)  # needs more bands

    index.add(codes[4_500:])
    check_against_brute_force(index, queries, 2)
    check_against_brute_force(index, queries[:10], 2, rounds=1)
    index.remove(np.arange(0, 400, 2))
    assert index.nbytes == 4_800 * 16  # outdated tables are dropped
    check_against_brute_force(index, queries, 2)
    assert index.radius(queries[:0], 2).offsets.tolist() == [0]


@pytest.mark.parametrize("n_bits", [40, 64, 256])
def test_a_prepared_index_stays_prepared(n_bits, monkeypatch):
    monkeypatch.setattr(segments, "_MAX_PENDING", 50)
    rng = np.random.default_rng(n_bits)
    codes = clustered_codes(rng, 6_000, n_bits, n_centres=1_000)
    index = HammingIndex(n_bits)
    index.prepare()  # while still empty
    index.add(codes[:3_000], np.arange(0, 6_000, 2))
    assert index._tables.nbytes == 0  # few items are scanned
    index.add(codes[3_000:4_500], np.arange(6_000, 9_000, 2))
    with_tables = index._tables.nbytes
    assert with_tables > 4_500 * 12

    queries = codes[rng.integers(0, 4_500, 20)] ^ pack(rng.random((20, n_bits)) < 1 / n_bits)

    def check():
        check_against_brute_force(index, queries, 2, rounds=1)
        for i in range(5):
            check_against_brute_force(index, queries[i : i + 1], 2, rounds=1)

    check()
    index.remove(index.ids[::200])  # marked only
    index.add(codes[4_500:4_510], np.arange(1, 400, 40))  # into the delta segment
    index.add(codes[4_510:4_600])  # appended after the tables
    assert index._tables.nbytes == with_tables
    check()
    index.remove(index.ids[::50])  # too many: segments are merged and tables rebuilt
    assert not index._segments.n_pending
    assert index._tables.covering(index._segments.main, 3) is not None
    check()
    index.add(codes[4_600:])  # more than an eighth
    assert index._tables.covering(index._segments.main, 3) is not None
    check()


def test_prepare_rejects_a_radius_for_which_a_scan_is_as_fast():
    index = HammingIndex(16)
    with pytest.raises(ValueError, match=r"\b16\b.*\bradius\b.*\b4\b"):
        index.prepare(radius=4)
    with pytest.raises(ValueError, match=r"\bradius\b.*\b0\b.*-1\b"):
        index.prepare(-1)


def check_against_brute_force(index, queries, r, rounds=10):
    """Check a radius search of queries that repeat `rounds` times."""
    ids = index.ids
    expected = brute_force(queries[: len(queries) // rounds], index.codes(ids), ids, index.n_bits)
    check_radius(index.radius(queries, r), expected * rounds, r)


class IndexComparedWithDictionary(RuleBasedStateMachine):
    """Apply the same changes to an index and to a dictionary."""

    def __init__(self):
        super().__init__()
        self.index, self.model = HammingIndex(11), {}
        self.rng = np.random.default_rng(0)

    def codes(self, n):
        return pack(self.rng.integers(0, 2, (n, 11)) & self.rng.integers(0, 2, (n, 11)))

    @rule(n=st.integers(0, 6))
    def add(self, n):
        codes = self.codes(n)
        first = max(self.model, default=-1) + 1
        self.index.add(codes)
        self.model |= {first + i: codes[i].tobytes() for i in range(n)}

    @rule(ids=st.lists(st.integers(-30, 60), max_size=6))
    def add_with_ids(self, ids):
        codes = self.codes(len(ids))
        if len(set(ids)) < len(ids) or self.model.keys() & set(ids):
            with pytest.raises(ValueError, match=r"\bids\b"):
                self.index.add(codes, ids)
        else:
            self.index.add(codes, ids)
            self.model |= {i: code.tobytes() for i, code in zip(ids, codes, strict=True)}

    @rule(ids=st.lists(st.integers(-30, 60), max_size=4), known=st.booleans())
    def remove(self, ids, known):
        if known:
            ids = [i for i in ids if i in self.model]
        if set(ids) - self.model.keys():
            with pytest.raises(ValueError, match=r"\bids\b"):
                self.index.remove(ids)
        else:
            self.index.remove(ids)
            for i in set(ids):
                del self.model[i]

    @rule()
    def remove_everything(self):
        self.index.remove(list(self.model))
        self.model.clear()

    @invariant()
    def has_the_same_items(self):
        ids = sorted(self.model)
        assert len(self.index) == len(ids)
        assert self.index.ids.tolist() == ids
        codes = np.frombuffer(b"".join(self.model[i] for i in ids), np.uint8).reshape(-1, 2)
        np.testing.assert_array_equal(self.index.codes(ids), codes)
        query = self.codes(1)
        expected = brute_force(query, codes, ids, 11)
        check_search(self.index.search(query, 5), expected, 5)
        check_radius(self.index.radius(query, 3), expected, 3)


TestIndexComparedWithDictionary = IndexComparedWithDictionary.TestCase
TestIndexComparedWithDictionary.settings = fresh_examples(40, stateful_step_count=30)


class PendingChangesComparedWithDictionary(IndexComparedWithDictionary):
    """Repeat the comparison with segments that merge from three pending changes on."""

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(segments, "_MAX_PENDING", 3)
        self.patch.setattr(segments, "_SPARE", 1)
        self.patch.setattr(radius_tables, "_MIN_ROWS", 2)
        self.patch.setattr(radius_tables, "_are_selective", lambda n_bits, n_bands: True)

    def teardown(self):
        self.patch.undo()

    @rule(radius=st.integers(0, 3))
    def prepare(self, radius):
        self.index.prepare(radius)

    @invariant()
    def filtered_and_asymmetric_results_are_the_same(self):
        ids = sorted(self.model)
        allowed = [i for i in range(-30, 60) if i % 3]
        kept = [i for i in ids if i % 3 and -30 <= i < 60]
        codes = np.frombuffer(b"".join(self.model[i] for i in kept), np.uint8).reshape(-1, 2)
        queries = self.codes(2)
        expected = brute_force(queries, codes, kept, 11)
        check_search(self.index.search(queries, 4, allowed=allowed), expected, 4)
        check_radius(self.index.radius(queries, 4, allowed=allowed), expected, 4)
        values = self.rng.integers(-3, 4, (2, 11)).astype(float)  # exact sums, many ties
        found = self.index.search(vectors=values, k=4)
        signs = 2.0 * unpack(self.index.codes(ids), 11) - 1
        for row, value in enumerate(values):
            pairs = sorted(zip((-signs @ value).tolist(), ids, strict=True))[:4]
            assert found.ids[row].tolist() == [i for _, i in pairs]
            assert (-found.scores[row]).tolist() == [score for score, _ in pairs]
        assert self.index.contains(allowed).tolist() == [i in self.model for i in allowed]


TestPendingChangesComparedWithDictionary = PendingChangesComparedWithDictionary.TestCase
TestPendingChangesComparedWithDictionary.settings = fresh_examples(15, stateful_step_count=25)


def test_a_small_change_of_a_large_index_copies_little(monkeypatch):
    rng = np.random.default_rng(0)
    index = HammingIndex(64)
    index.add(rng.integers(0, 256, (200_000, 8), dtype=np.uint8))
    index.prepare(radius=2)
    codes, cached = index._segments.main.rows, index._tables._cached
    for first in range(0, 60_000, 3_000):
        changed = np.arange(first, first + 100)
        new = index.codes(changed) ^ np.uint8(1)
        index.remove(changed)
        assert not index.contains(changed).any()
        index.add(new, changed)
        assert (index.search(new, 1).distances == 0).all()
        assert np.isin(changed, index.radius(new, 0).ids).all()
    assert index._segments.main.rows is codes  # neither codes nor tables were copied or rebuilt
    assert index._tables._cached is cached
    assert len(index) == 200_000
    index.remove(np.arange(70_000))
    assert index._segments.n_pending == 0
    assert len(index) == len(index._segments.main) == 130_000


def test_removed_items_near_a_query_do_not_hide_others():
    index = HammingIndex(64)
    codes = np.random.default_rng(0).integers(0, 256, (100_000, 8), dtype=np.uint8)
    codes[20_000:50_000] = codes[0]  # a cluster, most of which is removed
    index.add(codes)
    index.remove(np.arange(20_000, 49_000))
    found = index.search(codes[:2], 1_500)
    assert found.ids[0, :1_001].tolist() == [0, *range(49_000, 50_000)]
    kept = np.delete(np.arange(100_000), np.arange(20_000, 49_000))
    distances = np.bitwise_count(codes[kept] ^ codes[1]).sum(axis=1)
    order = np.lexsort((kept, distances))[:1_500]
    np.testing.assert_array_equal(found.ids[1], kept[order])
    assert index.radius(codes[:1], 0).ids.tolist() == [0, *range(49_000, 50_000)]
    index.remove([99_999, 99_998, 99_990])
    index.add(codes[:1])
    assert index.search(codes[:1], 3_000).ids[0, 1_001] == 99_998  # ids continue after the largest


def test_an_empty_index_returns_empty_results():
    index = HammingIndex(20)
    queries = pack(np.ones((3, 20), dtype=bool))
    found, near = index.search(queries, 7), index.radius(queries, 20)
    assert found.ids.shape == found.distances.shape == (3, 0)
    assert near.offsets.tolist() == [0, 0, 0, 0]
    assert len(near.ids) == len(near.distances) == 0
    index.add(queries)
    assert index.search(queries[:0], 2).ids.shape == (0, 2)
    assert index.search(queries, 2, allowed=[]).ids.shape == (3, 0)
    assert index.search(queries, 2, allowed=[77]).ids.shape == (3, 0)
    assert index.radius(queries, 20, allowed=[]).offsets.tolist() == [0, 0, 0, 0]


def test_the_radius_is_inclusive():
    codes = pack(np.tril(np.ones((9, 9), dtype=bool), -1)[:, :8])  # i bits set in row i
    index = HammingIndex(8)
    index.add(codes)
    for r in range(12):
        assert index.radius(codes[:1], r).ids.tolist() == list(range(min(r, 8) + 1))


def test_invalid_arguments_raise_and_change_nothing():
    index = HammingIndex(12)
    codes = pack(np.eye(12, dtype=bool))
    index.add(codes, range(100, 112))
    for wrong, error, words in [
        (codes.astype(np.int64), TypeError, "uint8"),
        (codes[:, :1], ValueError, r"\b2 bytes\b"),
        (codes[0], ValueError, r"\b2 bytes\b"),
        (codes | 1, ValueError, r"\b4\b.*\b12 bits\b"),
    ]:
        for call in (index.add, lambda c: index.search(c, 1), lambda c: index.radius(c, 1)):
            with pytest.raises(error, match=words):
                call(wrong)
    for k in (0, -1):
        with pytest.raises(ValueError, match=rf"\bk\b.*\b1\b.*{k}\b"):
            index.search(codes, k)
    with pytest.raises(TypeError):
        index.search(codes, 2.0)
    with pytest.raises(ValueError, match=r"\br\b.*\b0\b.*-1\b"):
        index.radius(codes, -1)
    with pytest.raises(ValueError, match=r"\b12\b.*\b2\b"):
        index.add(codes, [1, 2])
    with pytest.raises(ValueError, match=r"\bids\b.*\b7\b"):
        index.add(codes[:3], [7, 8, 7])
    with pytest.raises(ValueError, match=r"\bids\b.*\b111\b"):
        index.add(codes[:2], [112, 111])
    with pytest.raises(TypeError, match=r"\bids\b.*\bfloat64\b"):
        index.add(codes[:2], [1.0, 2.0])
    with pytest.raises(TypeError, match=r"\ballowed\b.*\bbool\b"):
        index.search(codes, 1, allowed=np.ones(12, dtype=bool))
    with pytest.raises(ValueError, match=r"\bids\b.*\(1, 1\)"):
        index.remove([[100]])
    with pytest.raises(ValueError, match="9223372036854775807"):
        index.add(codes[:1], np.array([2**63], dtype=np.uint64))
    with pytest.raises(ValueError, match=r"\bids\b.*\b1, 2, 3, 4, 5\b.*\b2\b"):
        index.remove([100, 1, 2, 3, 4, 5, 6, 7])
    with pytest.raises(ValueError, match=r"\bids\b.*\b5\b"):
        index.codes([100, 5])
    assert index.ids.tolist() == list(range(100, 112))
    for n_bits in (0, -3, 2**20):
        with pytest.raises(ValueError, match=rf"\bn_bits\b.*\b1\b.*{n_bits}\b"):
            HammingIndex(n_bits)
    with pytest.raises(ValueError, match=r"flat.*ivf.*hnsw.*'annoy'"):
        HammingIndex(8, engine="annoy")


def test_default_ids_continue_after_the_largest_up_to_int64():
    index = HammingIndex(8)
    code = np.zeros((1, 8 // 8), dtype=np.uint8)
    index.add(code, [-4])
    index.add(code)
    index.add(code, [2**63 - 2])
    index.add(code)
    assert index.ids.tolist() == [-4, -3, 2**63 - 2, 2**63 - 1]
    with pytest.raises(ValueError, match=r"\bids\b.*\b9223372036854775807\b"):
        index.add(code)
    assert index.search(code, 4).ids.tolist() == [[-4, -3, 2**63 - 2, 2**63 - 1]]
    extremes = [-(2**63), 2**63 - 1, 0]
    assert index.search(code, 4, allowed=extremes).ids.tolist() == [[2**63 - 1]]


def test_removal_keeps_the_ids_of_the_others():
    index = HammingIndex(8)
    codes = np.arange(10, dtype=np.uint8)[:, None]
    index.add(codes)
    index.remove([0, 5, 5])
    np.testing.assert_array_equal(index.codes([9, 1, 6]), codes[[9, 1, 6]])
    assert index.search(codes[6:7], 1).ids.tolist() == [[6]]


def test_the_index_copies_its_arguments():
    codes, ids = np.arange(6, dtype=np.uint8)[:, None], np.array([3, 5, 7, 9, 11, 13])
    index = HammingIndex(8)
    index.add(codes, ids)
    codes[:], ids[:] = 255, 0
    index.ids[:] = 0
    assert index.ids.tolist() == [3, 5, 7, 9, 11, 13]
    assert index.codes([3, 13]).tolist() == [[0], [5]]


def test_consecutive_ids_take_no_memory():
    codes = np.zeros((1000, 8), dtype=np.uint8)
    index = HammingIndex(64)
    index.add(codes, np.random.default_rng(0).permutation(1000) + 50)
    index.add(codes[:10])
    index.remove(range(50, 60))
    assert index.nbytes == 1000 * 8
    assert index.ids.tolist() == list(range(60, 1060))
    index.remove([500])
    assert index.nbytes == 999 * 16


def test_a_search_sees_a_snapshot_of_the_items():
    rng = np.random.default_rng(0)
    index = HammingIndex(64)
    index.add(np.zeros((5_000, 8), dtype=np.uint8))
    stop, failures = threading.Event(), []

    def search():
        query = np.zeros((1, 8), dtype=np.uint8)
        while not stop.is_set():
            found, near = index.search(query, 3), index.radius(query, 0)
            # codes are all zero and added in pairs, and ids 0 … 4999 stay
            if found.ids.tolist() != [[0, 1, 2]] or found.distances.any() or len(near.ids) % 2:
                failures.append(found)

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        first = int(rng.integers(10_000, 20_000))
        index.add(np.zeros((2, 8), dtype=np.uint8), [first, first + 1])
        index.add(np.zeros((2, 8), dtype=np.uint8))
        index.remove([first, first + 1])
        index.remove(index.ids[5_000:])
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.fixture(scope="module")
def many_codes():
    return clustered_codes(np.random.default_rng(0), 12_000, 64, n_centres=600)


@pytest.mark.parametrize("engine", ["ivf", "hnsw"])
def test_approximate_engines_have_measured_recall_and_exact_filters_and_radii(engine, many_codes):
    index, exact = HammingIndex(64, engine=engine), HammingIndex(64)
    for part in (many_codes[:11_000], many_codes[11_000:]):
        index.add(part)
        exact.add(part)
        queries = many_codes[::400]
        found, expected = index.search(queries, 10), exact.search(queries, 10)
        check_distances_and_order(found, queries, index)
        assert index._approximate._index.ntotal == len(index)
        share = np.mean(found.distances <= expected.distances[:, -1:])
        assert index.recall(queries, 10) == pytest.approx(share)
        assert 0.7 < share <= 1
        assert exact.recall(queries, 10) == 1

    for either in (index, exact):
        either.remove(range(0, 300, 3))  # all rows move, few are removed
    allowed = np.arange(0, 12_000, 7)
    for call in (
        lambda i: i.search(queries, 10, allowed=allowed),
        lambda i: i.radius(queries, 2),
        lambda i: i.radius(queries, 2, allowed=allowed),
    ):
        check_equal(call(index), call(exact))
    np.testing.assert_array_equal(index.ids, exact.ids)
    check_distances_and_order(index.search(queries, 10), queries, index)
    # The engine finds fewer than k: a scan returns all of them.
    many = index.search(queries[:2], 8_000)
    assert many.ids.shape == (2, 8_000)
    check_distances_and_order(many, queries[:2], index)


def test_clusters_of_reconstructions_find_more_than_clusters_of_codes(tmp_path):
    """Codes are longer than rows, so that near rows differ in many bits."""
    X = np.random.default_rng(0).standard_normal((18_000, 16)).astype(np.float32)
    hasher = LinfHash.asymmetric(64, random_state=0).fit(X[:4000])
    codes, queries = hasher.encode(X), hasher.query(X[::90])
    plain = HammingIndex(64, engine="ivf", n_probe=12)  # of 134 lists
    index = HammingIndex(64, engine="ivf", dictionary=hasher.dictionary_, n_probe=12)
    for part in (codes[:17_000], codes[17_000:]):
        plain.add(part)
        index.add(part)
        recall = index.recall(vectors=queries, k=10)
        assert recall > max(0.8, plain.recall(vectors=queries, k=10) + 0.05)
    flat = HammingIndex(64)
    flat.add(codes)
    found, exact = (i.search(vectors=queries, k=10) for i in (index, flat))
    same = found.ids == exact.ids
    np.testing.assert_array_equal(found.scores[same], exact.scores[same])
    index.n_probe = 134
    assert index.recall(vectors=queries, k=10) > 0.999
    index.save(tmp_path / "index")
    again = HammingIndex.load(tmp_path / "index")
    again.add(codes[:5])
    assert again.recall(vectors=queries, k=10) > 0.8
    np.testing.assert_array_equal(again.search(codes[:3], 1).distances, 0)


@pytest.mark.parametrize(
    ("dictionary", "engine", "message"),
    [
        (np.ones((3, 8)), "flat", r"dictionary.*ivf.*'flat'"),
        (np.ones((3, 7)), "ivf", r"dictionary.*8.*7"),
        (np.full((3, 8), np.nan), "ivf", r"dictionary.*NaN"),
    ],
)
def test_an_invalid_dictionary_is_refused(dictionary, engine, message):
    with pytest.raises(ValueError, match=message):
        HammingIndex(8, engine=engine, dictionary=dictionary)


def test_more_probed_lists_find_more_codes(many_codes):
    index = HammingIndex(64, engine="ivf", n_probe=1)
    index.add(many_codes)
    recalls = []
    for index.n_probe in (1, 4, 110):
        recalls.append(index.recall(many_codes[::100], 10))
    assert recalls[0] < recalls[1] < recalls[2] == 1
    index.n_probe = None
    assert recalls[0] < index.recall(many_codes[::100], 10)


@pytest.mark.parametrize(
    ("n_probe", "engine", "error"),
    [
        (8, "flat", ValueError),
        (8, "hnsw", ValueError),
        (0, "ivf", ValueError),
        (2.5, "ivf", TypeError),
    ],
)
def test_an_invalid_number_of_probed_lists_is_refused(n_probe, engine, error):
    with pytest.raises(error, match=r"\bn_probe\b"):
        HammingIndex(8, engine=engine, n_probe=n_probe)


def check_distances_and_order(found, queries, index):
    for query, ids, distances in zip(queries, found.ids, found.distances, strict=True):
        assert len(set(ids.tolist())) == len(ids)
        truth = np.bitwise_count(index.codes(ids) ^ query).sum(axis=1)
        np.testing.assert_array_equal(distances, truth)
        pairs = list(zip(distances.tolist(), ids.tolist(), strict=True))
        assert pairs == sorted(pairs)


def test_recall_counts_any_of_the_tied_items_as_found(monkeypatch):
    index = HammingIndex(8, engine="ivf")
    index.add(np.array([[0], [1], [1], [1], [3]], dtype=np.uint8))
    query = np.zeros((1, 1), dtype=np.uint8)

    class IncompleteEngine:
        def nearest(self, queries, items, k):  # one of three ties, not the first
            return np.array([[0, 3, 4]]), np.array([[0, 1, 2]], dtype=np.int32)

    monkeypatch.setattr(index, "_approximate", IncompleteEngine())
    assert index.recall(query, 3) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="recall"):
        HammingIndex(8).recall(query, 3)


def test_many_threads_return_the_same_results(monkeypatch):
    rng = np.random.default_rng(0)
    codes, queries = clustered_codes(rng, 3_000, 64), clustered_codes(rng, 30, 64)
    index = HammingIndex(64)
    index.add(codes)
    monkeypatch.setattr(scan, "_MIN_PARALLEL_BYTES", 0)
    monkeypatch.setattr(scan, "usable_cores", lambda: 3)
    faiss = scan.load_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    try:
        expected = brute_force(queries, codes, range(3_000), 64)
        check_search(index.search(queries, 40), expected, 40)
        check_radius(index.radius(queries, 8), expected, 8)
    finally:
        faiss.omp_set_num_threads(before)


def run(program, **environment):
    variables = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    variables |= {"PYTHONPATH": str(SOURCE)} | environment
    done = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_faiss_is_imported_by_the_first_search_with_passive_threads():
    program = """
import sys, os, numpy as np
from antipodal.index import HammingIndex
index = HammingIndex(64)
index.add(np.zeros((5, 8), np.uint8))
print("faiss" in sys.modules)
import importlib
real = importlib.import_module
def watch(name):
    print(name, os.environ["OMP_WAIT_POLICY"])
    return real(name)
importlib.import_module = watch
index.search(np.zeros((1, 8), np.uint8), 1)
print(os.environ.get("OMP_WAIT_POLICY"))
"""
    assert run(program) == ["False", "faiss", "passive", "None"]
    assert run(program, OMP_WAIT_POLICY="active") == ["False", "faiss", "active", "active"]


def test_faiss_uses_one_thread_per_query_and_core_and_restores_the_setting(monkeypatch):
    faiss = scan.load_faiss()
    used = []
    cores = iter((3, 3, 3, 2, 3))
    monkeypatch.setattr(scan, "usable_cores", lambda: next(cores))
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    try:
        for n_queries, n_bytes in ((1, 2**30), (2, 2**30), (8, 2**30), (8, 2**30), (8, 1000)):
            with scan.threads_for(n_queries, n_bytes):
                used.append(faiss.omp_get_max_threads())
            assert faiss.omp_get_max_threads() == 3
    finally:
        faiss.omp_set_num_threads(before)
    assert used == [1, 2, 3, 2, 1]


# ------------------------------------------------------------------------ search results

hit_lists = st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(-99, 99)), unique=True))


def one_query(pairs):
    ids, distances = np.array([i for _, i in pairs], int), np.array([d for d, _ in pairs], np.int32)
    return SearchResult(ids, distances)


def pairs_of(result):
    return [
        list(zip(one.distances.tolist(), one.ids.tolist(), strict=True))
        for one in result.by_query()
    ]


@given(lists=hit_lists, first=st.integers(0, 5), size=st.integers(0, 5))
def test_radius_results_are_joined_and_selected_by_query(lists, first, size):
    result = SearchResult.concatenate([one_query(pairs) for pairs in lists])
    assert pairs_of(result) == lists
    assert pairs_of(SearchResult.concatenate([result, result])) == lists * 2
    assert pairs_of(result.page(first, size)) == [pairs[first : first + size] for pairs in lists]
    is_kept = np.arange(len(lists)) % 2 == 0
    assert pairs_of(result.select_queries(is_kept)) == lists[::2]
    near = [[pair for pair in pairs if pair[0] < 5] for pairs in lists]
    assert pairs_of(result.select(result.distances < 5)) == near


@given(lists=hit_lists)
def test_results_of_different_items_are_merged_in_order(lists):
    near = [sorted(pair for pair in pairs if pair[0] < 5) for pairs in lists]
    far = [sorted(pair for pair in pairs if pair[0] >= 5) for pairs in lists]
    parts = [SearchResult.concatenate([one_query(p) for p in part]) for part in (far, near)]
    assert pairs_of(SearchResult.merge(parts)) == [sorted(pairs) for pairs in lists]
    assert pairs_of(SearchResult.merge(parts[:1])) == far


@given(seed=st.integers(0, 2**32 - 1), n_queries=st.integers(0, 4), k=st.integers(0, 5))
def test_neighbours_are_stacked_flattened_and_split_by_query(seed, n_queries, k):
    rng = np.random.default_rng(seed)
    ids, distances = rng.integers(0, 99, (2, n_queries, k))
    scores = rng.random((n_queries, k))
    result = SearchResult(ids, distances.astype(np.int32), scores)
    flat = result.flatten().page(1, 2)
    np.testing.assert_array_equal(flat.scores, scores[:, 1:3].ravel())
    np.testing.assert_array_equal(flat.counts, np.full(n_queries, max(0, min(k - 1, 2))))
    for one, row in zip(result.by_query(), scores, strict=True):
        np.testing.assert_array_equal(one.scores, row)
    stacked = SearchResult.stack(result.by_query())
    np.testing.assert_array_equal(stacked.ids.ravel(), ids.ravel())
    assert len(stacked.ids) == n_queries

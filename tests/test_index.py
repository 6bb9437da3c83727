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

from antipodal.codes import pack, unpack
from antipodal.index import (
    Ball,
    HammingIndex,
    scan,
)
from antipodal.index import (
    radius_tables as bands,
)
from antipodal.index import (
    radius_tables as tables,
)
from antipodal.index import (
    segments as contents,
)
from antipodal.index import (
    segments as merging,
)
from antipodal.index.items import to_rows
from antipodal.index.radius_tables import Tables
from effort import fresh_examples

SOURCE = Path(__file__).parents[1] / "src"


def brute_force(queries, codes, ids, n_bits):
    """All (distance, id) of every query, sorted, from unpacked bits and Python's own sort."""
    bits = unpack(codes, n_bits).astype(int)
    answers = []
    for query in unpack(queries, n_bits).astype(int):
        distances = np.abs(bits - query).sum(axis=1)
        answers.append(sorted(zip(distances.tolist(), np.asarray(ids).tolist(), strict=True)))
    return answers


def crowded_codes(rng, n, n_bits, n_centres=3):
    """Codes around a few centres, so that distances tie and codes repeat."""
    centres = rng.random((n_centres, n_bits)) < 0.5
    return pack(centres[rng.integers(0, n_centres, n)] ^ (rng.random((n, n_bits)) < 0.1))


def check_search(neighbours, answers, k):
    for ids, distances, answer in zip(
        neighbours.ids.tolist(), neighbours.distances.tolist(), answers, strict=True
    ):
        assert list(zip(distances, ids, strict=True)) == answer[:k]


def check_ball(ball, answers, r):
    assert ball.offsets[0] == 0
    assert len(ball.offsets) == len(answers) + 1
    for i, answer in enumerate(answers):
        block = slice(*ball.offsets[i : i + 2])
        found = zip(ball.distances[block].tolist(), ball.ids[block].tolist(), strict=True)
        assert list(found) == [pair for pair in answer if pair[0] <= r]


@fresh_examples(150)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_bits=st.integers(1, 70),
    n_items=st.integers(1, 200),
    k=st.integers(1, 250),
    r=st.integers(0, 80),
    gaps=st.booleans(),
)
def test_answers_are_those_of_brute_force_ties_and_all(seed, n_bits, n_items, k, r, gaps):
    rng = np.random.default_rng(seed)
    codes = crowded_codes(rng, n_items, n_bits)
    queries = crowded_codes(rng, 4, n_bits)
    ids = rng.choice(np.arange(-500, 500), n_items, replace=False) if gaps else np.arange(n_items)
    index = HammingIndex(n_bits)
    index.add(codes, ids if gaps else None)
    answers = brute_force(queries, codes, ids, n_bits)
    found = index.search(queries, k)
    assert found.ids.shape == found.distances.shape == (4, min(k, n_items))
    assert found.ids.dtype == np.int64
    assert found.distances.dtype == np.int32
    check_search(found, answers, k)
    check_ball(index.radius(queries, r), answers, r)

    allowed = rng.choice(np.arange(-600, 600), 300)  # repeated, unsorted, and some unknown
    kept = np.isin(ids, allowed)
    answers = brute_force(queries, codes[kept], ids[kept], n_bits)
    check_search(index.search(queries, k, allowed=allowed), answers, k)
    check_ball(index.radius(queries, r, allowed=allowed), answers, r)


@pytest.mark.parametrize("k", [1, 10, 100, 1024, 1025, 9_999, 10_000])
def test_a_tie_that_k_cuts_is_cut_by_id_among_ten_thousand_items_of_16_bits(k):
    rng = np.random.default_rng(k)
    codes = crowded_codes(rng, 10_000, 16)
    ids = rng.permutation(30_000)[:10_000]
    index = HammingIndex(16)
    for part in np.array_split(np.arange(10_000), 3):
        index.add(codes[part], ids[part])
    queries = crowded_codes(rng, 5, 16)
    check_search(index.search(queries, k), brute_force(queries, codes, ids, 16), k)


def test_ties_do_not_rest_on_what_the_heap_of_faiss_happens_to_do(monkeypatch):
    rng = np.random.default_rng(0)
    codes, queries = crowded_codes(rng, 3_000, 40), crowded_codes(rng, 5, 40)
    index = HammingIndex(40)
    index.add(codes)
    monkeypatch.setattr(scan, "_heap_breaks_ties_by_row", lambda: False)
    monkeypatch.setattr(scan.load_faiss(), "knn_hamming", lambda *_: pytest.fail("used"))
    check_search(index.search(queries, 50), brute_force(queries, codes, range(3_000), 40), 50)


def test_the_heap_of_this_faiss_breaks_ties_by_row():
    assert scan._heap_breaks_ties_by_row()


@pytest.mark.parametrize("n_bits", [12, 24, 33, 64, 100, 256, 600])
@pytest.mark.parametrize("n_bands", [1, 2, 3, 5])
def test_band_tables_find_what_brute_force_finds(n_bits, n_bands, monkeypatch):
    rng = np.random.default_rng([n_bits, n_bands])
    codes = crowded_codes(rng, 3_000, n_bits, n_centres=200)
    queries = codes[:40] ^ pack(rng.random((40, n_bits)) < 1 / n_bits)
    rows = to_rows(codes, n_bits)
    made = Tables(rows, n_bits, n_bands)
    answers = brute_force(queries, codes, range(3_000), n_bits)
    for r in range(n_bands):
        hits = made.within(to_rows(queries, n_bits), r)
        check_ball(rename(hits), answers, r)
        for few in (40, 0):  # one by one they take another way, and yet another in a crowd
            monkeypatch.setattr(tables, "_FEW", few)
            for i in range(len(queries)):
                hits = made.within(to_rows(queries[i : i + 1], n_bits), r)
                check_ball(rename(hits), answers[i : i + 1], r)


def rename(hits):
    return Ball(hits.offsets, hits.rows, hits.distances)


def test_band_tables_scan_only_the_queries_that_have_too_many_candidates(monkeypatch):
    rng = np.random.default_rng(0)
    codes = pack(rng.random((20_000, 64)) < 0.5)
    codes[5_000:15_000] = codes[0]
    queries = codes[[0, 1, 7_000, 2, 19_000]]
    answers = brute_force(queries, codes, range(20_000), 64)
    scanned = []

    def watched(queries, rows, radius):
        scanned.append(len(queries))
        return scan.within(queries, rows, radius)

    monkeypatch.setattr(tables, "within", watched)
    made = Tables(codes, 64, 3)
    check_ball(rename(made.within(queries, 2)), answers, 2)
    assert scanned == [2]
    check_ball(rename(made.within(queries[:1], 2)), answers[:1], 2)
    assert scanned == [2, 1]


def test_band_tables_compare_many_candidates_in_blocks(monkeypatch, fresh_rng):
    monkeypatch.setattr(tables, "_CANDIDATES_AT_ONCE", 100)
    monkeypatch.setattr(tables, "QUERIES_AT_ONCE", 37)
    codes = crowded_codes(fresh_rng, 20_000, 64, n_centres=2_000)
    hits, expected = Tables(codes, 64, 3).within(codes[:200], 2), scan.within(codes[:200], codes, 2)
    for mine, other in zip(hits, expected, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_tables_are_made_by_a_call_that_they_pay_for_and_never_stale():
    rng = np.random.default_rng(0)
    codes = crowded_codes(rng, 5_000, 64, n_centres=1_000)
    index = HammingIndex(64)
    index.add(codes[:4_500])
    without = index.nbytes
    for _ in range(30):
        index.radius(codes[:10], 2)
    assert index.nbytes == without  # each of these calls is better off with a scan
    flips = pack(np.isin(np.arange(64), [5, 25, 50, 60])[None])  # a bit in each of 3 bands
    queries = np.tile(np.concatenate([codes[:15], codes[:15] ^ flips]), (10, 1))
    check_against_brute_force(index, queries, 2)
    assert index.nbytes > without
    check_against_brute_force(index, queries, 4)  # needs more bands

    index.add(codes[4_500:])
    check_against_brute_force(index, queries, 2)
    check_against_brute_force(index, queries[:10], 2, rounds=1)
    index.remove(np.arange(0, 400, 2))
    assert index.nbytes == 4_800 * 16  # tables of other rows are not kept
    check_against_brute_force(index, queries, 2)
    assert index.radius(queries[:0], 2).offsets.tolist() == [0]


@pytest.mark.parametrize("n_bits", [40, 64, 256])
def test_a_prepared_index_stays_prepared(n_bits, monkeypatch):
    monkeypatch.setattr(contents, "_LOOSE", 50)
    rng = np.random.default_rng(n_bits)
    codes = crowded_codes(rng, 6_000, n_bits, n_centres=1_000)
    index = HammingIndex(n_bits)
    index.prepare()  # before there is anything to prepare
    index.add(codes[:3_000], np.arange(0, 6_000, 2))
    assert index._bands.nbytes == 0  # so few are scanned
    index.add(codes[3_000:4_500], np.arange(6_000, 9_000, 2))
    with_tables = index._bands.nbytes
    assert with_tables > 4_500 * 12

    queries = codes[rng.integers(0, 4_500, 20)] ^ pack(rng.random((20, n_bits)) < 1 / n_bits)

    def check():
        check_against_brute_force(index, queries, 2, rounds=1)
        for i in range(5):
            check_against_brute_force(index, queries[i : i + 1], 2, rounds=1)

    check()
    index.remove(index.ids[::200])  # noted
    index.add(codes[4_500:4_510], np.arange(1, 400, 40))  # late
    index.add(codes[4_510:4_600])  # behind the tables
    assert index._bands.nbytes == with_tables
    check()
    index.remove(index.ids[::50])  # too many: one run again, and tables of it
    assert not index._held.n_loose
    assert index._bands.covering(index._held.main, 3) is not None
    check()
    index.add(codes[4_600:])  # more than an eighth
    assert index._bands.covering(index._held.main, 3) is not None
    check()


def test_prepare_refuses_a_radius_for_which_a_scan_is_as_fast():
    index = HammingIndex(16)
    with pytest.raises(ValueError, match=r"\b16\b.*\bradius\b.*\b4\b"):
        index.prepare(radius=4)
    with pytest.raises(ValueError, match=r"\bradius\b.*\b0\b.*-1\b"):
        index.prepare(-1)


def check_against_brute_force(index, queries, r, rounds=10):
    """Queries come in equal rounds, whose answers are worked out once."""
    ids = index.ids
    answers = brute_force(queries[: len(queries) // rounds], index.codes(ids), ids, index.n_bits)
    check_ball(index.radius(queries, r), answers * rounds, r)


class IndexBesideADictionary(RuleBasedStateMachine):
    """Any sequence of changes leaves what the same changes leave in a dictionary."""

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
    def holds_the_same(self):
        ids = sorted(self.model)
        assert len(self.index) == len(ids)
        assert self.index.ids.tolist() == ids
        codes = np.frombuffer(b"".join(self.model[i] for i in ids), np.uint8).reshape(-1, 2)
        np.testing.assert_array_equal(self.index.codes(ids), codes)
        query = self.codes(1)
        answers = brute_force(query, codes, ids, 11)
        check_search(self.index.search(query, 5), answers, 5)
        check_ball(self.index.radius(query, 3), answers, 3)


TestIndexBesideADictionary = IndexBesideADictionary.TestCase
TestIndexBesideADictionary.settings = fresh_examples(40, stateful_step_count=30)


class LooseIndexBesideADictionary(IndexBesideADictionary):
    """The same where an index of three items is a large one, and one of six is tidied."""

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(contents, "_LOOSE", 3)
        self.patch.setattr(merging, "_SPARE", 1)
        self.patch.setattr(bands, "_MIN_ROWS", 2)
        self.patch.setattr(bands, "_tell_apart", lambda n_bits, n_bands: True)

    def teardown(self):
        self.patch.undo()

    @rule(radius=st.integers(0, 3))
    def prepare(self, radius):
        self.index.prepare(radius)

    @invariant()
    def finds_the_same_among_some_and_by_values(self):
        ids = sorted(self.model)
        allowed = [i for i in range(-30, 60) if i % 3]
        kept = [i for i in ids if i % 3 and -30 <= i < 60]
        codes = np.frombuffer(b"".join(self.model[i] for i in kept), np.uint8).reshape(-1, 2)
        queries = self.codes(2)
        answers = brute_force(queries, codes, kept, 11)
        check_search(self.index.search(queries, 4, allowed=allowed), answers, 4)
        check_ball(self.index.radius(queries, 4, allowed=allowed), answers, 4)
        values = self.rng.integers(-3, 4, (2, 11)).astype(float)  # exact sums, many ties
        found = self.index.search(vectors=values, k=4)
        signs = 2.0 * unpack(self.index.codes(ids), 11) - 1
        for row, value in enumerate(values):
            pairs = sorted(zip((-signs @ value).tolist(), ids, strict=True))[:4]
            assert found.ids[row].tolist() == [i for _, i in pairs]
            assert (-found.scores[row]).tolist() == [score for score, _ in pairs]
        assert self.index.contains(allowed).tolist() == [i in self.model for i in allowed]


TestLooseIndexBesideADictionary = LooseIndexBesideADictionary.TestCase
TestLooseIndexBesideADictionary.settings = fresh_examples(15, stateful_step_count=25)


def test_a_small_change_of_a_large_index_copies_little(monkeypatch):
    rng = np.random.default_rng(0)
    index = HammingIndex(64)
    index.add(rng.integers(0, 256, (200_000, 8), dtype=np.uint8))
    index.prepare(radius=2)
    codes, made = index._held.main.rows, index._bands._made
    for first in range(0, 60_000, 3_000):
        changed = np.arange(first, first + 100)
        new = index.codes(changed) ^ np.uint8(1)
        index.remove(changed)
        assert not index.contains(changed).any()
        index.add(new, changed)
        assert (index.search(new, 1).distances == 0).all()
        assert np.isin(changed, index.radius(new, 0).ids).all()
    assert index._held.main.rows is codes  # neither codes nor tables were copied or made again
    assert index._bands._made is made
    assert len(index) == 200_000
    index.remove(np.arange(70_000))
    assert index._held.n_loose == 0
    assert len(index) == len(index._held.main) == 130_000


def test_items_removed_around_a_query_do_not_hide_the_others():
    index = HammingIndex(64)
    codes = np.random.default_rng(0).integers(0, 256, (100_000, 8), dtype=np.uint8)
    codes[20_000:50_000] = codes[0]  # a crowd, most of which goes
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
    assert index.search(codes[:1], 3_000).ids[0, 1_001] == 99_998  # ids go on after the largest


def test_an_empty_index_gives_empty_answers():
    index = HammingIndex(20)
    queries = pack(np.ones((3, 20), dtype=bool))
    found, ball = index.search(queries, 7), index.radius(queries, 20)
    assert found.ids.shape == found.distances.shape == (3, 0)
    assert ball.offsets.tolist() == [0, 0, 0, 0]
    assert len(ball.ids) == len(ball.distances) == 0
    index.add(queries)
    assert index.search(queries[:0], 2).ids.shape == (0, 2)
    assert index.search(queries, 2, allowed=[]).ids.shape == (3, 0)
    assert index.search(queries, 2, allowed=[77]).ids.shape == (3, 0)
    assert index.radius(queries, 20, allowed=[]).offsets.tolist() == [0, 0, 0, 0]


def test_radius_includes_its_border_at_every_distance():
    codes = pack(np.tril(np.ones((9, 9), dtype=bool), -1)[:, :8])  # i bits set in row i
    index = HammingIndex(8)
    index.add(codes)
    for r in range(12):
        assert index.radius(codes[:1], r).ids.tolist() == list(range(min(r, 8) + 1))


def test_wrong_arguments_are_refused_and_change_nothing():
    index = HammingIndex(12)
    codes = pack(np.eye(12, dtype=bool))
    index.add(codes, range(100, 112))
    for wrong, error, words in [
        (codes.astype(np.int64), TypeError, "uint8"),
        (codes[:, :1], ValueError, r"\b2 bytes\b"),
        (codes[0], ValueError, r"\b2 bytes\b"),
        (codes | 1, ValueError, r"\b4 bits\b"),
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


def test_default_ids_continue_after_the_largest_up_to_the_last_there_is():
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


def test_the_index_keeps_its_own_copies():
    codes, ids = np.arange(6, dtype=np.uint8)[:, None], np.array([3, 5, 7, 9, 11, 13])
    index = HammingIndex(8)
    index.add(codes, ids)
    codes[:], ids[:] = 255, 0
    index.ids[:] = 0
    assert index.ids.tolist() == [3, 5, 7, 9, 11, 13]
    assert index.codes([3, 13]).tolist() == [[0], [5]]


def test_ids_without_gaps_take_no_memory():
    codes = np.zeros((1000, 8), dtype=np.uint8)
    index = HammingIndex(64)
    index.add(codes, np.random.default_rng(0).permutation(1000) + 50)
    index.add(codes[:10])
    index.remove(range(50, 60))
    assert index.nbytes == 1000 * 8
    assert index.ids.tolist() == list(range(60, 1060))
    index.remove([500])
    assert index.nbytes == 999 * 16


def test_a_search_sees_the_items_of_the_moment_it_began():
    rng = np.random.default_rng(0)
    index = HammingIndex(64)
    index.add(np.zeros((5_000, 8), dtype=np.uint8))
    stop, failures = threading.Event(), []

    def search():
        query = np.zeros((1, 8), dtype=np.uint8)
        while not stop.is_set():
            found, ball = index.search(query, 3), index.radius(query, 0)
            # only zeros are ever in the index, in pairs, and ids 0 … 4999 stay
            if found.ids.tolist() != [[0, 1, 2]] or found.distances.any() or len(ball.ids) % 2:
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
    return crowded_codes(np.random.default_rng(0), 12_000, 64, n_centres=600)


@pytest.mark.parametrize("engine", ["ivf", "hnsw"])
def test_an_approximate_engine_is_measured_and_exact_where_it_must_be(engine, many_codes):
    index, exact = HammingIndex(64, engine=engine), HammingIndex(64)
    for part in (many_codes[:11_000], many_codes[11_000:]):
        index.add(part)
        exact.add(part)
        queries = many_codes[::400]
        found, expected = index.search(queries, 10), exact.search(queries, 10)
        check_true_and_in_order(found, queries, index)
        assert index._approximate._index.ntotal == len(index)
        share = np.mean(found.distances <= expected.distances[:, -1:])
        assert index.recall(queries, 10) == pytest.approx(share)
        assert 0.7 < share <= 1
        assert exact.recall(queries, 10) == 1

    for either in (index, exact):
        either.remove(range(0, 300, 3))  # all rows move, few are gone
    allowed = np.arange(0, 12_000, 7)
    for call in (
        lambda i: i.search(queries, 10, allowed=allowed),
        lambda i: i.radius(queries, 2),
        lambda i: i.radius(queries, 2, allowed=allowed),
        lambda i: [i.ids],
    ):
        for mine, other in zip(call(index), call(exact), strict=True):
            np.testing.assert_array_equal(mine, other)
    check_true_and_in_order(index.search(queries, 10), queries, index)
    # More than the engine looks at: the scan takes over, and nothing is missing.
    many = index.search(queries[:2], 8_000)
    assert many.ids.shape == (2, 8_000)
    check_true_and_in_order(many, queries[:2], index)


def check_true_and_in_order(found, queries, index):
    for query, ids, distances in zip(queries, found.ids, found.distances, strict=True):
        assert len(set(ids.tolist())) == len(ids)
        truth = np.bitwise_count(index.codes(ids) ^ query).sum(axis=1)
        np.testing.assert_array_equal(distances, truth)
        pairs = list(zip(distances.tolist(), ids.tolist(), strict=True))
        assert pairs == sorted(pairs)


def test_recall_counts_ties_fairly(monkeypatch):
    index = HammingIndex(8, engine="ivf")
    index.add(np.array([[0], [1], [1], [1], [3]], dtype=np.uint8))
    query = np.zeros((1, 1), dtype=np.uint8)

    class Misses:
        def nearest(self, queries, items, k):  # one of the three ties, though not the first
            return np.array([[0, 3, 4]]), np.array([[0, 1, 2]], dtype=np.int32)

    monkeypatch.setattr(index, "_approximate", Misses())
    assert index.recall(query, 3) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="recall"):
        HammingIndex(8).recall(query, 3)


def test_many_threads_give_the_same_answer(monkeypatch):
    rng = np.random.default_rng(0)
    codes, queries = crowded_codes(rng, 3_000, 64), crowded_codes(rng, 30, 64)
    index = HammingIndex(64)
    index.add(codes)
    monkeypatch.setattr(scan, "_WORTH_SHARING", 0)
    faiss = scan.load_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    try:
        answers = brute_force(queries, codes, range(3_000), 64)
        check_search(index.search(queries, 40), answers, 40)
        check_ball(index.radius(queries, 8), answers, 8)
    finally:
        faiss.omp_set_num_threads(before)


def run(program, **environment):
    variables = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    variables |= {"PYTHONPATH": str(SOURCE)} | environment
    done = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_faiss_is_imported_by_the_first_search_with_threads_that_sleep():
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


def test_one_query_takes_one_thread_and_the_setting_is_put_back(monkeypatch):
    faiss = scan.load_faiss()
    seen = []
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    try:
        for n_queries, n_bytes in ((1, 2**30), (2, 2**30), (8, 2**30), (8, 1000)):
            with scan.threads_for(n_queries, n_bytes):
                seen.append(faiss.omp_get_max_threads())
            assert faiss.omp_get_max_threads() == 3
    finally:
        faiss.omp_set_num_threads(before)
    assert seen == [1, 2, 3, 1]

"""Browsing: metadata fields, text search and the projection map."""
# ruff: noqa: F811 (imported fixtures)

import itertools
import re
import threading

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.manifold import trustworthiness

from antipodal import LSH, open_store, pack, unpack
from antipodal.service import Limits
from antipodal.service.browse import (
    MAX_MAP_ITEMS,
    Maps,
    classical_scaling,
    describe_fields,
    find_items,
    lay_out,
    map_places,
    map_points,
)
from antipodal.service.schemas import FindRequest, IdsRequest
from antipodal.stores import text_search
from antipodal.stores.text_search import WordIndex, find_words
from engines import ENGINES, engines  # noqa: F401
from served import engine_of

N_BITS, N_ITEMS = 20, 300
RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((N_ITEMS, 6))
HASHER = LSH(N_BITS, random_state=0).fit(ROWS)
CODES = HASHER.encode(ROWS)
IDS = RNG.permutation(N_ITEMS) * 3 - 50
METADATA = [{"label": int(i) % 4, "title": f"Item {i}"} for i in IDS]
LIMITS = Limits(k=100, results=1_000, histogram=1_000)


_names = (f"browse_{number}" for number in itertools.count())


@pytest.fixture(params=ENGINES)
def any_store(request, engines):
    with open_store(engines.url(request.param, next(_names)), n_bits=N_BITS) as store:
        yield store


@pytest.fixture
def engine(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=N_BITS) as store:
        store.upsert(IDS, CODES, METADATA)
        yield engine_of(store, limits=LIMITS)


TEXTS = [
    {"title": "Étude in C", "text": "slow and CALM"},
    {"title": "calm", "nested": {"list": ["slow", 3.5]}},
    {"title": 'a "quoted" word', "text": "back\\slash"},
    {"picture": "data:image/png;base64,calmslow"},
    {"calm": "the name of a field does not count, slow or not"},
    {},
    {"year": 2016, "label": True},
]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("calm", [1, 0]),  # short values first
        ("CALM slow", [1, 0]),
        ("slow", [1, 0, 4]),
        ("étude", [0]),
        ("ÉTUDE in", [0]),
        ('"quoted"', [2]),
        ("back\\slash", [2]),
        ("3.5", [1]),
        ("2016", [6]),
        ("true", []),
        ("nowhere", []),
        ("  ", []),
    ],
)
def test_items_are_found_by_words_of_their_metadata(tmp_path, words, expected):
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=8) as store:
        store.upsert(range(7), np.zeros((7, 1), np.uint8), TEXTS)
        with store.snapshot() as now:
            assert find_words(now, words, 10, 10).ids.tolist() == expected
        assert found_ids(WordIndex(store), words) == expected


def found_ids(index, words):
    return index.find(words, 1_000).items.ids.tolist()


def test_relevant_items_come_first(tmp_path):
    """Whole words before the starts of words before parts of words; then by id."""
    texts = ["unsorted", "sorts", "a sort of order", "resort", "sort it", "sort", "none"]
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=8) as store:
        store.upsert(range(7), np.zeros((7, 1), np.uint8), [{"text": text} for text in texts])
        with store.snapshot() as now:
            found = find_words(now, "sort", 10, 10)
            assert [texts[i] for i in found.ids] == [
                "sort", "sort it", "a sort of order", "sorts", "resort", "unsorted",
            ]  # fmt: skip
            assert found.n_searched == 7
            assert find_words(now, "sort", 2, 10).ids.tolist() == [5, 4]
            assert find_words(now, "sort", 10, 3).ids.tolist() == [2, 1, 0]
        found = WordIndex(store).find("sort", 3)
        assert [texts[i] for i in found.items.ids] == ["sort", "sort it", "a sort of order"]
        assert (found.n_searched, found.n_items) == (7, 7)


def test_an_index_of_words_splits_what_has_no_spaces_and_ignores_the_syntax_of_queries(tmp_path):
    texts = ["東京都に住む", "c++ and C#", "sun AND moon", 'say "NEAR"', "Ångström"]
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=8) as store:
        store.upsert(range(5), np.zeros((5, 1), np.uint8), [{"text": text} for text in texts])
        index = WordIndex(store)
        assert found_ids(index, "京都") == [0]
        assert found_ids(index, "都京") == []
        assert found_ids(index, "c++") == [1]
        assert found_ids(index, "and") == [1, 2]
        assert found_ids(index, "near(") == [3]
        assert found_ids(index, "angstrom") == [4]
        for nothing in ("++", "*", '"', "text : c", "\0", "\ud800", "c ² NOT", "x\0y"):
            assert found_ids(index, nothing) == []


def test_an_index_of_words_follows_all_writers(any_store, monkeypatch):
    """Compare with a search by regular expressions in the items themselves."""
    rng = np.random.default_rng(2)
    vocabulary = ["sort", "sorted", "sun", "sundial", "moon", "mo"]
    index, items = WordIndex(any_store), {}
    is_milvus = "Milvus" in type(any_store).__name__
    for n_changed in (40, 3, 25, 1, 30, 0):
        ids = rng.choice(60, n_changed, replace=False).tolist()
        removed = [i for i in ids if i in items and rng.random() < 0.5]
        written = [i for i in ids if i not in removed]
        new = {i: " ".join(rng.choice(vocabulary, rng.integers(0, 4))) for i in written}
        if written:
            codes = np.zeros((len(written), 3), np.uint8)
            any_store.upsert(written, codes, [{"text": text} for text in new.values()])
        if removed:
            any_store.delete(removed)
        items = {i: text for i, text in (items | new).items() if i not in removed}
        for words in ("sort", "sorted mo", "su", "moon sundial", "or"):
            expected = {
                i
                for i, text in items.items()
                if all(
                    re.search((r"" if is_milvus else r"\b") + word, text) for word in words.split()
                )
            }
            assert set(found_ids(index, words)) == expected
    assert index.find("sort", 5).n_searched == len(items) == any_store.count()
    index.close()


def test_a_large_index_of_words_is_built_while_items_are_scanned(engine, monkeypatch):
    monkeypatch.setattr(text_search, "_BUILT_AT_ONCE", 10)
    monkeypatch.setattr(text_search, "MAX_SCANNED", 70)
    go = threading.Event()
    monkeypatch.setattr(text_search, "parse_metadata", waiting(text_search.parse_metadata, go))
    index = WordIndex(engine.store)
    assert index.find("item", 5).n_searched == 70
    assert index.find("item", 5).n_searched == 70  # and the index is not built twice
    go.set()
    index._builder.join()
    assert index.find("item", 5).n_searched == N_ITEMS
    engine.store.upsert(IDS[:20], CODES[:20], [{"title": "new"}] * 20)  # too many to follow
    assert index.find("new", 50).n_searched == 70
    index._builder.join()
    assert len(index.find("new", 50).items.ids) == 20
    index.close()


def waiting(function, event):
    """Return a function that waits in other threads than this one."""
    this = threading.get_ident()

    def wait(*args):
        assert threading.get_ident() == this or event.wait(60)
        return function(*args)

    return wait


def test_words_are_scanned_without_fts5_and_without_space(engine, monkeypatch):
    monkeypatch.setattr(text_search, "_MAX_PAGES", 7)
    index = WordIndex(engine.store)
    assert index.find("tem", 5).n_searched == N_ITEMS
    assert len(index.find("tem", 5).items.ids) == 5  # a scan finds parts of words
    monkeypatch.setattr(text_search, "_CREATE", ["CREATE VIRTUAL TABLE words USING fts99(x)"])
    assert len(WordIndex(engine.store).find("tem", 5).items.ids) == 5


def test_words_are_scanned_in_a_database_without_a_log_of_changes(engines):
    pytest.importorskip("psycopg")
    with open_store(engines.url("postgresql", next(_names)), n_bits=N_BITS) as store:
        store.upsert(IDS, CODES, METADATA)
        with store._transaction() as cursor:
            cursor.execute(store._tables.sql("DROP TABLE {changes} CASCADE"))
        found = WordIndex(store).find("tem", 5)
        assert len(found.items.ids) == 5
        assert found.n_searched == N_ITEMS


def test_an_outdated_index_of_words_is_built_again(engine):
    index = WordIndex(engine.store)
    for i in range(10):
        engine.store.upsert(IDS, CODES, [{"title": f"state {i}"}] * N_ITEMS)
        assert len(found_ids(index, f"state {i}")) == N_ITEMS
        assert found_ids(index, f"state {i - 1}") == []
    assert index._n_documents <= 2 * N_ITEMS + 1000


def test_every_store_engine_finds_words_and_returns_all_codes(any_store):
    with any_store.snapshot() as now:
        ids, codes = now.all_codes()
        assert codes.shape == (0, 3)
        assert find_words(now, "x", 5, 5).n_searched == 0
    any_store.upsert(IDS, CODES, METADATA)
    order = np.argsort(IDS)
    with any_store.snapshot() as now:
        ids, codes = now.all_codes()
        np.testing.assert_array_equal(ids, IDS[order])
        np.testing.assert_array_equal(codes, CODES[order])
        found = find_words(now, "item 7", 1_000, 1_000)
        assert set(found.ids.tolist()) == {int(i) for i in IDS if "7" in str(i)}
        assert found.ids[0] == 7
        assert found.n_searched == N_ITEMS


def test_a_text_search_stops_at_its_limits(engine):
    with engine.store.snapshot() as now:
        assert find_words(now, "item", 5, 1_000).n_searched == N_ITEMS
        assert len(find_words(now, "item", 5, 1_000).ids) == 5
        assert find_words(now, "nothing", 5, 70).n_searched == 70
    answer = find_items(engine, FindRequest(text="item 4", limit=3))
    assert answer["items"][0]["id"] == 4
    assert all(str(item["id"]).lstrip("-").startswith("4") for item in answer["items"])
    assert answer["total"] == N_ITEMS
    assert answer["items"][0]["metadata"]["title"] == f"Item {answer['items'][0]['id']}"


def test_fields_are_described_by_their_values():
    metadata = [
        {"year": 2000 + i % 3, "tags": ["a"], "inner": {"name": "x" * (i + 1), "empty": {}}}
        for i in range(10)
    ]
    metadata += [{"year": None, "inner": {"name": 5}, "thumbnail": "data:image/png;base64,AA"}]
    fields = {field["name"]: field for field in describe_fields(metadata)}
    assert list(fields)[:2] == ["year", "inner.name"]  # the most frequent
    assert {name: field["kind"] for name, field in fields.items()} == {
        "year": "number",
        "tags": "container",
        "inner.name": "mixed",
        "inner.empty": "container",
        "thumbnail": "picture",
    }
    year = fields["year"]
    assert (year["items"], year["distinct"], year["least"], year["most"]) == (11, 3, 2000, 2002)
    assert year["values"][0] == {"value": 2000, "items": 4}
    assert fields["inner.name"]["length"] == 5.5
    assert fields["thumbnail"]["values"] == []
    assert describe_fields([]) == []


def clusters(n_clusters, n_each, n_bits=32):
    """Return codes that differ in at most two bits from their centre, and their clusters."""
    rng = np.random.default_rng(1)
    which = np.repeat(np.arange(n_clusters), n_each)
    bits = rng.integers(0, 2, (n_clusters, n_bits))[which]
    for row in bits:
        row[rng.choice(n_bits, rng.integers(0, 3), replace=False)] ^= 1
    return pack(bits), which


def test_classical_scaling_matches_pca_and_the_eigenvalues_of_the_distances():
    codes, _ = clusters(4, 15)
    bits = unpack(codes, 32).astype(float)
    ours = classical_scaling(codes, 32)
    theirs = PCA(2, svd_solver="full").fit_transform(bits)
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), atol=1e-9)
    centred = np.eye(60) - 1 / 60
    squared = (bits[:, None] != bits[None]).sum(axis=2)  # Hamming distances are squared lengths
    values = np.linalg.eigvalsh(-0.5 * centred @ squared @ centred)[::-1][:2]
    np.testing.assert_allclose((ours**2).sum(axis=0), values)


def test_a_map_keeps_neighbours_near_and_fills_its_square():
    codes, which = clusters(8, 25)
    places, distinct = lay_out(codes, 32)
    assert np.abs(places).max() == pytest.approx(1)
    assert distinct == len(np.unique(codes, axis=0))
    bits = unpack(codes, 32)
    assert trustworthiness(bits, places, n_neighbors=10, metric="hamming") > 0.95
    centres = np.array([places[which == c].mean(axis=0) for c in range(8)])
    nearest_centre = ((places[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest_centre == which).mean() > 0.95
    np.testing.assert_array_equal(lay_out(codes, 32)[0], places)


def test_items_with_one_code_do_not_overlap():
    codes = pack(np.repeat([[0] * 8, [1] * 8], [30, 20], axis=0))
    places, distinct = lay_out(codes, 8)
    assert distinct == 2
    gaps = np.linalg.norm(places[:, None] - places, axis=2)
    assert gaps[~np.eye(50, dtype=bool)].min() > 0.01
    assert gaps[:30, :30].max() < gaps[:30, 30:].min()


@pytest.mark.parametrize("n", [0, 1, 2, 13])
def test_maps_of_few_items_are_finite(n):
    places, _ = lay_out(CODES[:n], N_BITS)
    assert places.shape == (n, 2)
    assert np.isfinite(places).all()


def test_a_map_is_computed_once_per_version_of_the_store(engine, monkeypatch):
    made = []
    monkeypatch.setattr(
        "antipodal.service.browse.lay_out",
        lambda codes, n_bits: (made.append(len(codes)), (np.zeros((len(codes), 2)), 1))[1],
    )
    maps = Maps(engine)
    threads = [threading.Thread(target=maps.of_sample, args=[50]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [50]
    engine.store.upsert([int(IDS[0])], CODES[1:2])
    maps.of_sample(50)
    maps.of_sample(60)
    maps.of_sample(50)
    assert made == [50, 50, 60]


def test_items_outside_the_sample_are_placed_amid_similar_codes(engine, monkeypatch):
    monkeypatch.setattr("antipodal.service.browse.DEFAULT_MAP_ITEMS", 60)
    maps = Maps(engine)
    laid_out = maps.of_sample(60)
    inside = int(laid_out.ids[7])
    outside = int(np.setdiff1d(IDS, laid_out.ids)[3])
    places = map_places(engine, maps, IdsRequest(ids=[outside, 10**9, inside]))["places"]
    assert [place["id"] for place in places] == [outside, inside]
    np.testing.assert_allclose([places[1]["x"], places[1]["y"]], laid_out.places[7])
    bits = np.unpackbits(CODES, axis=1)
    row = {int(i): bits[place] for place, i in enumerate(IDS)}
    distances = [int((row[outside] != row[int(i)]).sum()) for i in laid_out.ids]
    nearest = sorted(range(60), key=lambda i: (distances[i], i))[:3]
    expected = np.mean([laid_out.places[i] for i in nearest], axis=0)
    np.testing.assert_allclose([places[0]["x"], places[0]["y"]], expected)


def test_points_have_a_name_and_the_value_of_a_field(engine):
    engine.store.upsert(
        [9001, 9002, 9003],
        CODES[:3],
        [{"a": {"b": "x"}, "text": "long " * 100}, {"a": 3, "title": 7}, {"a": {"b": [1]}}],
    )
    answer = map_points(engine, Maps(engine), "a.b", MAX_MAP_ITEMS)
    points = {point["id"]: point for point in answer["points"]}
    assert len(points) == answer["total"] == N_ITEMS + 3
    assert [points[i]["value"] for i in (9001, 9002, 9003)] == ["x", None, None]
    assert [points[i]["name"] for i in (9001, 9002, 9003)] == [("long " * 40), "7", None]

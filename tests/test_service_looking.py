"""What the page asks for beyond searches: windows, prefixes, fields, words and maps."""

import itertools
import threading

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.manifold import trustworthiness

from antipodal import LSH, open_store, pack, unpack
from antipodal.codes import to_hex
from antipodal.service import Engine, Limits
from antipodal.service.fields import seen_fields
from antipodal.service.looking import MOST_LOOKED_AT, _found, _points
from antipodal.service.maps import MOST_ITEMS, Maps, classical_scaling, lay_out
from antipodal.service.schemas import FindRequest, SearchRequest
from antipodal.stores.text_search import find_words
from engines import ENGINES, engines  # noqa: F401

N_BITS, N_ITEMS = 20, 300
RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((N_ITEMS, 6))
HASHER = LSH(N_BITS, random_state=0).fit(ROWS)
CODES = HASHER.encode(ROWS)
BITS = unpack(CODES, N_BITS)
IDS = RNG.permutation(N_ITEMS) * 3 - 50
METADATA = [{"label": int(i) % 4, "title": f"Item {i}"} for i in IDS]
LIMITS = Limits(k=100, results=1_000, histogram=1_000)
_names = (f"looking_{number}" for number in itertools.count())


@pytest.fixture(params=ENGINES)
def any_store(request, engines):  # noqa: F811
    with open_store(engines.url(request.param, next(_names)), n_bits=N_BITS) as store:
        yield store


@pytest.fixture
def engine(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=N_BITS) as store:
        store.upsert(IDS, CODES, METADATA)
        yield Engine(HASHER, store, limits=LIMITS)


def nearest(row, n_bits, wanted=None):
    """Rank items by (distance, id) of their first bits, by brute force."""
    distances = (BITS[:, :n_bits] != BITS[row, :n_bits]).sum(axis=1)
    passing = [i for i in range(N_ITEMS) if wanted is None or IDS[i] % 4 == wanted]
    order = sorted(passing, key=lambda i: (distances[i], IDS[i]))
    return [(int(IDS[i]), int(distances[i])) for i in order]


def hits(answer):
    return [(hit["id"], hit["distance"]) for hit in answer["results"]]


@pytest.mark.parametrize(
    "bound",
    [
        {"k": 50},
        {"k": 50, "histogram": True},
        {"radius": 9},
        {"radius": 9, "histogram": True},
        {"k": 50, "rescore": "project"},
        {"k": 50, "rescore": "project", "histogram": True},
        {"k": 50, "items": False},
    ],
)
def test_a_window_of_an_answer_is_a_part_of_the_whole(engine, bound):
    asked = {"vector": ROWS[5].tolist(), **bound}
    whole = engine.search(SearchRequest(**asked))
    assert len(whole["results"]) > 30
    for offset, limit in ((0, 10), (10, 10), (45, 10), (7, None), (400, 5)):
        part = engine.search(SearchRequest(**asked, offset=offset, limit=limit))
        end = None if limit is None else offset + limit
        assert part["results"] == whole["results"][offset:end]
        assert part["total"] == whole["total"]
        assert part.get("histogram") == whole.get("histogram")


def test_windows_reach_all_items_of_a_radius_and_as_many_at_once_as_allowed(engine):
    engine.limits = Limits(results=40)
    found = []
    for offset in range(0, N_ITEMS, 40):
        request = SearchRequest(code=to_hex(CODES[:1], N_BITS)[0], radius=N_BITS, offset=offset)
        found += hits(engine.search(request))
    assert found == nearest(0, N_BITS)


@pytest.mark.parametrize("n_bits", [1, 8, 11, N_BITS])
@pytest.mark.parametrize("wanted", [None, 2])
def test_a_prefix_finds_what_its_bits_alone_find(any_store, n_bits, wanted):
    any_store.upsert(IDS, CODES, METADATA)
    engine = Engine(HASHER, any_store, limits=LIMITS)
    where = None if wanted is None else {"label": wanted}
    asked = {"id": int(IDS[3]), "prefix": n_bits, "where": where}
    expected = nearest(3, n_bits, wanted)
    assert hits(engine.search(SearchRequest(**asked, k=30))) == expected[:30]
    answer = engine.search(SearchRequest(**asked, radius=2, histogram=True))
    assert hits(answer) == [hit for hit in expected if hit[1] <= 2]
    counts = np.bincount([distance for _, distance in expected], minlength=N_BITS + 1)
    assert answer["histogram"] == counts.tolist()
    assert answer["code"] == to_hex(CODES[3:4], N_BITS)[0]  # whole, as those of the results


def test_a_prefix_is_refused_where_it_cannot_be_searched(engine):
    with pytest.raises(ValueError, match="prefix must be at most 20"):
        engine.search(SearchRequest(id=int(IDS[0]), prefix=21))
    with pytest.raises(ValueError, match="cannot go with prefix"):
        SearchRequest(vector=[0.0] * 6, prefix=8, rescore="project")
    engine.limits = Limits(histogram=N_ITEMS - 1)
    with pytest.raises(ValueError, match="among at most 299 items: there are 300"):
        engine.search(SearchRequest(id=int(IDS[0]), prefix=8))


# ------------------------------------------------------------------------------------- words

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
        ("calm", [0, 1]),
        ("CALM slow", [0, 1]),
        ("slow", [0, 1, 4]),
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


def test_every_engine_finds_words_and_has_all_codes(any_store):
    with any_store.snapshot() as now:
        ids, codes = now.all_codes()
        assert codes.shape == (0, 3)
        assert find_words(now, "x", 5, 5).looked_at == 0
    any_store.upsert(IDS, CODES, METADATA)
    order = np.argsort(IDS)
    with any_store.snapshot() as now:
        ids, codes = now.all_codes()
        np.testing.assert_array_equal(ids, IDS[order])
        np.testing.assert_array_equal(codes, CODES[order])
        expected = sorted(int(i) for i in IDS if "7" in str(i))
        found = find_words(now, "item 7", 1_000, 1_000)
        assert found.ids.tolist() == expected
        assert found.looked_at == N_ITEMS


def test_a_look_for_words_ends_at_its_bounds_and_says_so(engine, monkeypatch):
    with engine.store.snapshot() as now:
        assert find_words(now, "item", 5, 1_000).looked_at == 5
        assert find_words(now, "nothing", 5, 70).looked_at == 70
    answer = _found(engine, FindRequest(text="item 4", limit=3))
    assert [item["id"] for item in answer["items"]] == [
        number for number in sorted(IDS.tolist()) if "4" in str(number)
    ][:3]
    assert answer["total"] == N_ITEMS
    assert answer["items"][0]["metadata"]["title"] == f"Item {answer['items'][0]['id']}"
    assert MOST_LOOKED_AT == 200_000  # as docs/guide/service.md says


# ------------------------------------------------------------------------------------ fields


def test_fields_are_described_by_their_values():
    metadata = [
        {"year": 2000 + i % 3, "tags": ["a"], "inner": {"name": "x" * (i + 1), "empty": {}}}
        for i in range(10)
    ]
    metadata += [{"year": None, "inner": {"name": 5}, "thumbnail": "data:image/png;base64,AA"}]
    fields = {field["name"]: field for field in seen_fields(metadata)}
    assert list(fields)[:2] == ["year", "inner.name"]  # which most items have
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
    assert seen_fields([]) == []


# -------------------------------------------------------------------------------------- maps


def clusters(n_clusters, n_each, n_bits=32):
    """Codes that differ in up to two bits from one of some centres, and their clusters."""
    rng = np.random.default_rng(1)
    which = np.repeat(np.arange(n_clusters), n_each)
    bits = rng.integers(0, 2, (n_clusters, n_bits))[which]
    for row in bits:
        row[rng.choice(n_bits, rng.integers(0, 3), replace=False)] ^= 1
    return pack(bits), which


def test_classical_scaling_is_that_of_the_distances_of_hamming():
    codes, _ = clusters(4, 15)
    bits = unpack(codes, 32).astype(float)
    ours = classical_scaling(codes, 32)
    theirs = PCA(2, svd_solver="full").fit_transform(bits)
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), atol=1e-9)
    centred = np.eye(60) - 1 / 60
    squared = (bits[:, None] != bits[None]).sum(axis=2)  # distances, as squares of lengths
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


def test_items_of_one_code_are_spread_around_one_place():
    codes = pack(np.repeat([[0] * 8, [1] * 8], [30, 20], axis=0))
    places, distinct = lay_out(codes, 8)
    assert distinct == 2
    gaps = np.linalg.norm(places[:, None] - places, axis=2)
    assert gaps[~np.eye(50, dtype=bool)].min() > 0.01  # none hides another
    assert gaps[:30, :30].max() < gaps[:30, 30:].min()


@pytest.mark.parametrize("n", [0, 1, 2, 13])
def test_few_items_have_a_map_too(n):
    places, _ = lay_out(CODES[:n], N_BITS)
    assert places.shape == (n, 2)
    assert np.isfinite(places).all()


def test_a_map_is_made_once_for_each_version_of_the_store(engine, monkeypatch):
    made = []
    monkeypatch.setattr(
        "antipodal.service.maps.lay_out",
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


def test_points_have_the_value_of_a_field_and_a_name(engine):
    engine.store.upsert(
        [9001, 9002, 9003],
        CODES[:3],
        [{"a": {"b": "x"}, "text": "long " * 100}, {"a": 3, "title": 7}, {"a": {"b": [1]}}],
    )
    answer = _points(engine, Maps(engine), "a.b", MOST_ITEMS)
    points = {point["id"]: point for point in answer["points"]}
    assert len(points) == answer["total"] == N_ITEMS + 3
    assert [points[i]["value"] for i in (9001, 9002, 9003)] == ["x", None, None]
    assert [points[i]["name"] for i in (9001, 9002, 9003)] == [("long " * 40), "7", None]

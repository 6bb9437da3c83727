"""Search over HTTP: results, many queries, micro-batches, offsets and prefixes."""
# ruff: noqa: F811 (imported fixtures)

import itertools
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from antipodal import open_store, unpack
from antipodal.codes import from_hex, to_hex
from antipodal.service import Limits, create_app
from antipodal.service.schemas import SearchRequest
from antipodal.service.search import Search
from engines import ENGINES, engines  # noqa: F401
from served import (  # noqa: F401
    CODES,
    HANG,
    HASHER,
    IDS,
    LIMITS,
    N_BITS,
    N_FEATURES,
    N_ITEMS,
    ROWS,
    VECTOR,
    TestClient,
    engine_of,
    fill,
    is_problem,
    kept_store,
    label,
    reader,
    search_at_once,
    store,
)


def nearest(code, wanted=None, n_bits=N_BITS):
    """Rank the items by (distance, id) of their first bits, by brute force."""
    differing = unpack(CODES, N_BITS) != unpack(np.atleast_2d(code), N_BITS)
    distance = differing[:, :n_bits].sum(axis=1)
    order = np.lexsort((IDS, distance))
    order = order if wanted is None else order[[label(IDS[i]) == wanted for i in order]]
    return IDS[order].tolist(), distance[order].tolist()


def others(own, ids, distances):
    """Leave an item out of a ranking."""
    kept = [pair for pair in zip(ids, distances, strict=True) if pair[0] != own]
    return [number for number, _ in kept], [distance for _, distance in kept]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_store_engine_answers_behind_the_service(engine, engines):
    store = open_store(engines.url(engine, "service"), n_bits=N_BITS)
    with TestClient(create_app(engine_of(store, limits=LIMITS))) as client:
        for start in range(0, N_ITEMS, LIMITS.batch):
            part = range(start, min(start + LIMITS.batch, N_ITEMS))
            items = [
                {
                    "id": int(IDS[i]),
                    "vector": ROWS[i].tolist(),
                    "metadata": {"label": label(IDS[i])},
                }
                for i in part
            ]
            assert client.put("/v1/items", json={"items": items}).json() == {
                "upserted": len(part),
                "replaced": 0,
            }
        code, asked = CODES[3:4], {"id": int(IDS[3])}
        for where, wanted in ((None, None), ({"label": 2}, 2)):
            ids, near = others(IDS[3], *nearest(code, wanted))
            for bound in ({"k": 9}, {"radius": 8}):
                answer = client.post("/v1/search", json=asked | bound | {"where": where}).json()
                within = min(int(np.searchsorted(near, 8, side="right")), LIMITS.results)
                n = bound.get("k", within)
                assert [hit["id"] for hit in answer["results"]] == ids[:n]
                assert [hit["distance"] for hit in answer["results"]] == near[:n]
        gone = {"ids": [int(IDS[3]), int(IDS[5]), 10**9]}
        assert client.request("DELETE", "/v1/items", json=gone).json() == {"deleted": 2}
        is_problem(client.post("/v1/search", json=asked), 404)
        assert client.get(f"/v1/items/{IDS[4]}").json()["metadata"] == {"label": label(IDS[4])}


def test_encode_returns_the_codes_of_the_hasher(reader):
    answer = reader.post("/v1/encode", json={"vectors": ROWS[:7].tolist()}).json()
    assert answer == {"n_bits": N_BITS, "codes": to_hex(CODES[:7], N_BITS)}


@pytest.mark.parametrize("where", [None, {"label": 2}])
@pytest.mark.parametrize("histogram", [False, True])
def test_the_k_nearest_items_match_brute_force(reader, where, histogram):
    for row in np.random.default_rng(1).standard_normal((10, N_FEATURES)):
        code = HASHER.encode(row[None])
        ids, near = nearest(code, where and 2)
        request = {"vector": row.tolist(), "k": 7, "where": where, "histogram": histogram}
        answer = reader.post("/v1/search", json=request).json()
        assert answer["code"] == to_hex(code, N_BITS)[0]
        assert [hit["id"] for hit in answer["results"]] == ids[:7]
        assert [hit["distance"] for hit in answer["results"]] == near[:7]
        assert answer["total"] == 7
        for hit in answer["results"]:
            assert hit["code"] == to_hex(CODES[hit["id"] == IDS], N_BITS)[0]
            assert hit["metadata"] == {"label": label(hit["id"]), "title": f"item {hit['id']}"}
        counts = np.bincount(near, minlength=N_BITS + 1).tolist() if histogram else None
        assert answer.get("histogram") == counts


@pytest.mark.parametrize("histogram", [False, True])
def test_a_radius_search_counts_all_items_and_returns_the_nearest(reader, histogram):
    ids, near = others(IDS[17], *nearest(CODES[17]))
    for radius in (0, 3, 8, N_BITS, 10**6):
        request = {"id": int(IDS[17]), "radius": radius, "histogram": histogram}
        answer = reader.post("/v1/search", json=request).json()
        total = sum(distance <= radius for distance in near)
        assert answer["total"] == total
        assert [hit["id"] for hit in answer["results"]] == ids[: min(total, LIMITS.results)]
        if histogram:
            assert sum(answer["histogram"]) == N_ITEMS - 1


def test_a_code_and_its_vector_have_the_same_results(reader):
    by_code = reader.post("/v1/search", json={"code": to_hex(CODES[4:5], N_BITS)[0]}).json()
    by_vector = reader.post("/v1/search", json={"vector": ROWS[4].tolist()}).json()
    assert by_code == by_vector
    assert len(by_code["results"]) == 10


def by_projection(row):
    """Return ids and scores by brute force, best first: the projection times the signs of bits."""
    scores = (2.0 * unpack(CODES, N_BITS) - 1) @ HASHER.project(row[None])[0]
    order = np.argsort(-scores, kind="stable")
    return IDS[order].tolist(), scores[order]


def test_asymmetric_scoring_of_a_hamming_model_matches_brute_force(reader):
    for row in np.random.default_rng(1).standard_normal((10, N_FEATURES)).astype(np.float32):
        ids, scores = by_projection(row)
        request = {"vector": row.tolist(), "k": 6, "scoring": "asymmetric"}
        answer = reader.post("/v1/search", json=request).json()
        assert answer["code"] is None
        assert [hit["id"] for hit in answer["results"]] == ids[:6]
        np.testing.assert_allclose([hit["score"] for hit in answer["results"]], scores[:6])


def test_an_empty_store_has_empty_results(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=N_BITS) as store:
        client = TestClient(create_app(engine_of(store)))
        assert (
            client.post("/v1/search", json={"vector": VECTOR, "scoring": "asymmetric"}).json()[
                "results"
            ]
            == []
        )
        for extra in ({"k": 3}, {"radius": 3}):
            request = {"vector": [1.0] * N_FEATURES, "histogram": True, **extra}
            answer = client.post("/v1/search", json=request).json()
            assert (answer["results"], answer["total"]) == ([], 0)
            assert answer["histogram"] == [0] * (N_BITS + 1)
        assert client.get("/v1/items").json() == {"items": []}
        assert client.get("/v1/model").json()["bit_health"] is None
        assert client.put("/v1/items", json={"items": []}).json() == {"upserted": 0, "replaced": 0}
        assert client.request("DELETE", "/v1/items", json={"ids": []}).json() == {"deleted": 0}


QUERIES = [{"vectors": ROWS[:40].tolist()}, {"codes": to_hex(CODES[:40], N_BITS)}]


HOW = [
    {},
    {"k": 7},
    {"k": 7, "where": {"label": 2}},
    {"radius": 3},
    {"radius": 20},
    {"radius": 5, "where": {"label": 1}},
]


@pytest.mark.parametrize("many", QUERIES, ids=["vectors", "codes"])
@pytest.mark.parametrize("how", HOW, ids=str)
def test_many_queries_have_the_results_of_single_ones(reader, many, how):
    ((name, queries),) = many.items()
    answers = reader.post("/v1/search", json=many | how).json()["searches"]
    alone = [reader.post("/v1/search", json={name[:-1]: q} | how).json() for q in queries]
    assert answers == alone


@pytest.mark.parametrize(
    "how", [*HOW, {"scoring": "asymmetric", "k": 5}, {"histogram": True}], ids=str
)
def test_results_without_items_have_ids_and_distances_only(reader, how):
    asked = {"vector": ROWS[3].tolist()} | how
    whole = reader.post("/v1/search", json=asked).json()
    bare = reader.post("/v1/search", json=asked | {"items": False}).json()
    for hit in whole["results"]:
        del hit["code"], hit["metadata"]
    assert bare == whole


def test_many_asymmetric_queries_match_brute_force(reader):
    request = {"vectors": ROWS[:30].tolist(), "k": 6, "scoring": "asymmetric"}
    answers = reader.post("/v1/search", json=request).json()["searches"]
    for answer, row in zip(answers, ROWS[:30], strict=True):
        ids, scores = by_projection(row)
        assert [hit["id"] for hit in answer["results"]] == ids[:6]
        assert [hit["score"] for hit in answer["results"]] == pytest.approx(scores[:6])


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"vectors": ROWS[:51].tolist()}, ["50 vectors", "51"]),
        ({"codes": ["000000"] * 51}, ["50 codes", "51"]),
        ({"codes": ["000000"] * 33, "k": 100}, ["3,200", "33", "100"]),
        ({"codes": []}, ["codes"]),
        ({"vectors": [[1.0]]}, ["vector 0", "6"]),
        ({"codes": ["000000"], "vectors": [[1.0] * 6]}, ["vectors and codes"]),
        ({"codes": ["000000"], "histogram": True}, ["histogram"]),
        ({"codes": ["000000"], "rerank": 4}, ["rerank"]),
        ({"vectors": [VECTOR] * 33, "k": 10, "rerank": 10}, ["3,200", "33", "100"]),
        ({"vectors": [VECTOR], "rerank": 4}, ["keep_vectors"]),
        ({"vectors": [VECTOR], "rescore": "project"}, ["rescore"]),
    ],
)
def test_searches_with_too_many_queries_or_wrong_options_are_refused(reader, request_, words):
    detail = is_problem(reader.post("/v1/search", json=request_), 422)
    assert all(word in detail for word in words)


def test_micro_batched_searches_have_the_results_of_single_ones(reader, store, monkeypatch):
    alike = [{"vector": row.tolist(), "k": 7} for row in ROWS[:40]]
    others = [
        {"code": to_hex(CODES[i : i + 1], N_BITS)[0], "where": {"label": 2}} for i in range(9)
    ]
    wrong = [{"vector": [1.0], "k": 7}, {"vector": [3e38] * N_FEATURES, "k": 7}]
    requests = alike + others + wrong + [{"id": 3}, {"id": -3}, {"code": "000000", "radius": 5}]
    expected = [reader.post("/v1/search", json=request) for request in requests]
    engine = engine_of(store, limits=replace(LIMITS, threads=1))
    answers, calls = search_at_once(engine, requests, monkeypatch)
    assert [answer.status_code for answer in answers] == [one.status_code for one in expected]
    assert [answer.json() for answer in answers] == [one.json() for one in expected]
    # 42 similar searches are two batches; a batch with an invalid search is answered one by one.
    together = [len(call.vectors or call.codes or []) for call in calls if not call.is_single]
    assert sorted(together)[-2:] > [8, 9]
    assert len(together) == 3


def test_results_that_change_before_they_are_fetched_are_searched_again(store, monkeypatch):
    """In a store without snapshots, such as Milvus."""
    monkeypatch.setattr(store, "snapshot", lambda: nullcontext(store))
    for name in ("_search", "_radius", "_count"):
        search = partial(search_new_snapshot, store, name)
        monkeypatch.setattr(store, name, search, raising=False)
    engine = engine_of(store)
    get, n_changes = store._items_of, 0

    def get_later(ids):
        nonlocal n_changes
        n_changes += 1
        if 1 <= n_changes <= 3:
            differing = np.array([[2**n_changes - 1, 0, 0]], np.uint8)  # in 1, 2, 3 bits
            store.upsert([IDS[0]], CODES[:1] ^ differing)
        return get(ids)

    monkeypatch.setattr(store, "_items_of", get_later)
    client = TestClient(create_app(engine))
    code = to_hex(CODES[:1], N_BITS)[0]
    hit = client.post("/v1/search", json={"code": code, "radius": N_BITS}).json()
    for result in hit["results"]:
        query, own = from_hex([code], N_BITS), from_hex([result["code"]], N_BITS)
        assert result["distance"] == np.bitwise_count(query ^ own).sum()
    assert n_changes > 3
    n_changes = -(10**9)
    monkeypatch.setattr(
        Search, "_unchanged", lambda _, found, *__: np.zeros(len(found.counts), bool)
    )
    is_problem(client.post("/v1/search", json={"code": code}), 503)


def search_new_snapshot(store, name, *arguments):
    with type(store).snapshot(store) as now:
        return getattr(now, name)(*arguments)


_names = (f"search_{number}" for number in itertools.count())


@pytest.fixture(params=ENGINES)
def any_store(request, engines):
    with open_store(engines.url(request.param, next(_names)), n_bits=N_BITS) as store:
        fill(store)
        yield store


@pytest.fixture
def engine(store):
    return engine_of(store, limits=replace(LIMITS, results=1_000))


def hits(answer):
    return [(hit["id"], hit["distance"]) for hit in answer["results"]]


@pytest.mark.parametrize(
    "bound",
    [
        {"k": 50},
        {"k": 50, "histogram": True},
        {"radius": 9},
        {"radius": 9, "histogram": True},
        {"k": 50, "scoring": "asymmetric"},
        {"k": 50, "items": False},
    ],
)
def test_offset_and_limit_return_a_part_of_the_results(engine, bound):
    asked = {"vector": ROWS[5].tolist(), **bound}
    whole = engine.search(SearchRequest(**asked))
    assert len(whole["results"]) > 30
    for offset, limit in ((0, 10), (10, 10), (45, 10), (7, None), (400, 5)):
        part = engine.search(SearchRequest(**asked, offset=offset, limit=limit))
        end = None if limit is None else offset + limit
        assert part["results"] == whole["results"][offset:end]
        assert part["total"] == whole["total"]
        assert part.get("histogram") == whole.get("histogram")


def test_offsets_reach_all_items_within_a_radius(engine):
    engine.limits = Limits(results=40)
    found = []
    for offset in range(0, N_ITEMS, 40):
        request = SearchRequest(code=to_hex(CODES[:1], N_BITS)[0], radius=N_BITS, offset=offset)
        found += hits(engine.search(request))
    assert found == list(zip(*nearest(CODES[0]), strict=True))


@pytest.mark.parametrize("n_bits", [1, 8, 11, N_BITS])
@pytest.mark.parametrize("wanted", [None, 2])
def test_a_prefix_search_compares_the_first_bits_only(any_store, n_bits, wanted):
    engine = engine_of(any_store, limits=replace(LIMITS, results=1_000))
    where = None if wanted is None else {"label": wanted}
    asked = {"id": int(IDS[3]), "prefix": n_bits, "where": where}
    expected = list(zip(*others(IDS[3], *nearest(CODES[3], wanted, n_bits)), strict=True))
    assert hits(engine.search(SearchRequest(**asked, k=30))) == expected[:30]
    answer = engine.search(SearchRequest(**asked, radius=2, histogram=True))
    assert hits(answer) == [hit for hit in expected if hit[1] <= 2]
    counts = np.bincount([distance for _, distance in expected], minlength=N_BITS + 1)
    assert answer["histogram"] == counts.tolist()
    assert answer["code"] == to_hex(CODES[3:4], N_BITS)[0]


def test_invalid_prefixes_are_refused(engine):
    with pytest.raises(ValueError, match=r"20.*21"):
        engine.search(SearchRequest(id=int(IDS[0]), prefix=21))
    with pytest.raises(ValueError, match="prefix"):
        SearchRequest(vector=[0.0] * 6, prefix=8, rerank=2)
    engine.limits = Limits(histogram=N_ITEMS - 1)
    with pytest.raises(ValueError, match=r"199.*200"):
        engine.search(SearchRequest(id=int(IDS[0]), prefix=8))

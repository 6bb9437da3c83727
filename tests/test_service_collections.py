"""Collections over HTTP: asymmetric models, reranking, string ids, texts and drift."""

import http.client
import json
from dataclasses import replace
from urllib.parse import quote

import numpy as np
import pytest

from antipodal import LSH, Collection
from antipodal.embedding import FunctionEmbedder
from antipodal.service import Engine, Limits, create_app
from engines import ENGINES, engines  # noqa: F401
from served import HANG, TestClient, is_problem, listening, search_at_once

RNG = np.random.default_rng(0)
N, WIDTH, BITS = 600, 16, 32
X = RNG.standard_normal((N, WIDTH)).astype(np.float32)
Q = RNG.standard_normal((20, WIDTH)).astype(np.float32)
ODD = ["a/b", "a?b=c#d", "ünïcode 日本", "..", "a%2Fb", " ", "7", "/", "get", '"q"\\', "x" * 512]
KEYS = ODD + [f"https://example.org/doc/{i}?page=1" for i in range(N - len(ODD))]
METADATA = [{"n": i, "title": f"title {i}"} for i in range(N)]
LIMITS = Limits(seconds=HANG)


def embed(texts):
    """Embed "3" as the third row, and fail for other words."""
    return X[[int(text) for text in texts]]


def create(place, **options):
    return Collection.create(place, X, ids=KEYS, metadata=METADATA, **{"bits": BITS, **options})


@pytest.fixture(scope="module")
def docs(tmp_path_factory):
    """An asymmetric collection of string ids that keeps vectors, with an embedder."""
    place = tmp_path_factory.mktemp("docs") / "docs.db"
    create(place, keep_vectors="float32").close()
    embedder = FunctionEmbedder("tests:embed", embed)
    with Collection.open(place, embed=embedder) as collection:
        yield collection


@pytest.fixture(scope="module")
def client(docs):
    with TestClient(create_app(Engine(docs, limits=LIMITS))) as client:
        yield client


def search(client, **request):
    response = client.post("/v1/search", json=request)
    assert response.status_code == 200, response.text
    return response.json()


def ids_of(answer):
    return [hit["id"] for hit in answer["results"]]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 30, "where": {"n": {"lt": 100}}},
        {"rerank": 4},
        {"rerank": 3, "where": {"n": {"gte": 300}}, "k": 5},
    ],
    ids=str,
)
def test_the_service_finds_what_the_collection_finds(docs, client, options):
    expected = docs.search(Q, **options)
    many = search(client, vectors=Q.tolist(), **options)["searches"]
    for row, ids, scores, one in zip(Q, expected.ids, expected.scores, many, strict=True):
        single = search(client, vector=row.tolist(), **options)
        for answer in (single, one):
            assert answer["code"] is None
            assert ids_of(answer) == ids.tolist()
            found = [hit["score"] for hit in answer["results"]]
            np.testing.assert_allclose(found, scores, atol=1e-6)
            for hit in answer["results"]:
                assert hit["metadata"] == METADATA[KEYS.index(hit["id"])]


def test_reranking_everything_ranks_by_the_cosine(client):
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    for row in Q[:5]:
        cosines = unit @ (row / np.linalg.norm(row))
        order = np.argsort(-cosines)[:6]
        answer = search(client, vector=row.tolist(), k=6, rerank=100)
        assert ids_of(answer) == [KEYS[i] for i in order]
        found = [hit["score"] for hit in answer["results"]]
        np.testing.assert_allclose(found, cosines[order], atol=1e-5)


@pytest.mark.parametrize("extra", [{"radius": 9}, {"prefix": 8}, {"histogram": True}], ids=str)
def test_hamming_searches_of_an_asymmetric_model_must_be_explicit(docs, client, extra):
    request = {"vector": Q[0].tolist(), **extra}
    detail = is_problem(client.post("/v1/search", json=request), 422)
    assert next(iter(extra)) in detail
    with pytest.warns(UserWarning, match="asymmetric"):
        answer = search(client, **request, scoring="hamming", limit=600)
    bits = np.unpackbits(docs.model.encode(X) ^ docs.model.encode(Q[:1]), axis=1)
    distances = bits[:, : extra.get("prefix", BITS)].sum(axis=1)
    for hit in answer["results"]:
        assert hit["distance"] == distances[KEYS.index(hit["id"])]
    if "radius" in extra:
        assert set(ids_of(answer)) == {KEYS[i] for i in np.flatnonzero(distances <= 9)}
    if "histogram" in extra:
        assert answer["histogram"] == np.bincount(distances, minlength=BITS + 1).tolist()


@pytest.fixture(scope="module")
def port(docs):
    engine = Engine(docs, limits=LIMITS)
    engine.close = lambda: None  # the collection is used by other tests
    with listening(create_app(engine)) as port:
        yield port


@pytest.mark.parametrize("key", ODD)
def test_any_string_is_an_id_on_every_route(client, port, key):
    place = KEYS.index(key)
    connection = http.client.HTTPConnection("127.0.0.1", port)  # sends paths as they are
    connection.request("GET", f"/v1/items/{quote(key, safe='')}")
    item = json.load(connection.getresponse())
    connection.close()
    assert (item["id"], item["metadata"]) == (key, METADATA[place])
    assert client.post("/v1/items/get", json={"ids": [key, "none"]}).json() == {"items": [item]}
    assert key not in ids_of(search(client, id=key, k=N))
    found = search(client, vector=X[place].tolist(), k=1, rerank=20)
    assert ids_of(found) == [key]
    by_word = client.post("/v1/find", json={"text": f"title {place}"}).json()["items"]
    assert key in [one["id"] for one in by_word]


def test_sampled_items_and_the_map_have_string_ids(client):
    sample = client.get("/v1/items?limit=50").json()["items"]
    points = client.get("/v1/map?limit=50&field=n").json()["points"]
    for one in (*sample, *points):
        assert one["id"] in KEYS
    for point in points:
        assert point["value"] == KEYS.index(point["id"])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["asymmetric", "hamming"])
def test_string_ids_are_written_and_deleted_in_every_engine(engine, engines, model):  # noqa: F811
    """Milvus has neither snapshots nor kept vectors."""
    hasher = LSH(BITS, random_state=0).fit(X) if model == "hamming" else None
    how = {"bits": BITS} if hasher is None else {"model": hasher, "bits": None}
    url = engines.url(engine, f"http_{model}")
    with create(url, **how) as collection:
        client = TestClient(create_app(Engine(collection, limits=LIMITS)))
        answer = search(client, vector=Q[0].tolist(), k=7)
        assert ids_of(answer) == collection.search(Q[:1], 7).ids[0].tolist()
        assert ids_of(search(client, vector=Q[0].tolist(), k=7, items=False)) == ids_of(answer)
        new = {"id": "new/1", "vector": X[3].tolist(), "metadata": {"n": -1}}
        old = {"id": KEYS[3], "vector": X[4].tolist()}
        stored = client.put("/v1/items", json={"items": [new, old]}).json()
        assert stored == {"upserted": 2, "replaced": 1}
        assert client.get("/v1/items/new%2F1").json()["metadata"] == {"n": -1}
        code = collection.get(["new/1"]).codes[0]
        np.testing.assert_array_equal(code, collection.model.encode(X[3:4])[0])
        is_problem(client.put("/v1/items", json={"items": [new], "replace": False}), 409)
        for wrong in ({"id": 7, "vector": X[3].tolist()}, new | {"id": "y" * 513}):
            is_problem(client.put("/v1/items", json={"items": [wrong]}), 422)
        gone = client.request("DELETE", "/v1/items", json={"ids": ["new/1", "none"]})
        assert gone.json() == {"deleted": 1}
        is_problem(client.post("/v1/search", json={"id": "new/1"}), 404)
        assert client.post("/v1/count", json={}).json() == {"count": N}


def test_integer_ids_are_refused_where_ids_are_strings(client):
    is_problem(client.post("/v1/search", json={"id": 7}), 422)
    is_problem(client.post("/v1/items/get", json={"ids": [7]}), 422)
    assert client.get("/v1/items/7").json()["id"] == "7"


# --------------------------------------------------------------------------------------- texts


def test_texts_are_embedded(docs, client):
    assert client.get("/v1/model").json()["texts"] is True
    assert client.get("/v1/store").json()["texts"] is True
    expected = docs.search(X[[5, 9]], 4, rerank=4).ids.tolist()
    many = search(client, texts=["5", "9"], k=4, rerank=4)["searches"]
    assert [ids_of(answer) for answer in many] == expected
    assert ids_of(search(client, text="9", k=4, rerank=4)) == expected[1]


def test_a_failing_embedder_is_a_bad_gateway(client):
    for request in ({"text": "seven"}, {"texts": ["1", "seven"]}):
        detail = is_problem(client.post("/v1/search", json=request), 502)
        assert "tests:embed" in detail


def test_texts_are_refused_without_an_embedder(tmp_path):
    with create(tmp_path / "docs.db") as collection:
        client = TestClient(create_app(Engine(collection)))
        assert client.get("/v1/model").json()["texts"] is False
        assert "--embed" in is_problem(client.post("/v1/search", json={"text": "1"}), 422)
        for text in ("", "x" * 10_001):
            is_problem(client.post("/v1/search", json={"text": text}), 422)


# -------------------------------------------------------------------------------- kept vectors


def test_a_collection_that_keeps_vectors_refuses_codes(docs, client):
    items = [
        {"id": "new", "vector": X[0].tolist()},
        {"id": "other", "code": "00" * (BITS // 8)},
    ]
    detail = is_problem(client.put("/v1/items", json={"items": items}), 422)
    assert "vectors" in detail
    assert docs.count() == N


def test_stored_vectors_are_kept_for_reranking(tmp_path):
    with create(tmp_path / "docs.db", keep_vectors="float16") as collection:
        client = TestClient(create_app(Engine(collection)))
        item = {"id": "new", "vector": (3 * Q[0]).tolist()}
        client.put("/v1/items", json={"items": [item]})
        answer = search(client, vector=Q[0].tolist(), k=1, rerank=20)
        assert ids_of(answer) == ["new"]
        assert answer["results"][0]["score"] == pytest.approx(1, abs=1e-3)


def test_an_item_of_a_hamming_model_is_compared_by_its_stored_code(tmp_path):
    """Its kept vector is rounded, and may have another code."""
    model = LSH(BITS, random_state=0).fit(X)
    with create(tmp_path / "docs.db", bits=None, model=model, keep_vectors="int8") as collection:
        client = TestClient(create_app(Engine(collection)))
        codes = model.encode(X)
        for place in range(0, N, 60):
            answer = search(client, id=KEYS[place], radius=BITS, limit=N)
            distances = np.bitwise_count(codes ^ codes[place]).sum(axis=1)
            found = {hit["id"]: hit["distance"] for hit in answer["results"]}
            expected = dict(zip(KEYS, distances.tolist(), strict=True))
            del expected[KEYS[place]]
            assert found == expected


# ---------------------------------------------------------------------------- binary and batches


def test_binary_queries_have_the_results_of_json(client):
    for options in ('{"k": 5}', '{"rerank": 4, "where": {"n": {"lt": 50}}}', '{"items": false}'):
        response = client.post(
            f"/v1/search?options={quote(options)}",
            content=Q.astype("<f4").tobytes(),
            headers={"Content-Type": "application/octet-stream"},
        )
        expected = client.post("/v1/search", json={"vectors": Q.tolist()} | json.loads(options))
        assert response.json() == expected.json()


@pytest.mark.parametrize(
    ("options", "body", "words"),
    [
        ("{", Q.tobytes(), "options"),
        ("[]", Q.tobytes(), "options"),
        ('{"k": 0}', Q.tobytes(), "k"),
        ('{"k": NaN}', Q.tobytes(), "options"),
        ('{"histogram": true, "scoring": "hamming"}', Q.tobytes(), "histogram"),
        ('{"vector": [1]}', Q.tobytes(), "vector"),
        ('{"radius": 3}', Q.tobytes(), "radius"),
        ("{}", b"123", "16"),
        ("{}", np.full((1, WIDTH), np.nan, "<f4").tobytes(), "NaN"),
    ],
)
def test_invalid_binary_searches_are_refused(client, options, body, words):
    headers = {"Content-Type": "application/octet-stream"}
    response = client.post(f"/v1/search?options={quote(options)}", content=body, headers=headers)
    assert words in is_problem(response, 422)


def test_no_binary_queries_have_no_results(client):
    headers = {"Content-Type": "application/octet-stream"}
    assert client.post("/v1/search", content=b"", headers=headers).json() == {"searches": []}


def test_asymmetric_searches_are_micro_batched(docs, client, monkeypatch):
    requests = [{"vector": row.tolist(), "k": 7} for row in Q]
    requests += [{"vector": row.tolist(), "k": 7, "rerank": 3} for row in Q]
    requests += [{"text": str(i)} for i in range(3)] + [{"text": "seven"}]
    expected = [client.post("/v1/search", json=request) for request in requests]
    engine = Engine(docs, limits=replace(LIMITS, threads=1))
    monkeypatch.setattr(engine, "close", lambda: None)  # the collection is used by other tests
    answers, calls = search_at_once(engine, requests, monkeypatch)
    assert [answer.status_code for answer in answers] == [one.status_code for one in expected]
    for answer, one in zip(answers, expected, strict=True):
        if answer.status_code == 200:
            assert ids_of(answer.json()) == ids_of(one.json())
    assert [len(call.vectors) for call in calls if not call.is_single] == [20, 20]


# --------------------------------------------------------------------------------------- drift


def test_drift_is_measured_over_http(docs, client):
    same = RNG.standard_normal((300, WIDTH)).astype(np.float32)
    other = same.copy()
    other[:, :8] += 4
    for rows in (same, other):
        expected = docs.check(rows)
        answer = client.post("/v1/check", json={"vectors": rows.tolist()}).json()
        binary = client.post(
            "/v1/check",
            content=rows.tobytes(),
            headers={"Content-Type": "application/octet-stream"},
        )
        assert answer == binary.json()
        assert answer["has_drifted"] is expected.has_drifted
        assert answer["message"] == str(expected)
        assert answer["now"]["recall"] == expected.now.recall
    is_problem(client.post("/v1/check", json={"vectors": same[:99].tolist()}), 422)
    is_problem(client.post("/v1/check", json={"vectors": [[1.0]] * 100}), 422)


def test_drift_needs_a_record_of_the_vectors_at_fit_time(tmp_path):
    model = LSH(BITS, random_state=0).fit(X)
    model.save(tmp_path / "model")
    with Collection.open_with(tmp_path / "codes.db", tmp_path / "model") as collection:
        client = TestClient(create_app(Engine(collection)))
        is_problem(client.post("/v1/check", json={"vectors": X[:100].tolist()}), 422)


def test_health_routes_answer_head(client):
    for path in ("/healthz", "/readyz"):
        response = client.head(path)
        assert (response.status_code, response.content) == (200, b"")

"""Many queries in one request, and vectors in bytes."""

import io
import threading
import time
import warnings
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from antipodal import LSH, HammingIndex, open_store
from antipodal.codes import to_hex
from antipodal.service import Engine, Keys, Limits, app, bodies, create_app

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Using `httpx` with `starlette.testclient`")
    from starlette.testclient import TestClient

N_BITS, N_FEATURES, N_ITEMS = 20, 6, 200
LIMITS = Limits(body=100_000, binary_body=100_000, batch=50, k=100, results=30, found=1_000)
ROWS = np.random.default_rng(0).standard_normal((N_ITEMS, N_FEATURES)).astype(np.float32)
HASHER = LSH(N_BITS, random_state=0).fit(ROWS)
CODES = HASHER.encode(ROWS)
BYTES = {"Content-Type": "application/octet-stream"}
ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("batches")
    with open_store(f"sqlite:///{folder}/codes.db", n_bits=N_BITS) as store:
        store.load(np.arange(N_ITEMS), CODES, [{"label": i % 4} for i in range(N_ITEMS)])
        with TestClient(create_app(Engine(HASHER, store, limits=LIMITS))) as client:
            yield client


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
def test_many_queries_are_answered_as_each_alone(client, many, how):
    ((name, queries),) = many.items()
    answers = client.post("/v1/search", json=many | how).json()["searches"]
    alone = [client.post("/v1/search", json={name[:-1]: q} | how).json() for q in queries]
    if "radius" in how:  # each has its share of what a request may find
        for answer in alone:
            answer["results"] = answer["results"][: LIMITS.found // 40]
    assert answers == alone


@pytest.mark.parametrize(
    "how", [*HOW, {"rescore": "project", "k": 5}, {"histogram": True}], ids=str
)
def test_ids_and_distances_come_without_the_items(client, how):
    asked = {"vector": ROWS[3].tolist()} | how
    whole = client.post("/v1/search", json=asked).json()
    bare = client.post("/v1/search", json=asked | {"items": False}).json()
    for hit in whole["results"]:
        del hit["code"], hit["metadata"]
    assert bare == whole


def test_many_rescored_queries_are_those_of_the_index(client):
    index = HammingIndex(N_BITS)
    index.add(CODES)
    request = {"vectors": ROWS[:30].tolist(), "k": 6, "rescore": "project"}
    answers = client.post("/v1/search", json=request).json()["searches"]
    expected = index.search(CODES[:30], 6, rescore=HASHER.query(ROWS[:30]))
    for answer, ids, scores in zip(answers, expected.ids, expected.scores, strict=True):
        assert [hit["id"] for hit in answer["results"]] == ids.tolist()
        assert [hit["score"] for hit in answer["results"]] == pytest.approx(scores)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"vectors": ROWS[:51].tolist()}, "at most 50 vectors: got 51"),
        ({"codes": ["000000"] * 51}, "at most 50 codes: got 51"),
        ({"codes": ["000000"] * 11, "k": 100}, "at most 1,000 items: got 11 queries for 100"),
        ({"codes": []}, "codes"),
        ({"vectors": [[1.0]]}, "vector 0 has 1"),
        ({"codes": ["000000"], "vectors": [[1.0] * 6]}, "exactly one of"),
        ({"codes": ["000000"], "histogram": True}, "a histogram is of one query"),
        ({"codes": ["000000"], "rescore": "project"}, "rescore needs vectors"),
    ],
)
def test_what_is_too_much_or_wrong_is_refused(client, request_, words):
    response = client.post("/v1/search", json=request_)
    assert response.status_code == 422
    assert words in response.json()["detail"]


def arrow_stream(compression=None, **columns):
    table = pa.table(columns)
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=7)
    return sink.getvalue()


def lists(rows, kind="float"):
    flat = pa.array(rows.ravel(), kind)
    return pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])


def test_vectors_in_bytes_become_codes_in_bytes(client):
    answer = client.post("/v1/encode", content=ROWS[:20].astype("<f4").tobytes(), headers=BYTES)
    assert answer.headers["content-type"] == BYTES["Content-Type"]
    np.testing.assert_array_equal(np.frombuffer(answer.content, np.uint8), CODES[:20].ravel())
    assert client.post("/v1/encode", content=b"", headers=BYTES).content == b""
    for column in (
        lists(ROWS[:20]),
        lists(ROWS[:20], "double"),
        lists(ROWS[:20]).cast(pa.list_(pa.float32())),
    ):
        body = arrow_stream(vector=column)
        answer = client.post("/v1/encode", content=body, headers=ARROW)
        codes = pa.ipc.open_stream(answer.content).read_all().column("code")
        assert codes.type == pa.binary(3)
        assert codes.to_pylist() == [code.tobytes() for code in CODES[:20]]
    empty = arrow_stream(vector=lists(ROWS[:0]))
    assert client.post("/v1/encode", content=empty, headers=ARROW).status_code == 200


NAN = ROWS[:3].copy()
NAN[1, 1] = np.nan


@pytest.mark.parametrize(
    ("headers", "body", "words"),
    [
        (BYTES, b"123", "vectors of 6 values"),
        (BYTES, ROWS[:51].tobytes(), "at most 50 vectors"),
        (BYTES, NAN.tobytes(), "first in row 1"),
        (ARROW, b"", "not a valid Arrow stream"),
        (ARROW, b"123" * 50, "not a valid Arrow stream"),
        (ARROW, arrow_stream(vector=lists(ROWS[:9]))[:-60], "Arrow"),
        (ARROW, arrow_stream(vector=lists(ROWS[:9, :5])), "equal length"),
        (ARROW, arrow_stream(a=[1.0], b=[2.0]), "must have one column"),
        (ARROW, arrow_stream(a=[1.0]), "lists of numbers"),
        (ARROW, arrow_stream(a=[["x"] * 6]), "lists of numbers"),
        (ARROW, arrow_stream(a=[[1.0] * 6, None]), "no gaps"),
        (ARROW, arrow_stream(a=lists(ROWS[:51])), "at most 50 vectors"),
    ],
)
def test_bytes_that_are_no_vectors_are_refused(client, headers, body, words):
    response = client.post("/v1/encode", content=body, headers=headers)
    assert response.status_code == 422, response.text
    assert words in response.json()["detail"]


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_arrow_is_refused_before_it_is_unpacked(client, compression):
    zeros = lists(np.zeros((2_000_000, N_FEATURES), np.float32))
    table = pa.table({"vector": zeros})
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    bomb = sink.getvalue()
    del zeros, table
    if len(bomb) > LIMITS.binary_body:
        bomb = arrow_stream(compression, vector=lists(np.zeros((7, N_FEATURES), np.float32)))
    pa.default_memory_pool().release_unused()
    before = pa.total_allocated_bytes()
    response = client.post("/v1/encode", content=bomb, headers=ARROW)
    assert response.status_code == 422
    assert "compressed" in response.json()["detail"]
    assert pa.total_allocated_bytes() == before


def test_arrow_types_that_expand_are_refused(client):
    for values in (
        pa.nulls(10**9),
        pa.array([ROWS[0].tolist()] * 9, pa.list_view(pa.float32())),
        pa.array([1.0] * 9).dictionary_encode(),
    ):
        table = pa.table({"vector": values})
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        response = client.post("/v1/encode", content=sink.getvalue(), headers=ARROW)
        assert response.status_code == 422


def test_arrow_is_parsed_off_the_event_loop(client, monkeypatch):
    threads = []

    def read(*arguments):
        threads.append(threading.current_thread().name)
        return bodies.read_rows(*arguments)

    monkeypatch.setattr(app, "read_rows", read)
    body = arrow_stream(vector=lists(ROWS[:5]))
    assert client.post("/v1/encode", content=body, headers=ARROW).status_code == 200
    assert [name.split("_")[0] for name in threads] == ["read"]


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON", "APPLICATION/JSON; charset=utf-8", "text/x"]
)
def test_every_body_but_a_binary_one_has_the_limit_of_json(tmp_path, kind):
    limits = Limits(body=1_000, binary_body=100_000)
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=N_BITS) as store:
        client = TestClient(create_app(Engine(HASHER, store, limits=limits)))
        body = b'{"vectors": [' + b",".join([b"[]"] * 2_000) + b"]}"
        response = client.post("/v1/encode", content=body, headers={"Content-Type": kind})
        assert response.status_code == 413
        rows = ROWS[:100].astype("<f4").tobytes()
        assert len(rows) > limits.body
        for binary in (BYTES, {"Content-Type": "Application/Octet-Stream; x=1"}):
            assert client.post("/v1/encode", content=rows, headers=binary).status_code == 200


def test_bytes_have_the_limits_and_the_guard_of_json(client, tmp_path):
    body = bytes(LIMITS.binary_body + 4)
    assert client.post("/v1/encode", content=body, headers=BYTES).status_code == 413
    assert client.post("/v1/search", content=b"0000", headers=BYTES).status_code == 422
    keys = Keys.parse("read " + "k" * 20, "a test")
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=N_BITS) as store:
        guarded = TestClient(create_app(Engine(HASHER, store, limits=LIMITS), keys=keys))
        assert guarded.post("/v1/encode", content=bytes(24), headers=BYTES).status_code == 401


# --------------------------------------------------------------------- searches at the same time


def n_running(client):
    line = client.get("/metrics").text.split("\nantipodal_requests_in_progress ")[1]
    return float(line.split()[0])


def test_searches_that_wait_together_are_answered_as_each_alone(client, tmp_path, monkeypatch):
    """With one thread, which is held until all of them are waiting."""
    alike = [{"vector": row.tolist(), "k": 7} for row in ROWS[:40]]
    others = [
        {"code": to_hex(CODES[i : i + 1], N_BITS)[0], "where": {"label": 2}} for i in range(9)
    ]
    wrong = [{"vector": [1.0], "k": 7}, {"vector": [3e38] * N_FEATURES, "k": 7}]
    requests = alike + others + wrong + [{"id": 3}, {"id": -3}, {"code": "000000", "radius": 5}]
    expected = [client.post("/v1/search", json=request) for request in requests]
    held, release, calls = threading.Event(), threading.Event(), []
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=N_BITS) as store:
        store.load(np.arange(N_ITEMS), CODES, [{"label": i % 4} for i in range(N_ITEMS)])
        engine = Engine(HASHER, store, limits=replace(LIMITS, threads=1))
        search = engine.search

        def count(request):
            calls.append(request)
            return search(request)

        monkeypatch.setattr(engine, "search", count)

        def hold(_):
            held.set()
            assert release.wait(60)
            return {"count": 0}

        monkeypatch.setattr(engine, "count", hold)
        with TestClient(create_app(engine)) as waiting:
            holder = threading.Thread(target=waiting.post, args=("/v1/count",), kwargs={"json": {}})
            holder.start()
            assert held.wait(30)
            answers = [None] * len(requests)

            def ask(place):
                answers[place] = waiting.post("/v1/search", json=requests[place])

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(requests))]
            for thread in threads:
                thread.start()
            while n_running(waiting) < len(requests) + 2:  # the holder, and who asks
                time.sleep(0.01)
            release.set()
            for thread in [holder, *threads]:
                thread.join()
    assert [answer.status_code for answer in answers] == [one.status_code for one in expected]
    assert [answer.json() for answer in answers] == [one.json() for one in expected]
    # 42 alike are two groups, each with a wrong one or not; a group with one goes one by one.
    together = [len(call.vectors or call.codes or []) for call in calls if not call.is_single]
    assert sorted(together)[-2:] > [8, 9]
    assert len(together) == 3

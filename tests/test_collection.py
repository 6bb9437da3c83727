"""`Collection` over SQLite and over HTTP: search, ids, kept vectors, drift and bad input."""

import sqlite3
import threading
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antipodal import ITQ, Client, Collection, LinfHash, load, open_store, open_vectors
from antipodal.errors import AntipodalError, IdsTakenError, StoreError
from antipodal.service import Engine, create_app
from served import listening

DATA = Path(__file__).parent / "data" / "0.6.1"
N, N_FEATURES, N_BITS = 600, 16, 32
_rng = np.random.default_rng(0)
_CENTRES = _rng.standard_normal((12, N_FEATURES))


def clustered(n, seed):
    rng = np.random.default_rng(seed)
    rows = _CENTRES[rng.integers(len(_CENTRES), size=n)]
    return (rows + 0.6 * rng.standard_normal(rows.shape)).astype(np.float32)


ROWS, QUERIES = clustered(N, 1), clustered(20, 2)
MODEL = LinfHash.asymmetric(N_BITS, random_state=0).fit(ROWS[:400])
HAMMING = ITQ(16, random_state=0).fit(ROWS)
METADATA = [{"year": 2000 + i % 10, "title": f"row {i}"} for i in range(N)]
STRING_IDS = [
    [str(uuid.UUID(int=i)), f"https://example.org/ä?{i}", f"{i:03}" + "x" * 509, f"文 {i}\n\"'\\"][
        i % 4
    ]
    for i in range(N)
]


def signs(model, rows):
    return np.where(np.unpackbits(model.encode(rows), axis=1)[:, : model.n_bits], 1.0, -1.0)


def cosines(queries, rows):
    queries, rows = (np.asarray(a, np.float64) for a in (queries, rows))
    lengths = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(rows, axis=1)
    return queries @ rows.T / lengths


def nearest(scores, k):
    """Return the k best columns of each row; equal scores in the order of columns."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


@pytest.fixture(params=["file", "http"])
def opened(request, tmp_path):
    """A function that creates a collection and opens it from its file or behind a service."""
    stack = []

    def create(vectors=ROWS, **options):
        Collection.create(tmp_path / "docs.db", vectors, **options).close()
        docs = Collection.open(tmp_path / "docs.db")
        if request.param == "http":
            app = create_app(Engine(docs))
            server = listening(app, lifespan="off")
            stack.append(lambda: server.__exit__(None, None, None))
            docs = Collection.open(f"http://127.0.0.1:{server.__enter__()}")
            assert isinstance(docs, Client)
        stack.append(docs.close)
        return docs

    yield create
    for close in reversed(stack):
        close()


def test_asymmetric_search_equals_brute_force_over_the_codes(opened):
    docs = opened(model=MODEL, metadata=METADATA)
    expected = MODEL.query(QUERIES) @ signs(MODEL, ROWS).T
    found = docs.search(QUERIES, k=7, metadata=True)
    np.testing.assert_array_equal(found.ids, nearest(expected, 7))
    assert found.metadata[3] == [METADATA[i] for i in found.ids[3].tolist()]
    estimates = expected + MODEL.score_offset(QUERIES)[:, None]  # of cosines
    estimates = np.take_along_axis(estimates, found.ids, axis=1)
    np.testing.assert_allclose(found.scores, estimates, atol=1e-4)
    true = np.take_along_axis(cosines(QUERIES, ROWS), found.ids, axis=1)
    assert np.abs(found.scores - true).mean() < 0.1


def test_filters_string_ids_and_rerank_agree_with_brute_force(opened):
    docs = opened(model=MODEL, metadata=METADATA, ids=STRING_IDS, keep_vectors="float32")
    recent = np.array([fields["year"] >= 2005 for fields in METADATA])
    scores = np.where(recent, MODEL.query(QUERIES) @ signs(MODEL, ROWS).T, -np.inf)
    where = {"year": {"gte": 2005}}
    found = docs.search(QUERIES, k=5, where=where)
    assert found.ids.tolist() == [[STRING_IDS[i] for i in row] for row in nearest(scores, 5)]
    exact = cosines(QUERIES, ROWS)
    candidates = nearest(scores, 20)
    among = np.take_along_axis(exact, candidates, axis=1)
    best = np.take_along_axis(candidates, nearest(among, 5), axis=1)
    reranked = docs.search(QUERIES, k=5, where=where, rerank=4)
    assert reranked.ids.tolist() == [[STRING_IDS[i] for i in row] for row in best]
    np.testing.assert_allclose(reranked.scores, np.take_along_axis(exact, best, axis=1), atol=1e-6)
    assert docs.count(where) == recent.sum()
    got = docs.get([STRING_IDS[5], "unknown", STRING_IDS[2]])
    assert (got.ids.tolist(), got.metadata) == (
        [STRING_IDS[5], STRING_IDS[2]],
        [METADATA[5], METADATA[2]],
    )


def test_items_are_searched_by_their_kept_vector_or_reconstruction(opened):
    docs = opened(model=MODEL, keep_vectors="float32")
    scores = MODEL.query(ROWS[:9]) @ signs(MODEL, ROWS).T
    np.fill_diagonal(scores, -np.inf)  # an item is left out of its own results
    np.testing.assert_array_equal(docs.search(ids=range(9), k=4).ids, nearest(scores, 4))
    with pytest.raises(KeyError):
        docs.search(ids=[3, N])
    codes = MODEL.encode(ROWS[:9])
    scores = MODEL.query(MODEL.reconstruct(codes)) @ signs(MODEL, ROWS).T
    np.testing.assert_array_equal(docs.search(codes=codes, k=4).ids, nearest(scores, 4))


def test_models_for_hamming_distance_are_searched_by_it(opened):
    docs = opened(model=HAMMING)
    distances = (HAMMING.n_bits - signs(HAMMING, QUERIES) @ signs(HAMMING, ROWS).T) / 2
    expected = nearest(-distances, 6)  # ties in the order of ids
    for found in (docs.search(QUERIES, k=6), docs.search(codes=HAMMING.encode(QUERIES), k=6)):
        np.testing.assert_array_equal(found.ids, expected)
        np.testing.assert_array_equal(
            found.distances, np.take_along_axis(distances, expected, axis=1)
        )
        assert found.scores is None
    near = docs.radius(QUERIES, 3)
    assert np.diff(near.offsets).tolist() == (distances <= 3).sum(axis=1).tolist()


def test_items_are_added_replaced_and_deleted(opened):
    docs = opened(ROWS[:500], model=MODEL, keep_vectors="int8")
    assert docs.add(ROWS[500:503]).tolist() == [500, 501, 502]
    with pytest.raises(IdsTakenError):
        docs.add(ROWS[503:506], ids=[600, 7, 601])
    assert docs.count() == 503  # nothing was added
    assert docs.upsert(ROWS[503:505], ids=[3, 900], metadata=[{"new": True}, {}]) == 1
    assert docs.upsert(ROWS[503:505], ids=[3, 900], metadata=[{"new": True}, {}]) == 2
    assert docs.count() == len(docs) == 504
    assert docs.search(ROWS[503:504], k=1, rerank=4, metadata=True).metadata == [[{"new": True}]]
    assert docs.delete([900, 3, 12345]) == 2
    assert docs.count() == 502
    assert not {3, 900} & set(docs.search(ROWS[503:505], k=100).ids.ravel().tolist())


def test_the_same_file_added_again_is_refused_or_replaces(tmp_path):
    with Collection.create(tmp_path / "docs.db", ROWS, ids=STRING_IDS, model=MODEL) as docs:
        for _ in range(2):
            with pytest.raises(IdsTakenError):
                docs.add(ROWS, ids=STRING_IDS)
            assert docs.upsert(ROWS, ids=STRING_IDS) == N
            assert docs.count() == N


@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
def test_kept_vectors_lose_little(kind, tmp_path):
    with Collection.create(tmp_path / "docs.db", ROWS, model=MODEL, keep_vectors=kind) as docs:
        found = docs.search(QUERIES, k=10, rerank=60)  # all items
        exact = cosines(QUERIES, ROWS)
        loss = {"float32": 1e-6, "float16": 1e-3, "int8": 1e-2}[kind]
        true = np.take_along_axis(exact, found.ids, axis=1)
        np.testing.assert_allclose(found.scores, true, atol=loss)
        recall = np.mean([
            len({*a} & {*b}) / 10 for a, b in zip(found.ids, nearest(exact, 10), strict=True)
        ])  # fmt: skip
        assert recall > 0.97


@pytest.mark.parametrize("ids", [None, STRING_IDS], ids=["int64", "string"])
def test_vectors_of_items_are_kept_or_reconstructed(ids, tmp_path):
    chosen = [5, 2, 599]
    wanted = chosen if ids is None else [ids[i] for i in chosen]
    options = {"ids": ids, "model": MODEL}
    with Collection.create(tmp_path / "a.db", ROWS, keep_vectors="float32", **options) as docs:
        assert np.array_equal(docs.vectors(wanted), ROWS[chosen])
        assert docs.vectors([]).shape == (0, N_FEATURES)
        with pytest.raises(KeyError, match="no item"):
            docs.vectors([*wanted, -1 if ids is None else "unknown"])
    with Collection.create(tmp_path / "b.db", ROWS, **options) as docs:
        unit = ROWS[chosen] / np.linalg.norm(ROWS[chosen], axis=1, keepdims=True)
        assert (cosines(docs.vectors(wanted), unit).argmax(axis=1) == [0, 1, 2]).all()
    with (
        Collection.create(tmp_path / "c.db", ROWS, ids=ids, model=HAMMING) as docs,
        pytest.raises(AntipodalError, match="keep_vectors"),
    ):
        docs.vectors(wanted)


def test_vectors_come_from_arrays_memory_maps_files_and_parquet(tmp_path):
    np.save(tmp_path / "rows.npy", ROWS)
    columns = {"id": STRING_IDS, "embedding": list(ROWS), "title": [m["title"] for m in METADATA]}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet", row_group_size=70)
    source = open_vectors(tmp_path / "rows.parquet", "embedding")
    given = {
        "list": (ROWS.tolist(), {}),
        "map": (np.load(tmp_path / "rows.npy", mmap_mode="r"), {}),
        "npy": (tmp_path / "rows.npy", {}),
        "name": (f"{tmp_path}/rows.parquet:embedding", {}),
        "columns": (source, {"ids": source.column("id"), "metadata": source.records(["title"])}),
    }
    for name, (vectors, options) in given.items():
        with Collection.create(tmp_path / f"{name}.db", vectors, model=MODEL, **options) as docs:
            found = docs.search(QUERIES, k=3, metadata=True)
            expected = nearest(MODEL.query(QUERIES) @ signs(MODEL, ROWS).T, 3)
            if options:
                ids = [[STRING_IDS[i] for i in row] for row in expected]
                assert found.ids.tolist() == ids
                assert found.metadata[0] == [{"title": f"row {i}"} for i in expected[0]]
            else:
                np.testing.assert_array_equal(found.ids, expected)


def test_the_code_length_is_given_or_follows_from_a_recall(tmp_path):
    with Collection.create(tmp_path / "a.db", ROWS, bytes=3) as docs:
        assert (docs.model.n_bits, docs.model.scoring) == (24, "asymmetric")
    with Collection.create(tmp_path / "b.db", ROWS, bits=20) as docs:
        assert docs.model.n_bits == 20
    with Collection.create(tmp_path / "c.db", clustered(1500, 3), recall=0.4) as docs:
        assert docs.model.n_bits % 8 == 0
    with pytest.raises(ValueError, match="recall"):
        Collection.create(tmp_path / "d.db", ROWS, recall=0.9, bits=8)


def test_texts_are_embedded(tmp_path):
    class Embedder:
        def __call__(self, texts, n_features):
            return np.stack([ROWS[int(text)] for text in texts])

        def close(self):
            self.is_closed = True

    Collection.create(tmp_path / "docs.db", ROWS, model=MODEL).close()
    embedder = Embedder()
    with Collection.open(tmp_path / "docs.db", embed=embedder) as docs:
        expected = docs.search(ROWS[[7, 9]], k=3).ids
        np.testing.assert_array_equal(docs.search(texts=["7", "9"], k=3).ids, expected)
    assert embedder.is_closed
    with Collection.open(tmp_path / "docs.db") as docs, pytest.raises(ValueError, match="embed"):
        docs.search(texts=["7"])


def test_hamming_search_of_asymmetric_codes_warns(tmp_path):
    with Collection.create(tmp_path / "docs.db", ROWS, model=MODEL) as docs:
        with pytest.warns(UserWarning, match="asymmetric"):
            found = docs.search(QUERIES, k=4, scoring="hamming")
        distances = N_BITS - signs(MODEL, QUERIES) @ signs(MODEL, ROWS).T
        np.testing.assert_array_equal(found.ids, nearest(-distances, 4))
        with pytest.warns(UserWarning, match="asymmetric"):
            docs.radius(QUERIES, 2)


@pytest.mark.parametrize("model", [MODEL, HAMMING], ids=["asymmetric", "hamming"])
@pytest.mark.parametrize("n_rows", [100, 333, 5_000])
def test_drift_is_found_in_shifted_vectors_only(model, n_rows, tmp_path):
    with Collection.create(tmp_path / "docs.db", clustered(2_500, 5), model=model) as docs:
        same = docs.check(clustered(n_rows, 6))
        assert not same.has_drifted, str(same)
        other = np.random.default_rng(7).standard_normal((n_rows, N_FEATURES)) + 3
        drift = docs.check(other)
        assert drift.has_drifted, str(drift)
        assert "drifted" in str(drift)
        with pytest.raises(ValueError, match="100"):
            docs.check(ROWS[:99])


def test_refit_encodes_kept_vectors_again(tmp_path):
    options = {"ids": STRING_IDS, "metadata": METADATA, "model": MODEL}
    with (
        Collection.create(tmp_path / "a.db", ROWS, keep_vectors="int8", **options) as docs,
        docs.refit(tmp_path / "b.db", bits=48) as refitted,
    ):
        assert refitted.model.n_bits == 48
        assert refitted.keep_vectors == "int8"
        assert refitted.get(STRING_IDS).metadata == METADATA
        found = refitted.search(QUERIES, k=5, rerank=120)
        np.testing.assert_array_equal(found.ids, docs.search(QUERIES, k=5, rerank=120).ids)
        with pytest.raises(StoreError, match="exists"):
            docs.refit(tmp_path / "b.db")
    with (
        Collection.create(tmp_path / "c.db", ROWS, model=MODEL) as docs,
        pytest.raises(AntipodalError, match="keeps no vectors"),
    ):
        docs.refit(tmp_path / "d.db")
    assert not (tmp_path / "d.db").exists()


def test_searches_run_while_items_are_added(tmp_path):
    failures = []
    with Collection.create(
        tmp_path / "docs.db", ROWS[:300], ids=STRING_IDS[:300], model=MODEL, keep_vectors="int8"
    ) as docs:

        def search():
            try:
                for _ in range(30):
                    found = docs.search(ROWS[:5], k=5, rerank=2, metadata=True)
                    assert [row[0] for row in found.ids.tolist()] == STRING_IDS[:5]
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=search) for _ in range(3)]
        for thread in threads:
            thread.start()
        for i in range(300, N, 10):
            docs.add(ROWS[i : i + 10], ids=STRING_IDS[i : i + 10])
            docs.delete(STRING_IDS[i : i + 5])
        for thread in threads:
            thread.join()
        assert docs.count() == 450
    assert not failures


def test_a_store_of_an_earlier_version_becomes_a_collection(tmp_path):
    (tmp_path / "items.db").write_bytes((DATA / "items.db").read_bytes())
    with open_store(f"sqlite:///{tmp_path}/items.db") as store:
        n_items, model = store.count(), store.model
    with pytest.raises(StoreError, match="no model"):
        Collection.open(tmp_path / "items.db")
    [file] = [path for path in DATA.glob("*.antipodal") if _identity(path) == model]
    with open_store(f"sqlite:///{tmp_path}/items.db") as store:
        wrong = next(p for p in DATA.glob("*.antipodal") if load(p).n_bits != store.n_bits)
        with pytest.raises(StoreError, match="bits"):
            Collection.attach(store, wrong)
        Collection.attach(store, file)
    with Collection.open(tmp_path / "items.db") as docs:
        assert (docs.count(), docs.identity, docs.keep_vectors) == (n_items, model, None)
        hasher = load(file)
        rows = np.random.default_rng(0).standard_normal((3, hasher.n_features_in_))
        with open_store(f"sqlite:///{tmp_path}/items.db") as store:
            if hasher.scoring == "hamming":
                expected = store.search(hasher.encode(rows), k=4).ids
            else:
                expected = store.search(vectors=hasher.query(rows), k=4).ids
        np.testing.assert_array_equal(docs.search(rows, k=4).ids, expected)


def _identity(path):
    from antipodal.hashers.registry import load_with_identity

    return load_with_identity(path)[1]


# --------------------------------------------------------------------------------- bad input

NAN = np.where(np.arange(N)[:, None] == N - 1, np.nan, ROWS)
BAD_CREATIONS = {
    "NaN": (NAN, {}, ValueError),
    "no rows": (ROWS[:0], {}, ValueError),
    "one dimension": (ROWS[0], {}, ValueError),
    "objects": (np.array([[1, None], [2, 3]], dtype=object), {}, TypeError),
    "texts": (np.array([["a", "b"]]), {}, TypeError),
    "repeated ids": (ROWS, {"ids": [0, *range(N - 1)]}, ValueError),
    "repeated strings": (ROWS[:2], {"ids": ["a", "a"]}, ValueError),
    "strings, then integers": (ROWS[:2], {"ids": ["a", 1]}, TypeError),
    "integers, then strings": (ROWS[:2], {"ids": [1, "a"]}, TypeError),
    "long ids": (ROWS[:2], {"ids": ["a", "ä" * 257]}, ValueError),
    "empty ids": (ROWS[:2], {"ids": ["a", ""]}, ValueError),
    "NUL": (ROWS[:2], {"ids": ["a", "b\0"]}, ValueError),
    "surrogates": (ROWS[:2], {"ids": ["a", "\ud800"]}, ValueError),
    "too few ids": (ROWS, {"ids": [1, 2]}, ValueError),
    "model of another width": (ROWS[:, :8], {"model": MODEL}, ValueError),
    "reserved field": (ROWS[:2], {"ids": ["a", "b"], "metadata": [{}, {"$id": 1}]}, ValueError),
    "metadata of no JSON": (ROWS, {"metadata": [{}] * (N - 1) + [{"a": {1}}]}, TypeError),
    "one mapping": (ROWS, {"metadata": {"a": 1}}, TypeError),
    "too few metadata": (ROWS, {"metadata": iter([{}])}, ValueError),
    "type of vectors": (ROWS, {"keep_vectors": "int4"}, ValueError),
    "too large for float16": (ROWS * 1e6, {"keep_vectors": "float16"}, ValueError),
    "too small for float16": (ROWS * 1e-9, {"keep_vectors": "float16"}, ValueError),
    "no bits": (ROWS, {"bits": 0}, ValueError),
    "impossible recall": (ROWS, {"recall": 1.5}, ValueError),
}


@pytest.mark.parametrize("name", BAD_CREATIONS)
def test_invalid_creations_raise_one_error_and_leave_nothing(name, tmp_path):
    vectors, options, kind = BAD_CREATIONS[name]
    if not options.keys() & {"bits", "recall", "model"}:
        options = options | ({"model": MODEL} if np.shape(vectors)[1:] == (N_FEATURES,) else {})
    with pytest.raises(kind) as error:
        Collection.create(tmp_path / "docs.db", vectors, **options)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_other_files_are_refused_and_unchanged(tmp_path):
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    (tmp_path / "text.db").write_text("not a database " * 100)
    Collection.create(tmp_path / "docs.db", ROWS, model=MODEL).close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for name in before:
        with pytest.raises(StoreError):
            Collection.create(tmp_path / name, ROWS, model=MODEL)
    for name in ("other.db", "text.db", "missing.db"):
        with pytest.raises(StoreError):
            Collection.open(tmp_path / name)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_invalid_additions_and_queries_raise_and_store_nothing(opened):
    docs = opened(ROWS[:500], model=MODEL, keep_vectors="int8")
    for vectors, ids, kind in (
        (ROWS[:, :8], None, ValueError),
        (ROWS[0], None, ValueError),
        (np.concatenate([clustered(5_000, 0), NAN]), None, ValueError),
        (ROWS[:2], ["a", "b"], TypeError),
        (ROWS[:2], [700, 700], ValueError),
        (ROWS[:2], [700], ValueError),
    ):
        with pytest.raises(kind):
            docs.add(vectors, ids=ids)
    with pytest.raises(ValueError, match="ids"):
        docs.upsert(ROWS[:2], None)
    assert docs.count() == 500
    for options in (
        {"queries": ROWS[:, :8]},
        {"queries": NAN},
        {"queries": ROWS[0]},
        {},
        {"queries": ROWS[:1], "ids": [1]},
        {"queries": ROWS[:1], "rerank": 0},
        {"queries": ROWS[:1], "k": 0},
        {"queries": ROWS[:1], "scoring": "cosine"},
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            docs.search(**options)


def test_rerank_needs_kept_vectors(opened):
    with pytest.raises(ValueError, match="keep_vectors"):
        opened(model=MODEL).search(QUERIES, rerank=4)

"""Collections in every engine."""

import itertools

import numpy as np
import pytest

from antipodal import LinfHash
from antipodal.collection import Collection
from antipodal.errors import NoStoreError, StoreError
from antipodal.stores import open_store
from engines import ENGINES, engines  # noqa: F401

_names = (f"collection_{number}" for number in itertools.count())
ROWS = np.random.default_rng(0).standard_normal((400, 12)).astype(np.float32)
ROWS /= np.linalg.norm(ROWS, axis=1, keepdims=True)
MODEL = LinfHash.asymmetric(24, random_state=0).fit(ROWS[:300])
SIGNS = np.where(np.unpackbits(MODEL.encode(ROWS[:390]), axis=1), 1.0, -1.0)


@pytest.fixture(params=ENGINES)
def url(request, engines):  # noqa: F811
    return engines.url(request.param, next(_names))


@pytest.mark.parametrize("make_id", [int, "item {}".format], ids=["int64", "string"])
def test_a_collection_scores_codes_as_its_model_prescribes(url, make_id):
    ids = [make_id(i) for i in range(390)]
    metadata = [{"even": i % 2 == 0} for i in range(390)]
    Collection.create(url, ROWS[:390], ids=ids, metadata=metadata, model=MODEL).close()
    with Collection.open(url) as docs:
        assert (docs.count(), docs.model.n_bits) == (390, 24)
        scores = MODEL.query(ROWS[390:]) @ SIGNS.T
        best = np.argsort(-scores, axis=1, kind="stable")[:, :5]
        found = docs.search(ROWS[390:], k=5, metadata=True)
        expected = np.take_along_axis(scores, best, axis=1)
        got = [[scores[q, ids.index(i)] for i in row] for q, row in enumerate(found.ids.tolist())]
        np.testing.assert_allclose(got, expected, atol=1e-5)
        assert found.metadata[0] == [metadata[ids.index(i)] for i in found.ids[0].tolist()]
        some = docs.search(ROWS[390:], k=5, where={"even": True}).ids
        assert all(ids.index(i) % 2 == 0 for i in some.ravel().tolist())
        assert make_id(7) not in docs.search(ids=[make_id(7)], k=50).ids
        docs.upsert(ROWS[395:396], ids=[make_id(0)])
        docs.delete([make_id(i) for i in range(1, 390)])
        assert docs.search(ROWS[395:396], k=5).ids.tolist() == [[make_id(0)]]


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_kept_vectors_rerank(engine, engines):  # noqa: F811
    url = engines.url(engine, next(_names))
    with Collection.create(url, ROWS[:390], model=MODEL, keep_vectors="float32") as docs:
        found = docs.search(ROWS[390:], k=3, rerank=130)  # all items
        true = np.argsort(-(ROWS[390:] @ ROWS[:390].T), axis=1)[:, :3]
        np.testing.assert_array_equal(found.ids, true)


def test_a_failed_creation_leaves_nothing_and_other_stores_alone(url, engines):  # noqa: F811
    other = url.replace("collection_", "other_")  # in the same database
    with open_store(other, n_bits=8) as store:
        store.upsert([1], np.zeros((1, 1), np.uint8))

    def metadata():
        yield from ({"i": i} for i in range(380))
        raise RuntimeError("interrupted")

    with pytest.raises((RuntimeError, ValueError, TypeError)):
        Collection.create(url, ROWS[:390], metadata=metadata(), model=MODEL)
    with pytest.raises(NoStoreError):
        open_store(url)
    with open_store(other) as store:
        assert store.count() == 1
    Collection.create(url, ROWS[:390], model=MODEL).close()


def test_milvus_refuses_kept_vectors_and_leaves_other_collections_alone(engines):  # noqa: F811
    url = engines.url("milvus", next(_names))
    other = engines.url("milvus", next(_names))
    open_store(other, n_bits=8).close()
    with pytest.raises(StoreError, match="SQLite"):
        Collection.create(url, ROWS, model=MODEL, keep_vectors="int8")
    with pytest.raises(NoStoreError):
        open_store(url)
    open_store(other).close()


def test_a_dropped_store_does_not_exist(url):
    code = np.zeros((1, 1), np.uint8)
    store = open_store(url, n_bits=8)
    store.upsert([1], code)
    store.write_attachments({"model": b"old"})
    with open_store(url, read_only=True) as reader, pytest.raises(StoreError, match="read"):
        reader.drop()
    store.drop()
    with pytest.raises(StoreError, match="closed"):
        store.count()
    with pytest.raises(NoStoreError):
        open_store(url)
    with open_store(url, n_bits=16) as store:
        assert store.count() == 0
        assert store.read_attachment("model") is None

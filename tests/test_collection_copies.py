"""Copies, backups and exports of collections: equal collections in every engine."""

import itertools

import numpy as np
import pytest

from antipodal import Collection
from antipodal.errors import StoreError
from antipodal.stores.transfer import back_up, copy_store, digest_of, export_items, restore
from engines import ENGINES, engines  # noqa: F401

RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 16)).astype(np.float32)
KEYS = [f"https://example.org/{row}" for row in range(len(X))]
METADATA = [{"row": row, "even": row % 2 == 0} for row in range(len(X))]
_names = (f"copied_{number}" for number in itertools.count())


def create(url, *, ids=None, keep_vectors=None):
    Collection.create(
        url, X, ids=ids, metadata=METADATA, bits=32, keep_vectors=keep_vectors
    ).close()


def answers(url, rerank=None):
    """Return the results of a collection that do not depend on its engine."""
    with Collection.open(url) as docs:
        found = docs.search(X[:9], 7, rerank=rerank, metadata=True, where={"even": True})
        assert (docs.id_type, docs.count()) == ("string", 300)
        return docs.identity, docs.keep_vectors, found.ids.tolist(), found.metadata


@pytest.mark.parametrize(
    ("source", "target"), list(itertools.product(("sqlite", "postgresql"), repeat=2))
)
@pytest.mark.parametrize("replace", [False, True])
def test_copy_of_a_collection_is_an_equal_collection(source, target, replace, engines):  # noqa: F811
    first, second = (engines.url(engine, next(_names)) for engine in (source, target))
    create(first, ids=KEYS, keep_vectors="int8")
    with Collection.open(first).store as store:
        copied = copy_store(store, second, replace=replace)
        assert copied.items == 300
    assert answers(second, rerank=4) == answers(first, rerank=4)
    with Collection.open(second) as docs:
        assert digest_of(docs.store).sha256 == copied.sha256
        docs.upsert(X[:2], KEYS[:2])
        assert docs.count() == 300


@pytest.mark.parametrize("engine", ENGINES)
def test_backup_of_a_collection_is_an_equal_collection(engine, engines, tmp_path):  # noqa: F811
    kept = None if engine == "milvus" else "float16"
    first, second = (engines.url(engine, next(_names)) for _ in range(2))
    create(first, ids=KEYS, keep_vectors=kept)
    with Collection.open(first).store as store:
        back_up(store, tmp_path / "backup.db")
    restore(tmp_path / "backup.db", second)
    rerank = None if kept is None else 2
    assert answers(second, rerank) == answers(first, rerank)
    assert answers(tmp_path / "backup.db", rerank) == answers(first, rerank)


def test_copy_to_milvus_keeps_string_ids_but_no_vectors(engines, tmp_path):  # noqa: F811
    plain, kept = (f"sqlite:///{tmp_path}/{name}.db" for name in ("plain", "kept"))
    create(plain, ids=KEYS)
    create(kept, ids=KEYS, keep_vectors="int8")
    target = engines.url("milvus", next(_names))
    with Collection.open(plain).store as store:
        copy_store(store, target)
        assert copy_store(store, target).there_before == 300
        copy_store(store, target, replace=True)
    assert answers(target)[0] == answers(plain)[0]
    with Collection.open(target) as docs:
        assert docs.get(KEYS[::-1]).ids.tolist() == KEYS[::-1]
        assert docs.search(X[:5], 1).ids[:, 0].tolist() == KEYS[:5]
    refused = engines.url("milvus", next(_names))
    with Collection.open(kept).store as store:
        with pytest.raises(StoreError, match=r"\bvectors\b"):
            copy_store(store, refused)
        back_up(store, tmp_path / "backup.db")
    with pytest.raises(StoreError, match=r"\bvectors\b"):
        restore(tmp_path / "backup.db", refused)
    with pytest.raises(StoreError):
        Collection.open(refused)


def test_interrupted_copy_resumes_and_is_no_collection_before_its_end(tmp_path, monkeypatch):
    first, second = (f"sqlite:///{tmp_path}/{name}.db" for name in ("first", "second"))
    create(first, ids=KEYS, keep_vectors="int8")
    monkeypatch.setattr("antipodal.stores.transfer._BATCH", 100)

    def stop(done):
        if done == 200:
            raise KeyboardInterrupt

    with Collection.open(first).store as store:
        with pytest.raises(KeyboardInterrupt):
            copy_store(store, second, progress=stop)
        with pytest.raises(StoreError, match=r"\bmodel\b"):
            Collection.open(second)
        assert copy_store(store, second).there_before == 200
    assert answers(second, rerank=4) == answers(first, rerank=4)


def test_export_has_string_ids_and_metadata_without_them(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    create(tmp_path / "docs.db", ids=KEYS)
    with Collection.open(tmp_path / "docs.db") as docs:
        export_items(docs.store, tmp_path / "docs.parquet", columns=["row"])
        codes = docs.get(KEYS).codes
    table = parquet.read_table(tmp_path / "docs.parquet")
    assert table["id"].to_pylist() == KEYS
    assert table["row"].to_pylist() == list(range(300))
    assert table["code"].to_pylist() == [bytes(code) for code in codes]
    assert table["metadata"][1].as_py() == '{"even":false,"row":1}'

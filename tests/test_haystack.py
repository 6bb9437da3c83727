"""The Haystack document store: the suite of haystack.testing, and searches and pipelines."""

import numpy as np
import pytest

pytest.importorskip("haystack", reason="needs the dependency group integrations")

from haystack import Document, Pipeline
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.testing.document_store import (
    CountDocumentsByFilterTest,
    DocumentStoreBaseExtendedTests,
)

from antipodal.integrations.haystack import AntipodalDocumentStore, AntipodalEmbeddingRetriever

pytestmark = pytest.mark.filterwarnings("ignore")  # of other projects


class TestDocumentStore(DocumentStoreBaseExtendedTests, CountDocumentsByFilterTest):
    @pytest.fixture
    def document_store(self, tmp_path):
        store = AntipodalDocumentStore(str(tmp_path / "docs.db"))
        yield store
        store.close()

    @staticmethod
    def assert_documents_are_equal(received, expected):
        """Compare embeddings as float32, and all else exactly."""
        for documents in (received, expected):
            for document in documents:
                if document.embedding is not None:
                    document.embedding = np.asarray(document.embedding, np.float32).tolist()
        assert received == expected

    def test_write_documents(self, document_store):
        documents = [Document(id="1"), Document(id="2", content="two")]
        assert document_store.write_documents(documents) == 2
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents(documents[:1])
        self.assert_documents_are_equal(document_store.filter_documents(), documents)


@pytest.fixture
def store(tmp_path):
    store = AntipodalDocumentStore(str(tmp_path / "docs.db"), embedding_dim=32)
    rows = np.random.default_rng(0).standard_normal((50, 32))
    documents = [
        Document(id=str(i), content=f"text {i}", meta={"number": i}, embedding=row.tolist())
        for i, row in enumerate(rows)
    ]
    store.write_documents([*documents, Document(id="none", content="no embedding")])
    yield store, rows
    store.close()


def test_searches_return_cosines_and_leave_out_documents_without_embedding(store):
    documents, rows = store
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    expected = unit @ unit[7]
    found = documents.search(rows[7].tolist(), top_k=50)
    assert len(found) == 50
    assert [int(d.id) for d in found[:5]] == np.argsort(-expected)[:5].tolist()
    np.testing.assert_allclose([d.score for d in found], np.sort(expected)[::-1], atol=1e-6)
    assert documents.count_documents() == 51


def test_a_retriever_runs_in_a_pipeline_from_a_file(store):
    documents, rows = store
    pipeline = Pipeline()
    high = {"field": "number", "operator": ">=", "value": 40}
    retriever = AntipodalEmbeddingRetriever(documents, filters=high, top_k=3)
    pipeline.add_component("retriever", retriever)
    ours = ["antipodal.integrations.haystack"]
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=ours)
    for one in (pipeline, again):
        [found] = one.run({"retriever": {"query_embedding": rows[45].tolist()}}).values()
        assert found["documents"][0].id == "45"
        assert [d.meta["number"] >= 40 for d in found["documents"]] == [True] * 3
        [found] = one.run(
            {"retriever": {"query_embedding": rows[7].tolist(), "top_k": 1,
                           "filters": {"field": "id", "operator": "in", "value": ["7", "8"]}}}
        ).values()  # fmt: skip
        assert [d.id for d in found["documents"]] == ["7"]


def test_repeated_documents_follow_the_policy(store):
    documents, _ = store
    twice = [Document(id="new", content="first"), Document(id="new", content="second")]
    with pytest.raises(DuplicateDocumentError):
        documents.write_documents(twice, DuplicatePolicy.FAIL)
    assert documents.write_documents(twice, DuplicatePolicy.SKIP) == 1
    by_id = {"field": "id", "operator": "==", "value": "new"}
    assert documents.filter_documents(by_id)[0].content == "first"
    assert documents.write_documents(twice, DuplicatePolicy.OVERWRITE) == 2
    assert documents.filter_documents(by_id)[0].content == "second"


def test_embeddings_of_another_width_raise(store):
    with pytest.raises(ValueError, match="embedding_dim"):
        store[0].write_documents([Document(content="a", embedding=[1.0])])

"""The LangChain vector store: the standard suite of langchain-tests, and filters and scores."""

import numpy as np
import pytest

pytest.importorskip("langchain_tests", reason="needs the dependency group integrations")

from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_tests.integration_tests import VectorStoreIntegrationTests

from antipodal import Collection
from antipodal.errors import AntipodalError
from antipodal.integrations.langchain import AntipodalVectorStore

# Of other projects, and of pytest-asyncio for the synchronous tests of a marked class.
pytestmark = pytest.mark.filterwarnings("ignore")
EMBEDDING = DeterministicFakeEmbedding(size=32)
TEXTS = [f"text {i}" for i in range(60)]
METADATA = [{"number": i, "parity": ["even", "odd"][i % 2]} for i in range(60)]


@pytest.mark.asyncio
class TestStandard(VectorStoreIntegrationTests):
    @pytest.fixture(params=["int8", None], ids=["kept", "codes"])
    def vectorstore(self, request, tmp_path):
        place = tmp_path / "docs.db"
        store = AntipodalVectorStore(self.get_embeddings(), place, keep_vectors=request.param)
        yield store
        store.close()


@pytest.fixture
def store():
    store = AntipodalVectorStore.from_texts(TEXTS, EMBEDDING, METADATA, ids=TEXTS)
    yield store
    store.close()


def cosines(query):
    vectors = np.array([*EMBEDDING.embed_documents(TEXTS), EMBEDDING.embed_query(query)])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors[:-1] @ vectors[-1]


def test_scores_are_the_cosines_of_the_embeddings(store):
    expected = cosines("text 7")
    found = store.similarity_search_with_score("text 7", k=5)
    assert [document.id for document, _ in found] == [TEXTS[i] for i in np.argsort(-expected)[:5]]
    np.testing.assert_allclose(
        [score for _, score in found], np.sort(-expected)[:5] * -1, atol=0.01
    )
    relevant = store.similarity_search_with_relevance_scores("text 7", k=60)
    assert all(0 <= score <= 1 for _, score in relevant)
    by_vector = store.similarity_search_by_vector(EMBEDDING.embed_query("text 7"), k=5)
    assert by_vector == [document for document, _ in found]


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ({"parity": "odd"}, lambda m: m["parity"] == "odd"),
        ({"parity": {"$eq": "odd"}}, lambda m: m["parity"] == "odd"),
        ({"parity": {"$ne": "odd"}}, lambda m: m["parity"] != "odd"),
        ({"number": {"$gte": 10, "$lt": 20}}, lambda m: 10 <= m["number"] < 20),
        ({"number": {"gte": 10, "lt": 20}}, lambda m: 10 <= m["number"] < 20),
        ({"number": {"$in": [1, 2, 99]}, "parity": "even"}, lambda m: m["number"] == 2),
        ({"number": {"$nin": [1, 2]}}, lambda m: m["number"] not in (1, 2)),
        (
            {"$or": [{"number": 3}, {"$and": [{"number": {"$gt": 57}}, {"parity": "odd"}]}]},
            lambda m: m["number"] in (3, 59),
        ),
        ({"$not": {"number": {"$lte": 50}}}, lambda m: m["number"] > 50),
        ({}, lambda m: True),
    ],
)
def test_filters_select_the_documents_that_match(store, filter, expected):
    found = store.similarity_search("text 7", k=60, filter=filter)
    wanted = {text for text, fields in zip(TEXTS, METADATA, strict=True) if expected(fields)}
    assert {document.page_content for document in found} == wanted


def test_unknown_operators_and_functions_as_filters_raise(store):
    with pytest.raises(ValueError, match=r"\$regex"):
        store.similarity_search("text", filter={"parity": {"$regex": "o.*"}})
    with pytest.raises(TypeError, match="filter"):
        store.similarity_search("text", filter=lambda document: True)


def test_marginal_relevance_leaves_out_a_repeated_document(store):
    store.add_texts(["text 7"], ids=["copy"])
    nearest = store.similarity_search("text 7", k=2)
    assert {document.id for document in nearest} == {"text 7", "copy"}
    diverse = store.max_marginal_relevance_search("text 7", k=2, fetch_k=20, lambda_mult=0.1)
    assert len({document.page_content for document in diverse}) == 2
    nearest = store.max_marginal_relevance_search("text 7", k=3, lambda_mult=1.0)
    assert nearest == store.similarity_search("text 7", k=3)


def test_retrievers_pass_filters_and_thresholds(store):
    retriever = store.as_retriever(search_kwargs={"k": 3, "filter": {"parity": "even"}})
    assert [d.metadata["parity"] for d in retriever.invoke("text 7")] == ["even"] * 3
    retriever = store.as_retriever(
        search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.99}
    )
    assert [document.id for document in retriever.invoke("text 7")] == ["text 7"]


def test_a_store_is_reopened_from_its_place(tmp_path):
    place = tmp_path / "docs.db"
    store = AntipodalVectorStore(EMBEDDING, place)
    with pytest.raises(AntipodalError, match="empty"):
        _ = store.collection
    ids = store.add_documents([Document(page_content=text) for text in TEXTS[:3]])
    assert len(set(ids)) == 3
    store.close()
    again = AntipodalVectorStore(EMBEDDING, place)
    assert again.similarity_search(TEXTS[1], k=1)[0].id == ids[1]
    assert again.delete() is True
    assert again.similarity_search(TEXTS[1]) == []
    again.close()


def test_a_collection_with_integer_ids_is_searched(tmp_path):
    vectors = EMBEDDING.embed_documents(TEXTS)
    fields = [{"body": text} for text in TEXTS]
    with Collection.create(tmp_path / "docs.db", vectors, metadata=fields, bytes=8) as docs:
        store = AntipodalVectorStore(EMBEDDING, docs, text_key="body")
        found = store.similarity_search("text 7", k=1)
        assert found == store.get_by_ids(["7"]) == [Document("text 7", id="7")]
        store.delete(["7", "no such id"][:1])
        assert docs.count() == 59


def test_a_thousand_documents_fit_the_model(tmp_path):
    many = [f"{i}" for i in range(1000)]
    store = AntipodalVectorStore.from_texts(many, EMBEDDING, place=tmp_path / "docs.db", bytes=8)
    with store.collection as docs:
        assert docs.model.n_refits > 0
    few = AntipodalVectorStore.from_texts(many[:999], EMBEDDING, bytes=8)
    assert few.collection.model.n_refits == 0
    with few.collection as docs, docs.refit(tmp_path / "refitted.db") as refitted:
        assert refitted.model.n_refits > 0
        assert (
            AntipodalVectorStore(EMBEDDING, refitted).similarity_search("5")[0].page_content == "5"
        )


def test_the_text_must_not_be_a_metadata_field(store):
    with pytest.raises(ValueError, match="text_key"):
        store.add_texts(["a"], [{"text": "b"}])

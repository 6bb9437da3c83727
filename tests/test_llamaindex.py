"""The LlamaIndex vector store, compared with its SimpleVectorStore."""

import asyncio

import numpy as np
import pytest

pytest.importorskip("llama_index.core", reason="needs the dependency group integrations")

from llama_index.core import Document, MockEmbedding, StorageContext, VectorStoreIndex
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    SimpleVectorStore,
    VectorStoreQuery,
)
from llama_index.core.vector_stores.types import VectorStoreQueryMode

from antipodal.integrations.llamaindex import AntipodalVectorStore

pytestmark = pytest.mark.filterwarnings("ignore")  # of other projects
ROWS = np.random.default_rng(0).standard_normal((40, 16))


def node(i):
    metadata = {"number": i, "parity": ["even", "odd"][i % 2]} | ({"rare": "x"} if i == 3 else {})
    source = RelatedNodeInfo(node_id=f"document {i // 10}")
    return TextNode(
        id_=f"node {i}",
        text=f"text {i}",
        metadata=metadata,
        embedding=ROWS[i].tolist(),
        relationships={NodeRelationship.SOURCE: source},
    )


@pytest.fixture
def store():
    store = AntipodalVectorStore(keep_vectors="float32")
    assert store.add([node(i) for i in range(40)]) == [f"node {i}" for i in range(40)]
    yield store
    store.close()


@pytest.fixture(scope="module")
def reference():
    simple = SimpleVectorStore()
    simple.add([node(i) for i in range(40)])
    return simple


def query(i=7, k=40, **options):
    return VectorStoreQuery(query_embedding=ROWS[i].tolist(), similarity_top_k=k, **options)


def filters(*parts, condition=FilterCondition.AND):
    return MetadataFilters(
        filters=[
            one
            if isinstance(one, MetadataFilters)
            else MetadataFilter(key=one[0], operator=one[1], value=one[2])
            for one in parts
        ],
        condition=condition,
    )


@pytest.mark.parametrize(
    "chosen",
    [
        None,
        filters(("parity", "==", "odd")),
        filters(("parity", "!=", "odd"), ("number", ">", 20)),
        filters(("number", ">=", 5), ("number", "<=", 8)),
        filters(("number", "<", 3), ("number", "==", 30), condition=FilterCondition.OR),
        filters(("number", "in", [1, 2, 99])),
        filters(("number", "nin", [1, 2])),
        filters(("rare", "!=", "y")),
        filters(("rare", "is_empty", None)),
    ],
)
def test_queries_return_what_the_simple_store_returns(store, reference, chosen):
    for k in (5, 40):
        found = store.query(query(k=k, filters=chosen))
        expected = reference.query(query(k=k, filters=chosen))
        assert found.ids == expected.ids
        np.testing.assert_allclose(found.similarities, expected.similarities, atol=1e-6)
        assert [one.node_id for one in found.nodes] == found.ids


def test_filters_are_nested_and_negated(store):
    ends = filters(("number", "<", 5), ("number", ">", 35), condition=FilterCondition.OR)
    found = store.query(query(filters=filters(("parity", "==", "even"), ends)))
    assert {one.metadata["number"] for one in found.nodes} == {0, 2, 4, 36, 38}
    inner = filters(ends, ("parity", "==", "odd"), condition=FilterCondition.NOT)
    found = store.query(query(filters=inner))
    assert {one.metadata["number"] for one in found.nodes} == set(range(6, 36, 2))


def test_nodes_are_returned_as_they_were_stored(store):
    expected = node(7)
    expected.embedding = None
    assert store.get_nodes(["node 7", "unknown"]) == [expected]
    assert asyncio.run(store.aget_nodes(["node 7"])) == [expected]
    assert store.query(query(k=1)).nodes == [expected]
    assert len(store.get_nodes()) == 40
    odd = filters(("parity", "==", "odd"))
    assert [one.node_id for one in store.get_nodes(["node 1", "node 2"], odd)] == ["node 1"]


def test_queries_are_restricted_to_documents_and_nodes(store):
    found = store.query(query(doc_ids=["document 0", "document 2"]))
    assert {one.ref_doc_id for one in found.nodes} == {"document 0", "document 2"}
    assert store.query(query(node_ids=["node 1", "node 9"], k=1)).ids[0] in ("node 1", "node 9")


def test_nodes_are_deleted_by_document_id_filter_and_all(store):
    store.delete("document 0")
    assert len(store.get_nodes()) == 30
    store.delete_nodes(["node 10", "unknown"])
    store.delete_nodes(filters=filters(("number", ">=", 30)))
    store.delete_nodes()
    assert len(store.get_nodes()) == 19
    store.clear()
    assert store.query(query()).ids == [] == store.get_nodes()


def test_unsupported_modes_and_operators_raise(store):
    with pytest.raises(ValueError, match="mode"):
        store.query(query(mode=VectorStoreQueryMode.HYBRID))
    with pytest.raises(ValueError, match="text_match"):
        store.query(query(filters=filters(("parity", FilterOperator.TEXT_MATCH, "o"))))


def test_an_index_stores_and_retrieves_documents(tmp_path):
    place = tmp_path / "docs.db"
    store = AntipodalVectorStore(place)
    assert store.query(query()).ids == []
    VectorStoreIndex.from_documents(
        [Document(text="first", metadata={"year": 1}), Document(text="second")],
        storage_context=StorageContext.from_defaults(vector_store=store),
        embed_model=MockEmbedding(embed_dim=16),
    )
    store.close()
    again = AntipodalVectorStore(place)
    index = VectorStoreIndex.from_vector_store(again, embed_model=MockEmbedding(embed_dim=16))
    found = index.as_retriever(filters=filters(("year", "==", 1))).retrieve("anything")
    assert [(one.text, one.metadata) for one in found] == [("first", {"year": 1})]
    again.close()

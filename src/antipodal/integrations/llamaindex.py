"""LlamaIndex: nodes and their embeddings in a collection."""

from collections.abc import Sequence
from typing import Any

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from antipodal.client import Client
from antipodal.collection import Collection
from antipodal.integrations.lazy_collection import Hit, LazyCollection, Place
from antipodal.stores.items import ID_FIELD
from antipodal.stores.vectors import VectorType

_TEXT = "text"
_RELATIONS = {
    FilterOperator.GT: "gt",
    FilterOperator.GTE: "gte",
    FilterOperator.LT: "lt",
    FilterOperator.LTE: "lte",
    FilterOperator.IN: "in",
}


class AntipodalVectorStore(BasePydanticVectorStore):
    """Nodes in a collection, searched by codes and reranked by kept vectors.

    The text of a node is the metadata field ``text``, next to its other metadata.

    Parameters
    ----------
    place : path, URL, Collection, Client or None
        A collection, or the place to open or create it; None for a temporary file. The first nodes
        create it: see `LazyCollection`.
    bytes, keep_vectors
        For a new collection: bytes per code, and type of the vectors kept for reranking.
    rerank : int
        Oversampling factor of queries, if vectors are kept.
    """

    stores_text: bool = True
    is_embedding_query: bool = True
    _items: LazyCollection = PrivateAttr()

    def __init__(
        self,
        place: Place = None,
        *,
        bytes: int = 48,
        keep_vectors: VectorType | None = "int8",
        rerank: int = 4,
    ) -> None:
        super().__init__(stores_text=True)
        self._items = LazyCollection(place, bytes=bytes, keep_vectors=keep_vectors, rerank=rerank)

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the class."""
        return "AntipodalVectorStore"

    @property
    def client(self) -> Collection | Client:
        """The collection; AntipodalError before the first nodes."""
        return self._items.collection

    def close(self) -> None:
        """Close the collection."""
        self._items.close()

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Store nodes, replacing those with the same ids, and return their ids."""
        ids = [node.node_id for node in nodes]
        if any(_TEXT in node.metadata for node in nodes):
            raise ValueError(f"metadata must not have the field {_TEXT!r}, which holds the text")
        metadata = [
            {
                _TEXT: node.get_content(metadata_mode=MetadataMode.NONE),
                **node_to_metadata_dict(node, remove_text=True),
            }
            for node in nodes
        ]
        self._items.upsert([node.get_embedding() for node in nodes], ids, metadata)
        return ids

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Return the nearest nodes of an embedding; similarities are cosines."""
        if query.mode != VectorStoreQueryMode.DEFAULT:
            raise ValueError(f"the mode of a query must be default: got {query.mode}")
        if query.query_embedding is None:
            raise ValueError("a query needs query_embedding: got none")
        parts = [] if query.filters is None else [_where(query.filters)]
        for field, values in (("ref_doc_id", query.doc_ids), (ID_FIELD, query.node_ids)):
            if values:  # an index passes an empty list if there is no restriction
                parts.append({field: {"in": list(values)}})
        where = {"and": parts} if parts else None
        hits = self._items.search(query.query_embedding, query.similarity_top_k, where)
        return VectorStoreQueryResult(
            nodes=[_node(hit) for hit in hits],
            similarities=[hit.score for hit in hits],
            ids=[hit.id for hit in hits],
        )

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Return the nodes with these ids that match the filters; by default all nodes."""
        return [_node(hit) for hit in self._selected(node_ids, filters)]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Delete the nodes of a document."""
        self._items.delete([hit.id for hit in self._items.matching({"ref_doc_id": ref_doc_id})])

    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: Any,
    ) -> None:
        """Delete the nodes with these ids that match the filters."""
        if node_ids is not None or filters is not None:
            self._items.delete([hit.id for hit in self._selected(node_ids, filters)])

    def clear(self) -> None:
        """Delete all nodes."""
        self._items.delete([hit.id for hit in self._items.matching()])

    def _selected(self, node_ids: list[str] | None, filters: MetadataFilters | None) -> list[Hit]:
        where = None if filters is None else _where(filters)
        if node_ids is None:
            return self._items.matching(where)
        hits = self._items.get(node_ids)
        if where is None:
            return hits
        matching = {hit.id for hit in self._items.matching(where)}
        return [hit for hit in hits if hit.id in matching]


def _node(hit: Hit) -> BaseNode:
    return metadata_dict_to_node(hit.metadata, text=hit.metadata[_TEXT])


def _where(filters: MetadataFilters) -> dict[str, Any]:
    """Return the filter of a collection."""
    parts = [
        _where(one) if isinstance(one, MetadataFilters) else _condition(one)
        for one in filters.filters
    ]
    if not parts:
        return {}
    if filters.condition == FilterCondition.OR:
        return {"or": parts}
    if filters.condition == FilterCondition.NOT:  # none of them
        return {"not": {"or": parts}}
    return {"and": parts}


def _condition(one: MetadataFilter) -> dict[str, Any]:
    if one.operator == FilterOperator.EQ:
        return {one.key: one.value}
    if one.operator == FilterOperator.NE:
        return {"not": {one.key: one.value}}
    if one.operator == FilterOperator.NIN:
        return {"not": {one.key: {"in": one.value}}}
    if one.operator == FilterOperator.IS_EMPTY:
        return {"or": [{one.key: {"exists": False}}, {one.key: None}]}
    if one.operator not in _RELATIONS:
        raise ValueError(f"filters must not have the operator {one.operator.value!r}")
    return {one.key: {_RELATIONS[one.operator]: one.value}}

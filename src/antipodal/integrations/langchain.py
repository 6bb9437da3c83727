"""LangChain: documents and their embeddings in a collection."""

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance

from antipodal.client import Client
from antipodal.collection import Collection
from antipodal.integrations.lazy_collection import Hit, LazyCollection, Place
from antipodal.stores.vectors import VectorType

_LOGICAL = {"$and": "and", "$or": "or", "$not": "not"}
_OPERATORS = {"$in": "in", "$lt": "lt", "$lte": "lte", "$gt": "gt", "$gte": "gte",
              "$exists": "exists"}  # fmt: skip


class AntipodalVectorStore(VectorStore):
    """Documents in a collection, searched by codes and reranked by kept vectors.

    The text of a document is the metadata field `text_key`, next to its other metadata.

    Parameters
    ----------
    embedding : Embeddings
        Embeds documents and queries.
    place : path, URL, Collection, Client or None
        A collection, or the place to open or create it; None for a temporary file. The first
        documents create it: see `LazyCollection`.
    bytes, keep_vectors
        For a new collection: bytes per code, and type of the vectors kept for reranking.
    rerank : int
        Oversampling factor of searches, if vectors are kept.
    text_key : str
        Metadata field of the text.
    """

    def __init__(
        self,
        embedding: Embeddings,
        place: Place = None,
        *,
        bytes: int = 48,
        keep_vectors: VectorType | None = "int8",
        rerank: int = 4,
        text_key: str = "text",
    ) -> None:
        self._embedding, self.text_key = embedding, text_key
        self._items = LazyCollection(place, bytes=bytes, keep_vectors=keep_vectors, rerank=rerank)

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Return a store with these texts; `kwargs` are those of the class."""
        store = cls(embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @property
    def embeddings(self) -> Embeddings:
        """The embedding model."""
        return self._embedding

    @property
    def collection(self) -> Collection | Client:
        """The collection; AntipodalError before the first documents."""
        return self._items.collection

    def close(self) -> None:
        """Close the collection."""
        self._items.close()

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Store texts, replacing those with the same ids, and return their ids."""
        contents = list(texts)
        fields = [{}] * len(contents) if metadatas is None else metadatas
        keys = [key or str(uuid.uuid4()) for key in ids or [None] * len(contents)]
        if any(self.text_key in one for one in fields):
            raise ValueError(
                f"metadata must not have the field {self.text_key!r}, which holds the text: "
                "rename it, or choose another text_key"
            )
        metadata = [
            {self.text_key: text, **one} for text, one in zip(contents, fields, strict=True)
        ]
        self._items.upsert(self._embedding.embed_documents(contents), keys, metadata)
        return keys

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete documents, or all documents if `ids` is None; unknown ids are ignored."""
        self._items.delete([hit.id for hit in self._items.matching()] if ids is None else ids)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents with these ids, without unknown ids."""
        return [self._document(hit) for hit in self._items.get(ids)]

    def similarity_search(
        self, query: str, k: int = 4, filter: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Document]:
        """Return the k nearest documents of a text."""
        return [document for document, _ in self.similarity_search_with_score(query, k, filter)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, filter: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Return the k nearest documents of a text with their cosines, best first."""
        vector = self._embedding.embed_query(query)
        return [(self._document(hit), hit.score) for hit in self._hits(vector, k, filter)]

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, filter: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> list[Document]:  # fmt: skip
        """Return the k nearest documents of a vector."""
        return [self._document(hit) for hit in self._hits(embedding, k, filter)]

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5,
        filter: dict[str, Any] | None = None, **kwargs: Any,
    ) -> list[Document]:  # fmt: skip
        """Return k diverse documents near a text."""
        vector = self._embedding.embed_query(query)
        return self.max_marginal_relevance_search_by_vector(vector, k, fetch_k, lambda_mult, filter)

    def max_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5,
        filter: dict[str, Any] | None = None, **kwargs: Any,
    ) -> list[Document]:  # fmt: skip
        """Return k diverse documents among the `fetch_k` nearest of a vector."""
        hits = self._hits(embedding, fetch_k, filter)
        if not hits:
            return []
        rows = list(self._items.vectors([hit.id for hit in hits]))
        query = np.asarray(embedding, np.float32)
        chosen = maximal_marginal_relevance(query, rows, lambda_mult=lambda_mult, k=k)
        return [self._document(hits[i]) for i in chosen]

    def _hits(self, vector: list[float], k: int, filter: dict[str, Any] | None) -> list[Hit]:
        return self._items.search(vector, k, None if filter is None else _where(filter))

    def _document(self, hit: Hit) -> Document:
        fields = dict(hit.metadata)
        text = fields.pop(self.text_key, "")
        return Document(id=hit.id, page_content=text, metadata=fields)

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        """Return the map from scores to relevance: cosines, and 0 below 0."""
        return lambda cosine: min(max(cosine, 0.0), 1.0)


def _where(filter: Any) -> Any:
    """Return the filter of a collection: the operators ``$eq``, ``$in``, ``$and``, … lose their $.

    Filters of collections are returned unchanged.
    """
    if not isinstance(filter, dict):
        raise TypeError(f'filter must be an object such as {{"year": 2024}}: got {filter!r}')
    parts: list[dict[str, Any]] = []
    for name, value in filter.items():
        word = _LOGICAL.get(name, name)
        if word in ("and", "or"):
            parts.append({word: [_where(one) for one in value]})
        elif word == "not":
            parts.append({"not": _where(value)})
        elif isinstance(value, dict):
            parts += [_condition(name, operator, one) for operator, one in value.items()]
        else:
            parts.append({name: value})
    return parts[0] if len(parts) == 1 else {"and": parts} if parts else {}


def _condition(name: str, operator: str, value: Any) -> dict[str, Any]:
    if operator == "$eq":
        return {name: value}
    if operator in ("$ne", "$nin"):
        return {"not": {name: value if operator == "$ne" else {"in": value}}}
    return {name: {_OPERATORS.get(operator, operator): value}}

"""Haystack: documents and their embeddings in a collection, and a retriever."""

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, Self

import numpy as np
from haystack import Document, component, default_from_dict, default_to_dict
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError

from antipodal.client import Client
from antipodal.collection import Collection
from antipodal.integrations.lazy_collection import Hit, LazyCollection
from antipodal.stores.items import ID_FIELD
from antipodal.stores.vectors import VectorType

_STORED = ("content", "meta", "blob", "sparse_embedding")
_EMBEDDED = "embedded"  # metadata field: whether the document has an embedding
_RELATIONS = {">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}


class AntipodalDocumentStore:
    """Documents in a collection, searched by codes and reranked by kept vectors.

    Documents without an embedding are stored as zero vectors, which searches exclude.

    Parameters
    ----------
    place : path, URL or None
        Place to open or create the collection; None for a temporary file. The first documents
        create it: see `LazyCollection`.
    embedding_dim : int
        Number of dimensions of embeddings.
    bytes, keep_vectors
        For a new collection: bytes per code, and type of the vectors kept for reranking.
        Documents are returned with the kept vector as their embedding.
    rerank : int
        Oversampling factor of searches, if vectors are kept.
    """

    def __init__(
        self,
        place: str | None = None,
        *,
        embedding_dim: int = 768,
        bytes: int = 48,
        keep_vectors: VectorType | None = "float32",
        rerank: int = 4,
    ) -> None:
        self._options: dict[str, Any] = {"bytes": bytes, "keep_vectors": keep_vectors,
                                         "rerank": rerank}  # fmt: skip
        self._place, self.embedding_dim = place, embedding_dim
        self._items = LazyCollection(place, **self._options)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings of the store, for pipelines in files."""
        given = {"place": self._place, "embedding_dim": self.embedding_dim, **self._options}
        described: dict[str, Any] = default_to_dict(self, **given)
        return described

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return the store with the settings of `to_dict`."""
        store: Self = default_from_dict(cls, data)
        return store

    @property
    def collection(self) -> Collection | Client:
        """The collection; AntipodalError before the first documents."""
        return self._items.collection

    def close(self) -> None:
        """Close the collection."""
        self._items.close()

    def count_documents(self) -> int:
        """Return the number of documents."""
        return 0 if self._items.current is None else self._items.current.count()

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        """Return the number of documents that match the filters."""
        return 0 if self._items.current is None else self._items.current.count(_where(filters))

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """Return the documents that match the filters, with their embeddings."""
        where = _where(filters) if filters else None
        hits = self._items.matching(where)
        ids = [hit.id for hit in hits if hit.metadata[_EMBEDDED]]
        vectors = dict(zip(ids, self._items.vectors(ids).tolist(), strict=True)) if ids else {}
        return [_document(hit, embedding=vectors.get(hit.id)) for hit in hits]

    def write_documents(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """Store documents, and return their number; without a policy, duplicates raise an error."""
        if not isinstance(documents, list) or not all(isinstance(d, Document) for d in documents):
            raise ValueError(f"documents must be a list of Document: got {documents!r:.100}")
        known = {hit.id for hit in self._items.get([document.id for document in documents])}
        chosen: dict[str, Document] = {}
        for document in documents:
            if document.id in known or document.id in chosen:
                if policy in (DuplicatePolicy.NONE, DuplicatePolicy.FAIL):
                    raise DuplicateDocumentError(f"the id {document.id!r} is in use")
                if policy == DuplicatePolicy.SKIP:
                    continue
            chosen[document.id] = document
        self._store(list(chosen.values()))
        return len(documents) if policy == DuplicatePolicy.OVERWRITE else len(chosen)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete documents; unknown ids are ignored."""
        self._items.delete(document_ids)

    def delete_all_documents(self) -> None:
        """Delete all documents."""
        self._items.delete([hit.id for hit in self._items.matching()])

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Delete the documents that match the filters, and return their number."""
        ids = [hit.id for hit in self._items.matching(_where(filters))]
        self._items.delete(ids)
        return len(ids)

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Set metadata of the documents that match the filters, and return their number."""
        documents = self.filter_documents(filters)
        for document in documents:
            document.meta = {**document.meta, **meta}
        self._store(documents)
        return len(documents)

    def search(
        self, query_embedding: list[float], *, filters: dict[str, Any] | None = None,
        top_k: int = 10,
    ) -> list[Document]:  # fmt: skip
        """Return the nearest documents of an embedding; scores are cosines."""
        parts = [{_EMBEDDED: True}, *([_where(filters)] if filters else [])]
        hits = self._items.search(query_embedding, top_k, {"and": parts})
        return [_document(hit, score=hit.score) for hit in hits]

    def _store(self, documents: Sequence[Document]) -> None:
        rows = np.zeros((len(documents), self.embedding_dim), np.float32)
        metadata = []
        for row, document in zip(rows, documents, strict=True):
            if document.embedding is not None:
                if len(document.embedding) != self.embedding_dim:
                    raise ValueError(
                        f"embeddings must have {self.embedding_dim} values: got "
                        f"{len(document.embedding)}. Set embedding_dim"
                    )
                row[:] = document.embedding
            given = document.to_dict(flatten=False)
            stored = {name: given[name] for name in _STORED if given[name] is not None}
            metadata.append({**stored, _EMBEDDED: document.embedding is not None})
        self._items.upsert(rows, [document.id for document in documents], metadata)


@component
class AntipodalEmbeddingRetriever:
    """Return the nearest documents of an embedding, in a pipeline.

    Parameters
    ----------
    document_store : AntipodalDocumentStore
    filters : dict, optional
        Default filters of a run.
    top_k : int
        Default number of documents of a run.
    """

    def __init__(
        self,
        document_store: AntipodalDocumentStore,
        *,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
    ) -> None:
        self.document_store, self.filters, self.top_k = document_store, filters, top_k

    @component.output_types(documents=list[Document])
    def run(
        self,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """Return the documents under the name ``documents``."""
        found = self.document_store.search(
            query_embedding, filters=filters or self.filters, top_k=top_k or self.top_k
        )
        return {"documents": found}

    def to_dict(self) -> dict[str, Any]:
        """Return the settings of the component, for pipelines in files."""
        store = self.document_store.to_dict()
        described: dict[str, Any] = default_to_dict(
            self, document_store=store, filters=self.filters, top_k=self.top_k
        )
        return described

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return the component with the settings of `to_dict`."""
        given = data["init_parameters"]
        given["document_store"] = AntipodalDocumentStore.from_dict(given["document_store"])
        retriever: Self = default_from_dict(cls, data)
        return retriever


def _document(hit: Hit, **computed: Any) -> Document:
    stored = {name: value for name, value in hit.metadata.items() if name in _STORED}
    return Document.from_dict({"id": hit.id, **stored, **computed})


def _where(filters: dict[str, Any]) -> dict[str, Any]:
    """Return the filter of a collection."""
    if "field" in filters:
        return _comparison(filters)
    try:
        operator, parts = filters["operator"], [_where(one) for one in filters["conditions"]]
    except KeyError as error:
        raise FilterError(f"filters must have the key {error}: got {filters!r}") from None
    if operator not in ("AND", "OR", "NOT") or not parts:
        raise FilterError(f"filters need AND, OR or NOT of conditions: got {filters!r}")
    return {"not": {"and": parts}} if operator == "NOT" else {operator.lower(): parts}


def _comparison(filters: dict[str, Any]) -> dict[str, Any]:
    try:
        name, operator, value = filters["field"], filters["operator"], filters["value"]
    except KeyError as error:
        raise FilterError(f"a condition must have the key {error}: got {filters!r}") from None
    if name == "id":
        name = ID_FIELD
    elif "." not in name and name not in {field.name for field in fields(Document)}:
        name = f"meta.{name}"
    if operator in ("in", "not in"):
        if not isinstance(value, list):
            raise FilterError(f"{operator!r} takes a list of values: got {value!r}")
        return {name: {"in": value}} if operator == "in" else {"not": {name: {"in": value}}}
    if operator in ("==", "!="):
        equal: dict[str, Any] = {name: value}
        if value is None:
            equal = {"or": [{name: {"exists": False}}, {name: None}]}
        return equal if operator == "==" else {"not": equal}
    if operator not in _RELATIONS:
        raise FilterError(f"conditions must not have the operator {operator!r}")
    if value is None:
        return {name: {"in": []}}  # nothing is less or greater than None
    if isinstance(value, datetime):
        value = value.isoformat()
    if isinstance(value, list) or (isinstance(value, str) and not _is_date(value)):
        raise FilterError(f"{operator!r} takes a number or an ISO date: got {value!r}")
    return {name: {_RELATIONS[operator]: value}}


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True

"""`Collection`: a store of compressed vectors with the model that encodes and searches them."""

import builtins
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.codes import Codes, check_codes
from antipodal.collection.create import Choice, Rows, create_collection
from antipodal.collection.drift import Drift, code_quality
from antipodal.collection.query import Query, chosen_scoring
from antipodal.collection.settings import Settings, read_model
from antipodal.embedding import Embedder, load_embedder
from antipodal.errors import AntipodalError, StoreError
from antipodal.hashers.base import BaseHasher
from antipodal.hashers.registry import load_bytes
from antipodal.index import SearchResult
from antipodal.index.asymmetric import check_values
from antipodal.index.rerank import best_first, vector_scores
from antipodal.io.model_file import read_model_bytes
from antipodal.stores import Items, Snapshot, Store
from antipodal.stores.base import MODEL, SETTINGS
from antipodal.stores.engines import open_address
from antipodal.stores.filters import Where, parse_where
from antipodal.stores.items import (
    Metadata,
    as_keys,
    batches,
    check_unique_ids,
    parse_metadata,
    take_key,
)
from antipodal.stores.url import place_address
from antipodal.stores.vectors import VectorType, pack_vectors, unpack_vectors
from antipodal.validation import check_vectors, check_whole

if TYPE_CHECKING:
    from antipodal.client import Client

_BATCH_ROWS = 4096  # encoded and stored at once
_QUERIES_AT_ONCE = 256  # the vectors of their candidates are in memory at the same time


class Collection:
    """Vectors compressed by a model, with ids and metadata, in a file or a database.

    The collection contains its model: a path or URL is enough to search it. Searches use the
    scoring of the model (`BaseHasher.scoring`).

    Create one with `Collection.create`, or open one with `Collection.open`. Searches may run in
    several threads. Use it as a context manager, or call `close`.

    Attributes
    ----------
    model : BaseHasher
        The model that encodes vectors.
    identity : str
        SHA-256 of the model.
    keep_vectors : "float32", "float16", "int8" or None
        Type of the vectors kept for reranking.
    id_type : "int64" or "string"
        Type of the ids.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import load_digits
    >>> X = load_digits().data
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Collection.create(f"{folder}/digits.db", X[:1000], bytes=8) as digits:
    ...         digits.search(X[1000:1002], k=3).ids.shape
    (2, 3)
    """

    def __init__(
        self,
        store: Store,
        model: BaseHasher,
        settings: Settings,
        *,
        identity: str = "",
        embed: Embedder | None = None,
    ) -> None:
        if model.n_bits != store.n_bits:
            raise ValueError(
                f"the model has codes of {model.n_bits} bits, the store of {store.n_bits} bits"
            )
        self.store, self.model, self.identity = store, model, identity
        self.place, self.id_type = store.place, store.id_type
        self._settings, self._embed = settings, embed

    @classmethod
    def create(
        cls,
        place: str | os.PathLike[str],
        vectors: Any,
        *,
        ids: ArrayLike | None = None,
        metadata: Metadata | None = None,
        bytes: int | None = None,
        bits: int | None = None,
        recall: float | None = None,
        model: BaseHasher | None = None,
        keep_vectors: VectorType | None = None,
        random_state: int = 0,
        progress: Callable[[str, int, int], None] = lambda step, done, total: None,
    ) -> Self:
        """Compress vectors into a new collection.

        An incomplete collection cannot be opened. If the process is killed, the disk is full or
        the connection is lost, the same call resumes it. Other errors leave no collection behind.

        Parameters
        ----------
        place : path or URL
            ``docs.db`` for a SQLite file, ``postgresql://user@host/database?table=docs``, or
            ``milvus:///docs.db``.
        vectors : array, memory map, `antipodal.open_vectors` or path
            Vectors, one per row, read in blocks: floats of any precision, or integers. They are
            compared by their cosine; see `antipodal.CosineReduction` for other metrics.
        ids : integers or strings (n,), optional
            Unique ids; strings have at most 512 bytes. By default 0, 1, 2, ….
        metadata : iterable of mappings, optional
            One JSON object per row.
        bytes, bits : int, optional
            Size of a code; 48 bytes by default.
        recall : float, optional
            Choose the smallest code whose recall@10 reaches this value, by an audit of a sample.
            With `keep_vectors`, recall after reranking with 4× oversampling.
        model : BaseHasher, optional
            A model in place of `LinfHash.asymmetric`. If it is not fitted, it is fitted to a
            sample without labels.
        keep_vectors : "float32", "float16", "int8" or None
            Also keep the vectors, for reranking and `refit`.
        random_state : int
            Seed of the sample and of the model.
        progress : callable
            Called with the step, and the number of rows done and in total.
        """
        choice = _check_choice(bytes, bits, recall, model)
        rows = Rows(vectors, ids, metadata)
        address = place_address(place)
        store, hasher, settings, identity = create_collection(
            address, rows, choice, keep_vectors, random_state, progress
        )
        return cls(store, hasher, settings, identity=identity)

    @classmethod
    def open(
        cls,
        place: str | os.PathLike[str],
        *,
        key: str | None = None,
        embed: str | Embedder | None = None,
        read_only: bool = False,
    ) -> "Collection | Client":
        """Open a collection.

        Parameters
        ----------
        place : path or URL
            As for `create`, or the address of a service: ``http://127.0.0.1:8000``.
        key : str, optional
            API key of a service.
        embed : str or Embedder, optional
            Embeds typed queries: see `antipodal.load_embedder`.
        read_only : bool
            Refuse writes.

        Raises
        ------
        StoreError
            The collection does not exist, its creation was interrupted, or it has no model:
            attach one with `antipodal store attach`.
        """
        if str(place).startswith(("http://", "https://")):
            from antipodal.client import Client

            return Client(str(place), key)
        return cls.open_with(place, None, embed=embed, read_only=read_only)

    @classmethod
    def of_store(cls, store: Store, *, embed: str | Embedder | None = None) -> Self:
        """Return the collection in an open store."""
        hasher, identity = read_model(store)
        settings = Settings.read(store)
        settings.check_complete(store.place)
        return cls(store, hasher, settings, identity=identity, embed=_embedder(embed))

    @classmethod
    def attach(cls, store: Store, model: str | os.PathLike[str]) -> Self:
        """Turn a store of codes into a collection by adding the model file of its codes.

        Raises
        ------
        StoreError
            The codes have another length or belong to another model.
        """
        data = read_model_bytes(model)  # not encoded again, which may change the identity
        hasher, identity = load_bytes(data, os.fspath(model))
        if hasher.n_bits != store.n_bits or store.model not in (None, identity):
            raise StoreError(
                f"{store.place} has codes of {store.n_bits} bits of model {store.model}, expected "
                f"{hasher.n_bits} bits of model {identity}, which {model} contains"
            )
        settings = Settings.read(store)
        store.write_attachments({MODEL: data, SETTINGS: settings.to_bytes()})
        return cls(store, hasher, settings, identity=identity)

    @classmethod
    def open_with(
        cls,
        place: str | os.PathLike[str],
        model: str | os.PathLike[str] | None,
        *,
        embed: str | Embedder | None = None,
        read_only: bool = False,
    ) -> Self:
        """Open a collection on this machine, or a store of codes with its model file.

        With a model, a missing store is created with that model, unless `read_only`.
        """
        address = place_address(place, read_only=read_only)
        if model is None:
            store = open_address(address)
        else:
            data = read_model_bytes(model)  # once: the file may be replaced meanwhile
            hasher, identity = load_bytes(data, os.fspath(model))
            store = open_address(address, hasher.n_bits, identity)
        try:
            if model is not None and store.read_attachment(MODEL) is None:
                if not store.read_only and not store.item_count():
                    store.write_attachments({MODEL: data, SETTINGS: Settings().to_bytes()})
                return cls(store, hasher, Settings(), identity=identity, embed=_embedder(embed))
            return cls.of_store(store, embed=embed)
        except BaseException:
            store.close()
            raise

    @property
    def accepts_texts(self) -> bool:
        """Whether texts can be searched for: an embedder is configured."""
        return self._embed is not None

    @property
    def keep_vectors(self) -> VectorType | None:
        """The type of the vectors kept for reranking."""
        return self._settings.keep_vectors

    @property
    def n_bits(self) -> int:
        """The code length in bits."""
        return self.store.n_bits

    @property
    def n_features(self) -> int:
        """The number of dimensions of vectors."""
        return int(self.model.n_features_in_)

    # ----------------------------------------------------------------------------- writing

    def add(
        self, vectors: Any, ids: ArrayLike | None = None, metadata: Metadata | None = None
    ) -> NDArray[Any]:
        """Encode and store new vectors, and return their ids.

        Parameters
        ----------
        vectors : array, memory map, `antipodal.open_vectors` or path
            Vectors, one per row, from the same embedding model as the items.
        ids : integers or strings (n,), optional
            Unique ids. By default, integer ids continue after the largest.
        metadata : iterable of mappings, optional
            One JSON object per row.

        Raises
        ------
        IdsTakenError
            A ValueError: some ids are in use, and nothing is stored. If another process adds
            the ids at the same time, or if metadata are invalid, earlier batches of 4,096 rows
            are stored.
        """
        source = Rows(vectors, ids, metadata)
        source.check(self.id_type, self.n_features)
        if source.ids is not None:
            self.store._check_new(source.ids, _BATCH_ROWS)
        parts = [
            self.store.add(codes, given, fields, vectors=kept)
            for given, fields, codes, kept in self._encoded(source)
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def upsert(self, vectors: Any, ids: ArrayLike, metadata: Metadata | None = None) -> int:
        """Encode and store vectors, and return the number of replaced items with the same ids.

        The parameters are those of `add`, but ids are required. A repeated call changes nothing.
        """
        if ids is None:
            raise ValueError("ids are required to replace items: got none")
        source = Rows(vectors, ids, metadata)
        source.check(self.id_type, self.n_features)
        return sum(
            self.store.upsert(given, codes, fields, vectors=kept)
            for given, fields, codes, kept in self._encoded(source)
        )

    def _encoded(
        self, source: Rows
    ) -> Iterator[tuple[Any, Metadata | None, Codes, list[builtins.bytes] | None]]:
        """Yield ids, metadata, codes and kept vectors in batches, after checking all vectors."""
        source.check_finite()
        for rows, ids, fields in source.blocks(_BATCH_ROWS):
            kept = None if self.keep_vectors is None else pack_vectors(rows, self.keep_vectors)
            yield ids, fields, self.model.encode(rows), kept

    def delete(self, ids: ArrayLike) -> int:
        """Delete the items with these ids, and return the number of deleted items."""
        return self.store.delete(ids)

    def close(self) -> None:
        """Close files and connections; closing twice is allowed."""
        self.store.close()
        if self._embed is not None:
            self._embed.close()

    # ----------------------------------------------------------------------------- reading

    def get(self, ids: ArrayLike) -> Items:
        """Return the items with these ids, in the order given, without unknown ids."""
        return self.store.get(ids)

    def vectors(self, ids: ArrayLike) -> NDArray[np.float32]:
        """Return the kept vectors of items, or their reconstructions, in the order given.

        Raises
        ------
        KeyError
            An item does not exist.
        AntipodalError
            The collection keeps no vectors, and its codes cannot be reconstructed.
        """
        given = check_unique_ids(ids, self.id_type)
        with self.store.snapshot() as now:
            items, numbers = self._stored(now, given)
            if not len(given):
                return np.empty((0, self.n_features), np.float32)
            if self.keep_vectors is not None:
                return self._kept(now, numbers)
        if not hasattr(self.model, "reconstruct"):
            raise AntipodalError(
                f"{self.place} keeps no vectors, and codes of {type(self.model).__name__} cannot "
                "be reconstructed: create it with keep_vectors='int8'"
            )
        rows: NDArray[np.float32] = self.model.reconstruct(items.codes)
        return rows

    def count(self, where: Mapping[str, Any] | None = None) -> int:
        """Return the number of items, or of those that match a filter."""
        return self.store.count(where)

    def search(
        self,
        queries: ArrayLike | None = None,
        k: int = 10,
        *,
        codes: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        texts: Sequence[str] | None = None,
        where: Mapping[str, Any] | None = None,
        rerank: int | None = None,
        metadata: bool = False,
        scoring: str | None = None,
    ) -> SearchResult:
        """Return the k nearest items of each query.

        Parameters
        ----------
        queries : (n_queries, n_features)
            Query vectors, from the same embedding model as the items.
        k : int
            Number of neighbours. All items are returned if there are fewer.
        codes, ids, texts : in place of queries
            Packed codes; ids of stored items, which are excluded from their own results; or texts
            for the embedder of `open`.
        where : mapping, optional
            Metadata filter.
        rerank : int, optional
            Oversampling factor: retrieve ``rerank * k`` candidates by their codes, and return the
            k best by the cosine of their kept vectors.
        metadata : bool
            Also return the metadata of the results.
        scoring : "hamming" or "asymmetric", optional
            Override the scoring of the model.

        Returns
        -------
        SearchResult
            `ids` and `scores` have one row per query, best first. Scores estimate the cosine.
            Hamming searches have `distances` and no scores.
        """
        check_whole(k, "k", 1)
        tree = None if where is None else parse_where(where)
        query = self.query(queries, codes=codes, ids=ids, texts=texts, scoring=scoring)
        with self.store.snapshot() as now:
            found = self.find(now, query, int(k), tree, rerank)
            return _described(now, found) if metadata else now.named(found)

    def find(
        self, now: Snapshot, query: Query, k: int, where: Where | None, rerank: int | None
    ) -> SearchResult:
        """Search a snapshot of the store; the result has integer ids."""
        n_candidates = k if rerank is None else k * self._check_rerank(rerank)
        n_found = n_candidates + (query.excluded is not None)
        if query.values is not None:
            found = now._asymmetric(query.values, n_found, where)
        else:
            assert query.codes is not None
            found = now._search(query.codes, n_found, where)
        if found.scores is not None and query.offsets is not None:
            scores = found.scores + query.offsets[:, None]
            found = SearchResult(found.ids, found.distances, scores)
        if query.excluded is not None:
            found = _without(found, query.excluded, n_candidates)
        return found if rerank is None else self._reranked(now, found, query.rows, k)

    def radius(
        self,
        queries: ArrayLike | None = None,
        r: int = 2,
        *,
        codes: ArrayLike | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> SearchResult:
        """Return all items within Hamming distance r of each query.

        With a model whose scoring is asymmetric, a warning is issued.

        Parameters
        ----------
        queries : (n_queries, n_features)
            Query vectors.
        r : int
            Largest Hamming distance.
        codes : uint8 (n_queries, ⌈n_bits / 8⌉), in place of queries
            Packed codes.
        where : mapping, optional
            Metadata filter.

        Returns
        -------
        SearchResult
            The items of query i are at ``offsets[i]:offsets[i + 1]`` of `ids` and `distances`.
        """
        chosen_scoring(self.model, "hamming")
        if (queries is None) == (codes is None):
            raise ValueError("radius needs either queries or codes")
        if codes is None:
            codes = self.model.encode(check_vectors(queries, "queries", self.n_features))
        return self.store.radius(codes, r, where=where)

    def _check_rerank(self, rerank: int) -> int:
        check_whole(rerank, "rerank", 1)
        if self.keep_vectors is None:
            raise ValueError(
                "rerank needs kept vectors: this collection was created with keep_vectors=None. "
                "Create it with keep_vectors='int8', or search without rerank"
            )
        return int(rerank)

    def query(
        self,
        queries: ArrayLike | None = None,
        *,
        codes: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        texts: Sequence[str] | None = None,
        scoring: str | None = None,
    ) -> Query:
        """Convert queries to the form that `find` searches for."""
        scoring = chosen_scoring(self.model, scoring)
        given = [value is not None for value in (queries, codes, ids, texts)]
        if sum(given) != 1:
            raise ValueError(
                f"search needs exactly one of queries, codes, ids and texts: got {sum(given)}"
            )
        if codes is not None:
            packed = check_codes(codes, self.store.n_bits)
            return self._query_of_codes(packed, scoring)
        if ids is not None:
            return self._query_of_items(ids, scoring)
        if texts is not None:
            return self._query_of_rows(self._embedded(texts), scoring)
        rows = check_vectors(queries, "queries", self.n_features)
        return self._query_of_rows(rows, scoring)

    def _embedded(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self._embed is None:
            raise ValueError(
                "texts need an embedder: pass embed='module:function', or the URL of an "
                "OpenAI-compatible endpoint, to Collection.open (--embed on the command line)"
            )
        return self._embed(texts, self.n_features)

    def _query_of_rows(self, rows: NDArray[Any], scoring: str) -> Query:
        if not len(rows):
            empty = np.empty((0, self.store.n_bits))
            return Query(values=empty, offsets=np.empty(0), rows=rows)
        if scoring == "hamming":
            return Query(codes=self.model.encode(rows), rows=rows)
        values = check_values(self.model.query(rows), "queries", self.store.n_bits)
        return Query(values=values, offsets=self.model.score_offset(rows), rows=rows)

    def _query_of_codes(self, codes: Codes, scoring: str) -> Query:
        """Search by the reconstruction of codes, if the model has one."""
        reconstruct = getattr(self.model, "reconstruct", None)
        if scoring == "hamming" or reconstruct is None or not len(codes):
            return Query(codes=codes)
        return self._query_of_rows(reconstruct(codes), scoring)

    def _query_of_items(self, ids: ArrayLike, scoring: str) -> Query:
        given = check_unique_ids(ids, self.id_type)
        with self.store.snapshot() as now:
            items, numbers = self._stored(now, given)
            if self.keep_vectors is None:
                query = self._query_of_codes(items.codes, scoring)
            else:
                query = self._query_of_rows(self._kept(now, numbers), scoring)
            if query.codes is not None:  # the kept vectors are rounded, the codes are not
                query.codes = items.codes
        return replace(query, excluded=numbers)

    def _stored(self, now: Snapshot, ids: NDArray[Any]) -> tuple[Items, NDArray[np.int64]]:
        """Return items and their integer ids, or raise KeyError if one does not exist."""
        items = now.get(ids)
        if len(items.ids) < len(ids):
            known = set(items.ids.tolist())
            missing = next(i for i in ids.tolist() if i not in known)
            raise KeyError(f"{self.place} has no item {missing!r}")
        if self.id_type == "int64":
            return items, ids
        by_key = now._numbers_of(ids.tolist())
        return items, np.array([by_key[key] for key in ids.tolist()], np.int64)

    def _kept(self, now: Snapshot, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the kept vectors of items, in the order given."""
        assert self.keep_vectors is not None
        unique, positions = np.unique(numbers, return_inverse=True)
        found = now.kept_vectors(unique)
        if len(found) < len(unique):
            raise StoreError(
                f"{self.place}: {len(unique) - len(found)} items have no kept vector. Items that "
                "were stored as codes cannot be reranked"
            )
        packed = [found[number] for number in unique.tolist()]
        return unpack_vectors(packed, self.n_features, self.keep_vectors)[positions.ravel()]

    def _reranked(
        self, now: Snapshot, found: SearchResult, rows: NDArray[Any] | None, k: int
    ) -> SearchResult:
        if rows is None:
            raise ValueError("rerank needs query vectors: codes have none")
        scores = np.empty(found.ids.shape)
        for part in batches(len(rows), _QUERIES_AT_ONCE):
            vectors = self._kept(now, found.ids[part].ravel()).astype(np.float64)
            shape = (*found.ids[part].shape, self.n_features)
            queries = np.asarray(rows[part], np.float64)
            scores[part] = vector_scores(queries, vectors.reshape(shape), "cosine")
        best = best_first(scores, found.ids, k)
        return SearchResult(
            np.take_along_axis(found.ids, best, axis=1),
            np.take_along_axis(found.distances, best, axis=1),
            np.take_along_axis(scores, best, axis=1),
        )

    # ------------------------------------------------------------------------- maintenance

    def check(self, new_vectors: ArrayLike) -> "Drift":
        """Compare the codes of new vectors with those of the vectors at fit time.

        Parameters
        ----------
        new_vectors : (n, n_features)
            At least 100 rows; up to 2,000 are used.

        Returns
        -------
        Drift
            `has_drifted` is the verdict. The text form has the measured values and the
            recommended action.
        """
        rows = check_vectors(new_vectors, "new_vectors", self.n_features)
        before = self._settings.quality
        if before is None:
            raise AntipodalError(
                f"{self.place} has no record of its vectors at fit time: it was not created by "
                "Collection.create"
            )
        return Drift(before, code_quality(self.model, rows), self.keep_vectors is not None)

    def refit(self, place: str | os.PathLike[str], **options: Any) -> "Collection":
        """Fit a new model to the kept vectors, and write them to a new collection.

        `options` are those of `create`. By default the code length and the type of kept vectors
        are those of this collection.

        Raises
        ------
        AntipodalError
            The collection keeps no vectors. Create it again from the original vectors.
        """
        if self.keep_vectors is None:
            raise AntipodalError(
                f"{self.place} keeps no vectors to encode again: create a "
                "new collection from the original vectors"
            )
        if not {"bytes", "bits", "recall", "model"} & options.keys():
            options["bits"] = self.store.n_bits
        options.setdefault("keep_vectors", self.keep_vectors)
        with (
            tempfile.TemporaryFile() as file,
            self.store.snapshot() as now,
        ):
            ids: list[Any] = []
            for batch in now.batches():
                file.write(self._kept(now, batch.ids).tobytes())
                ids += now.named(SearchResult(batch.ids, np.empty(0, np.int32))).ids.tolist()
            file.flush()
            shape = (len(ids), self.n_features)
            vectors = np.memmap(file, np.float32, "r", shape=shape) if ids else np.empty(shape)
            return type(self).create(place, vectors, ids=ids, metadata=_objects(now), **options)

    def __len__(self) -> int:
        return self.count()

    def __repr__(self) -> str:
        return (
            f"Collection({self.place!r}): {self.store.n_bits // 8} bytes per vector, "
            f"{type(self.model).__name__}, {self.model.scoring} scoring"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _embedder(embed: str | Embedder | None) -> Embedder | None:
    return load_embedder(embed) if isinstance(embed, str) else embed


def _check_choice(
    n_bytes: int | None, bits: int | None, recall: float | None, model: BaseHasher | None
) -> Choice:
    """Return how the model is chosen, after checking the arguments."""
    if sum(value is not None for value in (n_bytes, bits, recall, model)) > 1:
        raise ValueError("pass at most one of bytes, bits, recall and model")
    for name, value in (("bytes", n_bytes), ("bits", bits)):
        if value is not None:
            check_whole(value, name, 1)
    if recall is not None and not 0 < recall <= 1:
        raise ValueError(f"recall must be above 0 and at most 1: got {recall}")
    if recall is not None or model is not None:
        return Choice(model, None, recall)
    return Choice(None, int(bits) if bits is not None else 8 * int(n_bytes or 48), None)


def _without(found: SearchResult, excluded: NDArray[np.int64], k: int) -> SearchResult:
    """Return the first k results of each query, without the item that it excludes."""
    n_found = found.ids.shape[1]
    is_excluded = found.ids == excluded[:, None]
    # Move the excluded item to the end. A stable sort keeps the order of the others.
    order = np.argsort(is_excluded, axis=1, kind="stable")[:, :k]
    if n_found <= k and is_excluded.any():
        order = order[:, : n_found - 1]
    return SearchResult(
        np.take_along_axis(found.ids, order, axis=1),
        np.take_along_axis(found.distances, order, axis=1),
        None if found.scores is None else np.take_along_axis(found.scores, order, axis=1),
    )


def _described(now: Snapshot, found: SearchResult) -> SearchResult:
    """Return a result with the ids of the store and the metadata of the items."""
    unique, positions = np.unique(found.ids, return_inverse=True)
    items = now._items_of(unique)
    if len(items.ids) < len(unique):  # in an engine without snapshots
        raise StoreError(f"{now.place}: items were deleted during the search. Search again")
    rows: NDArray[Any] = positions.reshape(found.ids.shape)
    if now.id_type == "string":
        found = found.with_ids(as_keys(map(take_key, items.metadata))[rows])
    found.metadata = [[items.metadata[i] for i in row] for row in rows]
    return found


def _objects(now: Snapshot) -> Iterator[dict[str, Any]]:
    """Yield the metadata of all items, without string ids."""
    for batch in now.batches():
        for text in batch.texts:
            fields = parse_metadata(text)
            if now.id_type == "string":
                take_key(fields)
            yield fields

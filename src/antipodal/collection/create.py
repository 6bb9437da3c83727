"""Creation of a collection: read rows, fit a model to a sample, encode and store all rows."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.collection.drift import MIN_ROWS, SAMPLE, CodeQuality, code_quality
from antipodal.collection.settings import Settings, read_model
from antipodal.errors import AntipodalError, IdsTakenError, NoStoreError, StoreError
from antipodal.evaluation.audit import audit
from antipodal.hashers.base import BaseHasher
from antipodal.hashers.registry import load_bytes
from antipodal.io.vectors import VectorFile, open_vectors
from antipodal.stores import Store
from antipodal.stores.base import MODEL, SETTINGS
from antipodal.stores.engines import check_keeps_vectors, open_address
from antipodal.stores.items import IdType, Metadata, check_length, check_unique_ids, id_type_of
from antipodal.stores.url import Address
from antipodal.stores.vectors import VectorType, check_vector_type, pack_vectors
from antipodal.validation import check_finite

Block = tuple[NDArray[Any], NDArray[Any] | None, list[Any] | None]
Progress = Callable[[str, int, int], None]

_ROWS_AT_ONCE = 4096  # read and checked at once
_FIT_ROWS = 65_536  # sampled from more rows
_AUDIT_ROWS = 20_000
_BATCH_ROWS = 8_192  # encoded and stored at once


class Rows:
    """Vectors with ids and metadata.

    Parameters
    ----------
    vectors : array, VectorFile or path
    ids : integers or strings, optional
    metadata : iterable of mappings, optional
    """

    def __init__(
        self, vectors: Any, ids: ArrayLike | None = None, metadata: Metadata | None = None
    ) -> None:
        if isinstance(vectors, (str, os.PathLike)):
            vectors = open_vectors(os.fspath(vectors))
        self.vectors: Any = vectors if isinstance(vectors, VectorFile) else np.asanyarray(vectors)
        if not isinstance(self.vectors, VectorFile):
            _check_table(self.vectors)
        self.n_rows: int = self.vectors.shape[0]
        self.n_features: int = self.vectors.shape[1]
        self.id_type: IdType = "int64" if ids is None else id_type_of(ids)
        self.ids = None if ids is None else check_unique_ids(ids, self.id_type)
        if self.ids is not None and len(self.ids) != self.n_rows:
            raise ValueError(
                f"ids must have one id for each of {self.n_rows} vectors: got {len(self.ids)}"
            )
        if isinstance(metadata, (str, bytes, Mapping)):
            raise TypeError(
                "metadata must be a sequence of JSON objects, one per vector: got one "
                f"{type(metadata).__name__}"
            )
        check_length(metadata, self.n_rows)
        self.metadata = metadata

    def check(self, id_type: IdType, n_features: int) -> None:
        """Raise an error unless the rows match the features and ids of a collection."""
        if self.n_features != n_features:
            raise ValueError(
                f"vectors must have {n_features} values, like those of the collection: got "
                f"{self.n_features}. Are they of another embedding model?"
            )
        if self.ids is not None or id_type == "string":
            check_unique_ids([] if self.ids is None else self.ids, id_type)
        if self.ids is None and id_type == "string" and self.n_rows:
            raise ValueError("ids are required: this collection has string ids, and got none")

    def check_finite(self) -> None:
        """Raise ValueError for NaN or infinity in any row."""
        start = 0
        for rows in self._vector_blocks(_ROWS_AT_ONCE):
            check_finite(rows, "vectors", np.arange(start, start + len(rows)))
            start += len(rows)

    def blocks(self, size: int, first: int = 0) -> Iterator[Block]:
        """Yield vectors, ids and metadata in blocks, from row `first` on."""
        objects = None if self.metadata is None else iter(self.metadata)
        if objects is not None:
            next(islice(objects, first, first), None)
        start = 0
        for rows in self._vector_blocks(size):
            stop = start + len(rows)
            kept = rows[max(first - start, 0) :]
            if len(kept):
                check_finite(kept, "vectors", np.arange(stop - len(kept), stop))
                ids = None if self.ids is None else self.ids[stop - len(kept) : stop]
                yield kept, ids, None if objects is None else list(islice(objects, len(kept)))
            start = stop

    def sample(self, size: int, seed: int) -> NDArray[Any]:
        """Return up to `size` random rows, in their order."""
        if self.n_rows <= size:
            chosen = np.arange(self.n_rows)
        else:
            chosen = np.sort(np.random.default_rng(seed).choice(self.n_rows, size, replace=False))
        if isinstance(self.vectors, VectorFile):
            rows = self.vectors.take(chosen)
        else:
            rows = np.asarray(self.vectors[chosen])
        check_finite(rows, "vectors", chosen)
        return rows

    def _vector_blocks(self, size: int) -> Iterator[NDArray[Any]]:
        if isinstance(self.vectors, VectorFile):
            yield from self.vectors.blocks(size)
            return
        for start in range(0, self.n_rows, size):
            yield np.asarray(self.vectors[start : start + size])


def _check_table(vectors: NDArray[Any]) -> None:
    if vectors.ndim != 2 or vectors.shape[1] == 0:
        raise ValueError(
            f"vectors must have shape (rows, dimensions): got {vectors.shape}. Is one vector "
            "missing its brackets?"
        )
    if vectors.dtype.kind not in "fiu":
        raise TypeError(f"vectors must be real numbers: got {vectors.dtype}")


class Created(NamedTuple):
    """A complete collection."""

    store: Store
    model: BaseHasher
    settings: Settings
    identity: str


class Choice(NamedTuple):
    """Choice of the model: a given model, a code length, or a target recall."""

    model: BaseHasher | None
    n_bits: int | None
    recall: float | None


def create_collection(
    address: Address,
    rows: Rows,
    choice: Choice,
    keep_vectors: VectorType | None,
    random_state: int,
    progress: Progress,
) -> Created:
    """Fill a new store, or resume an interrupted creation from the same rows."""
    check_vector_type(keep_vectors)
    if keep_vectors is not None:
        check_keeps_vectors(address)
    if not rows.n_rows:
        raise ValueError("a collection needs at least one vector: got none")
    if choice.model is not None and _is_fitted(choice.model):
        rows.check(rows.id_type, choice.model.n_features_in_)
    sample = rows.sample(_FIT_ROWS + SAMPLE, random_state)
    digest = _digest(rows, sample, choice, keep_vectors, random_state)
    created = _resumed(address, digest)
    if created is None:
        progress("fit", 0, 1)
        model, quality = _fitted(rows, sample, choice, keep_vectors, random_state)
        progress("fit", 1, 1)
        created = _started(address, rows, model, Settings(keep_vectors, quality, digest))
    del sample
    store = created.store
    try:
        _fill(created, rows, progress)
        settings = created.settings.completed()
        store.write_attachments({SETTINGS: settings.to_bytes()})
    except IdsTakenError:
        store.close()
        raise StoreError(f"{store.place} is being created by another process") from None
    except StoreError:  # a full disk or a lost connection: the same call resumes it
        store.close()
        raise
    except Exception:
        with suppress(StoreError):
            store.drop()
        store.close()
        raise
    except BaseException:  # interrupted: the same call resumes it
        store.close()
        raise
    return created._replace(settings=settings)


def _digest(
    rows: Rows,
    sample: NDArray[Any],
    choice: Choice,
    keep_vectors: VectorType | None,
    random_state: int,
) -> str:
    """Return a digest of the arguments of a creation, by which an identical call is recognised."""
    model: object = choice.model
    if choice.model is not None and _is_fitted(choice.model):
        model = hashlib.sha256(choice.model.to_bytes()).digest()
    settings = (rows.n_rows, choice.n_bits, choice.recall, model, keep_vectors, random_state)
    digest = hashlib.sha256(repr((settings, sample.shape, sample.dtype.str)).encode())
    digest.update(np.ascontiguousarray(sample).tobytes())
    if rows.ids is not None:
        digest.update("\0".join(map(str, rows.ids.tolist())).encode())
    return digest.hexdigest()


def _resumed(address: Address, digest: str) -> Created | None:
    """Return the collection of an interrupted identical call, or None."""
    try:
        store = open_address(address)
    except NoStoreError:
        return None
    try:
        if store.read_attachment(MODEL) is None and not store.item_count():
            store.close()  # killed before the model was stored: start again
            return None
        settings = Settings.read(store)
        if settings.pending is None:
            raise StoreError(
                f"{store.place} exists already: choose another place, or delete it first"
            )
        if settings.pending != digest:
            raise StoreError(
                f"{store.place} is an interrupted creation from other vectors or settings: "
                "delete it first"
            )
        model, identity = read_model(store)
        return Created(store, model, settings, identity)
    except BaseException:
        store.close()
        raise


def _fitted(
    rows: Rows,
    sample: NDArray[Any],
    choice: Choice,
    keep_vectors: VectorType | None,
    random_state: int,
) -> tuple[BaseHasher, CodeQuality | None]:
    """Return the fitted model, and the quality of its codes on held-out rows."""
    is_held_out = np.zeros(len(sample), np.bool_)
    n_held_out = min(SAMPLE, len(sample) // 5)
    rng = np.random.default_rng(random_state)
    is_held_out[rng.choice(len(sample), n_held_out, replace=False)] = True
    model = choice.model
    if model is None:
        n_bits = choice.n_bits or _bits_for_recall(rows, choice.recall, keep_vectors, random_state)
        from antipodal.hashers.linfhash import LinfHash  # lazy: opening does not need it

        model = LinfHash.asymmetric(n_bits, random_state=random_state)
    if not _is_fitted(model):
        model = model.fit(sample[~is_held_out])
    quality = code_quality(model, sample[is_held_out]) if n_held_out >= MIN_ROWS else None
    return model, quality


def _started(address: Address, rows: Rows, fitted: BaseHasher, settings: Settings) -> Created:
    """Create an empty store that contains the model."""
    data = fitted.to_bytes()
    model, identity = load_bytes(data, "the model")  # as later readers of the collection load it
    store = open_address(address, model.n_bits, identity, rows.id_type)
    try:
        parts = {MODEL: data, SETTINGS: settings.to_bytes()}
        store.write_attachments(parts, replace=False)
    except BaseException:
        store.close()
        raise
    return Created(store, model, settings, identity)


def _is_fitted(model: BaseHasher) -> bool:
    return hasattr(model, "n_features_in_")


def _bits_for_recall(
    rows: Rows, recall: float | None, keep_vectors: VectorType | None, random_state: int
) -> int:
    """Return the length of the shortest code that reaches a recall, by an audit of a sample."""
    assert recall is not None
    sample = min(_AUDIT_ROWS, rows.n_rows)
    result = audit(
        rows.vectors, methods=["LinfHash.asymmetric"], baselines="none",
        sample=sample, random_state=random_state,
    )  # fmt: skip
    advice = result.advice(recall, max_rerank=1 if keep_vectors is None else 4)
    if advice is None or not advice.reached:
        best = "" if advice is None else f" The nearest is {advice.summary()}"
        raise AntipodalError(
            f"no code reaches recall@10 {recall:g} on these vectors.{best} Keep vectors for "
            "reranking, or lower the recall"
        )
    return advice.bits


def _fill(created: Created, rows: Rows, progress: Progress) -> None:
    store, kind = created.store, created.settings.keep_vectors
    done = store.item_count()
    progress("encode", done, rows.n_rows)
    for vectors, ids, fields in rows.blocks(_BATCH_ROWS, done):
        numbers = np.arange(done, done + len(vectors)) if ids is None else ids
        kept = None if kind is None else pack_vectors(vectors, kind)
        store.add(created.model.encode(vectors), numbers, fields, vectors=kept)
        done += len(vectors)
        progress("encode", done, rows.n_rows)

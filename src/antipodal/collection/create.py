"""Creation of a collection: fit a model to a sample, then encode and store all rows."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodal.collection.drift import MIN_ROWS, SAMPLE, CodeQuality, code_quality
from antipodal.collection.rows import Rows
from antipodal.collection.settings import Settings, read_model
from antipodal.errors import AntipodalError, IdsTakenError, NoStoreError, StoreError
from antipodal.evaluation.audit import audit
from antipodal.hashers.base import BaseHasher
from antipodal.hashers.registry import load_bytes
from antipodal.stores import Store
from antipodal.stores.base import MODEL, SETTINGS
from antipodal.stores.engines import check_keeps_vectors, open_address
from antipodal.stores.url import Address
from antipodal.stores.vectors import VectorType, check_vector_type, pack_vectors

Progress = Callable[[str, int, int], None]

_FIT_ROWS = 65_536  # sampled from more rows
_AUDIT_ROWS = 20_000
_BATCH_ROWS = 8_192  # encoded and stored at once


class Created(NamedTuple):
    """A complete collection."""

    store: Store
    model: BaseHasher
    settings: Settings
    identity: str


class Choice(NamedTuple):
    """How the model is chosen: a given one, a code length, or a recall to reach."""

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
    """Return a digest of the arguments of a creation, by which the same call is recognised."""
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
    """Return a collection whose creation by the same call was interrupted, None without one."""
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
    """Return the model, and the quality of its codes of rows that it was not fitted to."""
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
    model, identity = load_bytes(data, "the model")  # as every later reader of the collection
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
    """Return the shortest code that reaches a recall, by an audit of a sample."""
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

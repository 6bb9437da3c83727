"""Attachments of a collection: the model file, and its settings as JSON."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from antipodal.collection.drift import CodeQuality
from antipodal.errors import StoreError
from antipodal.hashers.base import BaseHasher
from antipodal.hashers.registry import load_bytes
from antipodal.stores import Store
from antipodal.stores.base import MODEL, SETTINGS
from antipodal.stores.vectors import VectorType, check_vector_type

_FORMAT = 1


@dataclass(frozen=True)
class Settings:
    """Settings of a collection.

    Attributes
    ----------
    keep_vectors : str, optional
        Type of the vectors kept for reranking.
    quality : CodeQuality, optional
        Quality of the codes of a sample at fit time.
    pending : str, optional
        Digest of the rows of a creation that is not complete.
    """

    keep_vectors: VectorType | None = None
    quality: CodeQuality | None = None
    pending: str | None = None

    @classmethod
    def read(cls, store: Store) -> Self:
        """Return the settings in a store; the default for a store of an earlier version."""
        data = store.read_attachment(SETTINGS)
        if data is None:
            return cls()
        try:
            record = json.loads(data)
            quality = record["quality"]
            if record["format"] != _FORMAT:
                raise StoreError(
                    f"{store.place} has a collection of format {record['format']}, expected "
                    f"{_FORMAT}: upgrade antipodal"
                )
            return cls(
                check_vector_type(record["keep_vectors"]),
                None if quality is None else CodeQuality(**quality),
                record["pending"],
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise StoreError(f"{store.place} has invalid collection settings: {error}") from None

    def to_bytes(self) -> bytes:
        """Return the settings as JSON."""
        record: dict[str, Any] = {"format": _FORMAT, **asdict(self)}
        return json.dumps(record, sort_keys=True).encode()

    def completed(self) -> Self:
        """Return the settings of a complete collection."""
        return replace(self, pending=None)

    def check_complete(self, place: str) -> None:
        """Raise StoreError if the creation of the collection was interrupted."""
        if self.pending is not None:
            raise StoreError(
                f"the creation of {place} was interrupted: run the same Collection.create or "
                "`antipodal build` again to resume it, or delete it"
            )


def read_model(store: Store) -> tuple[BaseHasher, str]:
    """Return the model in a store, and its identity."""
    data = store.read_attachment(MODEL)
    if data is None:
        raise StoreError(
            f"{store.place} contains no model. It is a store of codes: attach its model with "
            "`antipodal store attach`"
        )
    hasher, identity = load_bytes(data, f"the model in {store.place}")
    if hasher.n_bits != store.n_bits or store.model not in (None, identity):
        raise StoreError(
            f"the model in {store.place} does not match its codes: got {identity}, expected "
            f"{store.model}"
        )
    return hasher, identity

"""What a store says of itself: how long its codes are, which model made them, and who it is."""

import secrets
from typing import Any, NamedTuple, Self

from antipodal import __version__
from antipodal.errors import NoStoreError, StoreError
from antipodal.index.scan import MAX_BITS


class About(NamedTuple):
    """What is kept beside the items, and never changes.

    The identity is drawn when a store is made: copies and backups of a store share it, any two
    others differ. `antipodal` is the version that made the store. Where either was not kept yet, it
    is None.
    """

    n_bits: int
    model: str | None
    identity: str | None = None
    antipodal: str | None = None

    @classmethod
    def of_new(cls, place: str, n_bits: int | None, model: str | None) -> Self:
        """Return what a store that is about to be made will say."""
        if n_bits is None:
            raise NoStoreError(place)
        if n_bits > MAX_BITS:
            raise ValueError(f"n_bits must be at most {MAX_BITS}: got {n_bits}")
        return cls(n_bits, model, secrets.token_hex(16), __version__)

    @classmethod
    def of_header(cls, header: Any) -> Self:
        """Return what a header, as JSON has it, says; raise ValueError if no store says so."""
        if not isinstance(header, dict):
            raise ValueError(f"its header is no object: got {type(header).__name__}")
        n_bits, *texts = (header.get(name) for name in cls._fields)
        if type(n_bits) is not int or not 1 <= n_bits <= MAX_BITS:
            raise ValueError(f"it must say how many bits its codes have, 1 to {MAX_BITS}")
        if not all(text is None or isinstance(text, str) for text in texts):
            raise ValueError("the names of its model, of itself and of its version must be text")
        return cls(n_bits, *texts)

    def agree(self, place: str, n_bits: int | None, model: str | None) -> None:
        """Refuse to be opened for codes of another length or of another model."""
        if n_bits not in (None, self.n_bits):
            raise StoreError(
                f"{place} keeps codes of {self.n_bits} bits: it cannot be opened for codes of "
                f"{n_bits}. Were these codes made by another model?"
            )
        if model not in (None, self.model):
            kept = "no model's identity" if self.model is None else f"codes of model {self.model!r}"
            raise StoreError(
                f"{place} keeps {kept}: it cannot be opened for model {model!r}. Codes of "
                "different models cannot be compared: keep them in stores of their own"
            )

"""What a store says of its codes: how long they are, and which model made them."""

from typing import NamedTuple, Self

from antipodal.errors import NoStoreError, StoreError


class About(NamedTuple):
    """What is kept beside the items, and never changes."""

    n_bits: int
    model: str | None

    @classmethod
    def of_new(cls, place: str, n_bits: int | None, model: str | None) -> Self:
        """Return what a store that is about to be made will say."""
        if n_bits is None:
            raise NoStoreError(place)
        return cls(n_bits, model)

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

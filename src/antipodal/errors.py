"""Exceptions for bad files, models and stores; bad arguments raise ValueError or TypeError."""


class AntipodalError(Exception):
    """A file, disk, model or store cannot be used. The command line prints it and exits with 1."""


class ModelFileError(AntipodalError):
    """A model or checkpoint file is damaged, too new, or was not written by antipodal."""


class IndexFileError(AntipodalError):
    """An index file is damaged, too new, or was not written by antipodal."""


class StoreError(AntipodalError):
    """A store is damaged, busy or unreachable, or contains codes of another length or model."""


class EmbeddingError(AntipodalError):
    """An embedder cannot be reached, failed, or returned vectors that cannot be used."""


class NoStoreError(StoreError):
    """No store exists at this place, and `n_bits` to create one was not passed."""

    def __init__(self, place: str) -> None:
        super().__init__(f"no store exists at {place}: pass n_bits to create one")
        self.place = place


class IdsTakenError(ValueError):
    """Items with these ids exist already. Nothing was stored."""


def missing_extra(feature: str, module: str, extra: str) -> str:
    """Return the error message for a feature whose optional package is not installed."""
    return f"{feature} needs {module}, of the extra `{extra}`: pip install '.[{extra}]' in a clone"

"""What can go wrong with a file or a model; wrong arguments are plain ValueError and TypeError."""


class AntipodalError(Exception):
    """Something outside the program is not as it should be: a file, a disk, a model.

    The command line prints it as one line and exits with 1.
    """


def missing_extra(who: str, module: str, extra: str) -> str:
    """Return the message for a package that comes with an extra and is not there."""
    return f"{who} needs {module}, of the extra `{extra}`: pip install '.[{extra}]' in a clone"


class ModelFileError(AntipodalError):
    """A model or checkpoint file is truncated, foreign, too new, or was changed after writing."""


class IndexFileError(AntipodalError):
    """An index file is truncated, foreign, too new, or was changed after writing."""


class StoreError(AntipodalError):
    """A store is damaged, foreign, busy, out of reach, or holds codes of another kind."""


class NoStoreError(StoreError):
    """There is no store at the place that was named, and none was to be made."""

    def __init__(self, place: str) -> None:
        super().__init__(f"there is no store at {place}: pass n_bits to make one")
        self.place = place


class IdsTakenError(ValueError):
    """Items with these ids are there already, and were not to be replaced; nothing has changed."""

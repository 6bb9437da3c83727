"""Where datasets are looked for, and downloaded to."""

import os
from pathlib import Path

from platformdirs import user_cache_path

from antipodal.errors import AntipodalError

VARIABLE = "ANTIPODAL_DATA"


def data_directory(dir: str | os.PathLike[str] | None = None) -> Path:
    """Return `dir`, else what the environment variable ANTIPODAL_DATA names, else a cache.

    That is `antipodal` where the system keeps the user's caches, such as ~/.cache.
    """
    chosen = os.environ.get(VARIABLE) if dir is None else dir
    return Path(chosen).expanduser() if chosen else user_cache_path("antipodal", appauthor=False)


def find_directory(dir: str | os.PathLike[str] | None, help: str) -> Path:
    """Return the data directory, or say that it is not there and how to come by the data."""
    path = data_directory(dir)
    if path.is_dir():
        return path
    if dir is not None:
        raise AntipodalError(f"{path} is not a directory")
    if os.environ.get(VARIABLE):
        raise AntipodalError(f"{path} (from {VARIABLE}) is not a directory")
    raise AntipodalError(
        f"no data directory: pass `dir`, or set the environment variable {VARIABLE} to it. "
        f"Without them {path} is used, which does not exist; {help}"
    )

"""Where datasets are looked for."""

import os
from pathlib import Path

from antipodal.errors import AntipodalError

VARIABLE = "ANTIPODAL_DATA"


def find_directory(dir: str | os.PathLike[str] | None) -> Path:
    """Return `dir`, or what the environment variable ANTIPODAL_DATA names when it is None."""
    chosen = os.environ.get(VARIABLE) if dir is None else dir
    if not chosen:
        raise AntipodalError(
            f"no data directory: pass `dir`, or set the environment variable {VARIABLE} to it"
        )
    path = Path(chosen).expanduser()
    if not path.is_dir():
        source = f" (from {VARIABLE})" if dir is None else ""
        raise AntipodalError(f"{path}{source} is not a directory")
    return path

"""Fuzz targets: a kind of file, filter or address, and the outcomes allowed for a mutated one.

A target creates valid examples once. A case mutates one, recomputes its checksum, opens it and uses
it. It must be rejected with a package error that names the file, or be usable. In some cases the
checksum is not recomputed: then the file must be rejected or return the original results.
"""

import random
from abc import ABC, abstractmethod
from pathlib import Path

from antipodal.errors import AntipodalError


class Target(ABC):
    """A kind of input."""

    arguments = False  # whether it is an argument, which may raise ValueError and TypeError

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "case"

    @abstractmethod
    def case(self, draw: random.Random) -> bool:
        """Run one case; return whether the input was usable. Raise AssertionError on a defect."""

    def refused(self, error: Exception) -> bool:
        """Return whether an error is a valid rejection of a case."""
        if self.arguments:
            return isinstance(error, (AntipodalError, ValueError, TypeError))
        return isinstance(error, AntipodalError) and "case" in str(error)

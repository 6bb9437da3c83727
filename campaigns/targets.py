"""What the fuzz opens: a kind of file, filter or address, and what may become of a changed one.

A target makes good examples once. A case changes one, makes its checksum anew, opens it and uses
it. It is refused by an error of ours that names the file, or it can be used. In some cases the
checksum is left as it was: then it must be refused, or answer as before.
"""

import random
from abc import ABC, abstractmethod
from pathlib import Path

from antipodal.errors import AntipodalError


class Target(ABC):
    """A kind of input."""

    arguments = False  # is it an argument, for which ValueError and TypeError are right?

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "case"

    @abstractmethod
    def case(self, draw: random.Random) -> bool:
        """Try one case; return whether it could be used. What is wrong is an AssertionError."""

    def refused(self, error: Exception) -> bool:
        """Say whether an error is the right way to refuse a case."""
        if self.arguments:
            return isinstance(error, (AntipodalError, ValueError, TypeError))
        return isinstance(error, AntipodalError) and "case" in str(error)

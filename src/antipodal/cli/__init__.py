"""The command line: parse, call, print.

Exit codes: 0 done, 1 bad data (a file, an array, a disk), 2 bad usage, 130 interrupted. Results go
to standard output, progress to standard error.
"""

import os
import re
import sys
from typing import NoReturn

from antipodal.cli import (
    audit as auditing,
)
from antipodal.cli import (
    bench,
    datasets,
    demo,
    info,
    serve,
    store,
    switching,
)
from antipodal.cli import (
    evaluate as evaluating,
)
from antipodal.cli import (
    export as exporting,
)
from antipodal.cli import (
    fit as hashing,
)
from antipodal.cli import (
    index as indexing,
)
from antipodal.cli import (
    report as reporting,
)
from antipodal.cli import (
    search as searching,
)
from antipodal.cli.app import app
from antipodal.errors import AntipodalError

__all__ = [
    "app",
    "auditing",
    "bench",
    "datasets",
    "demo",
    "evaluating",
    "exporting",
    "hashing",
    "indexing",
    "info",
    "main",
    "reporting",
    "searching",
    "serve",
    "store",
    "switching",
]

# What the data or the machine can cause. Anything else is a fault of ours, and shows where it is.
_EXPECTED = (AntipodalError, OSError, ValueError, TypeError, FloatingPointError, MemoryError)


def main() -> None:
    """Run the command line; bad data is one line on standard error and exit code 1."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever read our output has enough, as `head` has
        _forget_output()
        sys.exit(1)
    except _EXPECTED as error:
        _fail(error)
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise
        _fail(MemoryError(*error.args))  # PyTorch has no kind of its own for it


def _fail(error: Exception) -> NoReturn:
    print(f"antipodal: {_message(error)}", file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:  # a full disk, perhaps: without this Python would try again, and complain
        _forget_output()
    sys.exit(1)


def _message(error: Exception) -> str:
    """Return one line that says what happened."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        text = f"{where}{error.strerror}"
    # The URL of a store, with its password, in the place of a file's name.
    text = re.sub(r"[A-Za-z0-9+]+:/[^\s:]*:\S*@[^\s:]*", "…", text)
    if isinstance(error, MemoryError):
        return f"not enough memory{': ' if text else ''}{text}"
    return text or type(error).__name__


def _forget_output() -> None:
    """Leave what was not written unwritten, also when Python ends."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())

"""Command line: each command parses its options, calls the library and prints the result.

Exit codes: 0 success, 1 bad data or a failed operation, 2 bad usage, 130 interrupted. Results go
to standard output, progress and errors to standard error.
"""

import os
import re
import sys
import warnings
from typing import NoReturn

from antipodal.cli import (  # noqa: F401 - each module registers its commands
    audit,
    bench,
    build,
    demo,
    evaluate,
    export,
    index,
    info,
    models,
    search,
    serve,
    store,
)
from antipodal.cli.app import app
from antipodal.errors import AntipodalError

__all__ = ["app", "main"]

# Errors caused by data or by the machine. Any other error is a bug and keeps its traceback.
_EXPECTED = (AntipodalError, OSError, ValueError, TypeError, FloatingPointError, MemoryError)


def main() -> None:
    """Run the command line; print an expected error as one line and exit with 1."""
    warnings.showwarning = _show_warning
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        _discard_output()
        sys.exit(1)
    except _EXPECTED as error:
        _fail(error)
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise
        _fail(MemoryError(*error.args))  # PyTorch reports failed allocations as RuntimeError


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as one line."""
    print(f"antipodal: warning: {' '.join(str(message).split())}", file=sys.stderr)


def _fail(error: Exception) -> NoReturn:
    print(f"antipodal: {_message(error)}", file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:  # such as a full disk: the interpreter would flush again and print a traceback
        _discard_output()
    sys.exit(1)


def _message(error: Exception) -> str:
    """Return the text of an error as one line."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        text = f"{where}{error.strerror}"
    # A store URL given as a file name may contain a password.
    text = re.sub(r"[A-Za-z0-9+]+:/[^\s:]*:\S*@[^\s:]*", "…", text)
    if isinstance(error, MemoryError):
        return f"not enough memory{': ' if text else ''}{text}"
    return text or type(error).__name__


def _discard_output() -> None:
    """Redirect standard output to the null device, so that flushing it at exit cannot fail."""
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), sys.stdout.fileno())

"""The command line: parse, call, print.

Exit codes: 0 done, 1 bad data (a file, an array, a disk), 2 bad usage. Results go to standard
output, progress to standard error.
"""

import sys

from antipodal.cli import bench, datasets, demo, hashing, indexing, searching, serve
from antipodal.cli.app import app
from antipodal.errors import AntipodalError

__all__ = ["app", "bench", "datasets", "demo", "hashing", "indexing", "main", "searching", "serve"]


def main() -> None:
    """Run the command line; bad data is one line on standard error and exit code 1."""
    try:
        app()
    except (AntipodalError, OSError, ValueError, TypeError, FloatingPointError) as error:
        message = " ".join(str(error).split())
        print(f"antipodal: {message}", file=sys.stderr)
        sys.exit(1)

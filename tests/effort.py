"""Number of examples per test: few in `make test`, many with ANTIPODAL_CAMPAIGN=1.

The latter also draws new random examples in each run, as some tests always do (`fresh_examples`).
Failures are printed with the data that reproduces them.
"""

import os

from hypothesis import settings

CAMPAIGN = os.environ.get("ANTIPODAL_CAMPAIGN") == "1"


def rounds(few: int, many: int) -> int:
    """Return the number of repetitions."""
    return many if CAMPAIGN else few


def examples(n: int, **options: object) -> settings:
    """Return Hypothesis settings with n examples, or 20 times n in a campaign."""
    return settings(max_examples=rounds(n, 20 * n), deadline=None, **options)


def fresh_examples(n: int, **options: object) -> settings:
    """Return the same settings with new random examples in each run."""
    return examples(n, derandomize=False, print_blob=True, **options)

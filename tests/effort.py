"""How much a test tries: a little in `make test`, much more with ANTIPODAL_CAMPAIGN=1.

With that a run also draws its examples anew, and so do some tests always (`fresh_examples`): what
fails is printed with what reproduces it.
"""

import os

from hypothesis import settings

CAMPAIGN = os.environ.get("ANTIPODAL_CAMPAIGN") == "1"


def rounds(few: int, many: int) -> int:
    """Return how often to repeat something."""
    return many if CAMPAIGN else few


def examples(n: int, **options: object) -> settings:
    """Return the settings of a property that holds for any example: n of them, or 20 times n."""
    return settings(max_examples=rounds(n, 20 * n), deadline=None, **options)


def fresh_examples(n: int, **options: object) -> settings:
    """Return the same for a property that is tried on other examples every time."""
    return examples(n, derandomize=False, print_blob=True, **options)

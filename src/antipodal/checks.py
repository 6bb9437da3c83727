"""Checks of arguments that several parts make alike."""

import numpy as np


def check_whole(value: object, name: str, least: int) -> None:
    """Refuse what is not a whole number, or is less than `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number: got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}: got {value}")

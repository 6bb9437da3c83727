"""Hashers by name and settings, as a command line or a table names them."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from antipodal.hashers.base import BaseHasher
from antipodal.hashers.registry import NAMED_SETTINGS, find_hasher, hasher_names


def method_names() -> list[str]:
    """Return every name that `make_hasher` knows."""
    return [*hasher_names(), *NAMED_SETTINGS]


def make_hasher(method: str, n_bits: int, seed: int, settings: Sequence[str] = ()) -> BaseHasher:
    """Make a hasher from its name, with settings NAME=VALUE behind colons or as a list.

    A class from outside that is not registered is named "module:Class", and imported.

    Examples
    --------
    >>> make_hasher("ITQ", 32, seed=0)
    ITQ(n_bits=32, random_state=0)
    >>> make_hasher("DeepLinf:n_stages=4:init=ksvd", 48, seed=1)
    DeepLinf(init='ksvd', n_bits=48, n_stages=4, random_state=1)
    """
    name, *inline = method.split(":")
    if inline and "=" not in inline[0]:
        name = f"{name}:{inline.pop(0)}"
    kind: Callable[..., BaseHasher] | None = NAMED_SETTINGS.get(name) or find_hasher(name)
    if kind is None:
        raise ValueError(
            f"unknown method {name!r}: choose from {', '.join(method_names())}. One of your own is "
            "named module:Class; one that was registered must be in worker processes too, not "
            'under `if __name__ == "__main__"`'
        )
    hasher = kind(n_bits, random_state=seed)
    for setting in (*inline, *settings):
        parameter, equals, text = setting.partition("=")
        if not equals or parameter not in hasher.get_params():
            raise ValueError(
                f"{method}: expected a setting NAME=VALUE with NAME one of "
                f"{', '.join(sorted(hasher.get_params()))}, got {setting!r}"
            )
        hasher.set_params(**{parameter: _value(text)})
    return hasher


def _value(text: str) -> Any:
    """Read a number, true, false or null as JSON has them, and anything else as a word."""
    try:
        return json.loads(text)
    except ValueError:
        return text

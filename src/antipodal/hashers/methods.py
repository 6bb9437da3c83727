"""Hashers by name and settings, as a command line or a table names them."""

import json
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

from antipodal.checks import check_type
from antipodal.hashers.base import BaseHasher
from antipodal.hashers.registry import NAMED_SETTINGS, find_hasher, hasher_names

# What a command asks for by options of their own, and writes down.
_BY_OPTION = {"n_bits": "--bits", "random_state": "--seed, or --seeds"}


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
    if inline and "=" not in inline[0] and name not in method_names():
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
        if parameter in _BY_OPTION:
            option = _BY_OPTION[parameter]
            raise ValueError(f"{method}: {setting!r} is not a setting, use {option}")
        known = sorted(hasher.get_params(deep=False).keys() - _BY_OPTION.keys())
        if not equals or parameter not in known:
            raise ValueError(
                f"{method}: expected a setting NAME=VALUE with NAME one of {', '.join(known)}, "
                f"got {setting!r}"
            )
        value = _value(text)
        check_type(value, parameter, signature(type(hasher)).parameters[parameter].annotation)
        hasher.set_params(**{parameter: value})
    return hasher


_CONSTANTS = {"True": True, "False": False, "None": None}


def _value(text: str) -> Any:
    """Read a number, true, false or null as JSON or Python has them; anything else is a word."""
    try:
        return _CONSTANTS[text] if text in _CONSTANTS else json.loads(text)
    except ValueError:
        return text

"""All hashers by name, those from outside too, and reading any of them from its file.

A hasher from outside becomes known by `register`, by an entry point of an installed package in
the group `antipodal.hashers`, or as "module:Class". A model file says of which class it is, and
is never a reason to import anything that was not installed as a plug-in.
"""

import inspect
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

import numpy as np

import antipodal
from antipodal.errors import AntipodalError, ModelFileError
from antipodal.hashers.agh import AGH
from antipodal.hashers.base import BaseHasher, is_built_in
from antipodal.hashers.bre import BRE
from antipodal.hashers.classifierlsh import ClassifierLSH
from antipodal.hashers.csq import CSQ
from antipodal.hashers.deeplinf import DeepLinf
from antipodal.hashers.itq import ITQ
from antipodal.hashers.ksh import KSH
from antipodal.hashers.ldahash import LDAHash
from antipodal.hashers.linfhash import LinfHash
from antipodal.hashers.lsh import LSH
from antipodal.hashers.nnhash import NNHash
from antipodal.hashers.onehothash import OneHotHash
from antipodal.hashers.orthohash import OrthoHash
from antipodal.hashers.psh import PSH
from antipodal.hashers.sdh import SDH
from antipodal.hashers.signhash import SignHash
from antipodal.hashers.sparsehash import SparseHash
from antipodal.hashers.spectralhash import SpectralHash
from antipodal.storage.modelfile import read_model_file

HASHERS: dict[str, type[BaseHasher]] = {
    kind.__name__: kind
    for kind in (
        DeepLinf,
        NNHash,
        SparseHash,
        OrthoHash,
        CSQ,
        KSH,
        SDH,
        AGH,
        PSH,
        LDAHash,
        BRE,
        LinfHash,
        ITQ,
        SpectralHash,
        LSH,
        SignHash,
        OneHotHash,
        ClassifierLSH,
    )
}


# Names of a table that are settings of a class.
NAMED_SETTINGS: dict[str, Callable[..., BaseHasher]] = {
    "DeepLinf.lookup": DeepLinf.lookup,
    "DeepLinf.paper": DeepLinf.paper,
    "LinfHash.asymmetric": LinfHash.asymmetric,
    "LinfHash.quick": LinfHash.quick,
    "AGH1": partial(AGH, layers=1),
    "AGH2": partial(AGH, layers=2),
}

PLUG_INS = "antipodal.hashers"

_registered: dict[str, type[BaseHasher]] = {}

Hasher = TypeVar("Hasher", bound=type[BaseHasher])


def register(kind: Hasher) -> Hasher:
    """Make `load`, `antipodal fit --method` and `antipodal bench` know a hasher from outside.

    It is known by the name of its class, in this process. Worker processes of a benchmark know it
    too if they import what calls this: it must not stand under ``if __name__ == "__main__"``.

    Parameters
    ----------
    kind : subclass of BaseHasher
        Its constructor takes `n_bits` first, and `random_state`. A class that was defined once
        more, as in a notebook, replaces the one before; any other class of that name is refused.

    Returns
    -------
    The same class, so that this is a decorator too.
    """
    if not (isinstance(kind, type) and issubclass(kind, BaseHasher)):
        raise TypeError(f"register takes a subclass of antipodal.BaseHasher: got {kind!r}")
    name = kind.__name__
    parameters = inspect.signature(kind).parameters
    if next(iter(parameters), None) != "n_bits" or "random_state" not in parameters:
        raise TypeError(
            f"{name} must take n_bits, first, and random_state: it takes "
            f"{', '.join(parameters) or 'nothing'}"
        )
    if HASHERS.get(name) is kind:
        return kind
    if is_built_in(kind):
        raise ValueError(f"{_address(kind)} is no method by itself: register a subclass of it")
    known = NAMED_SETTINGS.get(name) or HASHERS.get(name) or _registered.get(name)
    if known is not None and not (isinstance(known, type) and _address(known) == _address(kind)):
        taken = _address(known) if isinstance(known, type) else "settings of another method"
        raise ValueError(
            f"the name {name} is that of {taken} already: give {_address(kind)} another"
        )
    _registered[name] = kind
    return kind


def find_hasher(name: str) -> type[BaseHasher] | None:
    """Return the hasher of that name: ours, registered, "module:Class", or of a plug-in."""
    if ":" in name:
        return _import_hasher(name)
    return HASHERS.get(name) or _find_own(name)


def hasher_names() -> list[str]:
    """Return the names of all hashers, those of plug-ins without importing them."""
    plug_ins = (point.name for point in entry_points(group=PLUG_INS))
    return list(dict.fromkeys([*HASHERS, *_registered, *plug_ins]))


# What a hasher may raise that is made of things which no `save` wrote.
_UNLIKE = (
    KeyError,
    TypeError,
    ValueError,
    RuntimeError,
    AttributeError,
    IndexError,
    ArithmeticError,
)


def load(path: str | os.PathLike[str]) -> BaseHasher:
    """Read a hasher that `save` wrote; raise `AntipodalError` if the file is not as written.

    A hasher from outside must be known already, by `register` or as a plug-in.
    """
    header, arrays = read_model_file(path, "hasher")
    name = str(header.get("class"))
    kind = _find_own(name) if "module" in header else HASHERS.get(name)
    if kind is None:
        raise ModelFileError(f"{path} holds a {name!r}, which {_how_to_know(name, header)}")
    try:
        hasher = kind(**kind.read_parameters(header["parameters"]))
        for array_name, array in arrays.items():
            # What encoding computes with is float32; float64 are reports of the fit.
            if array.dtype == np.float32 and not np.isfinite(array).all():
                raise ValueError(f"{array_name} must be finite")
        hasher.restore_state({**arrays, **header["fitted"]})
        hasher.check_restored()
    except _UNLIKE as error:
        raise ModelFileError(f"{path} does not describe a {name}: {error}") from error
    return hasher


def _how_to_know(name: str, header: dict[str, Any]) -> str:
    if "module" not in header:
        return (
            f"this antipodal {antipodal.__version__} does not know; it was written by "
            f"{header.get('antipodal')}"
        )
    if header["module"] == "__main__":
        where = "a class of the script that wrote it"
    else:
        where = f"a class of the module {header['module']!r}"
    return (
        f"is {where} and not known here. If you trust that code, import it and call "
        f"antipodal.register({name}) before, or install it with an entry point in the group "
        f"{PLUG_INS!r}"
    )


def _find_own(name: str) -> type[BaseHasher] | None:
    """Return the hasher from outside that is registered, or that a plug-in has."""
    if name not in _registered:
        for point in entry_points(group=PLUG_INS, name=name):
            register(_load_plug_in(point))
    return _registered.get(name)


def _load_plug_in(point: EntryPoint) -> type[BaseHasher]:
    package = point.dist.name if point.dist else "an unknown package"
    try:
        kind = point.load()
    except Exception as error:  # of code that is not ours, at its import
        raise AntipodalError(
            f"the plug-in {point.value} of {package}, which should have the method {point.name}, "
            f"cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, BaseHasher)) or (
        kind.__name__ != point.name
    ):
        raise AntipodalError(
            f"the plug-in {point.value} of {package} must be a subclass of antipodal.BaseHasher "
            f"called {point.name}, as its entry point: got {kind!r}"
        )
    return kind


def _import_hasher(address: str) -> type[BaseHasher]:
    """Import, register and return what "module:Class" names."""
    module, _, name = address.partition(":")
    here = os.getcwd()
    if here not in sys.path:  # where an installed command does not look by itself
        sys.path.append(here)
    try:
        found = import_module(module)
    except Exception as error:  # of code that is not ours
        raise ValueError(
            f"{address}: cannot import {module!r} from here or from what is installed: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not hasattr(found, name):
        raise ValueError(f"{address}: the module {module} has no {name!r}")
    kind: type[BaseHasher] = getattr(found, name)
    return register(kind)


def _address(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"

"""Registry of hashers: lookup by name, custom methods, loading from files.

Built-in hashers register themselves with the decorator `built_in`. A custom hasher is added by
`register`, by an entry point of an installed package in the group `antipodal.hashers`, or by the
name "module:Class". Loading a model file never imports code that is not installed as a plug-in.
"""

import inspect
import json
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np

import antipodal
from antipodal.errors import AntipodalError, ModelFileError
from antipodal.hashers.base import BaseHasher, is_built_in
from antipodal.hashers.network import NetworkHasher
from antipodal.hashers.training import OPTIONS, RENAMED
from antipodal.io.model_file import ModelFile, open_model_file, parse_model_file
from antipodal.validation import check_type

PLUG_INS = "antipodal.hashers"

# Method names in result tables that stand for settings of one class.
ALIASES = {"AGH1": "AGH:layers=1", "AGH2": "AGH:layers=2"}

_built_in: dict[str, type[BaseHasher]] = {}
_registered: dict[str, type[BaseHasher]] = {}

Hasher = TypeVar("Hasher", bound=type[BaseHasher])


def built_in(kind: Hasher) -> Hasher:
    """Register a hasher of this library under its class name."""
    _built_in[kind.__name__] = kind
    return kind


@cache
def built_in_hashers() -> dict[str, type[BaseHasher]]:
    """Return the hashers of this library by name: the recommended ones, then the baselines."""
    for package in ("antipodal.hashers", "antipodal.baselines"):
        for module in pkgutil.iter_modules(import_module(package).__path__):
            import_module(f"{package}.{module.name}")
    recommended = {name for name, kind in _built_in.items() if ".hashers." in kind.__module__}
    return {
        name: _built_in[name] for name in sorted(_built_in, key=lambda n: (n not in recommended, n))
    }


def _find_built_in(name: str) -> type[BaseHasher] | None:
    """Import the module named after a hasher of this library, and no other; return the hasher."""
    for package in ("antipodal.hashers", "antipodal.baselines"):
        module = f"{package}.{name.lower()}"
        if name.isidentifier() and find_spec(module) is not None:
            import_module(module)
    return _built_in.get(name)


def register(kind: Hasher) -> Hasher:
    """Make a custom hasher available to `load`, `antipodal fit --method` and `antipodal bench`.

    The hasher is registered under its class name, in this process. Worker processes of a benchmark
    find it if importing its module calls `register`: the call must not be under
    ``if __name__ == "__main__"``.

    Parameters
    ----------
    kind : subclass of BaseHasher
        Its constructor takes `n_bits` first, and `random_state`. A class that is defined again,
        as in a notebook, replaces the previous one. Any other class of the same name is refused.

    Returns
    -------
    type
        The same class, so that `register` can be used as a decorator.

    Examples
    --------
    ::

        @antipodal.register
        class MedianHash(antipodal.BaseHasher):
            ...
    """
    if not (isinstance(kind, type) and issubclass(kind, BaseHasher)):
        raise TypeError(f"register expects a subclass of antipodal.BaseHasher: got {kind!r}")
    name = kind.__name__
    parameters = inspect.signature(kind).parameters
    if next(iter(parameters), None) != "n_bits" or "random_state" not in parameters:
        raise TypeError(
            f"the constructor of {name} must take n_bits first, and random_state: it takes "
            f"{', '.join(parameters) or 'no parameters'}"
        )
    if built_in_hashers().get(name) is kind:
        return kind
    if is_built_in(kind):
        raise ValueError(f"{_address(kind)} is a base class: register a subclass of it")
    if name in ALIASES:
        raise ValueError(
            f"the name {name} is reserved for {ALIASES[name]}: rename {_address(kind)}"
        )
    known = built_in_hashers().get(name) or _registered.get(name)
    if known is not None and _address(known) != _address(kind):
        raise ValueError(
            f"the name {name} is already registered for {_address(known)}: rename {_address(kind)}"
        )
    _registered[name] = kind
    return kind


def find_hasher(name: str) -> type[BaseHasher] | None:
    """Return the built-in, registered or plug-in hasher of that name, or import "module:Class"."""
    if ":" in name:
        kind: type[BaseHasher] = register(import_object(name))
        return kind
    return built_in_hashers().get(name) or _find_custom(name)


def method_names() -> list[str]:
    """Return every name that `make_hasher` accepts. Plug-ins are listed without importing them."""
    presets = [
        f"{name}.{preset}" for name, kind in built_in_hashers().items() for preset in kind.presets
    ]
    plug_ins = (point.name for point in entry_points(group=PLUG_INS))
    names = [*built_in_hashers(), *_registered, *plug_ins, *presets, *ALIASES]
    return list(dict.fromkeys(names))


def make_hasher(method: str, n_bits: int, seed: int, settings: Sequence[str] = ()) -> BaseHasher:
    """Create a hasher from its name, with settings NAME=VALUE after colons or as a list.

    A preset is named "Class.preset". A custom class that is not registered is named
    "module:Class", and imported.

    Examples
    --------
    >>> make_hasher("ITQ", 32, seed=0)
    ITQ(n_bits=32, random_state=0)
    >>> make_hasher("DeepLinf:n_stages=4:init=ksvd", 48, seed=1)
    DeepLinf(init='ksvd', n_bits=48, n_stages=4, random_state=1)
    """
    name, *inline = method.split(":")
    if name in ALIASES:
        name, *first = ALIASES[name].split(":")
        inline = [*first, *inline]
    if inline and "=" not in inline[0] and name not in method_names():
        name = f"{name}:{inline.pop(0)}"
    create = _constructor(name)
    if create is None:
        raise ValueError(
            f"unknown method {name!r}: expected module:Class or {', '.join(method_names())}. "
            'Worker processes do not see a class registered under `if __name__ == "__main__"`'
        )
    hasher = create(n_bits, random_state=seed)
    for setting in (*inline, *settings):
        _apply_setting(hasher, method, setting)
    return hasher


def _constructor(name: str) -> Callable[..., BaseHasher] | None:
    """Return the class of that name, or the classmethod of a preset."""
    base, dot, preset = name.partition(".")
    if dot and ":" not in name:
        kind = find_hasher(base)
        return getattr(kind, preset) if kind and preset in kind.presets else None
    return find_hasher(name)


# Parameters that are separate options of the commands.
_BY_OPTION = {"n_bits": "--bits", "random_state": "--seed or --seeds"}


def _apply_setting(hasher: BaseHasher, method: str, setting: str) -> None:
    """Set a parameter, or a training option of a network, from NAME=VALUE."""
    name, equals, text = setting.partition("=")
    if name in _BY_OPTION:
        raise ValueError(f"{method}: {setting!r} is set by {_BY_OPTION[name]}")
    signature = inspect.signature(type(hasher)).parameters
    known = {n: p.annotation for n, p in signature.items() if n not in _BY_OPTION}
    options: dict[str, Any] = {}
    if isinstance(hasher, NetworkHasher):
        del known["training"]
        options = {n: kind for n, kind in OPTIONS.items() if n not in known}
        name = name if name in known else RENAMED.get(name, name)
    if not equals or name not in known | options:
        raise ValueError(
            f"{method}: expected a setting NAME=VALUE with NAME one of "
            f"{', '.join(sorted(known | options))}: got {setting!r}"
        )
    value = _parse_value(text)
    check_type(value, name, (known | options)[name])
    hasher.set_params(**{f"training__{name}" if name in options else name: value})


def current_method(method: str) -> str:
    """Return a method name whose settings have the names of this version."""
    name, *settings = method.split(":")
    renamed = (setting.partition("=") for setting in settings)
    return ":".join([name, *(RENAMED.get(n, n) + equals + text for n, equals, text in renamed)])


_CONSTANTS = {"True": True, "False": False, "None": None}


def _parse_value(text: str) -> Any:
    """Parse a number, boolean or null in JSON or Python notation; anything else is a string."""
    try:
        return _CONSTANTS[text] if text in _CONSTANTS else json.loads(text)
    except ValueError:
        return text


# Errors that a hasher may raise when its file was not written by `save`.
_INVALID = (
    KeyError,
    TypeError,
    ValueError,
    RuntimeError,
    AttributeError,
    IndexError,
    ArithmeticError,
)


def load(path: str | os.PathLike[str]) -> BaseHasher:
    """Load a hasher written by `save`.

    Loading runs no code from the file.

    Parameters
    ----------
    path : path
        A model file.

    Returns
    -------
    BaseHasher
        The fitted hasher, which computes the same codes as the saved one. The class of a custom
        hasher must be registered or installed as a plug-in.

    Raises
    ------
    AntipodalError
        The file is damaged or not a model, or its class is unknown.

    Examples
    --------
    >>> import tempfile
    >>> from antipodal import LSH
    >>> X = np.random.default_rng(0).standard_normal((100, 16))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     LSH(32, random_state=0).fit(X).save(f"{folder}/model.antipodal")
    ...     load(f"{folder}/model.antipodal")
    LSH(n_bits=32, random_state=0)
    """
    return load_with_identity(path)[0]


def load_with_identity(path: str | os.PathLike[str]) -> tuple[BaseHasher, str]:
    """Load a hasher, and return it with its `model_identity`.

    The file is read once, so that both belong to the same model even if the file is replaced
    meanwhile.
    """
    found = open_model_file(path, "hasher")
    return _restore(found, path), found.identity


def load_bytes(data: bytes, name: str) -> tuple[BaseHasher, str]:
    """Load a hasher from the bytes of its file; `name` names them in error messages."""
    found = parse_model_file(data, name)
    return _restore(found, name), found.identity


def _restore(found: ModelFile, path: str | os.PathLike[str]) -> BaseHasher:
    found.check_kind(path, "hasher")
    header, arrays = found.header, found.arrays
    name = str(header.get("class"))
    kind = _find_custom(name) if "module" in header else _find_built_in(name)
    if kind is None:
        raise ModelFileError(f"{path} contains a {name!r} hasher, {_unknown_class(name, header)}")
    try:
        hasher = kind(**kind.read_parameters(header["parameters"]))
        for array_name, array in arrays.items():
            # Encoding uses the float32 arrays; float64 arrays only document the fit.
            if array.dtype == np.float32 and not np.isfinite(array).all():
                raise ValueError(f"{array_name} must be finite")
        hasher.restore_state({**arrays, **header["fitted"]})
        hasher.check_restored()
    except _INVALID as error:
        raise ModelFileError(f"{path} is not a valid {name} model: {error}") from error
    return hasher


def _unknown_class(name: str, header: dict[str, Any]) -> str:
    if "module" not in header:
        return (
            f"which antipodal {antipodal.__version__} does not have; the file was written by "
            f"version {header.get('antipodal')}"
        )
    if header["module"] == "__main__":
        where = "the script that wrote it"
    else:
        where = f"the module {header['module']!r}"
    return (
        f"a class of {where} that is not registered. If you trust that code, import it and call "
        f"antipodal.register({name}) first, or install it with an entry point in the group "
        f"{PLUG_INS!r}"
    )


def _find_custom(name: str) -> type[BaseHasher] | None:
    """Return the custom hasher that is registered or provided by a plug-in."""
    if name not in _registered:
        for point in entry_points(group=PLUG_INS, name=name):
            register(_load_plug_in(point))
    return _registered.get(name)


def _load_plug_in(point: EntryPoint) -> type[BaseHasher]:
    package = point.dist.name if point.dist else "an unknown package"
    try:
        kind = point.load()
    except Exception as error:  # third-party code may raise anything at import
        raise AntipodalError(
            f"the plug-in {point.value} of {package} for the method {point.name} cannot be "
            f"imported: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, BaseHasher)) or (
        kind.__name__ != point.name
    ):
        raise AntipodalError(
            f"the plug-in {point.value} of {package} must be a subclass of antipodal.BaseHasher "
            f"named {point.name}, like its entry point: got {kind!r}"
        )
    return kind


def import_object(address: str) -> Any:
    """Import and return "module:name", from the working directory or the installed packages."""
    module, _, name = address.partition(":")
    here = os.getcwd()
    if here not in sys.path:  # an installed command does not search the working directory
        sys.path.append(here)
    try:
        found = import_module(module)
    except Exception as error:  # third-party code may raise anything at import
        raise ValueError(
            f"{address}: cannot import {module!r} from the working directory or the installed "
            f"packages: {type(error).__name__}: {error}"
        ) from error
    if not hasattr(found, name):
        raise ValueError(f"{address}: the module {module} has no {name!r}")
    return getattr(found, name)


def _address(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"

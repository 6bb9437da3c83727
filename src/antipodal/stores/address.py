"""The address of a store: which engine it names, and what may be shown of it."""

from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

_EXAMPLES = (
    "sqlite:///codes.db, postgresql://user@host/database, milvus:///codes.db, "
    "milvus+http://host:19530"
)
_OPTIONS = {
    "sqlite": {"timeout"},
    "postgresql": {"table", "schema"},
    "milvus": {"collection"},
    "milvus+http": {"collection", "token"},
    "milvus+https": {"collection", "token"},
}


class Address(NamedTuple):
    """A URL in its parts: the engine's own address, and our options."""

    scheme: str
    target: str
    options: dict[str, str]
    shown: str  # in messages: without passwords and tokens


def parse_url(url: str) -> Address:
    """Split the URL of a store, or raise ValueError saying what such URLs look like."""
    parts = urlsplit(url)
    scheme = {"postgres": "postgresql"}.get(parts.scheme, parts.scheme)
    if scheme not in _OPTIONS:
        raise ValueError(f"{url!r} does not name a store. Expected one such as {_EXAMPLES}")
    ours: dict[str, str] = {}
    others: list[tuple[str, str]] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in _OPTIONS[scheme]:
            ours[name] = value
        else:
            others.append((name, value))
    if others and scheme != "postgresql":
        raise ValueError(
            f"{others[0][0]!r} is not an option of {scheme} stores: they have "
            f"{', '.join(sorted(_OPTIONS[scheme]))}"
        )
    if scheme in ("sqlite", "milvus"):
        return _file(url, scheme, ours)
    if scheme == "postgresql":
        kept = [part for part in parts.query.split("&") if part.split("=")[0] not in ours]
        shown = f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"
        target = f"postgresql://{parts.netloc}{parts.path}?{'&'.join(kept)}".rstrip("?")
        return Address(scheme, target, ours, shown)
    if not parts.hostname or parts.path not in ("", "/"):
        raise ValueError(f"{url!r} must be {scheme}://host:port, with ?collection=name if need be")
    target = f"{scheme.removeprefix('milvus+')}://{parts.netloc}"
    shown = f"{scheme}://{parts.netloc.rpartition('@')[2]}"
    return Address(scheme, target, ours, shown)


def _file(url: str, scheme: str, options: dict[str, str]) -> Address:
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]  # scheme:///relative, scheme:////absolute
    if parts.netloc or parts.fragment or not path or path == ":memory:" or "\0" in path:
        raise ValueError(
            f"{url!r} must name a file: {scheme}:///beside-the-program.db or "
            f"{scheme}:////absolute/path.db, with %23 for # and %3F for ?"
        )
    return Address(scheme, path, options, path)

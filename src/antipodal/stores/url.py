"""`open_store`: from an address to a store of the engine it names."""

from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from antipodal.checks import check_whole
from antipodal.errors import StoreError
from antipodal.stores.base import Store

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


def open_store(url: str, *, n_bits: int | None = None, model: str | None = None) -> Store:
    """Open a store of codes, or make it if `n_bits` is given and there is none.

    Parameters
    ----------
    url : str
        ``sqlite:///codes.db`` for a file beside the program, ``sqlite:////data/codes.db`` for an
        absolute path; ``postgresql://user@host/database?table=codes``;
        ``milvus:///codes.db`` (Milvus Lite) or ``milvus+http://host:19530?collection=codes``.
    n_bits : int, optional
        Length of the codes. An existing store knows its own, and refuses another.
    model : str, optional
        Identity of the model that makes the codes, such as the SHA-256 of its file. It is kept
        when the store is made; later the store refuses to be opened for another one.

    Returns
    -------
    Store
        With `upsert`, `load`, `delete`, `get`, `search`, `radius`, `count` and `close`.

    Raises
    ------
    StoreError
        The store cannot be reached, is damaged, or keeps codes of another length or model.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open_store(f"sqlite:///{folder}/codes.db", n_bits=8) as store:
    ...         store.upsert([7, 9], np.array([[0], [3]], np.uint8), [{"label": 1}, {"label": 2}])
    ...         store.search(np.array([[1]], np.uint8), 1, where={"label": 2}).ids
    array([[9]])
    """
    if n_bits is not None:
        check_whole(n_bits, "n_bits", 1)
        n_bits = int(n_bits)
    address = parse_url(url)
    # Each engine is imported when it is asked for: two of them are extras.
    if address.scheme == "sqlite":
        from antipodal.stores.sqlite import SqliteStore

        return SqliteStore(address, n_bits=n_bits, model=model)
    if address.scheme == "postgresql":
        _need("psycopg", "postgres")
        from antipodal.stores.postgres import PostgresStore

        return PostgresStore(address, n_bits=n_bits, model=model)
    _need("pymilvus", "milvus")
    from antipodal.stores.milvus import MilvusStore

    return MilvusStore(address, n_bits=n_bits, model=model)


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


def _need(module: str, extra: str) -> None:
    """Say how to install what an engine needs; checked by import, which may itself be broken."""
    try:
        __import__(module)
    except ImportError as error:
        raise StoreError(
            f"this store needs {module}, which cannot be imported ({error}): "
            f"pip install 'antipodal[{extra}]'"
        ) from error

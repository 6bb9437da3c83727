"""`open_store`: the store at a URL."""

from dataclasses import replace

from antipodal.errors import StoreError, missing_extra
from antipodal.stores.base import Store
from antipodal.stores.ids import IdType, check_id_type
from antipodal.stores.url import Address, parse_url
from antipodal.validation import check_whole


def open_store(
    url: str,
    *,
    n_bits: int | None = None,
    model: str | None = None,
    id_type: IdType | None = None,
    read_only: bool = False,
) -> Store:
    """Open a store of codes; create it if it does not exist and `n_bits` is given.

    Parameters
    ----------
    url : str
        ``sqlite:///codes.db`` for a path relative to the working directory,
        ``sqlite:////data/codes.db`` for an absolute path;
        ``postgresql://user@host/database?table=codes``;
        ``milvus:///codes.db`` (Milvus Lite) or ``milvus+http://host:19530?collection=codes``.
    n_bits : int, optional
        Code length in bits. Opening an existing store with another length raises StoreError.
    model : str, optional
        Identity of the model of the codes, such as the SHA-256 of its file. It is stored
        when the store is created; opening the store for another model raises StoreError.
    id_type : "int64" or "string", optional
        Type of the ids of a new store, "int64" by default. Opening an existing store with ids of
        the other type raises StoreError.
    read_only : bool
        Do not create a store and raise StoreError on writes. In SQLite and PostgreSQL the engine
        enforces it as well.

    Returns
    -------
    Store
        Its methods include `add`, `upsert`, `load`, `delete`, `get`, `search`, `radius`, `count`
        and `close`.

    Raises
    ------
    StoreError
        The store cannot be reached, is damaged, or has codes of another length or model.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open_store(f"sqlite:///{folder}/codes.db", n_bits=8) as store:
    ...         codes = np.array([[0], [3]], np.uint8)
    ...         _ = store.upsert([7, 9], codes, [{"label": 1}, {"label": 2}])
    ...         store.search(np.array([[1]], np.uint8), 1, where={"label": 2}).ids
    array([[9]])
    """
    if n_bits is not None:
        check_whole(n_bits, "n_bits", 1)
        n_bits = int(n_bits)
    if id_type is not None:
        check_id_type(id_type)
    return open_address(replace(parse_url(url), read_only=read_only), n_bits, model, id_type)


def open_address(
    address: Address,
    n_bits: int | None = None,
    model: str | None = None,
    id_type: IdType | None = None,
) -> Store:
    """Open the store at a parsed URL."""
    if address.read_only:
        store = _open(address, None, model, id_type)
        store.read_only = True
        if n_bits not in (None, store.n_bits):
            store.close()
            raise StoreError(f"{store.place} has codes of {store.n_bits} bits, expected {n_bits}")
        return store
    return _open(address, n_bits, model, id_type)


def _open(address: Address, n_bits: int | None, model: str | None, id_type: IdType | None) -> Store:
    # Engines are imported lazily: two of them are optional dependencies.
    if address.scheme == "sqlite":
        from antipodal.stores.sqlite import SqliteStore

        return SqliteStore(address, n_bits=n_bits, model=model, id_type=id_type)
    if address.scheme == "postgresql":
        check_installed("psycopg", "postgres")
        from antipodal.stores.postgres import PostgresStore

        return PostgresStore(address, n_bits=n_bits, model=model, id_type=id_type)
    check_installed("pymilvus", "milvus")
    from antipodal.stores.milvus import MilvusStore

    return MilvusStore(address, n_bits=n_bits, model=model, id_type=id_type)


def check_keeps_vectors(address: Address) -> None:
    """Raise StoreError if the engine at an address cannot keep vectors."""
    if address.scheme.startswith("milvus"):
        raise StoreError(f"{address.shown} cannot keep vectors: use SQLite or PostgreSQL")


def check_installed(module: str, extra: str) -> None:
    """Raise StoreError with installation instructions if a module cannot be imported."""
    try:
        __import__(module)
    except ImportError as error:
        raise StoreError(f"{missing_extra('this store', module, extra)} ({error})") from error

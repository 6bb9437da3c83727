"""`open_store`: open the store that a URL names."""

from dataclasses import replace

from antipodal.errors import StoreError, missing_extra
from antipodal.stores.base import Store
from antipodal.stores.url import Address, parse_url
from antipodal.validation import check_whole


def open_store(
    url: str, *, n_bits: int | None = None, model: str | None = None, read_only: bool = False
) -> Store:
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
    read_only : bool
        Only read: no store is made, and what writes is refused, in SQLite and PostgreSQL by the
        engine as well.

    Returns
    -------
    Store
        With `add`, `upsert`, `load`, `delete`, `get`, `search`, `radius`, `count` and `close`.

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
    return open_address(replace(parse_url(url), read_only=read_only), n_bits, model)


def open_address(address: Address, n_bits: int | None = None, model: str | None = None) -> Store:
    """Do the same for an address in its parts."""
    if address.read_only:
        store = _open(address, None, model)
        store.read_only = True
        if n_bits not in (None, store.n_bits):
            store.close()
            raise StoreError(f"{store.place} keeps codes of {store.n_bits} bits, not of {n_bits}")
        return store
    return _open(address, n_bits, model)


def _open(address: Address, n_bits: int | None, model: str | None) -> Store:
    # Each engine is imported when it is asked for: two of them are extras.
    if address.scheme == "sqlite":
        from antipodal.stores.sqlite import SqliteStore

        return SqliteStore(address, n_bits=n_bits, model=model)
    if address.scheme == "postgresql":
        need_module("psycopg", "postgres")
        from antipodal.stores.postgres import PostgresStore

        return PostgresStore(address, n_bits=n_bits, model=model)
    need_module("pymilvus", "milvus")
    from antipodal.stores.milvus import MilvusStore

    return MilvusStore(address, n_bits=n_bits, model=model)


def need_module(module: str, extra: str) -> None:
    """Say how to install what an engine needs; checked by import, which may itself be broken."""
    try:
        __import__(module)
    except ImportError as error:
        raise StoreError(f"{missing_extra('this store', module, extra)} ({error})") from error

"""Durable stores of codes: one contract over SQLite, PostgreSQL and Milvus."""

from antipodal.stores.opening import open_store as open_store
from antipodal.stores.reading import Items as Items
from antipodal.stores.reading import Snapshot as Snapshot
from antipodal.stores.store import Store as Store

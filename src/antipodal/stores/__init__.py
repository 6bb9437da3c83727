"""Durable stores of codes: one contract over SQLite, PostgreSQL and Milvus."""

from antipodal.stores.opening import open_store as open_store
from antipodal.stores.snapshot import Items as Items
from antipodal.stores.snapshot import Snapshot as Snapshot
from antipodal.stores.store import Store as Store

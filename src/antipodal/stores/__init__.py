"""Durable stores of codes: one contract over SQLite, PostgreSQL and Milvus."""

from antipodal.stores.base import Items as Items
from antipodal.stores.base import Store as Store
from antipodal.stores.url import open_store as open_store

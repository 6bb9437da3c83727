"""Collections: a model, the codes of its vectors with ids and metadata, and their search.

`collection` is the interface, `create` fits a model and fills a store, `rows` reads the input in
blocks, `query` has the forms of queries, `settings` is the record in the store, and `drift`
compares new vectors with the first.
"""

from antipodal.collection.collection import Collection

__all__ = ["Collection"]

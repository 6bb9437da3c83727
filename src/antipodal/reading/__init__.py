"""Vectors, labels, ids and metadata from files of many kinds, a block of rows at a time."""

from antipodal.reading.openfile import column_names, open_vectors, read_column
from antipodal.reading.vectorfile import VectorFile

__all__ = ["VectorFile", "column_names", "open_vectors", "read_column"]

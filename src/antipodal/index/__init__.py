"""Exact search by Hamming distance, in memory and in files that are mapped, not read.

`HammingIndex` is the whole interface. Behind it: `items` keeps codes in the order of their ids,
`contents` what has changed since, `merging` makes one answer of both. `scan` compares a query with
all codes (Faiss) and `asymmetric` a query's real values, `tables` looks small radii up and `bands`
knows when, `approximate` holds the engines that may miss, `indexfile` the file format.
"""

from antipodal.index.hamming import HammingIndex
from antipodal.index.rerank import Vectors
from antipodal.index.results import Ball, Neighbours

__all__ = ["Ball", "HammingIndex", "Neighbours", "Vectors"]

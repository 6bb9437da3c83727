"""Exact search of binary codes, in memory or in memory-mapped files.

`HammingIndex` is the interface. `segments` stores codes in the order of their ids, with recent
changes. `scan` compares queries with all codes (Faiss) and `asymmetric` does so for float queries,
with `fastscan` for many codes; `radius_tables` looks up small radii without a scan. `approximate`
has the IVF and HNSW engines, `rerank` reorders candidates, `results` is the result type of all
searches and `index_file` the file format.
"""

from antipodal.index.hamming import HammingIndex
from antipodal.index.rerank import Vectors
from antipodal.index.results import SearchResult

__all__ = ["HammingIndex", "SearchResult", "Vectors"]

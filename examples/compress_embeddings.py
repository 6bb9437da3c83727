"""Compress embeddings 32 times and search them: audit, encode, search with float queries, rerank.

    python examples/compress_embeddings.py

Replace `documents` and `queries` by your own embeddings, one row per item. No labels are needed.
"""

import numpy as np

from antipodal import HammingIndex, LinfHash, Vectors, audit

# 5,000 documents and 200 queries: unit vectors with 96 correlated dimensions.
rng = np.random.default_rng(0)
mixing = rng.standard_normal((96, 96)) * np.linspace(1, 0.1, 96)[:, None]
rows = rng.standard_normal((5200, 96)) @ mixing
rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
documents, queries = rows[:5000], rows[5000:]

# Measure recall@10 of several codes before choosing one. --html of the command writes a report.
methods = ["ITQ", "LinfHash.asymmetric"]
report = audit(documents, bits=(96,), methods=methods, baselines=(), n_queries=200)
for setting in report.settings:
    print(
        f"{setting.method}, {setting.search} search: recall@10 {setting.by_query.mean():.2f}, "
        f"reranked with 4x oversampling {setting.with_floats[4]:.2f}"
    )

# Encode: 96 float32 values become 12 bytes.
hasher = LinfHash.asymmetric(96, random_state=0).fit(documents)
codes = hasher.encode(documents)
print(f"{documents.nbytes:,} bytes of vectors, {codes.nbytes:,} bytes of codes")

# Search. The queries stay floats, so only the documents lose precision.
index = HammingIndex(96)
index.add(codes)
values = hasher.query(queries)
plain = index.search(vectors=values, k=10)

# Rerank: fetch 40 candidates per query and order them by the cosine of the original vectors.
vectors = Vectors(queries, documents, metric="cosine")
reranked = index.search(vectors=values, k=10, rescore=vectors, oversample=4)

# Compare with exact search over the float vectors.
exact = np.argsort(-queries @ documents.T, axis=1)[:, :10]
for name, results in (("codes alone", plain), ("reranked", reranked)):
    shared = [len(np.intersect1d(a, b)) for a, b in zip(results.ids, exact, strict=True)]
    print(f"{name}: recall@10 {np.mean(shared) / 10:.2f}")

"""Store codes with metadata in PostgreSQL and search them with filters.

    pip install '.[postgres]'  # in a clone
    python examples/search_postgres.py 'postgresql://user@host/database?table=digits'

The database needs the pgvector extension. The URL sqlite:///digits.db uses a local file instead.
"""

import sys

from sklearn.datasets import load_digits

from antipodal import ITQ, open_store

if len(sys.argv) != 2:
    sys.exit(__doc__)
X, y = load_digits(return_X_y=True)
hasher = ITQ(32, random_state=0).fit(X)

with open_store(sys.argv[1], n_bits=32) as store:
    # Metadata is any JSON object. The items are durable when upsert returns.
    halves = ["first"] * 900 + ["second"] * 897
    metadata = [{"digit": int(d), "half": half} for d, half in zip(y, halves, strict=True)]
    store.upsert(range(len(X)), hasher.encode(X), metadata)
    print(f"{store.count():,} items, {store.count({'digit': 3})} of them threes")

    # The five nearest items, without and with a filter.
    query = hasher.encode(X[:1])
    for where in None, {"half": "second"}:
        results = store.search(query, k=5, where=where)
        for item in store.get(results.ids[0]).metadata:
            print(f"a {item['digit']} from the {item['half']} half")
        print("distances", results.distances[0].tolist())

    # All items within two bits. Results are exact and the same in every engine.
    near = store.radius(query, 2)
    print(f"{len(near.ids)} items within 2 bits")

    store.delete(near.ids)
    print(f"{store.count():,} items after deleting them")

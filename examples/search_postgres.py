"""Keep codes beside metadata in PostgreSQL, and search them there.

    pip install '.[postgres]'  # in a clone
    python examples/search_postgres.py 'postgresql://user@host/database?table=digits'

The database needs the extension pgvector. With sqlite:///digits.db the same lines run on a file.
"""

import sys

from sklearn.datasets import load_digits

from antipodal import ITQ, open_store

if len(sys.argv) != 2:
    sys.exit(__doc__)
X, y = load_digits(return_X_y=True)
hasher = ITQ(32, random_state=0).fit(X)

with open_store(sys.argv[1], n_bits=32) as store:
    # Metadata is any JSON object. What upsert returns from is durable.
    halves = ["first"] * 900 + ["second"] * 897
    metadata = [{"digit": int(d), "half": half} for d, half in zip(y, halves, strict=True)]
    store.upsert(range(len(X)), hasher.encode(X), metadata)
    print(f"{store.count():,} items, {store.count({'digit': 3})} of them threes")

    # The five nearest, and the five nearest of the second half.
    query = hasher.encode(X[:1])
    for where in None, {"half": "second"}:
        found = store.search(query, k=5, where=where)
        for item in store.get(found.ids[0]).metadata:
            print(f"a {item['digit']} of the {item['half']} half")
        print("distances", found.distances[0].tolist())

    # All within two bits. The answers are exact, and the same on every engine.
    near = store.radius(query, 2)
    print(f"{len(near.ids)} items within 2 bits")

    store.delete(near.ids)
    print(f"{store.count():,} items are left")

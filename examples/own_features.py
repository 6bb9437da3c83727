"""From features and labels to short codes, and what that costs.

    python examples/own_features.py

Put your own arrays in place of the digits: X (rows × features), y (a class per row).
"""

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from antipodal import DeepLinf, HammingIndex, evaluate, load

X, y = load_digits(return_X_y=True)
X_database, X_query, y_database, y_query = train_test_split(X, y, test_size=200, random_state=0)

# Learn. 30 epochs are enough to see something; leave n_epochs out for good codes.
hasher = DeepLinf(32, n_epochs=30, random_state=0).fit(X_database[:500], y_database[:500])

# Encode: a row of 64 floats becomes 4 bytes.
database, query = hasher.encode(X_database), hasher.encode(X_query)
print(f"{X_database.nbytes:,} bytes of features became {database.nbytes:,} bytes of codes")

# Score, on items the hasher has not seen. Everything is in percent.
result = evaluate(query, database, y_query, y_database, n_bits=32)
print(f"mAP {result.map:.1f} (between {result.map_worst:.1f} and {result.map_best:.1f} by ties)")
print(f"a random ranking would have {result.chance:.1f}")

# Search: ids are the order of adding, unless you give your own.
index = HammingIndex(32)
index.add(database)
found = index.search(query[:3], k=5)
for label, ids, distances in zip(y_query, found.ids, found.distances, strict=False):
    print(f"a {label}: nearest are {y_database[ids].tolist()}, {distances.tolist()} bits off")

# Keep the model for later. The file holds no pickle: loading it runs no code of others.
hasher.save("digits.antipodal")
assert (load("digits.antipodal").encode(X_query) == query).all()

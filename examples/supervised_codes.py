"""Learn 32-bit codes from features and labels, score them, search them, save the model.

    python examples/supervised_codes.py

Replace the digits by your own arrays: X (rows × features) and y (one class per row).
"""

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from antipodal import DeepLinf, HammingIndex, Training, evaluate, load

X, y = load_digits(return_X_y=True)
X_database, X_query, y_database, y_query = train_test_split(X, y, test_size=200, random_state=0)

# Train. 30 epochs keep the example short; omit n_epochs for better codes.
hasher = DeepLinf(32, training=Training(n_epochs=30), random_state=0).fit(
    X_database[:500], y_database[:500]
)

# Encode: 64 floats become 4 bytes.
database, query = hasher.encode(X_database), hasher.encode(X_query)
print(f"{X_database.nbytes:,} bytes of features, {database.nbytes:,} bytes of codes")

# Evaluate on queries that were not used for training. All scores are percentages.
result = evaluate(query, database, y_query, y_database, n_bits=32)
print(f"mAP {result.map:.1f} ({result.map_worst:.1f} to {result.map_best:.1f} by tie order)")
print(f"mAP of a random ranking, by chance {result.chance:.1f}")

# Search. Ids are the positions of the rows unless you pass your own.
index = HammingIndex(32)
index.add(database)
results = index.search(query[:3], k=5)
for label, ids, distances in zip(y_query, results.ids, results.distances, strict=False):
    print(f"a {label}: nearest are {y_database[ids].tolist()}, distances {distances.tolist()}")

# Save and load. Model files contain no pickle, so loading one cannot run code.
hasher.save("digits.antipodal")
assert (load("digits.antipodal").encode(X_query) == query).all()

"""Learn codes from pairs of similar and dissimilar items, without class labels.

    python examples/explicit_pairs.py

Such pairs come from clicks, marked duplicates or translations.
"""

import numpy as np
from sklearn.datasets import load_digits

from antipodal import DeepLinf, Training, evaluate

X, y = load_digits(return_X_y=True)
rng = np.random.default_rng(0)

# 4,000 pairs of row numbers. Here the digit labels decide which pairs are similar.
# About half of the pairs should be similar; otherwise training mostly pushes codes apart.
left = rng.integers(0, 1500, 4000)
right = rng.integers(0, 1500, 4000)
for i in range(0, 4000, 2):  # every other pair shows the same digit
    right[i] = rng.choice(np.flatnonzero(y[:1500] == y[left[i]]))
pairs = np.column_stack([left, right])
similar = y[left] == y[right]
print(f"{len(pairs):,} pairs, {similar.mean():.0%} similar")

# Five epochs keep the example short; omit n_epochs for better codes.
hasher = DeepLinf(32, training=Training(n_epochs=5), random_state=0).fit_pairs(
    X[:1500], pairs, similar
)

# Evaluate on rows that occur in no pair.
database, query = hasher.encode(X[:1500]), hasher.encode(X[1500:])
result = evaluate(query, database, y[1500:], y[:1500], n_bits=32)
print(f"mAP {result.map:.1f}, by chance {result.chance:.1f}")

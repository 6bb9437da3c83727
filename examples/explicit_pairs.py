"""Learn from pairs alone: these two belong together, those two do not.

    python examples/explicit_pairs.py

Such pairs come from clicks, from duplicates that somebody marked, or from translations. No item
needs a label.
"""

import numpy as np
from sklearn.datasets import load_digits

from antipodal import DeepLinf, evaluate

X, y = load_digits(return_X_y=True)
rng = np.random.default_rng(0)

# 4,000 pairs of rows, of which somebody said whether they are alike; here their labels say it.
# About half of them should be similar, or the codes learn to be far apart and little else.
left = rng.integers(0, 1500, 4000)
right = rng.integers(0, 1500, 4000)
for i in range(0, 4000, 2):  # every other pair: a partner of the same digit
    right[i] = rng.choice(np.flatnonzero(y[:1500] == y[left[i]]))
pairs = np.column_stack([left, right])
similar = y[left] == y[right]
print(f"{len(pairs):,} pairs, {similar.mean():.0%} of them similar")

# Leave n_epochs out for good codes.
hasher = DeepLinf(32, n_epochs=5, random_state=0).fit_pairs(X[:1500], pairs, similar)

# The last rows were in no pair.
database, query = hasher.encode(X[:1500]), hasher.encode(X[1500:])
result = evaluate(query, database, y[1500:], y[:1500], n_bits=32)
print(f"mAP {result.map:.1f}, by chance {result.chance:.1f}")

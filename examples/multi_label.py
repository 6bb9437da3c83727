"""Several concepts an item: similar are those that share at least one.

    python examples/multi_label.py

The labels are a table of 0 and 1, a row per item, a column per concept.
"""

import numpy as np
from sklearn.datasets import load_digits

from antipodal import KSH, DeepLinf, evaluate

X, y = load_digits(return_X_y=True)

# Three concepts that a digit may have together: it is even, it is prime, it has a closed loop.
concepts = np.column_stack([y % 2 == 0, np.isin(y, [2, 3, 5, 7]), np.isin(y, [0, 6, 8, 9])]).astype(
    int
)
print(f"an item has {concepts.sum(axis=1).mean():.1f} of {concepts.shape[1]} concepts on average")
some = concepts.any(axis=1)  # 1 has none of them: nothing would be relevant to it
X, concepts = X[some], concepts[some]

train, query = slice(0, 1000), slice(1000, None)
for hasher in (
    DeepLinf(32, n_epochs=10, random_state=0),
    KSH(32, n_anchors=100, random_state=0),  # the methods are called alike
):
    hasher.fit(X[train], concepts[train])
    result = evaluate(
        hasher.encode(X[query]),
        hasher.encode(X[train]),
        concepts[query],
        concepts[train],
        n_bits=32,
        top=[10],
    )
    print(
        f"{type(hasher).__name__}: mAP {result.map:.1f}, of the first ten "
        f"{result.at[10].mp:.1f} share a concept, by chance {result.chance:.1f}"
    )

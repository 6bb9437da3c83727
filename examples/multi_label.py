"""Learn codes for items with several labels; items are similar if they share at least one.

    python examples/multi_label.py

The labels are a 0/1 matrix with one row per item and one column per label.
"""

import numpy as np
from sklearn.datasets import load_digits

from antipodal import KSH, DeepLinf, Training, evaluate

X, y = load_digits(return_X_y=True)

# Three overlapping labels of a digit: even, prime, has a closed loop.
columns = [y % 2 == 0, np.isin(y, [2, 3, 5, 7]), np.isin(y, [0, 6, 8, 9])]
labels = np.column_stack(columns).astype(int)
print(f"{labels.sum(axis=1).mean():.1f} of {labels.shape[1]} labels per item on average")
labelled = labels.any(axis=1)  # the digit 1 has no label, so no item would be relevant to it
X, labels = X[labelled], labels[labelled]

train, query = slice(0, 1000), slice(1000, None)
for hasher in (
    DeepLinf(32, training=Training(n_epochs=10), random_state=0),
    KSH(32, n_anchors=100, random_state=0),  # all supervised methods accept such labels
):
    hasher.fit(X[train], labels[train])
    codes = hasher.encode(X[query]), hasher.encode(X[train])
    result = evaluate(*codes, labels[query], labels[train], n_bits=32, top=[10])
    print(
        f"{type(hasher).__name__}: mAP {result.map:.1f}, precision@10 {result.at[10].mp:.1f}, "
        f"by chance {result.chance:.1f}"
    )

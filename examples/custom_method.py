"""Add a custom method and a custom loss, and compare them with ITQ.

    python examples/custom_method.py

From the shell, in this folder:

    antipodal bench digits --train 50 --queries 50 --methods custom_method:MedianHash,ITQ
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from torch.nn.functional import softplus

from antipodal import ITQ, BaseHasher, DeepLinf, Training, evaluate, load, register
from antipodal.hashers.operations import Affine


@register
class MedianHash(BaseHasher):
    """Random projections with medians as thresholds: each bit is set for half of the rows."""

    def __init__(self, n_bits=32, *, random_state=None):
        self.n_bits, self.random_state = n_bits, random_state

    def fit(self, X, y=None):
        """Draw random directions and compute the medians of the projections."""
        rows = self.check_fit(X)
        rng = check_random_state(self.random_state)
        directions = rng.standard_normal((rows.shape[1], self.n_bits))
        self.medians_ = np.median(rows @ directions, axis=0).astype(np.float32)
        self.directions_ = directions.astype(np.float32)
        return self

    def pipeline(self):
        """Return the steps from rows to the values whose signs are the bits."""
        return [Affine(self.directions_, -self.medians_)]


def likelihood(codes, targets):
    """Return the negative log-likelihood of the pairs: the log-odds of similarity are ½zᵀz'."""
    similar, dissimilar = targets > 0, targets < 0
    odds = codes @ codes.T / 2
    pull = (softplus(-odds) * similar).sum() / similar.sum().clamp(min=1)
    return pull + (softplus(odds) * dissimilar).sum() / dissimilar.sum().clamp(min=1)


if __name__ == "__main__":
    X, y = load_digits(return_X_y=True)
    X_database, X_query, y_database, y_query = train_test_split(X, y, test_size=200, random_state=0)
    network = DeepLinf(32, loss=likelihood, training=Training(n_epochs=30), random_state=0)
    for hasher in (MedianHash(32, random_state=0), ITQ(32, random_state=0), network):
        hasher.fit(X_database[:500], y_database[:500])
        codes = hasher.encode(X_query), hasher.encode(X_database)
        result = evaluate(*codes, y_query, y_database, n_bits=32)
        print(f"{type(hasher).__name__}: mAP {result.map:.1f}, by chance {result.chance:.1f}")
        hasher.save("custom.antipodal")
        assert (load("custom.antipodal").encode(X_query) == codes[0]).all()

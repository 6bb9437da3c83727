"""The 8 × 8 digits that come with scikit-learn: a real dataset that needs no file."""

import numpy as np

from antipodal.datasets.dataset import Dataset


def digits() -> Dataset:
    """Return 1,797 handwritten digits: pixels 0 to 16 as features, images scaled to 0 to 255."""
    from sklearn.datasets import load_digits  # here: importing scikit-learn takes its time

    data = load_digits()
    images = np.rint(data.images * (255 / 16)).astype(np.uint8)
    return Dataset("digits", data.data, data.target.astype(np.int64), images)

#!/bin/sh
# From arrays in files to codes, scores and answers, without writing Python.
#
#     sh examples/own_features.sh
#
# It works in the folder where it is started.
set -eu

# Your own arrays, as NumPy files; here the digits that come with scikit-learn.
python - <<'PYTHON'
import numpy as np
from sklearn.datasets import load_digits
X, y = load_digits(return_X_y=True)
np.savez("digits.npz", X=X[200:], y=y[200:], query=X[:200], query_labels=y[:200])
PYTHON

# Learn. --set keeps this short; --method names another one, such as ITQ or KSH.
antipodal fit digits.npz:X --labels digits.npz:y --bits 32 --set n_epochs=10 --set n_anchors=300 \
    --out digits.antipodal

# Encode the database and the queries.
antipodal encode digits.antipodal digits.npz:X --out database.npy
antipodal encode digits.antipodal digits.npz:query --out queries.npy

# Score, and write a report with curves, bit health and examples: one file, for any browser.
antipodal evaluate queries.npy database.npy --bits 32 \
    --query-labels digits.npz:query_labels --database-labels digits.npz:y --html report.html

# Keep the codes in a store, and ask it for the neighbours of the first query. With --model,
# `index` remembers which model made the codes, and `search` takes features in place of codes.
# --replace lets this script be run again: otherwise the codes would be added once more.
antipodal index database.npy --store sqlite:///digits.db --replace
antipodal search queries.npy --store sqlite:///digits.db -k 5 --json | head -n 1

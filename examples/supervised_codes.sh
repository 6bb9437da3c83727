#!/bin/sh
# Train, encode, evaluate and search from the shell. Files are written to the current directory.
#
#     sh examples/supervised_codes.sh
set -eu

# Replace these arrays by your own; other formats are parquet, CSV and JSON Lines.
python - <<'PYTHON'
import numpy as np
from sklearn.datasets import load_digits
X, y = load_digits(return_X_y=True)
np.savez("digits.npz", X=X[200:], y=y[200:], query=X[:200], query_labels=y[:200])
PYTHON

# Train. --set keeps the example short; --method selects another method, such as ITQ or KSH.
antipodal fit digits.npz:X --labels digits.npz:y --bits 32 --set n_epochs=10 --set n_anchors=300 \
    --out digits.antipodal

# Encode the database and the queries.
antipodal encode digits.antipodal digits.npz:X --out database.npy
antipodal encode digits.antipodal digits.npz:query --out queries.npy

# Evaluate, and write a self-contained HTML report.
antipodal evaluate queries.npy database.npy --bits 32 \
    --query-labels digits.npz:query_labels --database-labels digits.npz:y --html report.html

# Store the codes and print the neighbours of the first query. --replace makes the script
# repeatable: without it, a second run would add the codes again.
antipodal index database.npy --store sqlite:///digits.db --replace
antipodal search queries.npy --store sqlite:///digits.db -k 5 --json | head -n 1

"""Train a model, export it, and write rows with their codes for JavaScript to compare.

python examples/onnx/model.py            writes digits.onnx and digits.json here
cd examples/onnx && npm install
node encode.js digits.onnx digits.json
"""

import json

from sklearn.datasets import load_digits

from antipodal import DeepLinf
from antipodal.codes import to_hex

X, y = load_digits(return_X_y=True)
hasher = DeepLinf(n_bits=44, front="hidden", n_epochs=20, random_state=0).fit(X[:500], y[:500])
hasher.to_onnx("digits.onnx", licence="CC BY 4.0")

rows = X[500:]
with open("digits.json", "w") as file:
    json.dump({"rows": rows.tolist(), "codes": to_hex(hasher.encode(rows), 44)}, file)
print(f"digits.onnx, and digits.json with {len(rows)} rows and their codes")

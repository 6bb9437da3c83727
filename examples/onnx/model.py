"""Export a model to ONNX, and write vectors with their codes for encode.js to compare.

cd examples/onnx
python model.py                          # writes digits.onnx and digits.json
npm install
node encode.js digits.onnx digits.json
"""

import json

from sklearn.datasets import load_digits

from antipodal import DeepLinf, Training

X, y = load_digits(return_X_y=True)
hasher = DeepLinf(n_bits=44, training=Training(n_epochs=20), random_state=0).fit(X[:500], y[:500])
hasher.to_onnx("digits.onnx", licence="CC BY 4.0")

rows = X[500:]
codes = [bytes(code).hex() for code in hasher.encode(rows)]
with open("digits.json", "w") as file:
    json.dump({"rows": rows.tolist(), "codes": codes}, file)
print(f"wrote digits.onnx, and digits.json with {len(rows)} vectors and their codes")

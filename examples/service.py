"""Add items to a running service and search them, with httpx or any other HTTP client.

    antipodal serve --model digits.antipodal --store sqlite:///digits.db &
    python examples/service.py http://127.0.0.1:8000 [KEY]

supervised_codes.py writes the model. `antipodal.Client` wraps the same requests in Python methods.
"""

import sys

import httpx
from sklearn.datasets import load_digits

if len(sys.argv) < 2:
    sys.exit(__doc__)
X, y = load_digits(return_X_y=True)
headers = {"Authorization": f"Bearer {sys.argv[2]}"} if len(sys.argv) > 2 else {}

with httpx.Client(base_url=sys.argv[1], headers=headers) as service:
    model = service.get("/v1/model").raise_for_status().json()
    print(f"{model['method']}, {model['n_bits']} bits, {model['n_features']} features")

    # Add items. The service encodes their vectors.
    items = [
        {"id": i, "vector": X[i].tolist(), "metadata": {"label": int(y[i])}} for i in range(1000)
    ]
    stored = service.put("/v1/items", json={"items": items}).raise_for_status().json()
    print(f"{stored['upserted']} items stored")

    # Search by a new vector, among odd digits only.
    body = {"vector": X[1500].tolist(), "k": 3, "where": {"label": {"in": [1, 3, 5, 7, 9]}}}
    answer = service.post("/v1/search", json=body).raise_for_status().json()
    for item in answer["results"]:
        print(f"item {item['id']}, a {item['metadata']['label']}, distance {item['distance']}")

    # Search by a stored item: all other items within three bits of it.
    answer = service.post("/v1/search", json={"id": 7, "radius": 3}).raise_for_status().json()
    print(f"{answer['total']} other items within 3 bits of item 7")

    # Invalid requests are rejected with a message.
    refused = service.post("/v1/search", json={"vector": [1.0, 2.0]})
    print(refused.status_code, refused.json()["detail"])

    service.request("DELETE", "/v1/items", json={"ids": list(range(1000))}).raise_for_status()

"""Encode a folder of parquet files with Ray Data, on this machine or on a cluster.

    pip install '.[ray]'  # in a clone
    python examples/ray_encode.py [ADDRESS]

ADDRESS is that of a running Ray cluster; without it Ray starts on this machine. The command
`antipodal encode digits.antipodal items/:embedding --out codes/ --engine ray` does the same.
"""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import load_digits

from antipodal import ITQ, bulk

if __name__ == "__main__":
    # Three files with an id and a vector per row.
    X, _ = load_digits(return_X_y=True)
    Path("items").mkdir(exist_ok=True)
    for number, start in enumerate(range(0, 1797, 600)):
        rows = X[start : start + 600].astype("float32")
        columns = {"id": range(start, start + len(rows)), "embedding": rows.tolist()}
        pq.write_table(pa.table(columns), f"items/{number}.parquet")

    # Train on one machine; each Ray worker loads the saved model once.
    hasher = ITQ(32, random_state=0).fit(X)
    hasher.save("digits.antipodal")

    # One output file per input file. With resume=True, an interrupted run skips finished files.
    report = bulk.encode(
        "digits.antipodal",
        "items",
        "codes",
        column="embedding",
        columns=["id"],
        engine="ray",
        address=sys.argv[1] if len(sys.argv) > 1 else None,
        resume=True,
    )
    print(f"{report.rows:,} rows in {report.files} files")

    codes = pq.read_table("codes/0.parquet")
    assert codes["code"][0].as_py() == hasher.encode(X[:1]).tobytes()
    print(f"columns {codes.column_names}, {len(codes['code'][0].as_py())} bytes per code")

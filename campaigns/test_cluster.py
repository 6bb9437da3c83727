"""The Spark and Dask examples of the page on scaling, run as they are printed there.

    make campaign                                  # installs the dependency group `cluster`
    python -m pytest campaigns/test_cluster.py     # needs pyspark, dask and Java

They are not in the ordinary suite, so that a missing package is a failure and not a skipped test.
"""

import re
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from antipodal import ITQ, bulk

PAGE = Path(__file__).parent.parent / "docs" / "guide" / "scaling.md"


def example(word):
    """Return the code block of the page that contains the word."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [block] = [block for block in blocks if word in block]
    return block


@pytest.fixture
def items(tmp_path, monkeypatch):
    """Write the files that the examples read; return the expected code of each id."""
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).standard_normal((500, 16)).astype(np.float32)
    hasher = ITQ(16, random_state=0).fit(rows)
    hasher.save("model.antipodal")
    Path("items").mkdir()
    Path("coded").mkdir()
    for number, ids in enumerate(np.array_split(np.arange(500), 3)):
        vectors = pa.array(rows[ids].tolist(), pa.list_(pa.float32()))
        table = pa.table({"id": ids, "embedding": vectors, "title": ["x"] * len(ids)})
        pq.write_table(table, f"items/{number}.parquet")
    return dict(enumerate(map(bytes, hasher.encode(rows))))


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_spark_example_encodes_every_row(items, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    try:
        names = {"BatchEncoder": bulk.BatchEncoder, "spark": spark}
        exec(example("mapInArrow"), names)
        assert {row.id: bytes(row.code) for row in names["coded"].collect()} == items
    finally:
        spark.stop()


def test_dask_example_encodes_every_file(items):
    names = {"BatchEncoder": bulk.BatchEncoder, "names": sorted(map(str, Path("items").iterdir()))}
    exec(example("from dask"), names)
    made = pa.dataset.dataset("coded").to_table()
    assert made.column_names == ["id", "code"]
    assert dict(zip(*(made[name].to_pylist() for name in made.column_names), strict=True)) == items

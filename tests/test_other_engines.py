"""The examples for Spark and Dask on the page about scale, run where these are installed."""

import re
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from antipodal import ITQ
from antipodal.bulk import BatchEncoder

PAGE = Path(__file__).parent.parent / "docs" / "guide" / "scaling.md"


def example(word):
    """Return the block of the page that has the word in it."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [block] = [block for block in blocks if word in block]
    return block


@pytest.fixture
def items(tmp_path, monkeypatch):
    """Make the files that the examples name, and return the codes that each id should get."""
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
def test_the_example_of_spark_encodes_every_row(items, monkeypatch):
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    from pyspark.sql import SparkSession

    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    try:
        names = {"BatchEncoder": BatchEncoder, "spark": spark}
        exec(example("mapInArrow"), names)
        assert {row.id: bytes(row.code) for row in names["coded"].collect()} == items
    finally:
        spark.stop()


def test_the_example_of_dask_encodes_every_file(items):
    pytest.importorskip("dask", reason="dask is not installed")
    names = {"BatchEncoder": BatchEncoder, "names": sorted(map(str, Path("items").iterdir()))}
    exec(example("from dask"), names)
    made = pa.dataset.dataset("coded").to_table()
    assert made.column_names == ["id", "code"]
    assert dict(zip(*(made[name].to_pylist() for name in made.column_names), strict=True)) == items

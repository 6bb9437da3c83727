"""The Ray example, and `BatchEncoder` in a pipeline of Ray Data.

    python -m pytest campaigns/test_ray.py     # needs ray

`tests/test_bulk.py` tests `encode --engine ray` with a killed worker.
"""

import runpy
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from antipodal import LSH, bulk
from antipodal.bulk.run import connected

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray uses its own deprecated settings
EXAMPLE = Path(__file__).parent.parent / "examples" / "ray_encode.py"


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with connected(None):
        yield


def test_ray_example_encodes_every_row(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert "1,797 rows in 3 files" in printed
    assert "columns ['id', 'code'], 4 bytes per code" in printed


def test_ray_data_encodes_every_row(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).standard_normal((700, 12)).astype(np.float32)
    hasher = LSH(20, random_state=0).fit(rows)
    hasher.save("model.antipodal")
    Path("in").mkdir()
    for number, ids in enumerate(np.array_split(np.arange(700), 3)):
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows[ids].ravel()), 12)
        pq.write_table(pa.table({"id": ids, "v": vectors}), f"in/{number}.parquet")
    encoded = ray.data.read_parquet(str(tmp_path / "in")).map_batches(
        bulk.BatchEncoder,
        fn_constructor_args=(str(tmp_path / "model.antipodal"),),
        fn_constructor_kwargs={"column": "v", "columns": ["id"]},
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=1),
        num_cpus=0.5,
    )
    codes = {row["id"]: row["code"] for row in encoded.iter_rows()}
    assert codes == dict(enumerate(map(bytes, hasher.encode(rows))))

"""Files, filters and addresses changed in their structure: the short form of a campaign."""

import pytest

from fuzz import TARGETS, fuzz
from fuzz_antipodal_files import Model

SIZES = {"where": 2000, "urls": 2000, "keys": 1000, "store": 80, "checkpoint": 80, "parquet": 60}


@pytest.mark.parametrize("kind", TARGETS)
def test_mutated_files_are_refused_or_usable(kind, tmp_path):
    # One model for each kind of state: fitting all of them takes a while.
    target = Model(tmp_path, ("LSH", "AGH", "DeepLinf")) if kind == "model" else None
    found = fuzz(kind, SIZES.get(kind, 300), seed=0, target=target, seconds=60)
    assert not found["failures"]
    assert found["refused"] > 20
    assert found["used"] > 2

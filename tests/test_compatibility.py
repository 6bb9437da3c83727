"""Files written by earlier versions: models, indexes and stores still open and answer the same."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from antipodal import HammingIndex, load, open_store

FOLDER = Path(__file__).parent / "data" / "0.6.1"
EXPECTED = np.load(FOLDER / "expected.npz")
ROWS = np.load(FOLDER / "rows.npy")
MODELS = sorted(FOLDER.glob("*.antipodal"))


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_a_model_encodes_as_it_did(path, tmp_path):
    hasher = load(path)
    np.testing.assert_array_equal(hasher.encode(ROWS), EXPECTED[f"{path.stem}.codes"])
    query = EXPECTED[f"{path.stem}.query"]
    np.testing.assert_allclose(hasher.query(ROWS), query, atol=1e-4 * np.abs(query).max())
    hasher.save(tmp_path / "again")
    np.testing.assert_array_equal(load(tmp_path / "again").encode(ROWS), hasher.encode(ROWS))


@pytest.mark.parametrize("version", ["0.12.0", "0.13.0", "0.14.0"])
def test_an_asymmetric_model_of_an_earlier_version_encodes_as_it_did(version, tmp_path):
    """0.12 had corrections of scores, 0.13 neighbourhoods, and 0.14 near rows in each level."""
    folder = FOLDER.parent / version
    expected = np.load(folder / "expected.npz")
    rows, n = expected["rows"].astype(float), len(expected["query"])
    hasher = load(folder / "LinfHash.asymmetric.antipodal")
    hasher.save(tmp_path / "again")
    for model in (hasher, load(tmp_path / "again")):
        np.testing.assert_array_equal(model.encode(rows), expected["codes"])
        np.testing.assert_allclose(model.query(rows[:n]), expected["query"], atol=1e-6)
        np.testing.assert_allclose(model.score_offset(rows[:n]), expected["offset"], atol=1e-6)
        rebuilt = model.reconstruct(expected["codes"][:n])
        np.testing.assert_allclose(rebuilt, expected["rebuilt"], atol=1e-6)
    np.testing.assert_array_equal(hasher.prefix(64).encode(rows), expected["codes"][:, :8])


def test_every_kind_of_file_is_tested():
    assert len(MODELS) == 24


def test_an_index_returns_the_same_neighbours():
    index = HammingIndex.load(FOLDER / "codes.index")
    found = index.search(EXPECTED["LSH.codes"][:5], k=4)
    np.testing.assert_array_equal(found.ids, EXPECTED["index.ids"])
    np.testing.assert_array_equal(found.distances, EXPECTED["index.distances"])


def test_an_index_with_tables_returns_the_same_items_within_a_radius():
    index = HammingIndex.load(FOLDER / "tables.index")
    found = index.radius(np.load(FOLDER / "wide.npy")[:5], 1)
    np.testing.assert_array_equal(found.ids, EXPECTED["radius.ids"])
    np.testing.assert_array_equal(found.offsets, EXPECTED["radius.offsets"])


@pytest.mark.parametrize("name", ["items.db", "items.backup"])
def test_a_store_and_its_backup_return_the_same_neighbours(name, tmp_path):
    shutil.copy(FOLDER / name, tmp_path / "items.db")
    with open_store(f"sqlite:///{tmp_path}/items.db") as store:
        assert store.count() == len(ROWS)
        found = store.search(EXPECTED["LSH.codes"][:5], k=4, where={"class": 1})
    np.testing.assert_array_equal(found.ids, EXPECTED["store.ids"])
    np.testing.assert_array_equal(found.distances, EXPECTED["store.distances"])

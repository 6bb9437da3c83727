"""Reading arrays: what is there comes back, what is damaged is named."""

import numpy as np
import pytest

from antipodal import AntipodalError
from antipodal.storage.arrays import read_array, write_codes

ROWS = np.arange(12.0).reshape(4, 3)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", ROWS)
    np.savez("some.npz", X=ROWS, y=np.arange(4))
    np.savez_compressed("small.npz", X=ROWS)
    return tmp_path


def test_npy_files_are_mapped_and_npz_arrays_are_named(folder):
    assert isinstance(read_array("x.npy"), np.memmap)
    for source in ("x.npy", "some.npz:X", "small.npz:X"):
        np.testing.assert_array_equal(read_array(source), ROWS)
    with pytest.raises(AntipodalError, match=r"several arrays \(X, y\).*some.npz:X"):
        read_array("some.npz")


@pytest.mark.parametrize("file", ["x.npy", "some.npz", "small.npz"])
def test_truncated_files_are_named(folder, file):
    data = (folder / file).read_bytes()
    for length in range(0, len(data) - 1, 5):
        (folder / file).write_bytes(data[:length])
        with pytest.raises(AntipodalError, match=f"cannot read {file}"):
            read_array(file if file == "x.npy" else f"{file}:X")


def test_objects_are_not_unpickled(folder):
    np.save("o.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(AntipodalError, match=r"cannot read o.npy"):
        read_array("o.npy")


def test_codes_are_written_as_they_come_or_not_at_all(folder):
    codes = np.arange(20, dtype=np.uint8).reshape(10, 2)
    write_codes("c.npy", [codes[:3], codes[3:]], 10, 2)
    np.testing.assert_array_equal(np.load("c.npy"), codes)

    def fails():
        yield codes[:3]
        raise ValueError("row 4")

    with pytest.raises(ValueError, match="row 4"):
        write_codes("c.npy", fails(), 10, 2)
    np.testing.assert_array_equal(np.load("c.npy"), codes)
    assert not list(folder.glob(".*"))

"""Reading arrays: what is there comes back, what is damaged is named."""

import os
import threading
from pathlib import Path

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
    np.testing.assert_array_equal(read_array("small.npz"), ROWS)  # the only one needs no name
    with pytest.raises(AntipodalError, match=r"several arrays \(X, y\).*some.npz:X"):
        read_array("some.npz")
    with pytest.raises(AntipodalError, match=r"some.npz has no array 'Z': it holds X, y"):
        read_array("some.npz:Z")


@pytest.mark.parametrize("file", ["x.npy", "some.npz", "small.npz"])
def test_truncated_files_are_named(folder, file):
    data = (folder / file).read_bytes()
    for length in range(0, len(data) - 1, 5):
        (folder / file).write_bytes(data[:length])
        with pytest.raises(AntipodalError, match=f"cannot read {file}"):
            read_array(file if file == "x.npy" else f"{file}:X")


def test_objects_are_not_unpickled(folder):
    objects = np.array([{}], object)
    np.save("o.npy", objects, allow_pickle=True)
    np.savez("o.npz", X=objects)
    for source in ("o.npy", "o.npz", "o.npz:X"):
        with pytest.raises(AntipodalError, match=r"cannot read o.np[yz]: it holds Python objects"):
            read_array(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.npy", "nowhere.npy: No such file or directory. Expected an array, as FILE.npy"),
        ("nowhere.npz", "nowhere.npz: No such file or directory. Expected an .npz file"),
        ("nowhere.npz:X", "nowhere.npz: No such file or directory. Expected an .npz file"),
        ("folder", "folder: Is a directory"),
        ("x.npz.d", "x.npz.d: Is a directory"),
        ("folder.npz:X", "folder.npz: Is a directory"),
        ("empty.npy", "empty.npy: it is empty"),
        ("empty.npz:X", "empty.npz: it is empty"),
        ("text.npy", "text.npy: not a NumPy file"),
        ("text.npz", "text.npz: not a NumPy file"),
        ("short.npy", "short.npy: it is truncated or damaged"),
        ("zip.npy", "zip.npy: it is a zip file: if it holds arrays, its name must end in .npz"),
        ("plain.npz:X", "plain.npz: it holds a single array"),
        ("none.npz", "none.npz holds no array"),
    ],
)
def test_what_is_not_an_array_is_named_and_says_what_was_expected(folder, source, message):
    for name in ("folder", "x.npz.d", "folder.npz"):
        (folder / name).mkdir()
    for name in ("empty.npy", "empty.npz"):
        (folder / name).touch()
    for name in ("text.npy", "text.npz"):
        (folder / name).write_text("1,2,3")
    (folder / "short.npy").write_bytes((folder / "x.npy").read_bytes()[:-1])
    (folder / "zip.npy").write_bytes((folder / "some.npz").read_bytes())
    (folder / "plain.npz").write_bytes((folder / "x.npy").read_bytes())
    np.savez("none.npz")
    with pytest.raises(AntipodalError) as raised:
        read_array(source)
    assert message in str(raised.value)


def test_a_named_pipe_is_read_whole(folder):
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_bytes(Path("x.npy").read_bytes()))
    writer.start()
    np.testing.assert_array_equal(read_array("pipe"), ROWS)
    writer.join()


def test_an_array_without_rows_is_read(folder):
    np.save("none.npy", ROWS[:0])
    assert read_array("none.npy").shape == (0, 3)


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

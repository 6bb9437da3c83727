"""Reading and writing NumPy files, and errors that name damaged ones."""

import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest

from antipodal import AntipodalError
from antipodal.io.numpy_files import read_array, write_codes

ROWS = np.arange(12.0).reshape(4, 3)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", ROWS)
    np.savez("some.npz", X=ROWS, y=np.arange(4))
    np.savez_compressed("small.npz", X=ROWS)
    return tmp_path


def test_npy_files_are_memory_mapped_and_npz_arrays_chosen_by_name(folder):
    assert isinstance(read_array("x.npy"), np.memmap)
    for source in ("x.npy", "some.npz:X", "small.npz:X"):
        np.testing.assert_array_equal(read_array(source), ROWS)
    np.testing.assert_array_equal(read_array("small.npz"), ROWS)  # a single array needs no name
    with pytest.raises(AntipodalError, match=r"\bX, y\b.*some\.npz:X"):
        read_array("some.npz")
    with pytest.raises(AntipodalError, match=r"some\.npz.*'Z'.*\bX, y\b"):
        read_array("some.npz:Z")


@pytest.mark.parametrize("file", ["x.npy", "some.npz", "small.npz"])
def test_truncated_files_are_named(folder, file):
    data = (folder / file).read_bytes()
    for length in range(0, len(data) - 1, 5):
        (folder / file).write_bytes(data[:length])
        with pytest.raises(AntipodalError, match=re.escape(file)):
            read_array(file if file == "x.npy" else f"{file}:X")


def test_objects_are_not_unpickled(folder):
    objects = np.array([{}], object)
    np.save("o.npy", objects, allow_pickle=True)
    np.savez("o.npz", X=objects)
    for source in ("o.npy", "o.npz", "o.npz:X"):
        with pytest.raises(AntipodalError, match=r"\bo\.np[yz]\b.*\bpickle\b"):
            read_array(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.npy", r"nowhere\.npy.*No such file.*\.npy"),
        ("nowhere.npz", r"nowhere\.npz.*No such file.*\.npz"),
        ("nowhere.npz:X", r"nowhere\.npz.*No such file.*\.npz"),
        ("folder", r"\bfolder\b.*directory"),
        ("x.npz.d", r"x\.npz\.d\b.*directory"),
        ("folder.npz:X", r"folder\.npz.*directory"),
        ("empty.npy", r"empty\.npy.*\bempty\b"),
        ("empty.npz:X", r"empty\.npz.*\bempty\b"),
        ("text.npy", r"text\.npy.*NumPy"),
        ("text.npz", r"text\.npz.*NumPy"),
        ("short.npy", r"short\.npy.*truncated"),
        ("zip.npy", r"zip\.npy.*\bzip\b.*\.npz"),
        ("plain.npz:X", r"plain\.npz.*\.npy"),
        ("none.npz", r"none\.npz\b"),
    ],
)
def test_errors_name_the_file_and_the_expected_format(folder, source, message):
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
    assert re.search(message, str(raised.value))


def test_a_named_pipe_is_read(folder):
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_bytes(Path("x.npy").read_bytes()))
    writer.start()
    np.testing.assert_array_equal(read_array("pipe"), ROWS)
    writer.join()


def test_an_array_without_rows_is_read(folder):
    np.save("none.npy", ROWS[:0])
    assert read_array("none.npy").shape == (0, 3)


def test_codes_are_written_atomically_in_blocks(folder):
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

"""The feature cache: correct features despite damaged files, full disks and races."""

import errno
import hashlib
import os
import struct
import warnings
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from antipodal.datasets import Dataset, arrays, idx
from antipodal.features import gist
from antipodal.io.model_file import read_model_file, write_model_file
from processes import processes

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 16, 20, 3), dtype=np.uint8)
SMALL = {"orientations": (4, 2), "grid": 2}
EXPECTED = gist(IMAGES, **SMALL)


@pytest.fixture
def data(tmp_path):
    return Dataset("d", None, np.arange(6), IMAGES, tmp_path)


@pytest.fixture
def calls(monkeypatch):
    """Record the number of images of each call of gist, except those for a single image."""
    seen = []

    def counted(images, **options):
        if len(images) > 1:
            seen.append(len(images))
        return gist(images, **options)

    monkeypatch.setattr(import_module("antipodal.datasets.dataset"), "gist", counted)
    return seen


def files(directory):
    return sorted((directory / ".antipodal").iterdir())


def assert_stored(path, header):
    found, content = read_model_file(path, "features")
    assert found == header
    np.testing.assert_allclose(content["features"], EXPECTED, atol=1e-6)


def test_features_are_computed_once_and_equal_gist(data, calls):
    for _ in range(3):
        described = data.with_gist(**SMALL)
        assert described.features.dtype == np.float32
        np.testing.assert_allclose(described.features, EXPECTED, atol=1e-6)
        assert described.images is IMAGES
        assert (described.name, described.directory) == (data.name, data.directory)
    assert calls == [6]
    assert data.features is None
    (file,) = files(data.directory)
    assert file.name.startswith("gist-")
    assert len(file.name) == len("gist-0123456789abcdef.antipodal")
    header, _ = read_model_file(file, "features")
    assert header["images"] == hashlib.sha256(b"[6, 16, 20, 3]" + IMAGES.tobytes()).hexdigest()


def test_without_a_cache_or_a_directory_nothing_is_written(data, calls):
    elsewhere = replace(data, directory=None)
    for described in (data.with_gist(**SMALL, cache=False), elsewhere.with_gist(**SMALL)):
        np.testing.assert_allclose(described.features, EXPECTED, atol=1e-6)
    assert not list(data.directory.iterdir())


OTHERS = [
    {"orientations": (2, 4), "grid": 2},
    {"orientations": (4, 2), "grid": 3},
    {"orientations": (4, 2), "grid": 2, "colour": True},
    {"orientations": (4, 2), "grid": 2, "border": 3},
    {},
]


def test_every_parameter_has_its_own_file(data, calls):
    for number, options in enumerate([SMALL, *OTHERS]):
        for _ in range(2):
            expected = gist(IMAGES, **options)
            np.testing.assert_allclose(data.with_gist(**options).features, expected, atol=1e-6)
        assert len(calls) == len(files(data.directory)) == number + 1


def test_equal_parameters_share_a_file_whatever_their_type(data, calls):
    data.with_gist(**SMALL)
    data.with_gist(orientations=np.array([4, 2]), grid=np.int64(2), colour=False, border=None)
    replace(data, images=np.asfortranarray(IMAGES)).with_gist(orientations=[4, 2], grid=2)
    assert calls == [6]


@pytest.mark.parametrize(
    "other",
    [
        np.where(np.arange(6)[:, None, None, None] == 5, IMAGES ^ 1, IMAGES),
        IMAGES[::-1],
        IMAGES.reshape(6, 20, 16, 3),
        IMAGES[..., 0],
    ],
)
def test_other_images_have_other_files(data, calls, other):
    data.with_gist(**SMALL)
    described = replace(data, images=other).with_gist(**SMALL)
    np.testing.assert_allclose(described.features, gist(other, **SMALL), atol=1e-6)
    assert len(calls) == len(files(data.directory)) == 2


def test_a_new_definition_of_gist_never_reads_an_old_file(data, calls, monkeypatch):
    data.with_gist(**SMALL)
    monkeypatch.setattr(import_module("antipodal.datasets.dataset"), "_DEFINITION", 2)
    data.with_gist(**SMALL)
    assert calls == [6, 6]


def test_the_definition_of_gist_is_unchanged():
    """If this fails because GIST was changed on purpose, increase `_DEFINITION` in dataset.py."""
    ramp = np.arange(2 * 8 * 8, dtype=np.uint8).reshape(2, 8, 8) * 2
    values = gist(ramp, orientations=(2, 1), grid=1)
    pinned = [[0.05723, 0.10543, 0.11140], [0.01070, 0.01912, 0.02464]]
    np.testing.assert_allclose(values, pinned, atol=1e-4)
    assert import_module("antipodal.datasets.dataset")._DEFINITION == 1


def test_a_damaged_or_foreign_file_is_computed_again_and_replaced(data, calls):
    data.with_gist(**SMALL)
    (path,) = files(data.directory)
    good = path.read_bytes()
    header, stored = read_model_file(path, "features")
    flipped = bytearray(good)
    flipped[-3] ^= 1
    for bad in (b"", b"text", good[:-1], good[: len(good) // 2], good + b"\0", bytes(flipped)):
        path.write_bytes(bad)
        np.testing.assert_allclose(data.with_gist(**SMALL).features, EXPECTED, atol=1e-6)
        assert_stored(path, header)
    features = stored["features"]
    for kind, head, content in [
        ("hasher", header, stored),
        ("features", {}, stored),
        ("features", {**header, "grid": 3}, stored),
        ("features", {**header, "images": "0" * 64}, stored),
        ("features", header, {"other": features}),
        ("features", header, {"features": features[:5]}),
        ("features", header, {"features": features[:, :5]}),
        ("features", header, {"features": features.astype(np.float64)}),
        ("features", header, {"features": features + 0.1}),
        ("features", header, {"features": np.full_like(features, np.nan)}),
    ]:
        write_model_file(path, kind, head, content)
        np.testing.assert_allclose(data.with_gist(**SMALL).features, EXPECTED, atol=1e-6)
        assert_stored(path, header)
    assert len(calls) == 17
    assert files(data.directory) == [path]


def test_a_folder_that_cannot_be_written_is_a_warning(data):
    (data.directory / ".antipodal").write_text("in the way")
    with pytest.warns(UserWarning, match=r"/\.antipodal\b") as seen:
        described = data.with_gist(**SMALL)
    np.testing.assert_allclose(described.features, EXPECTED, atol=1e-6)
    assert str(data.directory) in str(seen[0].message)
    assert seen[0].filename == __file__
    with pytest.warns(UserWarning, match=r"/gone\b"):
        replace(data, directory=data.directory / "gone").with_gist(**SMALL)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_a_warning(data):
    data.directory.chmod(0o500)
    with pytest.warns(UserWarning, match="Permission denied"):
        described = data.with_gist(**SMALL)
    np.testing.assert_allclose(described.features, EXPECTED, atol=1e-6)


def test_a_full_disk_leaves_no_partial_file(data, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.warns(UserWarning, match="No space left"):
            described = data.with_gist(**SMALL)
    np.testing.assert_allclose(described.features, EXPECTED, atol=1e-6)
    assert files(data.directory) == []
    data.with_gist(**SMALL)
    assert len(files(data.directory)) == 1


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"orientations": "42"}, TypeError, r"\borientations\b"),
        ({"orientations": 8}, TypeError, r"\borientations\b"),
        ({"orientations": (4, 2.0)}, TypeError, r"\borientations\b.*\b2\.0\b"),
        ({"grid": 2.0}, TypeError, r"\bgrid\b.*\b2\.0\b"),
        ({"grid": 17}, ValueError, r"\b17 × 17\b.*\b16 × 20\b"),
        ({"border": -1}, ValueError, r"\bborder\b.*\b0\b.*-1\b"),
    ],
)
def test_invalid_parameters_are_refused_with_and_without_a_file(data, options, error, message):
    data.with_gist(**SMALL)
    for cache in (True, False):
        with pytest.raises(error, match=message):
            data.with_gist(**{**SMALL, **options}, cache=cache)
    assert len(files(data.directory)) == 1


def test_a_dataset_without_images_is_refused():
    with pytest.raises(ValueError, match=r"\bGIST\b.*'mine'"):
        Dataset("mine", np.ones((3, 2)), np.arange(3)).with_gist()


def use_and_delete(directory, ready):
    """Request the features repeatedly, and remove the file every time."""
    data = Dataset("d", None, np.arange(6), IMAGES, directory)
    ready.wait(600)
    for _ in range(20):
        np.testing.assert_allclose(data.with_gist(**SMALL).features, EXPECTED, atol=1e-6)
        for file in files(data.directory):
            if not file.name.startswith("."):  # being written by the other
                file.unlink(missing_ok=True)


def use_and_delete_strictly(directory, ready):
    warnings.simplefilter("error")
    use_and_delete(directory, ready)


def test_concurrent_processes_do_not_interfere(data):
    ready = processes.Barrier(2)
    other = processes.Process(target=use_and_delete_strictly, args=(data.directory, ready))
    other.start()
    use_and_delete(data.directory, ready)
    other.join()
    assert other.exitcode == 0


def test_loaders_set_the_directory(tmp_path):
    np.savez(tmp_path / "mine.npz", X=np.ones((3, 2)), y=[0, 1, 2])
    assert arrays(tmp_path / "mine.npz").directory == tmp_path
    for part in ("train", "t10k"):
        images = struct.pack(">4B3I", 0, 0, 8, 3, 1, 8, 8) + bytes(range(64))
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(images)
        labels = struct.pack(">4BIB", 0, 0, 8, 1, 1, 7)
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(labels)
    data = idx(tmp_path)
    assert data.directory == tmp_path
    assert data.with_gist().features.shape == (2, 384)
    assert len(files(tmp_path)) == 1

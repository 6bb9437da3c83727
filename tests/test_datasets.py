"""Datasets: official layouts, damaged files, and reproducible splits."""

import gzip
import hashlib
import os
import pickle
import struct
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from importlib import import_module

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from antipodal import AntipodalError, gist
from antipodal.datasets import Dataset, Split, arrays, cifar10, digits, idx, nus_wide

seeds = st.integers(0, 2**64)
RNG = np.random.default_rng(0)
CONCEPTS = np.random.PCG64(1).random_raw((400, 6)) % 100 < [5, 30, 10, 20, 1, 15]
MULTI = Dataset("multi", None, CONCEPTS)
SMALL = {"n_query": 10, "n_concepts": 4, "n_pairs": 500}


def digest(split):
    parts = [split.train, split.query, split.database, split.pairs, split.similar, split.concepts]
    data = b"".join(p.astype("<i8").tobytes() for p in parts if p is not None)
    return hashlib.sha256(data).hexdigest()[:16]


# ---- protocols


@given(seed=seeds, n_train=st.integers(1, 30), n_query=st.integers(1, 20), n=st.integers(2, 7))
def test_the_paper_protocol_draws_its_counts_from_every_class(seed, n_train, n_query, n):
    labels = np.random.default_rng(n).permutation(np.repeat(np.arange(n) * 3 - 1, 50))
    split = Dataset("d", None, labels).split("paper", seed, n_train=n_train, n_query=n_query)
    assert set(Counter(labels[split.train]).values()) == {n_train}
    assert set(Counter(labels[split.query]).values()) == {n_query}
    assert len(np.unique(labels[split.train])) == len(np.unique(labels[split.query])) == n
    assert not set(split.train) & set(split.query)
    assert set(split.train) <= set(split.database)
    assert sorted([*split.query, *split.database]) == list(range(len(labels)))


def test_the_paper_protocol_has_the_counts_of_the_paper_by_default():
    labels = np.repeat(np.arange(10), 310)
    split = Dataset("d", None, labels).split("paper", 3)
    assert (len(split.train), len(split.query), len(split.database)) == (2000, 1000, 2100)


def test_the_paper_protocol_may_use_up_a_class():
    split = Dataset("d", None, np.repeat([0, 1], 5)).split("paper", 0, n_train=3, n_query=2)
    np.testing.assert_array_equal(split.train, split.database)


@given(seed=seeds, n=st.integers(3, 23))
def test_the_unseen_protocol_queries_and_searches_only_classes_not_trained_on(seed, n):
    labels = np.tile(np.arange(n), 12)
    split = Dataset("d", None, labels).split("unseen", seed, n_train=12, n_query=4)
    seen, queried = set(labels[split.train]), set(labels[split.query])
    assert len(seen) == int(0.7 * n + 1e-9)
    assert seen | queried == set(range(n))
    assert not seen & queried
    assert set(Counter(labels[split.train]).values()) == {12}
    assert set(Counter(labels[split.query]).values()) == {4}
    expected = set(np.flatnonzero(np.isin(labels, list(queried)))) - set(split.query)
    assert set(split.database) == expected


def test_every_class_is_unseen_under_some_seed():
    data = digits()
    left_out = [set(data.labels[data.split("unseen", s, n_train=9).query]) for s in range(30)]
    assert {len(classes) for classes in left_out} == {3}
    assert set.union(*left_out) == set(range(10))


@given(seed=seeds, n_train=st.none() | st.integers(40, 90))
def test_the_multilabel_protocol_keeps_the_most_frequent_concepts(seed, n_train):
    split = MULTI.split("paper", seed, n_train=n_train, **SMALL)
    assert split.concepts.tolist() == [1, 2, 3, 5]
    kept = set(np.flatnonzero(CONCEPTS[:, [1, 2, 3, 5]].any(axis=1)))
    assert len(split.query) == 40
    assert (CONCEPTS[split.query][:, split.concepts].sum(axis=0) >= 10).all()
    assert set(split.database) == kept - set(split.query)
    if n_train is None:
        np.testing.assert_array_equal(split.train, split.database)
    else:
        assert len(split.train) == n_train
        assert set(split.train) <= set(split.database)


@given(seed=seeds, n_pairs=st.integers(1, 60))
def test_half_of_the_training_pairs_are_similar(seed, n_pairs):
    split = MULTI.split("paper", seed, n_query=5, n_concepts=3, n_pairs=n_pairs)
    assert split.pairs.shape == (n_pairs, 2)
    assert split.similar.sum() == n_pairs // 2
    rows = split.train[split.pairs]
    for (i, j), similar in zip(rows.tolist(), split.similar.tolist(), strict=True):
        assert i != j
        assert any(CONCEPTS[i, c] and CONCEPTS[j, c] for c in split.concepts) == similar


def test_every_pair_can_be_drawn():
    labels = np.array([[1, 0], [1, 0], [1, 1], [0, 1], [0, 1], [0, 1], [1, 0]], bool)
    split = Dataset("d", None, labels).split("paper", 0, n_query=1, n_concepts=2, n_pairs=2000)
    drawn = {(i, j, s) for (i, j), s in zip(split.pairs.tolist(), split.similar, strict=True)}
    local = labels[split.train]
    n = len(local)
    every = {(i, j, (local[i] & local[j]).any()) for i in range(n) for j in range(n) if i != j}
    assert drawn == every


def test_equally_frequent_concepts_are_chosen_in_order():
    labels = np.tile(np.eye(5, dtype=bool), (4, 1))
    split = Dataset("d", None, labels).split("paper", 0, n_query=1, n_concepts=3, n_pairs=0)
    assert split.concepts.tolist() == [0, 1, 2]
    assert split.pairs is None
    assert split.similar is None


def test_the_defaults_of_the_multilabel_protocol_are_those_of_nus_wide():
    labels = np.random.default_rng(2).random((4000, 30)) < 0.07
    split = Dataset("d", None, labels).split("paper", 0)
    assert (len(split.concepts), len(split.query), len(split.pairs)) == (21, 2100, 100_000)
    assert split.similar.mean() == 0.5


@given(seed=st.integers(0, 10**6))
def test_splits_are_determined_by_the_seed(seed):
    data = digits_once()
    for dataset, protocol, counts in [
        (data, "paper", {"n_train": 20, "n_query": 10}),
        (data, "unseen", {"n_train": 20, "n_query": 10}),
        (MULTI, "paper", SMALL),
    ]:
        first = digest(dataset.split(protocol, seed, **counts))
        assert digest(dataset.split(protocol, seed, **counts)) == first
        assert digest(dataset.split(protocol, seed + 1, **counts)) != first


_DIGITS = []


def digits_once():
    if not _DIGITS:
        _DIGITS.append(digits())
    return _DIGITS[0]


def test_splits_never_change_silently():
    """A changed digest means that published results are no longer reproducible."""
    data = replace(digits_once(), features=None)
    assert digest(data.split("paper", 7, n_train=50, n_query=20)) == "ba813d2c51414ca4"
    assert digest(data.split("unseen", 7, n_train=50, n_query=20)) == "ea41895308270cd0"
    assert digest(MULTI.split("paper", 7, n_train=100, **SMALL)) == "13b27eb87e3ea79b"


def test_queries_do_not_depend_on_the_training_size_and_training_sets_nest():
    data = digits_once()
    small = data.split("paper", 1, n_train=10, n_query=20)
    large = data.split("paper", 1, n_train=60, n_query=20)
    np.testing.assert_array_equal(small.query, large.query)
    assert set(small.train) < set(large.train)


def test_splits_do_not_depend_on_features():
    data = digits_once()
    other = Dataset("another name", np.zeros((len(data), 2)), data.labels)
    assert digest(data.split("unseen", 1, n_train=9)) == digest(other.split("unseen", 1, n_train=9))


TWO = Dataset("two", None, np.repeat([4, 9], 6))


@pytest.mark.parametrize(
    ("dataset", "protocol", "options", "message"),
    [
        (TWO, "paper", {}, r"\bclass 4\b.*\b6\b.*\b300\b"),
        (TWO, "paper", {"n_train": 5, "n_query": 2}, r"\bclass 4\b.*\b6\b.*\b7\b.*\b5\b.*\b2\b"),
        (TWO, "unseen", {}, r"\b3 classes\b.*\b2\b"),
        (TWO, "training", {}, r"\bprotocol\b.*'paper'.*'unseen'.*'training'"),
        (TWO, "paper", {"n_train": 0}, r"\bn_train\b.*\b1\b.*\b0\b"),
        (TWO, "paper", {"n_query": 0}, r"\bn_query\b.*\b1\b.*\b0\b"),
        (TWO, "paper", {"seed": -1}, r"\bseed\b.*\b0\b.*-1\b"),
        (digits(), "unseen", {}, r"\bclass \d\b.*\b200\b.*\bn_train\b"),
        (digits(), "unseen", {"n_train": 5, "n_query": 183}, r"\bclass \d\b.*\b183\b.*\b1\b"),
        (MULTI, "paper", {}, r"\b21\b.*\b6\b.*\bn_concepts\b"),
        (MULTI, "paper", {"n_concepts": 6}, r"\bconcept 4\b"),
        (MULTI, "paper", {"n_concepts": 3, "n_train": 999, "n_query": 5}, r"\bn_train\b.*\b999\b"),
        (MULTI, "unseen", {}, r"\bunseen\b.*\blabel\b"),
    ],
)
def test_impossible_splits_are_refused(dataset, protocol, options, message):
    with pytest.raises(ValueError, match=message):
        dataset.split(protocol, **{"seed": 0, **options})


def test_impossible_pairs_are_refused():
    alone = np.eye(2, dtype=bool).repeat(2, axis=0)
    with pytest.raises(ValueError, match=r"\bsimilar pairs\b"):
        Dataset("d", None, alone).split("paper", 0, n_query=1, n_concepts=2)
    everywhere = np.ones((30, 2), bool)
    with pytest.raises(ValueError, match=r"\bdissimilar pairs\b"):
        Dataset("d", None, everywhere).split("paper", 0, n_query=1, n_concepts=2, n_pairs=9)


# ---- saved splits


@pytest.mark.parametrize(
    "split",
    [
        TWO.split("paper", 0, n_train=2, n_query=2),
        MULTI.split("paper", 0, **SMALL),
        MULTI.split("paper", 0, **{**SMALL, "n_pairs": 0}),
    ],
)
def test_a_saved_split_is_restored(tmp_path, split):
    split.save(tmp_path / "s.npz")
    back = Split.load(tmp_path / "s.npz", n_rows=400)
    for name in ("train", "query", "database", "pairs", "similar", "concepts"):
        ours, theirs = getattr(split, name), getattr(back, name)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)
    split.save(tmp_path / "again.npz")
    assert (tmp_path / "s.npz").read_bytes() == (tmp_path / "again.npz").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["again.npz", "s.npz"]


GOOD = {"train": [0, 1, 5], "query": [2, 3], "database": [0, 1, 4]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": [1, 2]}, r"\bquery\b.*\btrain\b.*\brow 1\b"),
        ({"query": [3, 4]}, r"\bquery\b.*\bdatabase\b.*\brow 4\b"),
        ({"train": [-1, 1]}, r"\btrain\b.*\b0\b.*-1\b"),
        ({"train": [1, 0]}, r"\btrain\b.*\bascending\b"),
        ({"train": [1, 1]}, r"\btrain\b.*\bascending\b"),
        ({"train": [1.0, 5.0]}, r"\btrain\b.*\bint64\b"),
        ({"train": [[0, 1]]}, r"\btrain\b.*\(1, 2\)"),
        ({"query": np.empty(0, int)}, r"\bquery\b.*\bempty\b"),
        ({"train": [0, 10]}, r"\brow 10\b.*\b10 rows\b"),
        ({"pairs": [[0, 1]]}, r"\bpairs\b.*\bsimilar\b"),
        ({"pairs": [[0, 3]], "similar": [True]}, r"\bpairs\b.*\b2\b.*\b3\b"),
        ({"pairs": [[0, -1]], "similar": [True]}, r"\bpairs\b.*-1\b"),
        ({"pairs": [[1, 1]], "similar": [True]}, r"\bpairs\b.*\brows\b"),
        ({"pairs": [[0, 1]], "similar": [1]}, r"\bsimilar\b.*\bbool\b.*\bint64\b"),
        ({"pairs": [[0, 1]], "similar": [True, False]}, r"\bsimilar\b.*\(1,\).*\(2,\)"),
        ({"pairs": [0, 1], "similar": [True, True]}, r"\bpairs\b.*\(P, 2\)"),
        ({"concepts": [3, 1]}, r"\bconcepts\b.*\bascending\b"),
        ({"more": [1]}, r"\bdatabase, more, query, train\b"),
    ],
)
def test_an_invalid_split_is_refused(tmp_path, change, message):
    np.savez(tmp_path / "s.npz", **{**GOOD, **change})
    with pytest.raises(AntipodalError, match=message) as caught:
        Split.load(tmp_path / "s.npz", n_rows=10)
    assert "s.npz" in str(caught.value)


def test_a_file_without_a_split_is_refused(tmp_path):
    path = tmp_path / "s.npz"
    with pytest.raises(AntipodalError, match=r"\bs\.npz\b.*No such file"):
        Split.load(path)
    np.savez(path, train=[1])
    with pytest.raises(AntipodalError, match=r"\bs\.npz\b.*\bquery\b.*\bdatabase\b"):
        Split.load(path)
    np.savez(path, **GOOD)
    data = path.read_bytes()
    for damaged in (b"", b"text", data[:-30], data[: len(data) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(AntipodalError, match=r"\bs\.npz\b.*\.npz\b.*\barrays\b"):
            Split.load(path)
    np.savez(path, **{**GOOD, "train": np.array([Trap("x")], object)})
    with pytest.raises(AntipodalError, match=r"\bs\.npz\b.*\bpickle\b"):
        Split.load(path)


# ---- Dataset


@pytest.mark.parametrize(
    ("features", "labels", "images", "message"),
    [
        (np.ones((3, 2)), np.arange(4), None, r"\b3 features\b.*\b4 labels\b"),
        (None, np.arange(4), np.ones((3, 2, 2), np.uint8), r"\b3 images\b.*\b4 labels\b"),
        (np.ones(4), np.arange(4), None, r"\bfeatures\b.*\(4,\)"),
        (np.full((4, 1), "a"), np.arange(4), None, r"\bfeatures\b.*<U1"),
        (None, np.ones(4), None, r"\blabels\b.*\bfloat64\b"),
        (None, np.ones((4, 2), int), None, r"\blabels\b.*\bint64\b.*\(4, 2\)"),
        (None, np.empty(0, int), None, r"\blabels?\b.*\(0,\)"),
        (None, np.arange(4), np.ones((4, 2, 2)), r"\bimages\b.*\buint8\b.*\bfloat64\b"),
        (None, np.arange(4), np.ones((4, 2, 2, 4), np.uint8), r"\bimages\b.*\(4, 2, 2, 4\)"),
    ],
)
def test_an_inconsistent_dataset_is_refused(features, labels, images, message):
    with pytest.raises(ValueError, match=message):
        Dataset("d", features, labels, images)


def test_digits_are_those_of_scikit_learn():
    data = digits_once()
    assert data.features.shape == (1797, 64)
    assert len(data) == 1797
    assert data.images.shape == (1797, 8, 8)
    assert data.images.max() == 255
    np.testing.assert_allclose(data.images.reshape(1797, 64) / 255, data.features / 16, atol=0.002)
    assert Counter(data.labels.tolist())[0] == 178


def test_the_environment_variable_sets_the_data_directory(tmp_path, monkeypatch):
    monkeypatch.delenv("ANTIPODAL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for load in (cifar10, nus_wide, idx):
        with pytest.raises(AntipodalError, match="ANTIPODAL_DATA"):
            load()
        with pytest.raises(AntipodalError, match=r"/absent\b.*\bdirectory\b"):
            load(tmp_path / "absent")
    monkeypatch.setenv("ANTIPODAL_DATA", str(tmp_path / "gone"))
    with pytest.raises(AntipodalError, match=r"/gone\b.*\bANTIPODAL_DATA\b.*\bdirectory\b"):
        cifar10()
    write_idx(tmp_path)
    monkeypatch.setenv("ANTIPODAL_DATA", str(tmp_path))
    assert len(idx()) == 5


# ---- CIFAR-10

BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
CIFAR_LABELS = RNG.integers(0, 10, (6, 2))
CIFAR_PIXELS = RNG.integers(0, 256, (6, 2, 3072), dtype=np.uint8)


class Trap:
    """An object that creates a file when unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.fixture
def _two_images_a_batch(monkeypatch):
    monkeypatch.setattr(import_module("antipodal.datasets.cifar10"), "_PER_BATCH", 2)


def write_binary(folder):
    folder.mkdir()
    (folder / "batches.meta.txt").write_text("airplane\n")
    for name, labels, pixels in zip(BATCHES, CIFAR_LABELS, CIFAR_PIXELS, strict=True):
        records = np.column_stack([labels.astype(np.uint8), pixels])
        (folder / f"{name}.bin").write_bytes(records.tobytes())


def python2_batch(labels, pixels):
    """Return a batch as pickled by Python 2: strings are bytes, protocol 2."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    def name(module, item):
        return b"c" + module + b"\n" + item + b"\n"

    array = (
        name(b"numpy.core.multiarray", b"_reconstruct")
        + (name(b"numpy", b"ndarray") + b"K\x00\x85" + text(b"b") + b"\x87R(K\x01")
        + (b"K" + bytes([len(pixels)]) + b"M\x00\x0c\x86")
        + (name(b"numpy", b"dtype") + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|"))
        + (b"NNN" + b"J\xff\xff\xff\xff" * 2 + b"K\x00tb\x89")
        + (b"T" + struct.pack("<i", pixels.size) + pixels.tobytes() + b"tb")
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    names = b"](" + text(b"a_s_000001.png") + text(b"b_s_000002.png") + b"e"
    return (
        (b"\x80\x02}(" + text(b"batch_label") + text(b"training batch 1 of 5"))
        + (text(b"data") + array + text(b"labels") + numbers + text(b"filenames") + names)
        + b"u."
    )


def write_python(folder, dump):
    folder.mkdir()
    for name, labels, pixels in zip(BATCHES, CIFAR_LABELS, CIFAR_PIXELS, strict=True):
        (folder / name).write_bytes(dump(labels.tolist(), pixels))


def python3_batch(labels, pixels):
    return pickle.dumps({b"labels": labels, b"data": pixels}, protocol=2)


def by_column(labels, pixels):
    return python3_batch(labels, np.asfortranarray(pixels))


@pytest.mark.usefixtures("_two_images_a_batch")
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("layout", [None, python2_batch, python3_batch, by_column])
def test_cifar10_is_read_in_order_with_channels_last(tmp_path, layout, inside):
    folder = tmp_path / ("cifar-10-batches-py" if layout else "cifar-10-batches-bin")
    if layout:
        write_python(folder, layout)
    else:
        write_binary(folder)
    data = cifar10(folder if inside else tmp_path)
    assert data.features is None
    assert data.images.dtype == np.uint8
    assert data.images.shape == (12, 32, 32, 3)
    np.testing.assert_array_equal(data.labels, CIFAR_LABELS.reshape(-1))
    pixels = CIFAR_PIXELS.reshape(12, 3072)
    for image, y, x, channel in [(0, 0, 0, 0), (3, 31, 2, 1), (11, 5, 30, 2)]:
        assert data.images[image, y, x, channel] == pixels[image, channel * 1024 + y * 32 + x]


@pytest.mark.usefixtures("_two_images_a_batch")
def test_a_damaged_binary_batch_is_named(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    with pytest.raises(AntipodalError, match=r"\bCIFAR-10\b.*\bhttps://"):
        cifar10(tmp_path)
    write_binary(folder)
    path = folder / "data_batch_3.bin"
    good = path.read_bytes()
    for bad in (good[:-1], good + b"\0", b""):
        path.write_bytes(bad)
        with pytest.raises(
            AntipodalError, match=r"\bdata_batch_3\.bin\b.*\b6,146 bytes\b.*\bhttps://"
        ):
            cifar10(tmp_path)
    path.write_bytes(b"\x0a" + good[1:])
    with pytest.raises(
        AntipodalError, match=r"\bdata_batch_3\.bin\b.*\blabels\b.*\b0\b.*\b9\b.*\b10\b"
    ):
        cifar10(tmp_path)
    path.unlink()
    with pytest.raises(AntipodalError, match=r"\bdata_batch_3\.bin\b.*No such file.*\bhttps://"):
        cifar10(tmp_path)


def test_an_official_batch_has_30_730_000_bytes(tmp_path):
    write_binary(tmp_path / "b")
    with pytest.raises(AntipodalError, match=r"\b30,730,000 bytes\b.*\b6,146\b"):
        cifar10(tmp_path / "b")


@pytest.mark.usefixtures("_two_images_a_batch")
def test_a_pickle_with_code_is_refused_and_not_executed(tmp_path):
    folder, trace = tmp_path / "cifar-10-batches-py", tmp_path / "trace"
    write_python(folder, python2_batch)
    trap = Trap(trace)
    data = {b"data": CIFAR_PIXELS[0], b"labels": [1, 2]}
    crafted = [
        pickle.dumps(trap, protocol=2),
        *(pickle.dumps({**data, b"filenames": trap}, protocol=p) for p in (0, 1, 2, 4)),
        b"cos\nsystem\n(S'touch " + os.fsencode(trace) + b"'\ntR.",
        b"c_codecs\ndecode\n.",
        b"cnumpy\nload\n.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.dumps\x93.",
    ]
    forbidden = "(open|system|decode|load|eval|dumps)"  # the functions in the pickles
    for content in crafted:
        (folder / "test_batch").write_bytes(content)
        with pytest.raises(AntipodalError, match=rf"\btest_batch\b.*\b{forbidden}\b"):
            cifar10(tmp_path)
    assert not trace.exists()


@pytest.mark.usefixtures("_two_images_a_batch")
def test_a_pickle_of_other_data_is_refused(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    write_python(folder, python2_batch)
    good = (folder / "test_batch").read_bytes()
    pixels = CIFAR_PIXELS[0]
    others = [
        {b"data": pixels.tolist(), b"labels": [1, 2]},
        {b"data": pixels.astype(np.int16), b"labels": [1, 2]},
        {b"data": pixels[:1], b"labels": [1, 2]},
        {b"data": pixels, b"labels": [1]},
        {b"data": pixels, b"labels": [1, 2.0]},
        {b"data": pixels, b"labels": [1, 10]},
        {b"data": pixels, b"labels": [1, 10**30]},
        {b"data": pixels},
        [1, 2],
    ]
    contents = [pickle.dumps(other, protocol=2) for other in others]
    contents += [good[:-9], good[:100], b"", b"c_codecs\nencode\n(S'a'\nS'zip'\ntR."]
    contents += [b"cnumpy\nndarray\n)\x81.", b"P1\n.", b"r\xff\xff\xff\xff."]
    for content in contents:
        (folder / "test_batch").write_bytes(content)
        with pytest.raises(AntipodalError, match="test_batch"):
            cifar10(tmp_path)
    (folder / "test_batch").unlink()
    with pytest.raises(AntipodalError, match=r"\btest_batch\b.*No such file"):
        cifar10(tmp_path)


@pytest.mark.usefixtures("_two_images_a_batch")
def test_a_pickle_with_flipped_bytes_raises_antipodal_error_only(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    write_python(folder, python2_batch)
    good = (folder / "test_batch").read_bytes()
    rng = np.random.default_rng(3)
    ends = np.r_[0:190, len(good) - 60 : len(good)]  # everything but the pixels
    for place in rng.choice(ends, 150):
        damaged = bytearray(good)
        damaged[place] ^= rng.integers(1, 256)
        (folder / "test_batch").write_bytes(damaged)
        with suppress(AntipodalError):
            assert len(cifar10(tmp_path)) == 12  # a flipped byte in a file name is harmless


# ---- NUS-WIDE

WORDS = RNG.integers(0, 3, (7, 500)).astype(np.uint16)
WORDS[2, 5] = 65535
NUS_LABELS = RNG.random((7, 3)) < 0.5
NUS_CONCEPTS = ["zebra", "airport", "sun_set"]  # not in alphabetical order


@pytest.fixture
def nus(tmp_path):
    """Write a small directory with Windows line ends, surrounding blanks and blank lines."""
    for folder in ("Low_Level_Features", "ConceptsList", "Groundtruth/AllLabels"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "ConceptsList/Concepts81.txt").write_bytes(b"zebra\r\nairport\r\nsun_set \r\n\r\n")
    for concept, column in zip(NUS_CONCEPTS, NUS_LABELS.T, strict=True):
        text = "".join(f"{int(value)}\n" for value in column)
        (tmp_path / f"Groundtruth/AllLabels/Labels_{concept}.txt").write_text(text)
    (tmp_path / "Groundtruth/AllLabels/Labels_zebra.txt").write_bytes(
        b"".join(b"%d \r\n" % value for value in NUS_LABELS[:, 0]) + b"\r\n"
    )
    (tmp_path / "Groundtruth/AllLabels/.DS_Store").write_text("rubbish")
    rows = [" ".join(map(str, row)) for row in WORDS]
    text = f"\n{rows[0]} \n{rows[1]}  \r\n  {rows[2]}\t\n \r\n\n" + "\n".join(rows[3:])
    (tmp_path / "Low_Level_Features/BoW_int.dat").write_bytes(text.encode())
    return tmp_path


@pytest.mark.parametrize("block", [1, 7, 1000, 1001, 2500, 4_000_000])
def test_nus_wide_is_read_despite_blanks_and_in_blocks(nus, monkeypatch, block):
    monkeypatch.setattr(import_module("antipodal.datasets.nus_wide"), "_BLOCK", block)
    data = nus_wide(nus)
    assert data.features.dtype == np.uint16
    np.testing.assert_array_equal(data.features, WORDS)
    assert data.labels.dtype == bool
    np.testing.assert_array_equal(data.labels, NUS_LABELS)


BOW = "Low_Level_Features/BoW_int.dat"
SUN = "Groundtruth/AllLabels/Labels_sun_set.txt"
LISTED = "ConceptsList/Concepts81.txt"


@pytest.mark.parametrize("block", [1, 4_000_000])
@pytest.mark.parametrize(
    ("file", "line", "text", "message"),
    [
        (BOW, 3, b"1 2 3", r"BoW_int\.dat\b.*\bline 4\b.*\b500\b.*\b3\b"),
        (BOW, 3, b"1 " * 501, r"BoW_int\.dat\b.*\bline 4\b.*\b500\b.*\b501\b"),
        (BOW, 3, b"1 " * 499 + b"65536", r"BoW_int\.dat\b.*\bline 4\b.*\b65535\b.*\b65536\b"),
        (BOW, 7, b"1 " * 499 + b"9" * 30, r"BoW_int\.dat\b.*\bline 8\b.*\b65535\b"),
        (BOW, 3, b"1 " * 499 + b"-1", r"BoW_int\.dat\b.*\bline 4\b.*\bdigits\b"),
        (BOW, 3, b"1 " * 499 + b"1.5", r"BoW_int\.dat\b.*\bline 4\b.*\bdigits\b"),
        (BOW, 3, b"1 " * 499 + b"\0", r"BoW_int\.dat\b.*\bline 4\b.*\bdigits\b"),
        (BOW, 3, b"", r"BoW_int\.dat\b.*\b6 rows\b.*\b7\b"),
        (BOW, 4, b"1 " * 500, r"BoW_int\.dat\b.*\b8 rows\b.*\b7\b"),
        (SUN, 2, b"2", r"Labels_sun_set\.txt\b.*\bline 3\b.*\b1\b.*\b2\b"),
        (SUN, 2, b"0 1", r"Labels_sun_set\.txt\b.*\bline 3\b.*\b1 number\b.*\b2\b"),
        (SUN, 2, b"yes", r"Labels_sun_set\.txt\b.*\bline 3\b.*\bdigits\b"),
        (SUN, 2, b"", r"Labels_sun_set\.txt\b.*\b6 rows\b.*Labels_zebra\.txt\b.*\b7\b"),
        (LISTED, 1, b"", r"\b2 concepts\b.*\b3\b.*\bLabels_airport\.txt\b"),
        (LISTED, 1, b"port", r"\bLabels_airport\.txt, Labels_port\.txt\b"),
        (LISTED, 3, b"zebra", r"\b4 concepts\b"),
        (LISTED, 1, b"\xff", r"\bConcepts81\.txt\b"),
    ],
)
def test_invalid_lines_of_nus_wide_are_named(nus, monkeypatch, block, file, line, text, message):
    monkeypatch.setattr(import_module("antipodal.datasets.nus_wide"), "_BLOCK", block)
    lines = (nus / file).read_bytes().split(b"\n")
    lines[line] = text
    (nus / file).write_bytes(b"\n".join(lines))
    with pytest.raises(AntipodalError, match=message):
        nus_wide(nus)


@pytest.mark.parametrize("file", [BOW, SUN, LISTED])
def test_missing_or_empty_files_of_nus_wide_are_named(nus, file):
    (nus / file).write_bytes(b"\n")
    with pytest.raises(AntipodalError, match=r"\b0 rows\b|\b0 concepts\b"):
        nus_wide(nus)
    (nus / file).unlink()
    with pytest.raises(AntipodalError, match=os.path.basename(file)):
        nus_wide(nus)


# ---- IDX

IDX_IMAGES = RNG.integers(0, 256, (5, 4, 3), dtype=np.uint8)
IDX_LABELS = np.array([3, 0, 9, 9, 1], np.uint8)


def idx_bytes(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder, compress=False):
    for part, rows in (("train", slice(0, 3)), ("t10k", slice(3, 5))):
        for kind, array in (("images-idx3", IDX_IMAGES), ("labels-idx1", IDX_LABELS)):
            data = idx_bytes(array[rows])
            name = f"{part}-{kind}-ubyte"
            if compress:
                (folder / f"{name}.gz").write_bytes(gzip.compress(data))
            else:
                (folder / name).write_bytes(data)


@pytest.mark.parametrize("compress", [True, False])
def test_idx_files_are_read_training_rows_first(tmp_path, compress):
    folder = tmp_path / "fashion"
    folder.mkdir()
    write_idx(folder, compress)
    data = idx(folder)
    assert data.name == "fashion"
    np.testing.assert_array_equal(data.images, IDX_IMAGES)
    np.testing.assert_array_equal(data.features, IDX_IMAGES.reshape(5, 12))
    np.testing.assert_array_equal(data.labels, IDX_LABELS)
    assert data.labels.dtype == np.int64


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("train-images-idx3-ubyte", idx_bytes(IDX_IMAGES[:3])[:-1], r"\b36\b.*\b35\b"),
        (
            "train-images-idx3-ubyte",
            idx_bytes(IDX_IMAGES[:3]) + b"0",
            r"\btrain-images-idx3-ubyte\b.*\b36\b",
        ),
        (
            "train-images-idx3-ubyte",
            idx_bytes(IDX_IMAGES[:2]),
            r"\btrain\b.*\b2 images\b.*\b3 labels\b",
        ),
        ("train-images-idx3-ubyte", idx_bytes(IDX_LABELS), r"\b00 00 08 03\b.*\b08 01\b"),
        ("t10k-images-idx3-ubyte", idx_bytes(IDX_IMAGES[3:, 1:]), r"\b4 × 3\b.*\b3 × 3\b"),
        ("t10k-labels-idx1-ubyte", b"", r"\bt10k-labels-idx1-ubyte\b.*\b08 01\b"),
        ("t10k-labels-idx1-ubyte", b"\0\0\x08\x01\0", r"\bt10k-labels-idx1-ubyte\b.*\bIDX\b"),
        (
            "t10k-images-idx3-ubyte",
            b"\0\0\x08\x03" + b"\xff" * 12,
            r"\bt10k-images-idx3-ubyte\b.*\btruncated\b",
        ),
        (
            "t10k-images-idx3-ubyte",
            None,
            r"\bt10k-images-idx3-ubyte\b.*\bt10k-images-idx3-ubyte\.gz\b",
        ),
    ],
)
def test_a_damaged_idx_file_is_named(tmp_path, compress, name, data, message):
    write_idx(tmp_path, compress)
    path = tmp_path / (f"{name}.gz" if compress else name)
    if data is None:
        path.unlink()
    else:
        path.write_bytes(gzip.compress(data) if compress else data)
    with pytest.raises(AntipodalError, match=message):
        idx(tmp_path)


def test_a_damaged_gzip_file_is_named(tmp_path):
    write_idx(tmp_path, compress=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[-6] ^= 1  # in the checksum
    for bad in (good[:-12], b"not gzip at all", bytes(flipped), good[:12] + b"\xff" * 30):
        path.write_bytes(bad)
        with pytest.raises(AntipodalError, match=r"train-images-idx3-ubyte\.gz"):
            idx(tmp_path)


# ---- arrays

X = RNG.standard_normal((6, 4)).astype(np.float32)
Y = np.array([[1, 0], [0, 1], [1, 1], [0, 0], [1, 0], [0, 1]], np.uint8)
CLASSES = [2, 0, 1, 2, 2, 0]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (np.array(CLASSES, np.int16), CLASSES),
        (np.array(CLASSES, float), CLASSES),
        (np.array(["c", "a", "b", "c", "c", "a"]), CLASSES),
        (np.array(CLASSES) > 0, [1, 0, 1, 1, 1, 0]),
        (Y, Y.astype(bool)),
        (Y.astype(bool), Y.astype(bool)),
        (Y.astype(float), Y.astype(bool)),
    ],
)
def test_arrays_are_read_from_npz_and_npy(tmp_path, labels, expected):
    np.savez(tmp_path / "mine.npz", X=X, y=labels, other=X)
    np.savez(tmp_path / "named.npz", a=X, b=labels)
    np.save(tmp_path / "rows.npy", X)
    np.save(tmp_path / "labels.npy", labels)
    for name, data in [
        ("mine", arrays(tmp_path / "mine.npz")),
        ("named", arrays(str(tmp_path / "named.npz"), features="a", labels="b")),
        ("rows", arrays(tmp_path / "rows.npy", labels=str(tmp_path / "labels.npy"))),
    ]:
        assert data.name == name
        np.testing.assert_array_equal(data.features, X)
        np.testing.assert_array_equal(data.labels, expected)
        assert data.labels.dtype == (np.int64 if data.labels.ndim == 1 else bool)


def test_labels_may_be_named_y_in_upper_case(tmp_path):
    np.savez(tmp_path / "a.npz", X=X, Y=Y)
    np.testing.assert_array_equal(arrays(tmp_path / "a.npz").labels, Y.astype(bool))
    np.savez(tmp_path / "b.npz", X=X, Y=Y, y=CLASSES)
    np.testing.assert_array_equal(arrays(tmp_path / "b.npz").labels, CLASSES)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"X": X}, r"'y'.*\bX\b"),
        ({"y": CLASSES}, r"\bvectors\b.*\by\b.*\bint64\b"),
        ({}, r"\barray\b"),
        ({"X": X[:5], "y": CLASSES}, r"\b5 vectors\b.*\b6\b"),
        ({"X": X[0], "y": CLASSES}, r"'X'.*\bnumbers\b"),
        ({"X": X, "y": X[:, 0]}, r"\blabels\b.*\bintegers\b"),
        ({"X": X, "y": np.full(6, np.nan)}, r"\blabels\b.*\b6 of 6\b"),
        ({"X": X, "y": Y + 1}, r"\blabels\b.*\bbooleans\b"),
        ({"X": X, "y": Y[:, :, None]}, r"\blabels\b.*\bintegers\b"),
        ({"X": X, "y": np.array([None] * 6)}, r"\bpickle\b"),
    ],
)
def test_arrays_without_a_valid_dataset_are_refused(tmp_path, content, message):
    np.savez(tmp_path / "a.npz", **content)
    with pytest.raises(AntipodalError, match=message) as caught:
        arrays(tmp_path / "a.npz")
    assert "a.npz" in str(caught.value)


def test_a_file_without_arrays_is_refused(tmp_path):
    with pytest.raises(AntipodalError, match=r"\bgone\.npz\b.*No such file"):
        arrays(tmp_path / "gone.npz")
    with pytest.raises(AntipodalError, match=r"\bgone\.npy\b.*No such file"):
        arrays(tmp_path / "gone.npy", labels="y.npy")
    np.save(tmp_path / "rows.npy", X)
    with pytest.raises(ValueError, match=r"\brows\.npy\b.*\blabels\b"):
        arrays(tmp_path / "rows.npy")
    (tmp_path / "data.xls").write_bytes(b"something")
    with pytest.raises(AntipodalError, match=r"\bdata\.xls\b.*\.npy\b"):
        arrays(tmp_path / "data.xls")
    path, trace = tmp_path / "a.npz", tmp_path / "trace"
    for bad in (b"", b"text", pickle.dumps(Trap(trace))):
        path.write_bytes(bad)
        with pytest.raises(AntipodalError, match=r"\ba\.npz\b.*\.npz\b"):
            arrays(path)
    np.savez(path, X=X, y=np.array([Trap(trace)] * 6))
    with pytest.raises(AntipodalError, match=r"\ba\.npz\b.*\.npz\b"):
        arrays(path)
    assert not trace.exists()


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    write_parquet(tmp_path / "a.parquet", pa.array(ROWS), CLASSES)
    monkeypatch.delitem(sys.modules, "antipodal.io.tables", raising=False)
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(AntipodalError, match=r"pip install '\.\[arrow\]'"):
        arrays(tmp_path / "a.parquet")


LIST = pa.list_(pa.float32())
FIXED = pa.list_(pa.float32(), 4)
LARGE = pa.large_list(pa.float32())
WORDS_OF_CLASSES = ["c", "a", "b", "c", "c", "a"]


def write_parquet(path, vectors, labels):
    """Write row groups of four, so that columns have several chunks."""
    table = pa.table({"id": range(len(vectors)), "vector": vectors, "label": labels})
    parquet.write_table(table, path, row_group_size=4)
    return path


def read_parquet(path):
    return arrays(path, features="vector", labels="label")


@pytest.mark.parametrize("kind", [LIST, FIXED, LARGE])
@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (pa.array(CLASSES, pa.int8()), CLASSES),
        (pa.array(CLASSES, pa.float64()), CLASSES),
        (pa.array([c > 0 for c in CLASSES]), [1, 0, 1, 1, 1, 0]),
        (pa.array(WORDS_OF_CLASSES), CLASSES),
        (pa.array(WORDS_OF_CLASSES, pa.large_string()), CLASSES),
        (pa.array(WORDS_OF_CLASSES).dictionary_encode(), CLASSES),
        (pa.array(Y.tolist()), Y.astype(bool)),
        (pa.array(Y.astype(bool).tolist()), Y.astype(bool)),
        (pa.array(Y.tolist(), pa.list_(pa.float32(), 2)), Y.astype(bool)),
    ],
)
def test_parquet_columns_become_features_and_labels(tmp_path, kind, labels, expected):
    data = read_parquet(write_parquet(tmp_path / "a.parquet", pa.array(X.tolist(), kind), labels))
    assert data.name == "a"
    assert data.features.dtype == np.float32
    np.testing.assert_array_equal(data.features, X)
    np.testing.assert_array_equal(data.labels, expected)
    assert data.labels.dtype == (np.int64 if data.labels.ndim == 1 else bool)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.uint16, np.bool_])
def test_parquet_keeps_the_type_of_the_features(tmp_path, dtype):
    rows = (X * 3).astype(dtype)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), 4)
    data = read_parquet(write_parquet(tmp_path / "a.parquet", vectors, CLASSES))
    assert data.features.dtype == dtype
    np.testing.assert_array_equal(data.features, rows)


def test_string_labels_are_ordered_as_in_npz_files(tmp_path):
    words = ["zebra", "Zebra", "éclair", "", "日本", "😀", "zebra", "éclair"]
    write_parquet(tmp_path / "a.parquet", pa.array(np.eye(8).tolist()), words)
    np.savez(tmp_path / "a.npz", vector=np.eye(8), label=np.array(words))
    np.testing.assert_array_equal(
        read_parquet(tmp_path / "a.parquet").labels, read_parquet(tmp_path / "a.npz").labels
    )


def test_a_directory_of_parquet_files_is_one_dataset(tmp_path):
    folder = tmp_path / "many.parquet"
    folder.mkdir()
    for number, rows in enumerate((slice(0, 2), slice(2, 6))):
        vectors = pa.array(X[rows].tolist(), LIST)
        write_parquet(folder / f"part-{number}.parquet", vectors, WORDS_OF_CLASSES[rows])
    data = read_parquet(folder)
    np.testing.assert_array_equal(data.features, X)
    np.testing.assert_array_equal(data.labels, CLASSES)


ROWS = X.tolist()


@pytest.mark.parametrize(
    ("vectors", "labels", "message"),
    [
        (pa.array([*ROWS[:5], [1.0, 2.0]]), CLASSES, r"\brow 0\b.*\b4\b.*\brow 5\b.*\b2\b"),
        (pa.array([*ROWS[:5], None], LIST), CLASSES, r"'vector'.*\brow 5\b"),
        (pa.array([*ROWS[:5], None], FIXED), CLASSES, r"'vector'.*\brow 5\b"),
        (
            pa.array([*ROWS[:5], [1, 2, None, 4]], LIST),
            CLASSES,
            r"'vector'.*\brow 5\b",
        ),
        (
            pa.array([*ROWS[:5], [1, 2, None, 4]], FIXED),
            CLASSES,
            r"'vector'.*\brow 5\b",
        ),
        (
            pa.array(X[:, 0]),
            CLASSES,
            r"'vector'.*\bfloat",
        ),
        (pa.array([["a"]] * 6), CLASSES, r"'vector'.*\blist<.*: string>"),
        (pa.array([], LIST), pa.array([], pa.int64()), r"\brows\b"),
        (pa.array(ROWS), [1, 2, None, 1, 2, 1], r"'label'.*\brow 2\b"),
        (pa.array(ROWS), ["a", None, None, "b", "a", "b"], r"'label'.*\brow 1\b"),
        (pa.array(ROWS), [0.5] * 6, r"\blabels\b.*\bintegers\b"),
        (pa.array(ROWS), [[1], [1, 0], [1], [0], [1], [1]], r"\brow 0\b.*\b1\b.*\brow 1\b.*\b2\b"),
        (pa.array(ROWS), [[1, 2]] * 6, r"\blabels\b.*\bbooleans\b"),
        (
            pa.array(ROWS),
            [{"a": 1}] * 6,
            r"'label'.*\bstruct\b",
        ),
    ],
)
def test_parquet_columns_without_a_valid_dataset_are_refused(tmp_path, vectors, labels, message):
    path = write_parquet(tmp_path / "a.parquet", vectors, labels)
    with pytest.raises(AntipodalError, match=message) as caught:
        read_parquet(path)
    assert "a.parquet" in str(caught.value)


def test_a_parquet_file_that_is_missing_or_damaged_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    with pytest.raises(AntipodalError, match=r"/a\.parquet\b"):
        read_parquet(path)
    write_parquet(path, pa.array(ROWS), CLASSES)
    np.testing.assert_array_equal(arrays(path).labels, CLASSES)  # the only choice of columns
    with pytest.raises(AntipodalError, match=r"'X'.*\bid, vector, label\b"):
        arrays(path, features="X")
    with pytest.raises(AntipodalError, match=r"'y'.*\bid, vector, label\b"):
        arrays(f"{path}:vector", labels="y")
    good = path.read_bytes()
    for bad in (b"", b"text", good[:-1], good[: len(good) // 2]):
        path.write_bytes(bad)
        with pytest.raises(AntipodalError, match=r"/a\.parquet\b"):
            read_parquet(path)


def test_checksums_of_parquet_files_are_verified(tmp_path):
    table = pa.table({"vector": pa.array(ROWS, LIST), "label": CLASSES})
    path = tmp_path / "a.parquet"
    plain = {"use_dictionary": False, "compression": "none", "write_page_checksum": True}
    parquet.write_table(table, path, **plain)
    np.testing.assert_array_equal(read_parquet(path).features, X)
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(X[2].tobytes())] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(AntipodalError, match=r"/a\.parquet\b.*(CRC|checksum)"):
        read_parquet(path)


def test_the_mirror_of_a_dataset_is_a_permutation_of_its_features():
    data = digits().with_gist(orientations=(4,), grid=2)
    np.testing.assert_allclose(
        data.features[:, data.mirror],
        gist(data.images[:, :, ::-1], orientations=(4,), grid=2),
        atol=1e-5,
    )
    with pytest.raises(ValueError, match=r"\bmirror\b.*\bpermutation\b"):
        replace(data, mirror=data.mirror[:-1])

"""Files that match their checksums, but that nothing here wrote: refused when they are opened."""

import copy
import hashlib
import itertools
import json
import os
import sqlite3
import struct
from zlib import crc32

import numpy as np
import pytest

from antipodal import LSH, AntipodalError, DeepLinf, HammingIndex, Training, load, open_store
from antipodal.bench.records import read_records
from antipodal.hashers.registry import built_in_hashers
from antipodal.index.index_file import IndexDescription, write_index_file
from antipodal.index.segments import IndexedItems
from antipodal.io.model_file import read_model_file, write_model_file
from antipodal.io.vectors import open_vectors
from effort import CAMPAIGN
from fuzz_antipodal_files import write_safetensors
from networks import network

X = np.random.default_rng(0).standard_normal((60, 10)).astype(np.float32)
Y = np.arange(60) % 3
QUICK = {"training": Training(n_epochs=1)}
NETWORKS = ("DeepLinf", "NNHash", "SparseHash", "OrthoHash", "CSQ")
# In a campaign every hasher; otherwise one of each kind of state.
METHODS = list(built_in_hashers()) if CAMPAIGN else ["LSH", "AGH", "DeepLinf"]


@pytest.fixture(scope="module", params=METHODS)
def saved(request, tmp_path_factory):
    """Return the contents of the file of a hasher, and a path for forged files."""
    path = tmp_path_factory.mktemp("forged") / "model"
    settings = QUICK if request.param in NETWORKS else {}
    built_in_hashers()[request.param](8, random_state=0, **settings).fit(X, Y).save(path)
    header, arrays = read_model_file(path, "hasher")
    return path, header, arrays


def some(examples):
    """Return all in a campaign, otherwise about forty of them."""
    return examples if CAMPAIGN else examples[:: 1 + len(examples) // 40]


def write_and_use(path, header, arrays):
    """Refuse a forged model when it is opened, or encode with it: nothing else may happen."""
    write_model_file(path, "hasher", header, arrays)
    try:
        hasher = load(path)
    except AntipodalError as error:
        if str(path) not in str(error):
            raise
        return False
    codes = hasher.encode(X)
    assert codes.shape == (len(X), 1)
    assert np.isfinite(hasher.query(X)).all()
    return True


@pytest.mark.parametrize("size", np.geomspace(1e36, 3e38, 12))
def test_weights_that_almost_overflow_are_refused_or_encode_all_rows(tmp_path, size):
    path = tmp_path / "model"
    hasher = built_in_hashers()["SpectralHash"](8).fit(X)
    hasher.save(path)
    header, arrays = read_model_file(path, "hasher")
    arrays["components_"] = np.full_like(arrays["components_"], size)
    write_and_use(path, header, arrays)


@pytest.mark.parametrize("gamma", [1e308, 1e39, -1.0])
def test_a_kernel_without_finite_values_on_its_anchors_is_refused(tmp_path, gamma):
    path = tmp_path / "model"
    hasher = built_in_hashers()["ClassifierLSH"](8, random_state=0).fit(X, Y)
    hasher.save(path)
    header, arrays = read_model_file(path, "hasher")
    header["fitted"]["gamma_"] = gamma
    assert not write_and_use(path, header, arrays)


@pytest.mark.parametrize("gamma", [10**9, 2**63 - 1])
@pytest.mark.parametrize("method", ["ClassifierLSH", "SparseHash"])
def test_a_narrow_kernel_is_refused_or_finite_on_its_anchors(tmp_path, method, gamma):
    path = tmp_path / "model"
    settings = {"training": Training(n_epochs=1)} if method == "SparseHash" else {}
    built_in_hashers()[method](8, random_state=0, **settings).fit(X, Y).save(path)
    header, arrays = read_model_file(path, "hasher")
    header["fitted"]["gamma_"] = gamma
    write_and_use(path, header, arrays)


def test_weights_that_overflow_only_for_rows_near_the_anchors_are_refused(tmp_path):
    path = tmp_path / "model"
    built_in_hashers()["ClassifierLSH"](8, random_state=0).fit(X, Y).save(path)
    header, arrays = read_model_file(path, "hasher")
    arrays["weights_"] = np.full_like(arrays["weights_"], 1e38)
    assert not write_and_use(path, header, arrays)


def changed(array):
    """Yield arrays that differ in shape, kind or values."""
    yield from (array[None], array.astype(np.float64), array.astype(np.float16))
    yield from (np.zeros(array.shape, np.int32), np.zeros(array.shape, bool))
    if array.ndim:
        yield from (array[:0], array[:-1], array[..., :-1], array.ravel())
        yield np.concatenate([array, array])


@pytest.mark.filterwarnings("ignore:The use of `x.T`")  # PyTorch, of a table too deep
def test_arrays_of_other_names_shapes_and_kinds_are_refused_or_harmless(saved):
    path, header, arrays = saved
    for name in arrays:
        write_and_use(path, header, {k: v for k, v in arrays.items() if k != name})
    for name, other in some([(n, a) for n in arrays for a in changed(arrays[n])]):
        write_and_use(path, header, {**arrays, name: other})
    for name in ("fit", "encode", "n_bits", "__class__", "mean__"):
        write_and_use(path, header, {**arrays, name: np.zeros(3, np.float32)})


def test_non_finite_weights_are_refused(saved):
    path, header, arrays = saved
    for name, array in arrays.items():
        for value in (np.nan, np.inf):
            if array.dtype == np.float32 and array.size:
                assert not write_and_use(path, header, {**arrays, name: np.full_like(array, value)})


def test_values_of_the_header_are_refused_or_harmless(saved):
    path, header, arrays = saved
    odd = (None, "x", [], {}, 1e9, -1, 0, 10**9, 10**30, [[1]], True, 0.5)
    names = [(part, name) for part in ("fitted", "parameters") for name in header[part]]
    for (part, name), value in some(list(itertools.product(names, odd))):
        forged = copy.deepcopy(header)
        forged[part][name] = value
        is_read = write_and_use(path, forged, arrays)
        assert not (is_read and name in ("n_features_in_", "n_bits"))
    for name, value in itertools.product(("class", "parameters", "fitted"), (None, [], "x", 3)):
        assert not write_and_use(path, {**header, name: value}, arrays)
    for n_bits in (7, 9, 8.0, 10**9):
        forged = copy.deepcopy(header)
        forged["parameters"]["n_bits"] = n_bits
        assert not write_and_use(path, forged, arrays)
    for n_features in (1, 2, 9, 11):  # one number can be added to arrays of any length
        forged = copy.deepcopy(header)
        forged["fitted"]["n_features_in_"] = n_features
        assert not write_and_use(path, forged, arrays)


def test_a_model_of_one_feature_is_read(tmp_path):
    hasher = LSH(8, random_state=0).fit(X[:, :1])
    hasher.save(tmp_path / "model")
    np.testing.assert_array_equal(
        load(tmp_path / "model").encode(X[:, :1]), hasher.encode(X[:, :1])
    )


def test_a_header_that_is_nested_too_deep_is_refused(tmp_path):
    path = tmp_path / "model"
    LSH(8, random_state=0).fit(X).save(path)
    _, arrays = read_model_file(path, "hasher")
    metadata = {"format": "antipodal", "version": "1", "kind": "hasher", "header": "[" * 5000}
    write_safetensors(path, metadata, arrays)
    with pytest.raises(AntipodalError, match=r"/model\b.*\bheader\b"):
        load(path)
    path.write_bytes(b'{"a": ' + b"[" * 5000 + b"\n")
    with pytest.raises(AntipodalError, match=r"/model\b.*\bline 1\b.*\bJSON\b"):
        read_records(path)


# --------------------------------------------------------------------------- checkpoints


def test_a_forged_checkpoint_is_refused(tmp_path):
    path = tmp_path / "state"
    fit = {"n_bits": 8, "n_epochs": 2, "random_state": 0}
    hasher = network(DeepLinf, **fit).fit(X, Y, checkpoint=path)
    header, arrays = read_model_file(path, "checkpoint")
    headers = [
        {**header, "history": history}
        for history in (
            None,
            [],
            {},
            {**header["history"], "best_epoch": 99},
            {**header["history"], "best_epoch": "0"},
            {**header["history"], "loss": 3},
            {**header["history"], "loss": ["a"]},
            {**header["history"], "more": 1},
        )
    ]
    name = next(name for name in arrays if name.endswith(".step"))
    weight = next(name for name in arrays if name.endswith(".W"))
    others = [
        {k: v for k, v in arrays.items() if k != name},
        {k: v for k, v in arrays.items() if k != weight},
        {**arrays, "other.x": arrays[weight]},
        {**arrays, "optimizer.x.step": arrays[name]},
        {**arrays, weight: arrays[weight][:-1]},
        {**arrays, weight: arrays[weight].astype(np.float64)},
        {**arrays, weight: np.full_like(arrays[weight], np.nan)},
        {**arrays, name: np.full_like(arrays[name], -1)},  # the next step would divide by 0
    ]
    for forged in [*((h, arrays) for h in headers), *((header, a) for a in others)]:
        write_model_file(path, "checkpoint", *forged)
        with pytest.raises(AntipodalError, match="state"):
            network(DeepLinf, **fit).fit(X, Y, checkpoint=path)
    write_model_file(path, "checkpoint", header, arrays)
    again = network(DeepLinf, **fit).fit(X, Y, checkpoint=path)
    np.testing.assert_array_equal(again.encode(X), hasher.encode(X))


# -------------------------------------------------------------------------------- stores


def forge_header(path, header):
    text = header if isinstance(header, str) else json.dumps(header)
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE about SET header = ?, checksum = ?", (text, crc32(text.encode()))
        )
    connection.close()


@pytest.mark.parametrize(
    "header",
    [
        "{",
        "[" * 5000,
        "[]",
        "null",
        {},
        {"format": 1, "model": None},
        *({"format": 1, "n_bits": n, "model": None} for n in (0, -8, 2**40, "8", 8.0, True, None)),
        {"format": 1, "n_bits": 8, "model": 3},
        {"format": 1, "n_bits": 8, "model": None, "identity": []},
        {"format": "1", "n_bits": 8, "model": None},
        {"format": 2, "n_bits": 8, "model": None},
    ],
)
def test_a_forged_header_of_a_store_is_refused(tmp_path, header):
    path = tmp_path / "codes.db"
    with open_store(f"sqlite:///{path}", n_bits=8) as store:
        store.upsert([1], np.zeros((1, 1), np.uint8))
    forge_header(path, header)
    with pytest.raises(AntipodalError, match=r"codes\.db"):
        open_store(f"sqlite:///{path}")


@pytest.mark.parametrize("version", [2**63 - 1, 2**62 + 1, -1])
def test_a_forged_version_of_a_store_is_refused(tmp_path, version):
    path = tmp_path / "codes.db"
    with open_store(f"sqlite:///{path}", n_bits=8) as store:
        store.upsert([1], np.zeros((1, 1), np.uint8))
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM changes")
        connection.execute("INSERT INTO changes VALUES (?, 1, x'')", (version,))
    connection.close()
    with pytest.raises(AntipodalError, match=r"/codes\.db\b.*\bversion"):
        open_store(f"sqlite:///{path}")


@pytest.mark.parametrize(
    "more",
    [
        "CREATE TRIGGER t AFTER INSERT ON items BEGIN DELETE FROM items; END",
        "CREATE VIEW v AS SELECT * FROM items",
        "CREATE TABLE more (a)",
    ],
)
def test_a_store_that_has_more_than_its_tables_is_refused(tmp_path, more):
    path = tmp_path / "codes.db"
    with open_store(f"sqlite:///{path}", n_bits=8) as store:
        store.upsert([1], np.zeros((1, 1), np.uint8))
    with sqlite3.connect(path) as connection:
        connection.execute(more)
    connection.close()
    with pytest.raises(AntipodalError, match=r"/codes\.db\b.*\btables\b"):
        open_store(f"sqlite:///{path}")


def test_a_changed_type_in_the_list_of_tables_is_refused(tmp_path):
    path = tmp_path / "codes.db"
    open_store(f"sqlite:///{path}", n_bits=8).close()
    name = b"indexsqlite_autoindex_"  # its type and name; it has no statement
    data = path.read_bytes()
    assert data.count(name) == 1
    path.write_bytes(data.replace(name, name.replace(b"d", b"\0", 1)))
    with pytest.raises(AntipodalError, match=r"/codes\.db\b.*\btables\b"):
        open_store(f"sqlite:///{path}")


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts open files by /proc")
def test_a_damaged_store_is_not_left_open(tmp_path):
    path = tmp_path / "codes.db"
    with open_store(f"sqlite:///{path}", n_bits=8) as store:
        store.upsert([1], np.zeros((1, 1), np.uint8))
    data = bytearray(path.read_bytes())
    data[28:32] = bytes([255] * 4)  # how many pages it has
    data[100] = 0  # the kind of the first page
    path.write_bytes(data)
    with pytest.raises(AntipodalError, match=r"/codes\.db\b") as raised:
        open_store(f"sqlite:///{path}")
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    assert not [link for link in links if os.path.realpath(link) == str(path)], raised


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (b"\0\0", "{}"),
        (b"\x01", "{}"),
        (b"", "{}"),
        (b"\0", "["),
        (b"\0", "3"),
        (b"\0", "[" * 9999),
    ],
)
def test_forged_items_of_a_store_are_refused(tmp_path, code, text):
    path = tmp_path / "codes.db"
    with open_store(f"sqlite:///{path}", n_bits=7) as store:
        store.upsert([1], np.zeros((1, 1), np.uint8))
    with sqlite3.connect(path) as connection:
        checksum = crc32(text.encode(), crc32(code, 1))
        connection.execute(
            "UPDATE items SET code=?, metadata=?, checksum=?", (code, text, checksum)
        )
    connection.close()
    with open_store(f"sqlite:///{path}") as store:
        with pytest.raises(AntipodalError, match=r"codes\.db"):
            store.get([1])
        if code != b"\0":
            with pytest.raises(AntipodalError, match=r"codes\.db"):
                store.search(np.zeros((1, 1), np.uint8), 1)


# ------------------------------------------------------------------- indexes and vectors


@pytest.mark.parametrize(("n_bits", "byte"), [(9, 1), (9, 2), (12, 1), (8, 3), (64, None)])
def test_bits_behind_the_last_of_a_code_are_refused(tmp_path, n_bits, byte):
    path = tmp_path / "index"
    rows = np.zeros((5, 8 if n_bits == 64 else 4), np.uint8)
    if byte is None:
        rows[:] = 255
    else:
        rows[3, byte] = 1
    items, nothing = IndexedItems.of(rows, range(5)), np.empty(0, np.uint8)
    write_index_file(path, IndexDescription(n_bits, "flat", None), items, nothing, None)
    if byte is None:
        assert len(HammingIndex.load(path)) == 5
        return
    with pytest.raises(AntipodalError, match=rf"/index\b.*\b{n_bits}\b"):
        HammingIndex.load(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_bits": 2**40},
        {"n_bits": 0},
        {"n_bits": "8"},
        {"n_items": 10**12},
        {"n_items": -1},
        {"engine": "other"},
        {"engine": None},
        {"first_id": 2**63 - 1},
        {"first_id": "0"},
        {"engine_bytes": 8},
        {"more": 1},
    ],
)
def test_a_forged_header_of_an_index_is_refused(tmp_path, changes):
    path = tmp_path / "index"
    index = HammingIndex(8)
    index.add(np.zeros((5, 1), np.uint8))
    index.save(path)
    data = path.read_bytes()
    length = struct.unpack("<I", data[12:16])[0]
    text = json.dumps({**json.loads(data[48 : 48 + length]), **changes}).encode()
    start = data[:12] + struct.pack("<I", len(text))
    rest = text + data[48 + length :]
    path.write_bytes(start + hashlib.sha256(start + rest).digest() + rest)
    with pytest.raises(AntipodalError, match="index"):
        HammingIndex.load(path)


@pytest.mark.parametrize("shape", [(5_000_000_000, 0), (5_000_000_000, 1), (2**62, 0)])
def test_an_array_that_claims_more_than_its_file_has_is_refused(tmp_path, shape):
    path = tmp_path / "x.npy"
    with open(path, "wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(AntipodalError, match=r"x\.npy"):
        open_vectors(str(path))


@pytest.mark.parametrize(
    ("line", "what"),
    [(b'{"a":' + b"[" * 3000 + b"]" * 3000 + b"}", "recursion"), (b'{"a":"\xff"}', "utf-8")],
)
def test_a_bad_line_of_json_is_named(tmp_path, line, what):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a":[1,2]}\n' + line + b"\n")
    with pytest.raises(AntipodalError, match=rf"\brows\.jsonl\b.*\bline 2\b.*{what}"):
        list(open_vectors(str(path)).blocks(10))

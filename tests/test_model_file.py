"""Model files: round trips, and ModelFileError for anything else."""

import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from safetensors.numpy import save

from antipodal import LSH, AntipodalError, bulk, load
from antipodal.errors import ModelFileError
from antipodal.hashers.registry import load_with_identity
from antipodal.io.model_file import model_bits, model_identity, read_model_file, write_model_file
from antipodal.service import Engine
from effort import fresh_examples
from processes import run_program

ROWS = np.random.default_rng(0).standard_normal((20, 6))


@pytest.fixture(scope="module")
def model_bytes(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "lsh.antipodal"
    LSH(12, random_state=0).fit(ROWS).save(path)
    return path.read_bytes()


def test_arrays_and_header_are_restored(tmp_path):
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array(2.5),
        "c": np.empty((0, 4), np.int64),
        "d": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    }
    write_model_file(tmp_path / "f", "hasher", {"x": [1, "é"]}, arrays)
    header, back = read_model_file(tmp_path / "f", "hasher")
    assert header == {"x": [1, "é"]}
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


def test_the_header_is_readable_at_the_beginning_of_the_file(model_bytes):
    text = model_bytes[:1500].decode("utf-8", "replace")
    for word in ("antipodal", "LSH", "n_bits", "n_features_in_", "version", "sha256"):
        assert word in text


@fresh_examples(400, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_flipped_bytes_raise_model_file_error_only(tmp_path, model_bytes, data):
    damaged = bytearray(model_bytes)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] ^= data.draw(st.integers(1, 255))
    if bytes(damaged) == model_bytes:  # two flips may undo each other
        return
    (tmp_path / "m").write_bytes(damaged)
    with pytest.raises(AntipodalError):
        load(tmp_path / "m")


def test_truncated_files_raise_model_file_error_only(tmp_path, model_bytes):
    for length in range(0, len(model_bytes), 7):
        (tmp_path / "m").write_bytes(model_bytes[:length])
        with pytest.raises(AntipodalError):
            load(tmp_path / "m")
    (tmp_path / "m").write_bytes(model_bytes + b"x")
    with pytest.raises(AntipodalError):
        load(tmp_path / "m")


def test_foreign_files_are_refused(tmp_path):
    file = tmp_path / "m"
    foreign = {
        "nothing": b"",
        "text": b"hello, world, this is not a model",
        "pickle": pickle.dumps({"a": 1}),
        "other safetensors": save({"a": np.ones(3)}, {"format": "pt"}),
        "no metadata": save({"a": np.ones(3)}),
        "huge header": (2**62).to_bytes(8, "little") + b"{}",
        "deep header": (10_000).to_bytes(8, "little") + b"[" * 10_000,
    }
    for content in foreign.values():
        file.write_bytes(content)
        with pytest.raises(AntipodalError):
            load(file)


def test_pickles_are_not_executed(tmp_path):
    class Trap:
        def __reduce__(self):
            return (exec, ("raise SystemExit('it ran')",))

    (tmp_path / "m").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(AntipodalError):
        load(tmp_path / "m")


def test_a_newer_format_version_suggests_an_upgrade(tmp_path, model_bytes):
    newer = model_bytes.replace(b'"version":"1"', b'"version":"2"')
    assert newer != model_bytes
    (tmp_path / "m").write_bytes(newer)
    with pytest.raises(AntipodalError, match="upgrade"):
        load(tmp_path / "m")


def test_a_changed_weight_is_detected(tmp_path, model_bytes):
    (tmp_path / "m").write_bytes(model_bytes[:-1] + bytes([model_bytes[-1] ^ 1]))
    with pytest.raises(AntipodalError, match="checksum"):
        load(tmp_path / "m")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"class": "Unheard", "parameters": {}, "fitted": {}}, "'Unheard'"),
        ({"class": ["LSH"], "parameters": {}, "fitted": {}}, r"\['LSH'\]"),
        ({"class": "LSH", "parameters": {"n_bitz": 1}, "fitted": {}}, "LSH"),
        ({"class": "LSH", "fitted": {}}, "LSH"),
        ({"class": "LSH", "parameters": {}, "fitted": {"encode": 1}}, "'encode'"),
        ({}, "None"),
    ],
)
def test_a_well_formed_file_with_invalid_content_is_refused(tmp_path, header, message):
    write_model_file(tmp_path / "m", "hasher", header, {})
    with pytest.raises(AntipodalError, match=message):
        load(tmp_path / "m")


def test_a_checkpoint_is_not_a_model(tmp_path):
    write_model_file(tmp_path / "m", "checkpoint", {}, {})
    with pytest.raises(AntipodalError, match=r"checkpoint.*hasher"):
        load(tmp_path / "m")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(AntipodalError, match=r"nowhere.*No such file.*\bmodel file\b"):
        load(tmp_path / "nowhere")


def test_files_that_are_not_models_are_named(tmp_path):
    np.save(tmp_path / "x.npy", ROWS)
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("a model, they said")
    for name, message in (
        ("x.npy", r"x\.npy.*\bmodel file\b"),
        ("text", r"\btext\b.*antipodal"),
        ("empty", r"empty.*\bmodel file\b"),
        ("folder", r"folder.*Is a directory.*\bmodel file\b"),
    ):
        with pytest.raises(ModelFileError, match=message):
            load(tmp_path / name)


def test_a_directory_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path):
    hasher = LSH(12, random_state=0).fit(ROWS)
    with pytest.raises(AntipodalError, match="missing/m"):
        hasher.save(tmp_path / "missing" / "m")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AntipodalError, match="file/m"):
        hasher.save(tmp_path / "file" / "m")
    (tmp_path / "directory").mkdir()
    with pytest.raises(AntipodalError, match="directory"):
        hasher.save(tmp_path / "directory")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["directory", "file"]


FULL_DISK = """
import resource, signal, sys
import numpy as np
from antipodal import LSH, AntipodalError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    LSH(256, random_state=0).fit(np.eye(200)).save(sys.argv[1])
except AntipodalError as error:
    print(error)
"""


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path, model_bytes):
    file = tmp_path / "m"
    file.write_bytes(model_bytes)
    done = run_program(FULL_DISK, file)
    assert done.returncode == 0, done.stderr
    assert str(file) in done.stdout
    assert file.read_bytes() == model_bytes
    assert list(tmp_path.iterdir()) == [file]


def test_the_random_state_is_saved_only_if_it_is_a_number(tmp_path):
    rng = np.random.RandomState(0)
    LSH(4, random_state=rng).fit(ROWS).save(tmp_path / "m")
    assert load(tmp_path / "m").random_state is None
    header, _ = read_model_file(tmp_path / "m", "hasher")
    assert json.dumps(header)


def test_identities_are_equal_for_equal_models_only(tmp_path):
    rows = np.random.default_rng(0).standard_normal((50, 6))
    identities = set()
    for i in range(5):
        LSH(8, random_state=0).fit(rows).save(tmp_path / str(i))
        identities.add(model_identity(tmp_path / str(i)))
    assert len(identities) == 1
    LSH(8, random_state=1).fit(rows).save(tmp_path / "other")
    assert model_identity(tmp_path / "other") not in identities
    with pytest.raises(ModelFileError, match="missing"):
        model_identity(tmp_path / "missing")


def test_the_length_of_the_codes_is_read_without_the_hasher(tmp_path, model_bytes):
    path = tmp_path / "f"
    path.write_bytes(model_bytes)
    assert model_bits(path) == (12, model_identity(path))
    assert load(path).n_bits == 12
    path.write_bytes(model_bytes.replace(b'\\"n_bits\\": 12', b'\\"n_bits\\": 13'))
    assert path.read_bytes() != model_bytes
    with pytest.raises(ModelFileError, match="checksum"):
        model_bits(path)
    for header in ({}, {"parameters": {}}, {"parameters": {"n_bits": "12"}}, {"parameters": []}):
        write_model_file(path, "hasher", header, {})
        with pytest.raises(ModelFileError, match=r"\bcodes\b"):
            model_bits(path)


def test_identity_and_model_come_from_the_same_bytes(tmp_path, monkeypatch):
    """Replace the file after each time it is read."""
    rows = np.random.default_rng(0).standard_normal((40, 6))
    hashers = [LSH(16, random_state=seed).fit(rows) for seed in range(2)]
    identities = []
    for number, hasher in enumerate(hashers):
        hasher.save(tmp_path / f"{number}")
        identities.append(model_identity(tmp_path / f"{number}"))
    path, read = tmp_path / "model", Path.read_bytes
    hashers[0].save(path)

    def read_and_replace(self):
        data = read(self)
        if self == path:
            hashers[1].save(path)
        return data

    def check(hasher, identity):
        expected = hashers[identities.index(identity)]
        np.testing.assert_array_equal(hasher.encode(rows), expected.encode(rows))

    monkeypatch.setattr(Path, "read_bytes", read_and_replace)
    check(*load_with_identity(path))
    hashers[0].save(path)
    assert model_bits(path) == (16, identities[0])
    hashers[0].save(path)
    engine = Engine.open(f"sqlite:///{tmp_path}/codes.db", path)
    check(engine.hasher, engine.store.model)
    engine.close()
    hashers[0].save(path)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 6)
    pq.write_table(pa.table({"v": vectors}), tmp_path / "rows.parquet")
    bulk.encode(path, tmp_path / "rows.parquet", tmp_path / "codes")
    (manifest,) = (tmp_path / "codes").glob("*.json")
    codes = pq.read_table(tmp_path / "codes" / "rows.parquet")["code"].to_pylist()
    expected = hashers[identities.index(json.loads(manifest.read_text())["model"])]
    assert codes == [code.tobytes() for code in expected.encode(rows)]

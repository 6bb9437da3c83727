"""Listing, export and copy of stores: equal items in every engine."""

import itertools
import json
import os

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from antipodal import open_vectors
from antipodal.cli import app
from antipodal.errors import StoreError
from antipodal.stores import open_store, transfer
from antipodal.stores.engines import list_stores
from antipodal.stores.snapshot import ItemBatch
from antipodal.stores.transfer import copy_store, digest_of, export_items, resized
from engines import ENGINES, engines  # noqa: F401

N, N_BITS = 600, 20
_names = (f"copies_{number}" for number in itertools.count())


def fill(store, n=N):
    rng = np.random.default_rng(0)
    ids = rng.permutation(10 * n)[:n] - n  # some of them negative
    codes = rng.integers(0, 256, (n, 3), dtype=np.uint8) & np.array([255, 255, 0xF0], np.uint8)
    metadata = [
        {"z": i % 7, "a": {"y": [1, None, "ü"], "x": True}, "big": 1e300, "half": -0.5}
        if i % 5
        else {}
        for i in range(n)
    ]
    store.upsert(ids, codes, metadata)
    return ids, codes, metadata


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/first.db"


def invoke(*arguments, code=0, env=None):
    done = CliRunner().invoke(app, ["store", *map(str, arguments)], env=env)
    assert done.exit_code == code, done.output
    return done


def test_copies_between_engines_have_equal_exports(tmp_path, engines, url):  # noqa: F811
    with open_store(url, n_bits=N_BITS, model="m") as store:
        ids, codes, metadata = fill(store, 5_500)  # more than one page of Milvus
        exports = [export_items(store, tmp_path / "0.parquet")]
    places = [engines.url(engine, next(_names)) for engine in ("postgresql", "milvus")]
    places.append(f"sqlite:///{tmp_path}/last.db")
    for number, place in enumerate(places, start=1):
        with open_store(url) as source:
            copied = copy_store(source, place)
        assert (copied.items, copied.sha256, copied.there_before) == (*exports[0], 0)
        with open_store(place, n_bits=N_BITS, model="m") as store:
            exports.append(export_items(store, tmp_path / f"{number}.parquet"))
        url = place
    assert exports == [exports[0]] * 4
    first, *others = [(tmp_path / f"{number}.parquet").read_bytes() for number in range(4)]
    assert others == [first] * 3
    table = pq.read_table(tmp_path / "3.parquet").to_pydict()
    order = np.argsort(ids)
    assert table["id"] == ids[order].tolist()
    assert table["code"] == [code.tobytes() for code in codes[order]]
    assert [json.loads(text) for text in table["metadata"]] == [metadata[i] for i in order]


def test_exported_fields_are_typed_columns(tmp_path, url):
    with open_store(url, n_bits=16) as store:
        fields = [
            {"i": 2**60, "n": 1, "f": 2**60, "s": "ü", "b": True, "mixed": "1"},
            {"i": -1, "n": 0.5, "f": 0.5, "s": "", "b": False, "mixed": [1]},
            {"i": None},
        ]
        codes = np.arange(6, dtype=np.uint8).reshape(3, 2)
        store.upsert([5, -3, 9], codes, fields)
        names = ["i", "n", "f", "s", "b", "mixed"]
        export_items(store, tmp_path / "x.parquet", columns=names)
        before = (tmp_path / "x.parquet").read_bytes()
        for wrong, message in ((["no"], "'no'"), (["i", "i"], "columns"),
                               (["code"], r"\bcode\b")):  # fmt: skip
            with pytest.raises(ValueError, match=message):
                export_items(store, tmp_path / "x.parquet", columns=wrong)
        assert (tmp_path / "x.parquet").read_bytes() == before
    table = pq.read_table(tmp_path / "x.parquet")
    assert [str(table.schema.field(name).type) for name in names] == [
        "int64", "double", "string", "string", "bool", "string"
    ]  # fmt: skip
    columns = table.to_pydict()
    assert columns["id"] == [-3, 5, 9]
    assert columns["i"] == [-1, 2**60, None]
    assert columns["n"] == [0.5, 1.0, None]
    assert columns["f"] == ["0.5", str(2**60), None]  # a double would lose its last bits
    assert columns["mixed"] == ["[1]", "1", None]
    file = open_vectors(tmp_path / "x.parquet", "code")
    np.testing.assert_array_equal(np.asarray(file), codes[[1, 0, 2]])


def test_an_export_is_a_snapshot_in_row_groups_of_fixed_size(tmp_path, url, monkeypatch):
    monkeypatch.setattr("antipodal.stores.transfer._ROWS", 70)
    with open_store(url, n_bits=N_BITS) as store:
        fill(store)
        made = export_items(
            store, tmp_path / "x.parquet", progress=lambda done: store.delete(range(-N, done))
        )
        assert (made.items, digest_of(store).items < N) == (N, True)
    file = pq.ParquetFile(tmp_path / "x.parquet")
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert sizes == [70] * (N // 70) + [N % 70]


def test_resized_batches_contain_the_same_items():
    ids = np.arange(23)
    codes = np.arange(23, dtype=np.uint8)[:, None]
    texts = [f'{{"n":{i}}}' for i in range(23)]
    cuts = [0, 1, 1, 9, 20, 23]
    parts = [
        ItemBatch(ids[a:b], codes[a:b], texts[a:b]) for a, b in itertools.pairwise(cuts)
    ]  # fmt: skip
    for size in (1, 4, 23, 100):
        found = list(resized(iter(parts), size))
        assert [len(batch.ids) for batch in found[:-1]] == [size] * (len(found) - 1)
        assert np.concatenate([batch.ids for batch in found]).tolist() == ids.tolist()
        assert np.concatenate([batch.codes for batch in found]).tolist() == codes.tolist()
        assert [text for batch in found for text in batch.texts] == texts
    assert list(resized(iter([]), 3)) == []


@pytest.mark.parametrize("change", ["id", "code", "metadata", "missing"])
def test_the_digest_depends_on_items_but_not_on_their_order(tmp_path, url, change):
    ids, codes = np.array([3, 1, 2]), np.array([[1], [2], [3]], np.uint8)
    fields = [{"a": 1, "b": "x"}, {}, {"c": [1, 2]}]
    reordered = [{"c": [1, 2]}, {"b": "x", "a": 1}, {}]
    with open_store(url, n_bits=8) as store, open_store(f"{url}2", n_bits=8) as other:
        store.upsert(ids, codes, fields)
        other.upsert(ids[[2, 0, 1]], codes[[2, 0, 1]], reordered)
        assert digest_of(store).sha256 == digest_of(other).sha256
        if change == "id":
            other.delete([3])
            other.upsert([4], codes[:1], fields[:1])
        elif change == "code":
            other.upsert([3], codes[1:2], fields[:1])
        elif change == "metadata":
            other.upsert([3], codes[:1], [{"a": True, "b": "x"}])  # True differs from 1
        else:
            other.delete([1])
        assert digest_of(store).sha256 != digest_of(other).sha256


@pytest.mark.parametrize("engine", ENGINES)
def test_an_interrupted_copy_resumes_and_other_items_raise(
    tmp_path, engines, engine, url, monkeypatch  # noqa: F811
):  # fmt: skip
    monkeypatch.setattr(transfer, "_BATCH", 150)
    place = engines.url(engine, next(_names))

    def stop(done):
        if done >= 300:
            raise KeyboardInterrupt

    with open_store(url, n_bits=N_BITS, model="m") as source:
        fill(source)
        with pytest.raises(KeyboardInterrupt):
            copy_store(source, place, progress=stop)
        assert copy_store(source, place).there_before >= 300
        with open_store(place) as target:
            assert digest_of(target).sha256 == digest_of(source).sha256
            item = target.get([int(source.next_id()) - 1])
            target.upsert(item.ids, item.codes, [{"other": 1}])
        with pytest.raises(StoreError, match="items"):
            copy_store(source, place)
        made = copy_store(source, place, replace=True)
        with open_store(place) as target:
            assert digest_of(target).sha256 == made.sha256
            target.upsert([10**9], item.codes)
        with pytest.raises(StoreError, match="items"):
            copy_store(source, place)


def test_a_copy_that_differs_at_the_end_raises(tmp_path, url):
    other = f"sqlite:///{tmp_path}/other.db"

    def interfere(done):
        with open_store(other) as target:
            target.upsert([10**9], np.zeros((1, 3), np.uint8))

    with open_store(url, n_bits=N_BITS) as source:
        fill(source)
        with pytest.raises(StoreError, match=r"\b601\b.*\b600\b"):
            copy_store(source, other, progress=interfere)
        with pytest.raises(StoreError, match=r"first\.db"):
            copy_store(source, url)
        with open_store(f"{other}2", n_bits=8) as short:
            short.upsert([1], np.zeros((1, 1), np.uint8))
        with pytest.raises(StoreError, match=r"\b8\b.*\b20\b"):
            copy_store(source, f"{other}2")


def test_stores_of_every_engine_are_listed(tmp_path, engines):  # noqa: F811
    folder = tmp_path / "stores"
    folder.mkdir()
    (folder / "notes.txt").write_text("no store")
    (folder / "subfolder").mkdir()
    found = {}
    for engine in ENGINES:
        name = next(_names)
        place = engines.url(engine, name)
        if engine == "sqlite":
            place = f"sqlite:///{folder}/{name}.db"
        with open_store(place, n_bits=24, model=f"model of {engine}") as store:
            store.upsert([1, 2], np.zeros((2, 3), np.uint8))
        found[engine] = (place, name)
    (listed,) = list_stores(str(folder))
    assert listed == (f"sqlite:///{folder}/{found['sqlite'][1]}.db", 24, 2, "model of sqlite", None)
    assert list_stores(f"sqlite:///{folder}") == [listed]
    for engine, option in (("postgresql", "table"), ("milvus", "collection")):
        place, name = found[engine]
        everything = place.replace(f"{option}={name}", "").rstrip("?&")
        stores = {each.store: each for each in list_stores(everything)}
        (mine,) = [each for key, each in stores.items() if key.endswith(f"{option}={name}")]
        assert mine[1:] == (24, 2, f"model of {engine}", None)
        assert list_stores(place) == [mine]
        with open_store(place) as store:
            assert store.item_count() == 2


def test_the_commands_list_export_copy_and_vacuum(tmp_path, url):
    with open_store(url, n_bits=N_BITS) as store:
        ids, _, _ = fill(store, 3_000)
        store.delete(ids[300:])
        n_items = store.count()
    other = f"sqlite:///{tmp_path}/other.db"
    env = {"ANTIPODAL_STORE": url}
    made = json.loads(invoke("copy", "--to", other, "--json", env=env).stdout)
    assert (made["store"], made["items"]) == (other, n_items)
    output = invoke("copy", "--store", url, env={"ANTIPODAL_STORE_TO": other}).stdout
    assert output.count(f"{n_items:,}") == 2  # in total, and copied earlier
    listed = [json.loads(line) for line in invoke("list", tmp_path, "--json").stdout.splitlines()]
    assert [(each["store"], each["items"]) for each in listed] == [(url, n_items), (other, n_items)]
    assert "2 stores" in invoke("list", tmp_path).stdout
    file = tmp_path / "x.parquet"
    command = ["export", url, "--parquet", str(file), "--metadata-columns", "z, half", "--json"]
    exported = json.loads(CliRunner().invoke(app, command).stdout)
    assert exported["sha256"] == made["sha256"]
    assert exported["bytes"] == os.path.getsize(file)
    assert pq.read_schema(file).names == ["id", "code", "z", "half", "metadata"]
    size = os.path.getsize(tmp_path / "first.db")
    vacuumed = json.loads(invoke("vacuum", "--store", url, "--json").stdout)
    assert vacuumed["bytes_before"] == size > 2 * vacuumed["bytes_after"]
    assert os.path.getsize(tmp_path / "first.db") == vacuumed["bytes_after"]
    with open_store(url) as store:
        assert digest_of(store).sha256 == made["sha256"]


def test_errors_of_list_copy_and_vacuum(tmp_path, engines):  # noqa: F811
    place = tmp_path / "damaged.db"
    with open_store(f"sqlite:///{place}", n_bits=8) as store:
        store.upsert([1], np.zeros((1, 1), np.uint8))
    place.write_bytes(place.read_bytes().replace(b'"n_bits": 8', b'"n_bits": 9'))
    done = invoke("list", tmp_path, code=1)
    assert "checksum" in done.stderr
    assert "1 store" in done.stdout
    assert str(tmp_path / "no") in str(invoke("list", tmp_path / "no", code=1).exception)
    (tmp_path / "empty").mkdir()
    output = invoke("list", tmp_path / "empty").stdout
    assert "stores" in output
    assert "sqlite:" not in output
    invoke("list", code=2, env={})
    invoke("copy", "--store", f"sqlite:///{place}", code=2)
    milvus = engines.url("milvus", next(_names))
    with (
        open_store(milvus, n_bits=8) as store,
        pytest.raises(StoreError, match="milvus"),
    ):
        store.vacuum()


def test_vacuum_of_postgresql_reclaims_space(engines):  # noqa: F811
    with open_store(engines.url("postgresql", next(_names)), n_bits=N_BITS) as store:
        ids, codes, _ = fill(store)
        store.vacuum()  # the first VACUUM adds the maps of free space and visibility to the size
        store.delete(ids)
        before, after = store.vacuum()
        assert 0 < after <= before
        store.upsert(ids, codes)
        assert store.vacuum()[1] <= before  # space was reused

"""Custom hashers: registered, as a plug-in, or by module and class."""

import json
import sys
from importlib.metadata import EntryPoint

import numpy as np
import pytest
from sklearn.datasets import load_digits
from typer.testing import CliRunner

import antipodal
from antipodal import ITQ, LSH, AntipodalError, BaseHasher, DeepLinf, datasets, load, register
from antipodal.bench.runner import Benchmark, grid, run_cells
from antipodal.cli import app
from antipodal.hashers import registry
from antipodal.hashers.registry import make_hasher, method_names
from antipodal.io.model_file import read_model_file

X, Y = load_digits(return_X_y=True)
X, Y = X[:200], Y[:200]
CUSTOM_MODULE = '''
import numpy as np, torch
from antipodal import BaseHasher

class CustomHash(BaseHasher):
    """Signs of chosen features, minus their means."""

    def __init__(self, n_bits=8, *, shift=0, random_state=None):
        self.n_bits, self.shift, self.random_state = n_bits, shift, random_state

    def fit(self, X, y=None):
        rows = self.check_fit(X)
        self.chosen_ = np.arange(self.shift, self.shift + self.n_bits)
        self.mean_ = rows.mean(axis=0).astype(np.float32)
        return self

    def projector(self, max_rows):
        chosen, mean = torch.from_numpy(self.chosen_), torch.from_numpy(self.mean_)
        return lambda X: (X - mean)[:, chosen]
'''


@pytest.fixture(autouse=True)
def _restore_registry(monkeypatch):
    """Undo the registrations and imports of a test."""
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("custom_module", None)


@pytest.fixture
def custom_module(tmp_path, monkeypatch):
    """Change to a folder with a module that defines a hasher."""
    (tmp_path / "custom_module.py").write_text(CUSTOM_MODULE)
    np.save(tmp_path / "X.npy", X)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class LocalHash(LSH):
    """A custom class, defined in this file."""


def test_a_registered_hasher_is_created_saved_and_loaded(tmp_path):
    assert register(LocalHash) is LocalHash
    assert register(LocalHash) is LocalHash
    hasher = make_hasher("LocalHash", 12, seed=3).fit(X)
    assert type(hasher) is LocalHash
    assert "LocalHash" in method_names()
    hasher.save(tmp_path / "m")
    loaded = load(tmp_path / "m")
    assert type(loaded) is LocalHash
    np.testing.assert_array_equal(loaded.encode(X), hasher.encode(X))


def test_loading_a_model_of_an_unknown_class_names_the_class_to_register(tmp_path):
    LocalHash(12).fit(X).save(tmp_path / "m")
    with pytest.raises(
        AntipodalError, match=r"'LocalHash'.*'test_registry'.*register\(LocalHash\)"
    ):
        load(tmp_path / "m")


def test_loading_a_file_does_not_import_the_module_it_names(custom_module):
    make_hasher("custom_module:CustomHash", 8, seed=0).fit(X).save("m")
    assert read_model_file("m", "hasher")[0]["module"] == "custom_module"
    registry._registered.clear()
    del sys.modules["custom_module"]
    with pytest.raises(AntipodalError, match=r"antipodal\.register\(CustomHash\)"):
        load("m")
    assert "custom_module" not in sys.modules


def test_a_class_with_the_name_of_another_is_rejected(tmp_path):
    mine = type("LSH", (ITQ,), {"__module__": "elsewhere"})
    for name in ("LSH", "AGH1"):
        with pytest.raises(ValueError, match=rf"\b{name}\b"):
            register(type(name, (ITQ,), {"__module__": "elsewhere"}))
    mine(8).fit(X).save(tmp_path / "m")
    with pytest.raises(AntipodalError, match=r"'LSH'.*'elsewhere'"):
        load(tmp_path / "m")
    register(LocalHash)
    with pytest.raises(ValueError, match=r"test_registry\.LocalHash\b.*elsewhere\.LocalHash\b"):
        register(
            type("LocalHash", (LSH,), {"__module__": "elsewhere", "__qualname__": "LocalHash"})
        )
    again = type(
        "LocalHash", (LSH,), {"__module__": LocalHash.__module__, "__qualname__": "LocalHash"}
    )
    assert register(again) is again  # a cell of a notebook that runs again
    assert type(make_hasher("LocalHash", 8, seed=0)) is again


class NoBits(BaseHasher):
    def __init__(self, random_state=None):
        self.random_state = random_state


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        (LocalHash(8), TypeError, "BaseHasher"),
        (int, TypeError, "BaseHasher"),
        (NoBits, TypeError, r"\bNoBits\b.*\bn_bits\b.*\brandom_state\b"),
        (antipodal.NetworkHasher, ValueError, "NetworkHasher"),
    ],
)
def test_only_hashers_can_be_registered(kind, error, message):
    with pytest.raises(error, match=message):
        register(kind)


def test_registering_a_hasher_of_the_library_changes_nothing():
    assert register(DeepLinf) is DeepLinf
    assert type(make_hasher("antipodal:DeepLinf:n_stages=4", 8, seed=0)) is DeepLinf


def test_module_and_class_are_distinguished_from_settings(custom_module):
    hasher = make_hasher("custom_module:CustomHash:shift=3", 8, seed=0, settings=["shift=4"])
    assert hasher.get_params() == {"n_bits": 8, "shift": 4, "random_state": 0}
    assert type(make_hasher("CustomHash", 8, seed=0)) is type(
        hasher
    )  # registered by the first call
    for method, message in (
        ("custom_module:CustomHash:shift", "NAME=VALUE"),
        ("custom_module:Nobody", "custom_module.*'Nobody'"),
        ("nowhere:Nobody", "'nowhere'"),
        ("Nobody", r"'Nobody'.*module:Class"),
        ("Nobody:a=1", "'Nobody'"),
    ):
        with pytest.raises(ValueError, match=message):
            make_hasher(method, 8, seed=0)


def test_a_module_that_fails_at_its_import_is_named(custom_module):
    (custom_module / "broken_custom_module.py").write_text("1 / 0")
    with pytest.raises(ValueError, match=r"broken_custom_module.*ZeroDivisionError"):
        make_hasher("broken_custom_module:Hash", 8, seed=0)


def plug_in(monkeypatch, name, value):
    points = [EntryPoint(name, value, registry.PLUG_INS)]

    def entry_points(*, group, name=None):
        assert group == "antipodal.hashers"
        return [point for point in points if name in (None, point.name)]

    monkeypatch.setattr(registry, "entry_points", entry_points)


def test_a_plug_in_is_imported_on_first_use(custom_module, monkeypatch):
    monkeypatch.syspath_prepend(custom_module)
    plug_in(monkeypatch, "CustomHash", "custom_module:CustomHash")
    make_hasher("LSH", 8, seed=0)
    assert "CustomHash" in method_names()
    assert "custom_module" not in sys.modules
    hasher = make_hasher("CustomHash:shift=2", 8, seed=0).fit(X)
    hasher.save("m")
    monkeypatch.setattr(registry, "_registered", {})
    np.testing.assert_array_equal(load("m").encode(X), hasher.encode(X))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("CustomHash", "nowhere:CustomHash", "nowhere:CustomHash.*ModuleNotFoundError"),
        ("CustomHash", "custom_module:torch", r"custom_module:torch.*BaseHasher.*\bCustomHash\b"),
        ("Other", "custom_module:CustomHash", r"custom_module:CustomHash.*BaseHasher.*\bOther\b"),
    ],
)
def test_a_broken_plug_in_is_named(custom_module, monkeypatch, name, value, message):
    monkeypatch.syspath_prepend(custom_module)
    plug_in(monkeypatch, name, value)
    with pytest.raises(AntipodalError, match=message):
        make_hasher(name, 8, seed=0)


def test_the_command_line_fits_a_custom_class(custom_module):
    command = "fit X.npy --method custom_module:CustomHash:shift=1 --bits 8 --set shift=2 -o m"
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 0, done.output
    expected = X[:, 2:10] > X.astype(np.float32).mean(axis=0)[2:10]
    np.testing.assert_array_equal(load("m").transform(X), expected)


@pytest.mark.usefixtures("forked_workers")
def test_workers_of_a_benchmark_import_a_custom_class_or_report_the_error(custom_module):
    register(LocalHash)  # in this process only, as under `if __name__ == "__main__"`
    cells = grid(["custom_module:CustomHash", "LocalHash"], [8], [0])
    benchmark = Benchmark(datasets.digits(), n_train=20, n_query=5)
    outcomes = {cell.method: outcome for cell, outcome in run_cells(benchmark, cells, 2)}
    assert outcomes["custom_module:CustomHash"]["map"] > 15
    assert isinstance(outcomes["LocalHash"], ValueError)
    assert '`if __name__ == "__main__"`' in str(outcomes["LocalHash"])


def test_bench_evaluates_a_custom_class(custom_module):
    command = (
        "bench digits --methods custom_module:CustomHash,LSH --bits 8 --train 20 --queries 5 --json"
    )
    done = CliRunner().invoke(app, [*command.split(), "--processes", "1"])
    assert done.exit_code == 0, done.output
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["method"] for record in records] == ["custom_module:CustomHash", "LSH"]

"""Hashers from outside: registered, as a plug-in, or by module and class."""

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
OUTSIDE = '''
import numpy as np, torch
from antipodal import BaseHasher

class Outsider(BaseHasher):
    """Signs of chosen features, less their means."""

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
def _as_before(monkeypatch):
    """Forget afterwards what a test registered and imported."""
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("outside", None)


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Stand in a folder with a module that has a hasher."""
    (tmp_path / "outside.py").write_text(OUTSIDE)
    np.save(tmp_path / "X.npy", X)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Own(LSH):
    """A class from outside: of this file."""


def test_a_registered_hasher_is_made_saved_and_loaded(tmp_path):
    assert register(Own) is Own
    assert register(Own) is Own
    hasher = make_hasher("Own", 12, seed=3).fit(X)
    assert type(hasher) is Own
    assert "Own" in method_names()
    hasher.save(tmp_path / "m")
    loaded = load(tmp_path / "m")
    assert type(loaded) is Own
    np.testing.assert_array_equal(loaded.encode(X), hasher.encode(X))


def test_a_model_of_a_class_that_is_not_known_says_what_to_register(tmp_path):
    Own(12).fit(X).save(tmp_path / "m")
    with pytest.raises(AntipodalError, match=r"'Own'.*'test_registry'.*register\(Own\)"):
        load(tmp_path / "m")


def test_a_file_is_no_reason_to_import_what_it_names(outside):
    make_hasher("outside:Outsider", 8, seed=0).fit(X).save("m")
    assert read_model_file("m", "hasher")[0]["module"] == "outside"
    registry._registered.clear()
    del sys.modules["outside"]
    with pytest.raises(AntipodalError, match=r"antipodal\.register\(Outsider\)"):
        load("m")
    assert "outside" not in sys.modules


def test_a_class_with_the_name_of_another_is_refused_and_never_taken_for_it(tmp_path):
    mine = type("LSH", (ITQ,), {"__module__": "elsewhere"})
    for name in ("LSH", "AGH1"):
        with pytest.raises(ValueError, match=rf"\b{name}\b"):
            register(type(name, (ITQ,), {"__module__": "elsewhere"}))
    mine(8).fit(X).save(tmp_path / "m")
    with pytest.raises(AntipodalError, match=r"'LSH'.*'elsewhere'"):
        load(tmp_path / "m")
    register(Own)
    with pytest.raises(ValueError, match=r"test_registry\.Own\b.*elsewhere\.Own\b"):
        register(type("Own", (LSH,), {"__module__": "elsewhere", "__qualname__": "Own"}))
    again = type("Own", (LSH,), {"__module__": Own.__module__, "__qualname__": "Own"})
    assert register(again) is again  # a cell of a notebook, run once more
    assert type(make_hasher("Own", 8, seed=0)) is again


class NoBits(BaseHasher):
    def __init__(self, random_state=None):
        self.random_state = random_state


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        (Own(8), TypeError, "BaseHasher"),
        (int, TypeError, "BaseHasher"),
        (NoBits, TypeError, r"\bNoBits\b.*\bn_bits\b.*\brandom_state\b"),
        (antipodal.NetworkHasher, ValueError, "NetworkHasher"),
    ],
)
def test_what_is_no_hasher_cannot_be_registered(kind, error, message):
    with pytest.raises(error, match=message):
        register(kind)


def test_registering_a_hasher_of_the_library_changes_nothing():
    assert register(DeepLinf) is DeepLinf
    assert type(make_hasher("antipodal:DeepLinf:n_stages=4", 8, seed=0)) is DeepLinf


def test_module_and_class_are_told_from_settings(outside):
    hasher = make_hasher("outside:Outsider:shift=3", 8, seed=0, settings=["shift=4"])
    assert hasher.get_params() == {"n_bits": 8, "shift": 4, "random_state": 0}
    assert type(make_hasher("Outsider", 8, seed=0)) is type(hasher)  # known from now on
    for method, message in (
        ("outside:Outsider:shift", "NAME=VALUE"),
        ("outside:Nobody", "outside.*'Nobody'"),
        ("nowhere:Nobody", "'nowhere'"),
        ("Nobody", r"'Nobody'.*module:Class"),
        ("Nobody:a=1", "'Nobody'"),
    ):
        with pytest.raises(ValueError, match=message):
            make_hasher(method, 8, seed=0)


def test_a_module_that_fails_at_its_import_is_named(outside):
    (outside / "broken_outside.py").write_text("1 / 0")
    with pytest.raises(ValueError, match=r"broken_outside.*ZeroDivisionError"):
        make_hasher("broken_outside:Hash", 8, seed=0)


def plug_in(monkeypatch, name, value):
    points = [EntryPoint(name, value, registry.PLUG_INS)]

    def entry_points(*, group, name=None):
        assert group == "antipodal.hashers"
        return [point for point in points if name in (None, point.name)]

    monkeypatch.setattr(registry, "entry_points", entry_points)


def test_a_plug_in_is_imported_when_it_is_first_asked_for(outside, monkeypatch):
    monkeypatch.syspath_prepend(outside)
    plug_in(monkeypatch, "Outsider", "outside:Outsider")
    make_hasher("LSH", 8, seed=0)
    assert "Outsider" in method_names()
    assert "outside" not in sys.modules
    hasher = make_hasher("Outsider:shift=2", 8, seed=0).fit(X)
    hasher.save("m")
    monkeypatch.setattr(registry, "_registered", {})
    np.testing.assert_array_equal(load("m").encode(X), hasher.encode(X))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("Outsider", "nowhere:Outsider", "nowhere:Outsider.*ModuleNotFoundError"),
        ("Outsider", "outside:torch", r"outside:torch.*BaseHasher.*\bOutsider\b"),
        ("Other", "outside:Outsider", r"outside:Outsider.*BaseHasher.*\bOther\b"),
    ],
)
def test_a_broken_plug_in_is_named(outside, monkeypatch, name, value, message):
    monkeypatch.syspath_prepend(outside)
    plug_in(monkeypatch, name, value)
    with pytest.raises(AntipodalError, match=message):
        make_hasher(name, 8, seed=0)


def test_the_command_line_fits_a_class_from_outside(outside):
    command = "fit X.npy --method outside:Outsider:shift=1 --bits 8 --set shift=2 -o m"
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 0, done.output
    expected = X[:, 2:10] > X.astype(np.float32).mean(axis=0)[2:10]
    np.testing.assert_array_equal(load("m").transform(X), expected)


def test_workers_of_a_benchmark_import_a_class_from_outside_or_say_why_not(outside):
    register(Own)  # in this process only, as under `if __name__ == "__main__"`
    cells = grid(["outside:Outsider", "Own"], [8], [0])
    benchmark = Benchmark(datasets.digits(), n_train=20, n_query=5)
    outcomes = {cell.method: outcome for cell, outcome in run_cells(benchmark, cells, 2)}
    assert outcomes["outside:Outsider"]["map"] > 15
    assert isinstance(outcomes["Own"], ValueError)
    assert '`if __name__ == "__main__"`' in str(outcomes["Own"])


def test_bench_scores_a_class_from_outside(outside):
    command = "bench digits --methods outside:Outsider,LSH --bits 8 --train 20 --queries 5 --json"
    done = CliRunner().invoke(app, [*command.split(), "--processes", "1"])
    assert done.exit_code == 0, done.output
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["method"] for record in records] == ["outside:Outsider", "LSH"]

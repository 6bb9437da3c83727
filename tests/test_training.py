"""`Training`: the training options of the networks as one parameter."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits

from antipodal import CSQ, DeepLinf, NNHash, OrthoHash, SparseHash, Training, load
from antipodal.bench.runner import Benchmark, Cell, parameters
from antipodal.datasets import digits
from antipodal.hashers.registry import make_hasher

X, Y = load_digits(return_X_y=True)
X, Y = X[:60], Y[:60]
NETWORKS = [DeepLinf, NNHash, SparseHash, OrthoHash, CSQ]


@pytest.mark.parametrize("kind", NETWORKS)
def test_networks_have_at_most_twelve_parameters(kind):
    assert len(kind().get_params(deep=False)) <= 12


def test_the_representation_names_only_what_differs_from_the_defaults():
    assert repr(Training()) == "Training()"
    assert repr(DeepLinf(8, training=Training(n_epochs=5))) == (
        "DeepLinf(n_bits=8, training=Training(n_epochs=5))"
    )


def test_a_clone_has_its_own_options():
    hasher = DeepLinf(8, training=Training(n_epochs=5))
    copied = clone(hasher).set_params(training__n_epochs=7)
    assert (hasher.training.n_epochs, copied.training.n_epochs) == (5, 7)


def test_options_can_be_set_where_there_are_none():
    hasher = DeepLinf(8).set_params(training__n_epochs=5, n_stages=1)
    assert hasher.training == Training(n_epochs=5)
    assert hasher.n_stages == 1
    with pytest.raises(ValueError, match="n_epoch"):
        hasher.set_params(training__n_epoch=5)


@pytest.mark.parametrize("training", [{"n_epochs": 5}, 5, Training])
def test_options_of_another_type_are_refused(training):
    with pytest.raises(TypeError, match=r"\btraining\b.*\bTraining\b"):
        DeepLinf(8, training=training).fit(X, Y)


def test_no_options_are_the_defaults(tmp_path):
    quick = {"feature_map": "none", "scaling": "each", "random_state": 0}
    hasher = DeepLinf(8, **quick).fit(X, Y)
    same = DeepLinf(8, training=Training(), **quick).fit(X, Y)
    np.testing.assert_array_equal(hasher.project(X), same.project(X))
    hasher.save(tmp_path / "m")
    assert load(tmp_path / "m").training is None
    same.save(tmp_path / "m")
    assert load(tmp_path / "m").training == Training()


def test_settings_reach_the_options_and_keep_their_old_names():
    hasher = make_hasher("DeepLinf:n_epochs=5:front=none:belief_power=2", 8, 0, ["n_stages=1"])
    expected = DeepLinf(
        8, feature_map="none", n_stages=1,
        training=Training(n_epochs=5, pseudo_label_power=2), random_state=0,
    )  # fmt: skip
    assert hasher.get_params() == expected.get_params()
    with pytest.raises(ValueError, match=r"'training=1'"):
        make_hasher("DeepLinf:training=1", 8, 0)
    with pytest.raises(ValueError, match=r"'front=none'"):
        make_hasher("ITQ:front=none", 8, 0)


def test_records_with_old_names_are_found_again():
    benchmark = Benchmark(digits(), n_train=50, n_query=20)
    cell = Cell("DeepLinf:feature_map=none", 16, 0)
    record = json.loads(json.dumps(benchmark.identify(cell)))
    names = {"feature_map": "front", "pseudo_label_power": "belief_power"}
    old = {names.get(name, name): value for name, value in record["parameters"].items()}
    old |= {"tied": False, "shrinkage": 0.0}
    record |= {"method": "DeepLinf:front=none", "parameters": old}
    assert benchmark.matching([cell], [record]) == {cell: record}
    for change in ({"tied": True}, {"shrinkage": 0.1}, {"front": "hidden"}, {"n_epochs": 3}):
        assert not benchmark.matching([cell], [record | {"parameters": old | change}])


def test_no_options_are_recorded_as_the_defaults():
    assert parameters(DeepLinf(8)) == parameters(DeepLinf(8, training=Training()))
    assert parameters(DeepLinf(8))["n_unlabelled"] == 20_000


def test_a_model_with_tied_stages_and_shrinkage_is_read_as_an_untied_one():
    path = Path(__file__).parent / "data" / "0.6.1" / "DeepLinf.tied.antipodal"
    hasher = load(path)
    assert hasher.training == Training(n_epochs=2)
    S = hasher.weights_["encoder_.S"]
    assert S.shape == (2, 16, 16)
    assert (S[0] == S[1]).all()
    refitted = clone(hasher).fit(np.random.default_rng(0).standard_normal((60, 18)), Y)
    assert type(refitted.encoder_).__name__ == "LinfEncoder"

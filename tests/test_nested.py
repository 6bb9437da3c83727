"""Nested code lengths: several lengths from one model."""

import math
import re
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, make_multilabel_classification
from sklearn.exceptions import NotFittedError

from antipodal import DeepLinf, LinfEncoder, NNHash, SparseHash, evaluate, load, pack
from antipodal.errors import ModelFileError
from antipodal.hashers.registry import make_hasher
from antipodal.io.model_file import read_model_file, write_model_file
from antipodal.paper.losses import mean_over_prefixes
from antipodal.paper.pair_sampling import AllPairsBatch, ExpectedBatch, ListedBatch
from networks import network

X, Y = load_digits(return_X_y=True)
ORDER = np.random.default_rng(0).permutation(len(X))  # the digits are sorted by writer
X, Y = X[ORDER], Y[ORDER]
TRAIN, DATABASE, QUERY = slice(0, 300), slice(300, 1400), slice(1400, None)
QUICK = {"scaling": "each", "n_epochs": 2, "n_anchors": 50, "n_hidden": 20, "random_state": 0}
NETWORKS = [DeepLinf, NNHash, SparseHash]


def eq_12(z, similar, counts, margin, weight):
    """Return Eq. 12 by a loop over the selected pairs."""
    pull = push = n_similar = n_dissimilar = 0.0
    for i, j in np.argwhere(counts):
        distance = np.linalg.norm(z[i] - z[j])
        s = float(similar[i, j])
        pull, n_similar = pull + s * distance**2 / 2, n_similar + s
        push += (1 - s) * max(0.0, margin - distance) ** 2 / 2
        n_dissimilar += 1 - s
    return weight * pull / max(n_similar, 1) + push / max(n_dissimilar, 1)


def mean_eq_12(z, similar, counts, margins, weight):
    """Return the mean of Eq. 12 over prefixes, given the margin of each length."""
    return np.mean([eq_12(z[:, :n], similar, counts, m, weight) for n, m in margins.items()])


def batch_of(kind, rng):
    """Return a batch of ten rows, the similarity probabilities and the table of its pairs."""
    rows, others = torch.arange(10), ~np.eye(10, dtype=bool)
    if kind == "labels":
        labels = rng.integers(3, size=10)
        return AllPairsBatch(rows, torch.from_numpy(labels)), labels[:, None] == labels, others
    if kind == "listed":
        similar = np.array([True, False, True, False, False])
        table, counts = np.zeros((2, 10, 10))
        table[range(5), range(5, 10)] = similar
        counts[range(5), range(5, 10)] = 1
        return ListedBatch(rows, torch.from_numpy(similar)), table, counts
    p = rng.random((10, 3))
    if kind == "classes":
        p /= p.sum(axis=1, keepdims=True)
        similar = p @ p.T
    else:
        similar = 1 - np.prod(1 - p[:, None] * p, axis=2)
    batch = ExpectedBatch(rows, torch.from_numpy(p), kind == "classes", torch.Generator())
    return batch, similar, others


@pytest.mark.parametrize("kind", ["labels", "listed", "classes", "concepts"])
def test_the_loss_is_the_mean_over_prefixes_with_margins_for_their_lengths(kind):
    rng = np.random.default_rng(0)
    batch, similar, counts = batch_of(kind, rng)
    z = torch.tensor(rng.standard_normal((10, 8)), requires_grad=True)
    margins = {2: 1.5, 5: 3 * math.sqrt(5 / 8), 8: 3}
    loss = batch.loss(z, 3.0, 0.3, (2, 5))
    expected = mean_eq_12(z.detach().numpy(), similar, counts, margins, 0.3)
    assert loss.item() == pytest.approx(expected)
    assert torch.autograd.gradcheck(lambda z: batch.loss(z, 3.0, 0.3, (2, 5)), z)


@pytest.mark.parametrize(("kind", "reach"), [(DeepLinf, 2.0), (NNHash, 1.0), (SparseHash, 0.5)])
@pytest.mark.parametrize("margin", [None, 3.0])
def test_networks_minimise_the_mean_over_prefixes(kind, reach, margin):
    options = QUICK | {"n_epochs": 1, "learning_rate": 1e-30, "dropout": 0.0, "weight_decay": 0.0}
    if kind is DeepLinf:
        options["bound"] = reach
    hasher = network(
        kind, 12, nested=(3, 8), margin=margin, similar_weight=0.5, feature_map="none", **options
    )
    z = hasher.fit(X[:40], Y[:40]).project(X[:40])
    margins = {
        n: 0.95 * math.sqrt(2 * n) * reach if margin is None else margin * math.sqrt(n / 12)
        for n in (3, 8, 12)
    }
    expected = mean_eq_12(z, Y[:40, None] == Y[:40], ~np.eye(40, dtype=bool), margins, 0.5)
    assert hasher.loss_curve_[0] == pytest.approx(expected, rel=1e-4)


def test_without_nested_the_loss_is_that_of_the_whole_codes():
    z, seen = torch.rand(3, 4), []
    value = torch.tensor(1.0)

    def loss(codes, margin):
        seen.append((codes, margin))
        return value

    assert mean_over_prefixes(loss, z, 2.0, ()) is value
    assert len(seen) == 1
    assert seen[0][0] is z
    assert seen[0][1] == 2.0


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("feature_map", ["none", "hidden", "kernel"])
def test_a_prefix_encodes_the_first_bits_and_can_be_saved(kind, feature_map, tmp_path):
    hasher = network(kind, 40, nested=(5, 16, 24), feature_map=feature_map, **QUICK).fit(
        X[:100], Y[:100]
    )
    values, bits = hasher.project(X), hasher.transform(X)
    for n_bits in (5, 16, 24):
        short = hasher.prefix(n_bits)
        assert type(short) is kind
        assert short.n_bits == n_bits
        np.testing.assert_array_equal(short.project(X), values[:, :n_bits])
        np.testing.assert_array_equal(short.encode(X), pack(bits[:, :n_bits]))
        np.testing.assert_array_equal(short.transform(X[:1]), bits[:1, :n_bits])
        assert len(short.get_feature_names_out()) == n_bits
        short.save(tmp_path / "m")
        read = load(tmp_path / "m")
        assert read.get_params() == short.get_params()
        np.testing.assert_array_equal(read.encode(X), short.encode(X))
    np.testing.assert_array_equal(hasher.prefix(16).encode(X), hasher.encode(X)[:, :2])
    np.testing.assert_array_equal(hasher.transform(X), bits)


def test_an_encoder_with_another_forward_has_prefixes():
    class Halved(LinfEncoder):
        def forward(self, y):
            return super().forward(y) / 2

    class HalvedHash(DeepLinf):
        def new_encoder(self, n_features, n_bits, n_stages, seed=0):
            return Halved(n_features, n_bits, n_stages)

    hasher = network(HalvedHash, 24, nested=(8,), feature_map="none", **QUICK).fit(X[:99], Y[:99])
    np.testing.assert_array_equal(hasher.prefix(8).project(X), hasher.project(X)[:, :8])


def test_loaded_models_and_prefixes_have_shorter_prefixes(tmp_path):
    hasher = network(DeepLinf, 24, nested=[np.int64(4), 8, 16], margin=6.0, **QUICK).fit(
        X[:99], Y[:99]
    )
    hasher.save(tmp_path / "m")
    read = load(tmp_path / "m")
    assert read.nested == (4, 8, 16)
    bits = read.transform(X)
    short = read.prefix(np.int64(16))
    assert short.nested == (4, 8)
    assert short.training.margin == pytest.approx(6 * math.sqrt(16 / 24))
    short.save(tmp_path / "s")
    for start in (short, load(tmp_path / "s")):
        shortest = start.prefix(4)
        np.testing.assert_array_equal(shortest.transform(X), bits[:, :4])
        shortest.save(tmp_path / "t")
        np.testing.assert_array_equal(load(tmp_path / "t").transform(X), bits[:, :4])
        with pytest.raises(ValueError, match=r"\(4, 8\): got 16"):
            start.prefix(16)


def test_fitting_a_prefix_trains_a_model_of_its_length():
    hasher = network(DeepLinf, 24, nested=(4, 8), **QUICK).fit(X[:99], Y[:99])
    bits = hasher.transform(X)
    short = hasher.prefix(8)
    short.fit(X[:99], Y[:99])
    alone = network(DeepLinf, 8, nested=(4,), **QUICK).fit(X[:99], Y[:99])
    np.testing.assert_array_equal(short.transform(X), alone.transform(X))
    assert short.encoder_.W.shape[0] == 8
    np.testing.assert_array_equal(hasher.transform(X), bits)


def test_pairs_unlabelled_rows_concepts_and_validation_have_prefixes():
    rng = np.random.default_rng(0)
    pairs = rng.integers(100, size=(400, 2))
    options = QUICK | {"nested": (4, 8)}
    rows, concepts = make_multilabel_classification(
        200, 12, n_classes=4, allow_unlabeled=False, random_state=0
    )
    digits = X[:300]
    fitted = {
        "pairs": (
            network(DeepLinf, 16, **options).fit_pairs(X, pairs, Y[pairs[:, 0]] == Y[pairs[:, 1]]),
            X,
        ),
        "unlabelled": (
            network(DeepLinf, 16, **options).fit(digits[:99], Y[:99], unlabelled=digits[99:]),
            X,
        ),
        "sampled": (
            network(DeepLinf, 16, pairs="sampled", n_pairs=500, **options).fit(X[:99], Y[:99]),
            X,
        ),
        "concepts": (
            network(DeepLinf, 16, **options).fit(rows[:100], concepts[:100], unlabelled=rows[100:]),
            rows,
        ),
        "validation": (
            network(DeepLinf, 16, validation_fraction=0.2, **options).fit(X[:99], Y[:99]),
            X,
        ),
    }
    for name, (hasher, seen) in fitted.items():
        np.testing.assert_array_equal(
            hasher.prefix(8).transform(seen), hasher.transform(seen)[:, :8], err_msg=name
        )
    assert len(fitted["validation"][0].validation_curve_) == 2


@pytest.mark.parametrize("uses_probabilities", [False, True])
def test_a_custom_loss_is_called_with_each_prefix_and_the_same_targets(uses_probabilities):
    seen = []

    def loss(codes, targets):
        seen.append((codes.shape[1], targets))
        return codes.square().mean()

    hasher = network(DeepLinf, 12, nested=(3, 8), loss=loss, **QUICK)
    hasher.fit(X[:99], Y[:99], **({"unlabelled": X[99:200]} if uses_probabilities else {}))
    assert [n for n, _ in seen[:3]] == [3, 8, 12]
    for i in range(0, len(seen), 3):
        assert seen[i][1] is seen[i + 1][1] is seen[i + 2][1]


def test_a_checkpoint_is_resumed_and_one_of_other_lengths_refused(tmp_path):
    fit = partial(DeepLinf.fit, X=X[:99], y=Y[:99], checkpoint=tmp_path / "state")
    first = fit(network(DeepLinf, 16, nested=(4, 8), **QUICK))
    again = fit(network(DeepLinf, 16, nested=[4, 8], **QUICK))
    np.testing.assert_array_equal(first.encode(X), again.encode(X))
    for nested in ((), (4,)):
        with pytest.raises(ModelFileError, match="state"):
            fit(network(DeepLinf, 16, nested=nested, **QUICK))


@pytest.mark.parametrize("nested", [(0, 4), (-1,), (8,), (4, 9), (4, 2), (4, 4)])
def test_invalid_lengths_are_refused(nested):
    with pytest.raises(ValueError, match=r"\bnested\b.*\b8\b.*\bn_bits\b"):
        DeepLinf(8, nested=nested).fit(X[:50], Y[:50])


@pytest.mark.parametrize("nested", [4, "4", (4.0,), (True,), None])
def test_nested_must_be_a_list_of_integers(nested):
    with pytest.raises(TypeError, match=rf"\bnested\b.*{re.escape(repr(nested))}"):
        DeepLinf(8, nested=nested).fit(X[:50], Y[:50])


def test_prefixes_of_other_lengths_are_refused():
    with pytest.raises(NotFittedError):
        DeepLinf(16, nested=(4, 8)).prefix(4)
    hasher = network(DeepLinf, 16, nested=(4, 8), **QUICK).fit(X[:50], Y[:50])
    for n_bits in (1, 5, 16, 17):
        with pytest.raises(ValueError, match=rf"\(4, 8\).*\b{n_bits}\b"):
            hasher.prefix(n_bits)
    with pytest.raises(TypeError, match=r"\b4\.0"):
        hasher.prefix(4.0)
    with pytest.raises(ValueError, match=r"\bnested\b.*\(4, 8\).*\(4, 5\)"):
        hasher.set_params(nested=(4, 5)).prefix(5)
    with pytest.raises(ValueError, match=r"\bnested\b.*\b4\b"):
        network(DeepLinf, 16, **QUICK).fit(X[:50], Y[:50]).prefix(4)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("fitted", "full_bits_", 8),
        ("fitted", "full_bits_", 17),
        ("fitted", "full_bits_", "16"),
        ("parameters", "n_bits", 17),
        ("parameters", "nested", [9]),
        ("parameters", "nested", 3),
        ("parameters", "nested", ["a"]),
    ],
)
def test_inconsistent_files_are_refused(part, name, value, tmp_path):
    hasher = network(DeepLinf, 16, nested=(4, 8), **QUICK).fit(X[:50], Y[:50])
    hasher.prefix(8).save(tmp_path / "m")
    header, arrays = read_model_file(tmp_path / "m", "hasher")
    assert name in header[part]
    header[part][name] = value
    write_model_file(tmp_path / "m", "hasher", header, arrays)
    with pytest.raises(ModelFileError, match="DeepLinf"):
        load(tmp_path / "m")


@pytest.mark.parametrize("kind", NETWORKS)
def test_scikit_learn_clones_nested_networks(kind):
    hasher = network(kind, 16, nested=(4, 8), **QUICK)
    assert hasher.get_params()["nested"] == (4, 8)
    assert "nested=(4, 8)" in repr(hasher)
    short = hasher.fit(X[:50], Y[:50]).prefix(8)
    for fitted in (hasher, short):
        copied = clone(fitted)
        assert copied.get_params() == fitted.get_params()
        with pytest.raises(NotFittedError):
            copied.encode(X)


def test_nested_lengths_can_be_set_on_the_command_line():
    assert make_hasher("DeepLinf", 64, 0, ["nested=[16,32]"]).nested == [16, 32]
    with pytest.raises(TypeError, match=r"\bnested\b.*\b16\b"):
        make_hasher("DeepLinf", 64, 0, ["nested=16"])


def test_the_first_bits_rank_like_a_separate_code():
    options = QUICK | {"n_epochs": 40, "feature_map": "none"}

    def score(bits):
        codes = pack(bits)
        n_bits = bits.shape[1]
        return evaluate(codes[QUERY], codes[DATABASE], Y[QUERY], Y[DATABASE], n_bits=n_bits).map

    def fit(n_bits, nested=()):
        return network(DeepLinf, n_bits, nested=nested, **options).fit(X[TRAIN], Y[TRAIN])

    nested, plain, short = fit(64, (16,)), fit(64), fit(16)
    first = score(nested.prefix(16).transform(X))
    assert first > score(short.transform(X)) - 3
    assert first > score(plain.transform(X)[:, :16]) + 2
    assert score(nested.transform(X)) > score(plain.transform(X)) - 3

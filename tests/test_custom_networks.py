"""Custom losses, encoders and networks."""

from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from torch.nn.functional import softplus

from antipodal import (
    BLU,
    DeepLinf,
    Encoder,
    LinfEncoder,
    NetworkHasher,
    Training,
    evaluate,
    load,
    register,
)
from antipodal.errors import ModelFileError
from antipodal.hashers import registry
from antipodal.hashers.base import function_name
from antipodal.paper.pair_sampling import AllPairsBatch, ListedBatch
from networks import network

X, Y = load_digits(return_X_y=True)
X, Y = X[:300], Y[:300]
PAIRS = np.random.default_rng(0).integers(0, 300, (700, 2))
SIMILAR = Y[PAIRS[:, 0]] == Y[PAIRS[:, 1]]


def contrastive(codes, targets, margin=3.0, weight=0.1):
    """Return Eq. 12, as a custom loss."""
    similar, dissimilar = targets > 0, targets < 0
    distance = torch.cdist(codes, codes, compute_mode="donot_use_mm_for_euclid_dist")
    pull = 0.5 * (distance.square() * similar).sum() / similar.sum().clamp(min=1)
    push = 0.5 * ((margin - distance).clamp(min=0).square() * dissimilar).sum()
    return weight * pull + push / dissimilar.sum().clamp(min=1)


def likelihood(codes, targets):
    """Return -log P(similar), with log-odds ½zᵀz'."""
    similar, dissimilar = targets > 0, targets < 0
    odds = codes @ codes.T / 2
    pull = (softplus(-odds) * similar).sum() / similar.sum().clamp(min=1)
    return pull + (softplus(odds) * dissimilar).sum() / dissimilar.sum().clamp(min=1)


@pytest.mark.parametrize(
    "batch",
    [
        AllPairsBatch(torch.arange(6), torch.tensor([0, 0, 1, 1, 2, 0])),
        ListedBatch(torch.arange(6), torch.tensor([True, False, True])),
        ListedBatch(torch.arange(4), torch.tensor([True, True])),
    ],
)
def test_the_tables_of_a_batch_contain_exactly_its_pairs(batch):
    n = len(batch.rows)
    if isinstance(batch, AllPairsBatch):
        label = batch.labels.tolist()
        pairs = {(i, j): label[i] == label[j] for i in range(n) for j in range(n) if i != j}
    else:
        flags = enumerate(batch.similar.tolist())
        pairs = {p: s for i, s in flags for p in ((i, i + n // 2), (i + n // 2, i))}
    similar, dissimilar = batch.tables()
    assert {tuple(p) for p in similar.nonzero().tolist()} == {p for p, s in pairs.items() if s}
    assert {tuple(p) for p in dissimilar.nonzero().tolist()} == {
        p for p, s in pairs.items() if not s
    }
    z = torch.randn(n, 5, dtype=torch.float64)
    ours = batch.loss(z, 3.0, 0.1)
    targets = similar.double() - dissimilar.double()
    assert contrastive(z, targets).item() == pytest.approx(ours.item(), rel=1e-9)


SETTINGS = {"n_bits": 12, "n_epochs": 4, "margin": 3.0, "feature_map": "none", "random_state": 0}


@pytest.mark.parametrize(
    "settings", [{}, {"pairs": "sampled", "n_pairs": 600}, {"validation_fraction": 0.2}]
)
def test_equation_12_as_a_custom_loss_trains_the_same_network(settings):
    built_in = network(DeepLinf, **SETTINGS, **settings).fit(X, Y)
    own = network(DeepLinf, loss=contrastive, **SETTINGS, **settings).fit(X, Y)
    np.testing.assert_allclose(own.loss_curve_, built_in.loss_curve_, rtol=1e-3)
    np.testing.assert_allclose(own.validation_curve_, built_in.validation_curve_, rtol=1e-3)
    assert (own.transform(X) == built_in.transform(X)).mean() > 0.99


def test_a_custom_loss_is_minimised_over_explicit_pairs():
    built_in = network(DeepLinf, **SETTINGS).fit_pairs(X, PAIRS, SIMILAR)
    own = network(DeepLinf, loss=contrastive, **SETTINGS).fit_pairs(X, PAIRS, SIMILAR)
    np.testing.assert_allclose(own.loss_curve_, built_in.loss_curve_, rtol=1e-3)


def test_another_loss_learns_other_codes():
    hasher = DeepLinf(16, loss=likelihood, training=Training(n_epochs=20), random_state=0).fit(
        X[:200], Y[:200]
    )
    codes = hasher.encode(X)
    ours = evaluate(codes[200:], codes[:200], Y[200:], Y[:200], n_bits=16).map
    assert ours > 60
    assert hasher.loss_curve_[-1] < 0.7 * hasher.loss_curve_[0]


def test_a_saved_model_stores_the_name_of_its_loss(tmp_path):
    hasher = network(DeepLinf, loss=partial(contrastive, margin=2.0), **SETTINGS).fit(X, Y)
    hasher.save(tmp_path / "m")
    loaded = load(tmp_path / "m")
    assert loaded.loss == "test_custom_networks.contrastive(margin=2.0)"
    np.testing.assert_array_equal(loaded.encode(X), hasher.encode(X))
    with pytest.raises(ValueError, match=r"'triplet'.*test_custom_networks\.contrastive"):
        loaded.fit(X, Y)
    assert clone(hasher).loss.func is contrastive


class Scaled:
    """A callable object as loss."""

    def __call__(self, codes, targets):
        return 2 * contrastive(codes, targets)


def test_a_checkpoint_of_another_loss_is_refused(tmp_path):
    losses = ["contrastive", contrastive, partial(contrastive, margin=2.0), likelihood, Scaled()]
    assert len({loss if loss == "contrastive" else function_name(loss) for loss in losses}) == 5
    network(DeepLinf, loss=contrastive, **SETTINGS).fit(X, Y, checkpoint=tmp_path / "c")
    network(DeepLinf, loss=contrastive, **SETTINGS).fit(X, Y, checkpoint=tmp_path / "c")
    for other in (loss for loss in losses if loss is not contrastive):
        with pytest.raises(ModelFileError, match=r"\bc\b"):
            network(DeepLinf, loss=other, **SETTINGS).fit(X, Y, checkpoint=tmp_path / "c")


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        ("quadruplet", ValueError, "'triplet'.*'quadruplet'"),
        (None, ValueError, r"\bloss\b.*'contrastive'.*'triplet'.*\bNone\b"),
        (lambda z, targets: 1.0, TypeError, r"tensor.*\bfloat\b"),
        (lambda z, targets: z.sum(dim=1), TypeError, r"\(300,\)"),
        (lambda z, targets: z.sum() / 0, FloatingPointError, "lambda>"),
    ],
)
def test_an_invalid_loss_is_refused(loss, error, message):
    with pytest.raises(error, match=message):
        network(DeepLinf, loss=loss, batch_size=300, **SETTINGS).fit(X, Y)


class SineEncoder(Encoder):
    """Custom encoder that defines only its neuron."""

    def neuron(self, u):
        return torch.sin(u)


class ScaledEncoder(Encoder):
    """Custom encoder with thresholds."""

    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.blu = BLU(sizes[1], 0.7)

    def neuron(self, u):
        return self.blu(u)

    @property
    def threshold(self):
        return self.blu.threshold


class SquaredEncoder(LinfEncoder):
    """Custom encoder that overrides `forward` and uses dropout."""

    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.dropout = torch.nn.Dropout(0.3)

    def forward(self, y):
        return super().forward(self.dropout(y * y.abs()))


class CustomNetwork(NetworkHasher):
    """Custom network with a custom encoder."""

    kind: ClassVar[type[Encoder]] = SineEncoder

    def new_encoder(self, n_features, n_bits, n_stages, seed=0):
        generator = torch.Generator().manual_seed(seed)
        return self.kind(n_features, n_bits, n_stages, generator=generator)

    def reach(self):
        return 1.0


@pytest.mark.parametrize("encoder", [SineEncoder, ScaledEncoder, SquaredEncoder])
@pytest.mark.parametrize("feature_map", ["none", "hidden", "kernel"])
def test_a_custom_encoder_encodes_as_in_training(encoder, feature_map, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(CustomNetwork, "kind", encoder)
    settings = {
        "n_epochs": 2,
        "feature_map": feature_map,
        "n_anchors": 60,
        "n_hidden": 30,
        "random_state": 0,
    }
    hasher = network(register(CustomNetwork), 12, scaling="each", **settings).fit(X, Y)
    values = hasher.project(X)
    hasher.save(tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m").project(X), values)
    Z = (X - hasher.mean_) / hasher.scale_
    if feature_map == "kernel":
        squared = ((Z[:, None] - hasher.anchors_) ** 2).sum(axis=2)
        Z = np.exp(-hasher.gamma_ * squared) @ hasher.lift_ - hasher.lift_offset_
    with torch.no_grad():
        seen = torch.from_numpy(Z)
        if feature_map == "hidden":
            seen = hasher.hidden_.double()(seen)
        expected = hasher.encoder_.double()(seen)
    np.testing.assert_allclose(values, expected, atol=1e-3)


def test_an_encoder_without_a_neuron_raises():
    with pytest.raises(NotImplementedError, match=r"Encoder.*neuron"):
        Encoder(4, 3)(torch.zeros(1, 4))

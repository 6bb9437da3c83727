"""Triplets, and sparsity beside the bound: what the paper leaves for later."""

from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.datasets import load_digits

from antipodal import DeepLinf, evaluate, load
from antipodal.paper.encoders import SparseLinfEncoder
from antipodal.paper.losses import triplet_loss

X, Y = load_digits(return_X_y=True)


def test_the_triplet_loss_is_the_mean_over_its_triplets():
    rng = np.random.default_rng(0)
    z, labels, m = rng.standard_normal((9, 4)), rng.integers(0, 3, 9), 1.5
    terms = []
    for i, j, shift in product(range(9), range(9), (1, 2, 3, 4)):
        k = (j + shift) % 9
        if i != j and i != k and labels[i] == labels[j] and labels[i] != labels[k]:
            nearer, further = np.linalg.norm(z[i] - z[j]), np.linalg.norm(z[i] - z[k])
            terms.append(0.5 * max(0.0, m + nearer - further) ** 2)
    targets = np.where(labels[:, None] == labels, 1, -1)
    np.fill_diagonal(targets, 0)
    loss = triplet_loss(torch.tensor(z), torch.tensor(targets), margin=m)
    assert loss.item() == pytest.approx(np.mean(terms), rel=1e-9)


def test_without_triplets_the_loss_is_zero_and_equal_codes_have_a_gradient():
    z = torch.ones(4, 3, requires_grad=True)
    all_similar = 1 - torch.eye(4)
    assert triplet_loss(z, all_similar, margin=1.0).item() == 0
    targets = torch.tensor([[0, 1, -1, -1], [1, 0, -1, -1], [-1, -1, 0, 1], [-1, -1, 1, 0]])
    triplet_loss(z, targets, margin=1.0).backward()
    assert torch.isfinite(z.grad).all()


def test_triplets_and_shrinkage_learn_codes(tmp_path):
    chance = 10.0
    for options in ({"loss": "triplet"}, {"shrinkage": 0.1}):
        hasher = DeepLinf(24, n_epochs=15, front="hidden", random_state=0, **options)
        codes = hasher.fit(X[:500], Y[:500]).encode(X)
        found = evaluate(codes[1000:], codes[:1000], Y[1000:], Y[:1000], n_bits=24).map
        assert found > 5 * chance, options
        hasher.save(tmp_path / "model")
        assert (load(tmp_path / "model").encode(X) == codes).all()


def test_the_sparse_unit_minimises_what_it_says():
    encoder = SparseLinfEncoder(5, 3, bound=0.7, shrinkage=0.2)
    u = torch.tensor([[-1.4, -0.15, 0.5]])

    def nearest(u):
        """Minimise ½(x - u)² + θ|x| over |x| ≤ λ."""
        cost = minimize_scalar(
            lambda x: 0.5 * (x - u) ** 2 + 0.2 * abs(x), bounds=(-0.7, 0.7), method="bounded",
            options={"xatol": 1e-9},
        )  # fmt: skip
        return cost.x

    expected = torch.tensor([[nearest(float(v)) for v in u[0]]], dtype=torch.float32)
    torch.testing.assert_close(encoder.neuron(u), expected, atol=1e-5, rtol=0)
    scaled = encoder.unit(u / encoder.threshold) * encoder.threshold
    torch.testing.assert_close(scaled, encoder.neuron(u))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shrinkage": -0.1}, r"\bshrinkage\b.*-0\.1\b"),
        ({"shrinkage": 0.1, "init": "ksvd"}, r"\binit\b.*'random'.*\bshrinkage\b"),
        ({"loss": "triplet", "pairs": "sampled"}, r"\bpairs\b.*\btriplets\b"),
    ],
)
def test_settings_that_cannot_work_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        DeepLinf(8, **options).fit(X[:50], Y[:50])


def test_pairs_make_no_triplets():
    with pytest.raises(ValueError, match=r"\bpairs\b.*\btriplets\b"):
        DeepLinf(8, loss="triplet").fit_pairs(X[:9], [[0, 1], [1, 2]], [1, 0])

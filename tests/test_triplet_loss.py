"""The triplet loss, which the paper leaves for future work."""

from itertools import product

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from antipodal import DeepLinf, Training, evaluate, load
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


def test_codes_are_learned_from_triplets(tmp_path):
    hasher = DeepLinf(
        24, feature_map="hidden", loss="triplet", training=Training(n_epochs=15), random_state=0
    )
    codes = hasher.fit(X[:500], Y[:500]).encode(X)
    found = evaluate(codes[1000:], codes[:1000], Y[1000:], Y[:1000], n_bits=24).map
    assert found > 50  # chance is 10
    hasher.save(tmp_path / "model")
    assert (load(tmp_path / "model").encode(X) == codes).all()


def test_triplets_cannot_be_made_of_sampled_pairs():
    hasher = DeepLinf(8, loss="triplet", training=Training(pairs="sampled"))
    with pytest.raises(ValueError, match=r"\bpairs\b.*\btriplets\b"):
        hasher.fit(X[:50], Y[:50])


def test_triplets_cannot_be_made_of_explicit_pairs():
    with pytest.raises(ValueError, match=r"\bpairs\b.*\btriplets\b"):
        DeepLinf(8, loss="triplet").fit_pairs(X[:9], [[0, 1], [1, 2]], [1, 0])

"""Networks with very many classes: the loss of class centres is added to that of the pairs."""

from functools import partial

import numpy as np
import pytest
import torch

from antipodal import DeepLinf, NNHash, SparseHash
from antipodal.paper.centres import CentrePairs, class_centres, cosine_loss
from antipodal.paper.pair_sampling import ExpectedPairs
from networks import network

QUICK = {"n_epochs": 1, "scaling": "each", "random_state": 0}


def certain(n_classes, n_rows=600):
    """Return the class probabilities of rows with known classes."""
    return torch.eye(n_classes).repeat(-(-n_rows // n_classes), 1)


@pytest.mark.parametrize("kind", [DeepLinf, NNHash, SparseHash])
def test_centres_are_used_if_a_batch_has_few_rows_of_a_class(kind):
    def source(n_classes, **options):
        return network(kind, 16, **options)._expected_pairs(
            certain(n_classes).numpy(), 0, exclusive=True
        )

    assert isinstance(source(10), ExpectedPairs)
    assert isinstance(source(77), CentrePairs)
    assert isinstance(source(10, centres=True), CentrePairs)
    assert isinstance(source(77, centres=False), ExpectedPairs)
    assert isinstance(source(77, nested=(8,)), ExpectedPairs)
    assert isinstance(source(77, loss="triplet"), ExpectedPairs)


def test_the_loss_is_the_sum_of_both_losses():
    rng = np.random.default_rng(0)
    probabilities, centres = (
        certain(20, 20),
        torch.tensor(class_centres(20, 8, rng), dtype=torch.float32),
    )
    z = torch.tensor(rng.standard_normal((20, 8)), dtype=torch.float32)
    by_centre = partial(cosine_loss, centres=centres, scale=3.0, margin=0.2)
    pairs = ExpectedPairs(probabilities, exclusive=True)
    source = CentrePairs(pairs, probabilities, by_centre, add_pair_loss=True)
    (both,) = source.batches(20, torch.Generator().manual_seed(0))
    (alone,) = pairs.batches(20, torch.Generator().manual_seed(0))
    m = 2.5
    expected = alone.loss(z, m, 0.3) + m**2 / 2 * by_centre(z, probabilities[alone.rows])
    assert both.loss(z, m, 0.3).item() == pytest.approx(expected.item())


@pytest.mark.parametrize("options", [{"nested": (4,)}, {"loss": "triplet"}])
def test_centres_are_refused_with_nested_codes_or_triplets(options):
    X = np.random.default_rng(0).standard_normal((20, 4))
    with pytest.raises(ValueError, match=r"\bcentres\b.*\bcontrastive\b"):
        network(DeepLinf, 8, centres=True, **QUICK, **options).fit(X, np.arange(20) % 2)

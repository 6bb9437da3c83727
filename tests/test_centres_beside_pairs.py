"""With very many classes the networks have a code for each class, beside their pairs."""

from functools import partial

import numpy as np
import pytest
import torch

from antipodal import DeepLinf, NNHash, SparseHash
from antipodal.paper.centres import CentrePairs, class_centres, cosine_loss
from antipodal.paper.pair_sampling import BelievedPairs

QUICK = {"n_epochs": 1, "scaling": "each", "random_state": 0}


def certain(n_classes, n_rows=600):
    """Beliefs of rows whose classes are known."""
    return torch.eye(n_classes).repeat(-(-n_rows // n_classes), 1)


@pytest.mark.parametrize("kind", [DeepLinf, NNHash, SparseHash])
def test_they_are_for_classes_of_which_a_batch_has_few_rows(kind):
    def source(n_classes, **options):
        return kind(16, **options)._believed_pairs(certain(n_classes), 0, exclusive=True)

    assert isinstance(source(10), BelievedPairs)
    assert isinstance(source(77), CentrePairs)
    assert isinstance(source(10, centres=True), CentrePairs)
    assert isinstance(source(77, centres=False), BelievedPairs)
    assert isinstance(source(77, nested=(8,)), BelievedPairs)
    assert isinstance(source(77, loss="triplet"), BelievedPairs)


def test_both_losses_count():
    rng = np.random.default_rng(0)
    beliefs, centres = certain(20, 20), torch.tensor(class_centres(20, 8, rng), dtype=torch.float32)
    z = torch.tensor(rng.standard_normal((20, 8)), dtype=torch.float32)
    by_centre = partial(cosine_loss, centres=centres, scale=3.0, margin=0.2)
    pairs = BelievedPairs(beliefs, exclusive=True)
    source = CentrePairs(pairs, beliefs, by_centre, beside=True)
    (both,) = source.batches(20, torch.Generator().manual_seed(0))
    (alone,) = pairs.batches(20, torch.Generator().manual_seed(0))
    m = 2.5
    expected = alone.loss(z, m, 0.3) + m**2 / 2 * by_centre(z, beliefs[alone.rows])
    assert both.loss(z, m, 0.3).item() == pytest.approx(expected.item())


@pytest.mark.parametrize("options", [{"nested": (4,)}, {"loss": "triplet"}])
def test_what_they_cannot_stand_beside_is_named(options):
    X = np.random.default_rng(0).standard_normal((20, 4))
    with pytest.raises(ValueError, match=r"\bcentres\b.*\bcontrastive\b"):
        DeepLinf(8, centres=True, **QUICK, **options).fit(X, np.arange(20) % 2)

"""Pairs and their loss against loops over the definition."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antipodal.pairs import (
    AllPairsBatch,
    InBatchPairs,
    ListedBatch,
    ListedPairs,
    are_similar,
    check_labels,
    check_pairs,
    sample_pairs,
)

seeds = st.integers(0, 2**32 - 1)
CLASSES = torch.tensor([0, 0, 1, 1, 2, 0])
CONCEPTS = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 1], [0, 0, 0]]).bool()


def share(labels, i, j):
    same = labels[i] == labels[j] if labels.ndim == 1 else labels[i] & labels[j]
    return bool(same.any())


def loss_by_loops(z, pairs, similar, margin, weight):
    pulls = [
        0.5 * np.sum((z[i] - z[j]) ** 2) for (i, j), s in zip(pairs, similar, strict=True) if s
    ]
    pushes = [
        0.5 * max(0, margin - np.linalg.norm(z[i] - z[j])) ** 2
        for (i, j), s in zip(pairs, similar, strict=True)
        if not s
    ]
    return weight * np.mean(pulls) + np.mean(pushes)


@pytest.mark.parametrize("labels", [CLASSES, CONCEPTS])
def test_the_loss_of_a_batch_is_the_mean_over_all_its_pairs(labels):
    z = torch.randn(len(labels), 4, dtype=torch.float64)
    pairs = [(i, j) for i in range(len(z)) for j in range(i)]
    similar = [share(labels, i, j) for i, j in pairs]
    expected = loss_by_loops(z.numpy(), pairs, similar, 3.0, 0.3)
    ours = AllPairsBatch(torch.arange(len(z)), labels).loss(z, 3.0, 0.3)
    assert ours.item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("n_classes", "size"), [(2, 256), (10, 256), (21, 256), (22, 264), (85, 1020), (86, 1024)]
)
def test_batches_grow_with_the_classes_up_to_a_limit(n_classes, size):
    assert InBatchPairs(torch.arange(2000) % n_classes).usual_batch_size() == size


def test_batches_of_concepts_and_of_listed_pairs_do_not_grow():
    assert InBatchPairs(torch.eye(300).bool()).usual_batch_size() == 256
    assert sample_pairs(torch.arange(600) % 300, 50, torch.Generator()).usual_batch_size() == 256


def test_the_loss_of_listed_pairs_is_their_mean():
    z = torch.randn(8, 4, dtype=torch.float64)
    similar = torch.tensor([True, False, False, True])
    pairs = [(i, i + 4) for i in range(4)]
    expected = loss_by_loops(z.numpy(), pairs, similar.tolist(), 5.0, 1.0)
    ours = ListedBatch(torch.arange(8), similar).loss(z, 5.0, 1.0)
    assert ours.item() == pytest.approx(expected, rel=1e-9)


def test_gradient_steps_part_dissimilar_codes_and_join_similar_ones():
    """With the printed sign of Eq. 12 the dissimilar codes would meet."""
    z = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    optimizer = torch.optim.SGD([z], lr=0.05)
    batch = AllPairsBatch(torch.arange(3), torch.tensor([0, 0, 1]))
    for _ in range(400):
        optimizer.zero_grad()
        batch.loss(z, 3.0, 1.0).backward()
        optimizer.step()
    distance = torch.cdist(z, z)
    assert distance[0, 1] < 0.05
    assert distance[0, 2] > 2.8


def test_equal_codes_have_finite_gradients():
    z = torch.ones(4, 3, requires_grad=True)
    AllPairsBatch(torch.arange(4), torch.tensor([0, 0, 1, 1])).loss(z, 2.0, 1.0).backward()
    assert torch.isfinite(z.grad).all()


@settings(deadline=None)
@given(seed=seeds, n_pairs=st.integers(2, 60), multi=st.booleans())
def test_sampled_pairs_are_half_similar_and_truly_so(seed, n_pairs, multi):
    labels = CONCEPTS if multi else CLASSES
    source = sample_pairs(labels, n_pairs, torch.Generator().manual_seed(seed))
    assert len(source.pairs) == n_pairs
    assert source.similar.sum() == n_pairs // 2
    for (i, j), s in zip(source.pairs.tolist(), source.similar.tolist(), strict=True):
        assert i != j
        assert share(labels, i, j) == s


def test_pairs_that_do_not_exist_are_not_looked_for_forever():
    all_alike = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 1]]).bool()
    with pytest.raises(ValueError, match="found only 0 dissimilar pairs"):
        sample_pairs(all_alike, 10, torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="no two of the 4 rows share a label"):
        sample_pairs(torch.arange(4), 10, torch.Generator().manual_seed(0))


def test_every_similar_pair_can_be_sampled():
    source = sample_pairs(CLASSES, 2000, torch.Generator().manual_seed(0))
    drawn = {tuple(p) for p in source.pairs[source.similar].tolist()}
    assert drawn == {(i, j) for i in range(6) for j in range(6) if i != j and share(CLASSES, i, j)}


@given(seed=seeds, size=st.integers(2, 9))
def test_an_epoch_deals_out_every_row_or_pair_once(seed, size):
    generator = torch.Generator().manual_seed(seed)
    rows = [b.rows for b in InBatchPairs(CLASSES).batches(size, generator)]
    assert sorted(torch.cat(rows).tolist()) == list(range(6))
    assert max(map(len, rows)) <= size
    pairs = torch.tensor([[0, 1], [2, 3], [4, 5], [1, 4], [0, 5]])
    similar = torch.tensor([True, True, False, False, True])
    dealt = []
    for batch in ListedPairs(pairs, similar).batches(size, generator):
        left, right = batch.rows.chunk(2)
        dealt += zip(left.tolist(), right.tolist(), batch.similar.tolist(), strict=True)
    expected = [(*p, s) for p, s in zip(pairs.tolist(), similar.tolist(), strict=True)]
    assert sorted(dealt) == sorted(expected)


def test_similarity_is_equality_or_a_shared_concept():
    for labels in (CLASSES, CONCEPTS):
        table = are_similar(labels, labels)
        n = len(labels)
        assert table.tolist() == [[share(labels, i, j) for j in range(n)] for i in range(n)]


def test_large_labels_are_told_apart_or_refused():
    large = np.array([2**64 - 1, 2**64 - 2, 2**64 - 1, 2**64 - 2], np.uint64)
    np.testing.assert_array_equal(check_labels(large, 4), [1, 0, 1, 0])
    for rounded in (large.astype(np.float64), np.float32([2**24, 1, 1, 0]), [2**63, -1, -1, 0]):
        with pytest.raises(ValueError, match=r"may have been rounded, as float.*pass integers"):
            check_labels(rounded, 4)
    assert check_labels(np.float32([2**24 - 1, 1, 1, 0]), 4).tolist() == [2, 1, 1, 0]


def test_labels_may_be_words_and_become_numbers():
    np.testing.assert_array_equal(check_labels(["b", "a", "b"], 3), [1, 0, 1])


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([1, 1, 1, 1], "one class"),
        ([1, 2, 3, 4], "no similar pairs"),
        ([1, 2, 3], "4 rows, 3 labels"),
        ([1.5, 2.5, 1.5, 2.5], "real numbers"),
        ([1.0, np.nan, 1.0, 2.0], "NaN"),
        ([[0, 2], [1, 0], [1, 0], [0, 1]], "0 or 1"),
        ([[1, 0], [1, 0], [1, 1], [1, 0]], "every row has concept 0"),
        ([[1, 0], [0, 1], [0, 0], [0, 0]], "no two rows share"),
        (np.zeros((4, 2, 2)), "got shape"),
    ],
)
def test_labels_that_cannot_teach_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        check_labels(y, 4)


@pytest.mark.parametrize(
    ("pairs", "similar", "error", "message"),
    [
        ([[0, 4], [1, 2]], [1, 0], ValueError, "from 0 to 3: got values from 0 to 4"),
        ([[0, -1], [1, 2]], [1, 0], ValueError, "got values from -1"),
        ([[0, 1], [1, 2]], [1, 1], ValueError, "both kinds: all 2 are similar"),
        ([[0, 1], [1, 2]], [0, 0], ValueError, "both kinds: all 2 are dissimilar"),
        ([[0, 1], [1, 2]], [1], ValueError, "one entry a pair"),
        ([[0, 1], [1, 2]], [1, 7], ValueError, "true or false"),
        ([[0.0, 1.0]], [1], TypeError, "integers: got float64"),
        ([0, 1], [1], ValueError, r"\(P, 2\)"),
        (np.empty((0, 2), int), [], ValueError, "P ≥ 1"),
    ],
)
def test_pairs_that_cannot_teach_are_refused(pairs, similar, error, message):
    with pytest.raises(error, match=message):
        check_pairs(pairs, similar, 4)

"""Sources of training pairs: all pairs of a batch, sampled pairs, given pairs."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from antipodal.paper.losses import (
    CLOSEST,
    are_similar,
    distance_of,
    expected_pairwise_loss,
    mean_over_prefixes,
    pairwise_loss,
    probably_similar,
)

_MOST_DRAWS = 1000  # rounds in which to look for dissimilar pairs
_LARGEST_BATCH, _ROWS_A_CLASS = 1024, 12
_BELIEVED_BATCH, _BELIEVED_STEPS = 512, 1000
_SIMILAR_WEIGHT = 0.27
_MEASURED_ROWS = 1000


class Batch(Protocol):
    """Rows of the training set and the loss of their codes."""

    @property
    def rows(self) -> Tensor:
        """Return which rows to encode."""
        ...

    def loss(
        self, z: Tensor, margin: float, similar_weight: float, nested: Sequence[int] = ()
    ) -> Tensor:
        """Return the mean pairwise loss, given the codes z of `rows`.

        With `nested` it is the mean over prefixes of the codes too: see `mean_over_prefixes`.
        """
        ...

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return which rows are similar pairs and which dissimilar ones, twice (m, m)."""
        ...


class Usual(NamedTuple):
    """Settings that depend on what there is to learn from; chosen by validation."""

    batch_size: int
    n_epochs: int
    similar_weight: float
    weight_decay: float
    dropout: float


class PairSource(Protocol):
    """Something that deals out the batches of an epoch, in an order set by the generator."""

    def usual(self) -> Usual:
        """Return how to train on such pairs where nothing else is asked for."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return all that decides which pairs there are."""
        ...

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Yield the batches of one epoch."""
        ...


_USUAL = Usual(batch_size=256, n_epochs=200, similar_weight=0.1, weight_decay=2.0, dropout=0.2)


@dataclass(frozen=True)
class AllPairsBatch:
    """Every pair among the rows."""

    rows: Tensor
    labels: Tensor  # of the rows

    def loss(
        self, z: Tensor, margin: float, similar_weight: float, nested: Sequence[int] = ()
    ) -> Tensor:
        """Return the loss over i ≠ j, from ‖zᵢ - zⱼ‖² = ‖zᵢ‖² + ‖zⱼ‖² - 2zᵢᵀzⱼ."""
        tables = self.tables()

        def loss(z: Tensor, margin: float) -> Tensor:
            norms = z.square().sum(dim=1)
            squared = norms[:, None] + norms[None, :] - 2 * z @ z.T
            return pairwise_loss(distance_of(squared), *tables, margin, similar_weight)

        return mean_over_prefixes(loss, z, margin, nested)

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return who shares a label with whom, and who does not."""
        similar = are_similar(self.labels, self.labels)
        dissimilar = ~similar
        return similar.fill_diagonal_(False), dissimilar.fill_diagonal_(False)


@dataclass(frozen=True)
class BelievedBatch:
    """Every pair among the rows, each similar as probably as their beliefs say."""

    rows: Tensor
    beliefs: Tensor  # (rows, c)
    exclusive: bool
    generator: torch.Generator

    def loss(
        self, z: Tensor, margin: float, similar_weight: float, nested: Sequence[int] = ()
    ) -> Tensor:
        """Return the expectation of Eq. 12 over who is similar, i ≠ j."""
        similar = probably_similar(self.beliefs, exclusive=self.exclusive)

        def loss(z: Tensor, margin: float) -> Tensor:
            return expected_pairwise_loss(z, similar, margin, similar_weight)

        return mean_over_prefixes(loss, z, margin, nested)

    def tables(self) -> tuple[Tensor, Tensor]:
        """Draw who is similar to whom."""
        chance = probably_similar(self.beliefs, exclusive=self.exclusive)
        drawn = torch.rand(chance.shape, generator=self.generator, device=chance.device) < chance
        similar = drawn.triu(1)
        similar = similar | similar.T
        dissimilar = ~similar
        return similar, dissimilar.fill_diagonal_(False)


@dataclass(frozen=True)
class ListedBatch:
    """Pairs one by one: the first half of the rows against the second half."""

    rows: Tensor
    similar: Tensor  # (rows / 2,)

    def loss(
        self, z: Tensor, margin: float, similar_weight: float, nested: Sequence[int] = ()
    ) -> Tensor:
        """Return the loss of row i against row i + half."""

        def loss(z: Tensor, margin: float) -> Tensor:
            left, right = z.chunk(2)
            distance = distance_of((left - right).square().sum(dim=1))
            return pairwise_loss(distance, self.similar, ~self.similar, margin, similar_weight)

        return mean_over_prefixes(loss, z, margin, nested)

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return tables with an entry for row i against row i + half, and for the reverse."""
        half = len(self.similar)

        def table(flags: Tensor) -> Tensor:
            upper = flags.new_zeros(2 * half, 2 * half)
            upper[:half, half:] = flags.diag()
            return upper | upper.T

        return table(self.similar), table(~self.similar)


class InBatchPairs:
    """All pairs within random batches of samples: B samples give B(B - 1)/2 pairs."""

    def __init__(self, labels: Tensor) -> None:
        self.labels = labels

    def usual(self) -> Usual:
        """Return batches of 256, or up to 1,024 so that a class has 12 rows in a batch.

        With few rows of each class, a batch would have hardly any similar pairs.
        """
        n_classes = int(self.labels.max()) + 1 if self.labels.ndim == 1 else 0
        size = min(max(_USUAL.batch_size, _ROWS_A_CLASS * n_classes), _LARGEST_BATCH)
        return _USUAL._replace(batch_size=size)

    def tensors(self) -> dict[str, Tensor]:
        """Return the labels."""
        return {"labels": self.labels}

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[AllPairsBatch]:
        """Shuffle, cut into batches of nearly equal size, pair all."""
        order = torch.randperm(len(self.labels), generator=generator, device=generator.device)
        for rows in order.chunk(-(-len(order) // batch_size)):
            yield AllPairsBatch(rows, self.labels[rows])


class BelievedPairs:
    """All pairs within random batches of rows of which only beliefs are known.

    Beliefs (l, c) are the probabilities of c classes, of which a row has one (`exclusive`), or of
    c concepts, of which it may have several; a label that is known is a belief of 1.
    """

    def __init__(self, beliefs: Tensor, *, exclusive: bool) -> None:
        self.beliefs, self.exclusive = beliefs, exclusive

    def tensors(self) -> dict[str, Tensor]:
        """Return the beliefs."""
        return {"beliefs": self.beliefs}

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[BelievedBatch]:
        """Shuffle, cut into batches of nearly equal size, pair all."""
        order = torch.randperm(len(self.beliefs), generator=generator, device=generator.device)
        for rows in order.chunk(-(-len(order) // batch_size)):
            yield BelievedBatch(rows, self.beliefs[rows], self.exclusive, generator)

    def usual(self) -> Usual:
        """Return 1,000 steps of 512 rows, and a weight that depends on how sure the beliefs are.

            w = 0.27·√f / r,    f = mean of s_ij,   r = Σ s_ij² / Σ s_ij

        f is the share of similar pairs, and r how sure one is of them: 1 for labels. Unsure pairs
        pull at many rows that are not alike, so they need more weight; where classes are many,
        similar pairs are few, and less gathers them.
        """
        share, sureness = self._share_and_sureness()
        n_batches = -(-len(self.beliefs) // _BELIEVED_BATCH)
        return Usual(
            batch_size=_BELIEVED_BATCH,
            n_epochs=-(-_BELIEVED_STEPS // n_batches),
            similar_weight=_SIMILAR_WEIGHT * math.sqrt(share) / max(sureness, CLOSEST),
            weight_decay=1.0,
            dropout=0.3,
        )

    def are_few(self) -> bool:
        """Whether a row has fewer than 12 similar ones in a batch, as with very many classes."""
        return self._share_and_sureness()[0] * _BELIEVED_BATCH < _ROWS_A_CLASS

    def _share_and_sureness(self) -> tuple[float, float]:
        some = self.beliefs[:: -(-len(self.beliefs) // _MEASURED_ROWS)]
        s = probably_similar(some, exclusive=self.exclusive).fill_diagonal_(0.0)
        total = max(float(s.sum()), CLOSEST)
        return total / (len(s) * max(len(s) - 1, 1)), float(s.square().sum()) / total


class ListedPairs:
    """Explicit pairs (P, 2) of rows, each similar or not, in random batches."""

    def __init__(self, pairs: Tensor, similar: Tensor) -> None:
        self.pairs, self.similar = pairs, similar

    def usual(self) -> Usual:
        """Return batches of 256 pairs."""
        return _USUAL

    def tensors(self) -> dict[str, Tensor]:
        """Return the pairs and which of them are similar."""
        return {"pairs": self.pairs, "similar": self.similar}

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[ListedBatch]:
        """Shuffle and cut into batches."""
        order = torch.randperm(len(self.pairs), generator=generator, device=generator.device)
        for chosen in order.split(batch_size):  # type: ignore[no-untyped-call]
            yield ListedBatch(self.pairs[chosen].T.reshape(-1), self.similar[chosen])


def sample_pairs(labels: Tensor, n_pairs: int, generator: torch.Generator) -> ListedPairs:
    """Draw pairs of rows, half of them similar, the way the paper trains.

    A similar pair is a row, one of its labels and another row with that label; a dissimilar
    pair is any two rows that share no label.
    """
    device = generator.device
    member, label = _memberships(labels)
    counts = torch.bincount(label)
    starts = counts.cumsum(0) - counts
    shared = (counts[label] > 1).nonzero()[:, 0]  # memberships that have company
    if len(shared) == 0:
        raise ValueError(
            f"no two of the {len(labels)} rows share a label: there are no similar pairs to draw"
        )
    n_similar = n_pairs // 2
    first = shared[torch.randint(len(shared), (n_similar,), generator=generator, device=device)]
    size, start = counts[label[first]], starts[label[first]]
    # In double precision a number below 1, times the size, stays below the size.
    share = torch.rand(n_similar, dtype=torch.float64, generator=generator, device=device)
    step = 1 + (share * (size - 1)).long()
    second = start + (first - start + step) % size  # any member of the label but the first
    alike = torch.stack([member[first], member[second]], dim=1)

    unlike: list[Tensor] = []
    missing = n_pairs - n_similar
    for _ in range(_MOST_DRAWS):
        if missing == 0:
            break
        drawn = torch.randint(len(labels), (2 * missing, 2), generator=generator, device=device)
        left, right = labels[drawn[:, 0]], labels[drawn[:, 1]]
        same = left == right if labels.ndim == 1 else (left & right).any(dim=1)
        kept = drawn[~same & (drawn[:, 0] != drawn[:, 1])][:missing]
        unlike.append(kept)
        missing -= len(kept)
    if missing:
        raise ValueError(
            f"found only {n_pairs - n_similar - missing} dissimilar pairs in {_MOST_DRAWS} draws: "
            f"almost all of the {len(labels)} rows share a label. Leave the commonest out"
        )
    similar = torch.arange(n_pairs, device=device) < n_similar
    return ListedPairs(torch.cat([alike, *unlike]), similar)


def _memberships(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and their labels, one entry each, grouped by label."""
    if labels.ndim == 1:
        member = torch.argsort(labels, stable=True)
        return member, labels[member]
    label, member = labels.T.nonzero(as_tuple=True)
    return member, label

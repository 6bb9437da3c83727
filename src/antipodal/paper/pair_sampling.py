"""Sources of training pairs: all pairs of a batch, sampled pairs, explicit pairs."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from antipodal.paper.losses import (
    CLOSEST,
    all_pairs_loss,
    are_similar,
    distance_of,
    expected_pairwise_loss,
    mean_over_prefixes,
    pairwise_loss,
    similarity_probabilities,
)

_MAX_BATCH, _ROWS_PER_CLASS = 1024, 12
_EXPECTED_BATCH, _EXPECTED_STEPS = 512, 1000  # batch size and steps with unlabelled rows
_SIMILAR_WEIGHT = 0.27
_MEASURED_ROWS = 1000  # rows from which the fraction of similar pairs is estimated


class Batch(Protocol):
    """Rows of the training set and the loss of their codes."""

    @property
    def rows(self) -> Tensor:
        """Return the rows to encode."""
        ...

    def loss(
        self, z: Tensor, margin: float, similar_weight: float, nested: Sequence[int] = ()
    ) -> Tensor:
        """Return the mean pairwise loss, given the codes z of `rows`.

        With `nested`, return the mean over prefixes of the codes: see `mean_over_prefixes`.
        """
        ...

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return the tables (m, m) of similar and of dissimilar pairs."""
        ...


class Defaults(NamedTuple):
    """Default settings that depend on the training pairs; chosen by validation."""

    batch_size: int
    n_epochs: int
    similar_weight: float
    weight_decay: float
    dropout: float


class PairSource(Protocol):
    """Source of the batches of an epoch, in random order."""

    def defaults(self) -> Defaults:
        """Return the default settings for these pairs."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that determine the pairs, for the fingerprint of checkpoints."""
        ...

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Yield the batches of one epoch."""
        ...


_DEFAULTS = Defaults(
    batch_size=256, n_epochs=200, similar_weight=0.1, weight_decay=2.0, dropout=0.2
)


@dataclass(frozen=True)
class AllPairsBatch:
    """All pairs of the rows of a batch."""

    rows: Tensor
    labels: Tensor  # labels of the rows

    def loss(
        self, z: Tensor, margin: float, similar_weight: float, nested: Sequence[int] = ()
    ) -> Tensor:
        """Return the loss over i ≠ j."""
        similar = are_similar(self.labels, self.labels)

        def loss(z: Tensor, margin: float) -> Tensor:
            return all_pairs_loss(z, similar, margin, similar_weight)

        return mean_over_prefixes(loss, z, margin, nested)

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return the tables of pairs with and without a shared label."""
        similar = are_similar(self.labels, self.labels)
        dissimilar = ~similar
        return similar.fill_diagonal_(False), dissimilar.fill_diagonal_(False)


@dataclass(frozen=True)
class ExpectedBatch:
    """All pairs of the rows of a batch, similar with a probability given by their classes."""

    rows: Tensor
    probabilities: Tensor  # class probabilities (rows, c)
    exclusive: bool
    generator: torch.Generator

    def loss(
        self, z: Tensor, margin: float, similar_weight: float, nested: Sequence[int] = ()
    ) -> Tensor:
        """Return the expectation of Eq. 12 for pairs of uncertain similarity, i ≠ j."""
        similar = similarity_probabilities(self.probabilities, exclusive=self.exclusive)

        def loss(z: Tensor, margin: float) -> Tensor:
            return expected_pairwise_loss(z, similar, margin, similar_weight)

        return mean_over_prefixes(loss, z, margin, nested)

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return random tables, drawn with the probabilities of the pairs."""
        s = similarity_probabilities(self.probabilities, exclusive=self.exclusive)
        drawn = torch.rand(s.shape, generator=self.generator, device=s.device) < s
        similar = drawn.triu(1)
        similar = similar | similar.T
        dissimilar = ~similar
        return similar, dissimilar.fill_diagonal_(False)


@dataclass(frozen=True)
class ListedBatch:
    """Explicit pairs: row i of the first half of the rows with row i of the second half."""

    rows: Tensor
    similar: Tensor  # (rows / 2,)

    def loss(
        self, z: Tensor, margin: float, similar_weight: float, nested: Sequence[int] = ()
    ) -> Tensor:
        """Return the loss of the pairs (i, i + half)."""

        def loss(z: Tensor, margin: float) -> Tensor:
            left, right = z.chunk(2)
            distance = distance_of((left - right).square().sum(dim=1))
            return pairwise_loss(distance, self.similar, ~self.similar, margin, similar_weight)

        return mean_over_prefixes(loss, z, margin, nested)

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return symmetric tables with entries for the pairs (i, i + half)."""
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

    def defaults(self) -> Defaults:
        """Return batches of 256, or of 12 rows per class up to 1,024.

        A batch with few rows of each class has few similar pairs.
        """
        n_classes = int(self.labels.max()) + 1 if self.labels.ndim == 1 else 0
        size = min(max(_DEFAULTS.batch_size, _ROWS_PER_CLASS * n_classes), _MAX_BATCH)
        return _DEFAULTS._replace(batch_size=size)

    def tensors(self) -> dict[str, Tensor]:
        """Return the labels."""
        return {"labels": self.labels}

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[AllPairsBatch]:
        """Yield all pairs of shuffled batches of nearly equal size."""
        order = torch.randperm(len(self.labels), generator=generator, device=generator.device)
        for rows in order.chunk(-(-len(order) // batch_size)):
            yield AllPairsBatch(rows, self.labels[rows])


class ExpectedPairs:
    """All pairs within random batches of rows with class probabilities instead of labels.

    The probabilities (l, c) are those of c classes, of which a row has one (`exclusive`), or of c
    concepts, of which it may have several. A known label has probability 1.
    """

    def __init__(self, probabilities: Tensor, *, exclusive: bool) -> None:
        self.probabilities, self.exclusive = probabilities, exclusive

    def tensors(self) -> dict[str, Tensor]:
        """Return the class probabilities, under their name in checkpoints since 0.3."""
        return {"beliefs": self.probabilities}

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[ExpectedBatch]:
        """Yield all pairs of shuffled batches of nearly equal size."""
        order = torch.randperm(
            len(self.probabilities), generator=generator, device=generator.device
        )
        for rows in order.chunk(-(-len(order) // batch_size)):
            yield ExpectedBatch(rows, self.probabilities[rows], self.exclusive, generator)

    def defaults(self) -> Defaults:
        """Return 1,000 steps of 512 rows, and a weight that depends on the probabilities.

            w = 0.27·√f / r,    f = mean of s_ij,   r = Σ s_ij² / Σ s_ij

        f is the fraction of similar pairs, and r their confidence, 1 for labels. Uncertain pairs
        also attract dissimilar rows, so they need a larger weight. With many classes there are few
        similar pairs, and a smaller weight suffices.
        """
        fraction, confidence = self._fraction_and_confidence()
        n_batches = -(-len(self.probabilities) // _EXPECTED_BATCH)
        return Defaults(
            batch_size=_EXPECTED_BATCH,
            n_epochs=-(-_EXPECTED_STEPS // n_batches),
            similar_weight=_SIMILAR_WEIGHT * math.sqrt(fraction) / max(confidence, CLOSEST),
            weight_decay=1.0,
            dropout=0.3,
        )

    def are_few(self) -> bool:
        """Return whether a row has fewer than 12 similar rows in a batch, on average."""
        return self._fraction_and_confidence()[0] * _EXPECTED_BATCH < _ROWS_PER_CLASS

    def _fraction_and_confidence(self) -> tuple[float, float]:
        sample = self.probabilities[:: -(-len(self.probabilities) // _MEASURED_ROWS)]
        s = similarity_probabilities(sample, exclusive=self.exclusive).fill_diagonal_(0.0)
        total = max(float(s.sum()), CLOSEST)
        return total / (len(s) * max(len(s) - 1, 1)), float(s.square().sum()) / total


class ListedPairs:
    """Explicit pairs (P, 2) of rows, similar or dissimilar, in random batches."""

    def __init__(self, pairs: Tensor, similar: Tensor) -> None:
        self.pairs, self.similar = pairs, similar

    def defaults(self) -> Defaults:
        """Return batches of 256 pairs."""
        return _DEFAULTS

    def tensors(self) -> dict[str, Tensor]:
        """Return the pairs and the flags of similar pairs."""
        return {"pairs": self.pairs, "similar": self.similar}

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[ListedBatch]:
        """Yield shuffled batches of pairs."""
        order = torch.randperm(len(self.pairs), generator=generator, device=generator.device)
        for chosen in order.split(batch_size):  # type: ignore[no-untyped-call]
            yield ListedBatch(self.pairs[chosen].T.reshape(-1), self.similar[chosen])

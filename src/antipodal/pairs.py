"""Similar and dissimilar pairs: from labels, sampled or all within a batch, or given.

A source of pairs deals out batches for one epoch. A batch names the rows to encode and, given
their codes, computes its pairwise loss.

An own loss is a function of the codes of a batch and of a table that says which rows pair up:

    loss(codes, targets) -> the value to minimise, a tensor without dimensions

with codes (m, N), what the encoder makes of the rows before the sign, and targets (m, m): 1 for a
similar pair, -1 for a dissimilar one, and 0 for what does not count, the diagonal among it. So one
formula does for all pairs in a batch and for pairs that are listed. A batch may have no pair of one
kind: divide a sum by `(targets > 0).sum().clamp(min=1)`, where the mean of nothing would be NaN.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

_MOST_DRAWS = 1000  # rounds in which to look for dissimilar pairs
_BATCH, _LARGEST_BATCH = 256, 1024
_ROWS_A_CLASS = 12

PairLoss = Callable[[Tensor, Tensor], Tensor]


def pairwise_loss(
    distance: Tensor, similar: Tensor, dissimilar: Tensor, margin: float, similar_weight: float
) -> Tensor:
    """Loss of pairs at the given distances, the mean over each kind of pair. [Wang2016, Eq. 12]

        L = w·½‖x - x⁺‖² + ½ max(0, m - ‖x - x⁻‖)²

    The sign of the second term is that of [Hadsell2006]: printed with a minus, as in the paper,
    minimising it would draw dissimilar pairs together.
    """
    pull = 0.5 * (distance.square() * similar).sum() / similar.sum().clamp(min=1)
    short = (margin - distance).clamp(min=0)
    push = 0.5 * (short.square() * dissimilar).sum() / dissimilar.sum().clamp(min=1)
    return similar_weight * pull + push


def _root(squared: Tensor) -> Tensor:
    """Square root whose gradient at zero is finite: two equal codes do not push anywhere."""
    return squared.clamp(min=1e-12).sqrt()


class Batch(Protocol):
    """Rows of the training set and the loss of their codes."""

    @property
    def rows(self) -> Tensor:
        """Return which rows to encode."""
        ...

    def loss(self, z: Tensor, margin: float, similar_weight: float) -> Tensor:
        """Return the mean pairwise loss, given the codes z of `rows`."""
        ...

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return which rows are similar pairs and which dissimilar ones, twice (m, m)."""
        ...


class PairSource(Protocol):
    """Something that deals out the batches of an epoch, in an order set by the generator."""

    def usual_batch_size(self) -> int:
        """Return how large batches should be where nothing else is asked for."""
        ...

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Yield the batches of one epoch."""
        ...


@dataclass(frozen=True)
class AllPairsBatch:
    """Every pair among the rows."""

    rows: Tensor
    labels: Tensor  # of the rows

    def loss(self, z: Tensor, margin: float, similar_weight: float) -> Tensor:
        """Return the loss over i ≠ j, from ‖zᵢ - zⱼ‖² = ‖zᵢ‖² + ‖zⱼ‖² - 2zᵢᵀzⱼ."""
        norms = z.square().sum(dim=1)
        squared = norms[:, None] + norms[None, :] - 2 * z @ z.T
        return pairwise_loss(_root(squared), *self.tables(), margin, similar_weight)

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return who shares a label with whom, and who does not."""
        similar = are_similar(self.labels, self.labels)
        dissimilar = ~similar
        return similar.fill_diagonal_(False), dissimilar.fill_diagonal_(False)


@dataclass(frozen=True)
class ListedBatch:
    """Pairs one by one: the first half of the rows against the second half."""

    rows: Tensor
    similar: Tensor  # (rows / 2,)

    def loss(self, z: Tensor, margin: float, similar_weight: float) -> Tensor:
        """Return the loss of row i against row i + half."""
        left, right = z.chunk(2)
        distance = _root((left - right).square().sum(dim=1))
        return pairwise_loss(distance, self.similar, ~self.similar, margin, similar_weight)

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

    def usual_batch_size(self) -> int:
        """Return 256, or up to 1,024 so that a class has 12 rows in a batch.

        With few rows of each class, a batch would have hardly any similar pairs.
        """
        n_classes = int(self.labels.max()) + 1 if self.labels.ndim == 1 else 0
        return min(max(_BATCH, _ROWS_A_CLASS * n_classes), _LARGEST_BATCH)

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[AllPairsBatch]:
        """Shuffle, cut into batches of nearly equal size, pair all."""
        order = torch.randperm(len(self.labels), generator=generator, device=generator.device)
        for rows in order.chunk(-(-len(order) // batch_size)):
            yield AllPairsBatch(rows, self.labels[rows])


class ListedPairs:
    """Explicit pairs (P, 2) of rows, each similar or not, in random batches."""

    def __init__(self, pairs: Tensor, similar: Tensor) -> None:
        self.pairs, self.similar = pairs, similar

    def usual_batch_size(self) -> int:
        """Return 256 pairs."""
        return _BATCH

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[ListedBatch]:
        """Shuffle and cut into batches."""
        order = torch.randperm(len(self.pairs), generator=generator, device=generator.device)
        for chosen in order.split(batch_size):  # type: ignore[no-untyped-call]
            yield ListedBatch(self.pairs[chosen].T.reshape(-1), self.similar[chosen])


def are_similar(left: Tensor, right: Tensor) -> Tensor:
    """Boolean table: equal labels, or at least one shared concept of multi-hot labels."""
    if left.ndim == 1:
        return left[:, None] == right[None, :]
    return (left.float() @ right.float().T) > 0


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


def function_name(function: Callable[..., Any]) -> str:
    """Return a name that tells a function from others, with what was given to it beforehand."""
    if isinstance(function, partial):
        given = [*map(repr, function.args), *(f"{k}={v!r}" for k, v in function.keywords.items())]
        return f"{function_name(function.func)}({', '.join(given)})"
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def check_labels(y: ArrayLike, n_samples: int) -> NDArray[Any]:
    """Labels as class numbers (n,) int64 or concepts (n, c) bool, or say why they cannot be.

    There must be at least one similar and one dissimilar pair among them.
    """
    labels = np.asarray(y)
    if labels.ndim not in (1, 2):
        raise ValueError(f"labels must be (n,) or multi-hot (n, c): got shape {labels.shape}")
    if len(labels) != n_samples:
        raise ValueError(f"there must be one label a row: {n_samples} rows, {len(labels)} labels")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError("labels contain NaN or infinity")
    if labels.ndim == 1:
        if labels.dtype.kind == "f":
            if (labels != np.floor(labels)).any():
                raise ValueError("Unknown label type: labels must be classes, got real numbers")
            largest = np.abs(labels).max(initial=0)
            if largest >= 2.0 ** (np.finfo(labels.dtype).nmant + 1):
                raise ValueError(
                    f"labels as large as {largest:.0f} may have been rounded, as {labels.dtype}: "
                    "pass integers"
                )
        classes, numbers = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"labels must name at least two classes: got one class, {classes[:1].tolist()}. "
                "Without dissimilar pairs all codes would become equal"
            )
        if len(classes) == n_samples:
            raise ValueError(
                f"no two of the {n_samples} labels are equal: there are no similar pairs to learn "
                "from. Are these identifiers or measurements instead of classes?"
            )
        return numbers.astype(np.int64)
    if not np.isin(labels, (0, 1)).all():
        raise ValueError("multi-hot labels must be 0 or 1: got other values")
    concepts = labels.astype(bool)
    counts = concepts.sum(axis=0)
    if counts.max(initial=0) < 2:
        raise ValueError("no two rows share a concept: there are no similar pairs to learn from")
    if (counts == n_samples).any():
        raise ValueError(
            f"every row has concept {int(np.argmax(counts == n_samples))}: all pairs are similar "
            "and all codes would become equal. Leave that concept out"
        )
    return concepts


def check_pairs(
    pairs: ArrayLike, similar: ArrayLike, n_samples: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Explicit pairs as (P, 2) row numbers and (P,) booleans, or say why they cannot be."""
    rows, flags = np.asarray(pairs), np.asarray(similar)
    if rows.ndim != 2 or rows.shape[1] != 2 or len(rows) == 0:
        raise ValueError(f"pairs must be (P, 2) with P ≥ 1: got shape {rows.shape}")
    if not np.issubdtype(rows.dtype, np.integer):
        raise TypeError(f"pairs must be row numbers, integers: got {rows.dtype}")
    if rows.min() < 0 or rows.max() >= n_samples:
        raise ValueError(
            f"pairs must be row numbers from 0 to {n_samples - 1}: "
            f"got values from {rows.min()} to {rows.max()}"
        )
    if flags.shape != (len(rows),):
        raise ValueError(f"similar must have one entry a pair, ({len(rows)},): got {flags.shape}")
    if not np.isin(flags, (0, 1)).all():
        raise ValueError("similar must be true or false (1 or 0) for each pair")
    flags = flags.astype(bool)
    if flags.all() or not flags.any():
        kind = "similar" if flags.all() else "dissimilar"
        raise ValueError(
            f"pairs must be of both kinds: all {len(rows)} are {kind}, which codes satisfy by "
            f"being {'all equal' if flags.all() else 'anything far apart'}"
        )
    return rows.astype(np.int64), flags

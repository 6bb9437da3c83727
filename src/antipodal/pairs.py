"""Similar and dissimilar pairs: from labels or beliefs, sampled or all within a batch, or given.

A source of pairs deals out batches for one epoch. A batch names the rows to encode and, given
their codes, computes its pairwise loss.

An own loss is a function of the codes of a batch and of a table that says which rows pair up:

    loss(codes, targets) -> the value to minimise, a tensor without dimensions

with codes (m, N), what the encoder makes of the rows before the sign, and targets (m, m): 1 for a
similar pair, -1 for a dissimilar one, and 0 for what does not count, the diagonal among it. So one
formula does for all pairs in a batch and for pairs that are listed. A batch may have no pair of one
kind: divide a sum by `(targets > 0).sum().clamp(min=1)`, where the mean of nothing would be NaN.
Where rows have beliefs instead of labels, targets are drawn by them, anew for every batch.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

_CLOSEST = 1e-12  # squared distance, so that a root has a gradient
_MOST_DRAWS = 1000  # rounds in which to look for dissimilar pairs
_LARGEST_BATCH, _ROWS_A_CLASS = 1024, 12
_BELIEVED_BATCH, _BELIEVED_STEPS = 512, 1000
_SIMILAR_WEIGHT = 0.27
_MEASURED_ROWS = 1000

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


def expected_pairwise_loss(
    z: Tensor, similar: Tensor, margin: float, similar_weight: float
) -> Tensor:
    """Return Eq. 12 for all pairs of codes z (m, N), expected over who is similar.

        L = w·Σ s_ij ½d_ij² / Σ s_ij + Σ (1 - s_ij) ½ max(0, m - d_ij)² / Σ (1 - s_ij)

    with d_ij = ‖z_i - z_j‖, i ≠ j, and s_ij (m, m) the probability that a pair is similar. Where
    all s_ij are 0 or 1 it is `pairwise_loss` of all pairs. The diagonal of `similar` is set to 0.
    """
    loss: Tensor = _ExpectedLoss.apply(  # type: ignore[no-untyped-call]
        z, similar, margin, similar_weight
    )
    return loss


class _ExpectedLoss(torch.autograd.Function):
    """The loss with its gradient in closed form: half the time of the recorded operations.

    ∂L/∂d_ij² = g_ij = ½w s_ij / Σs - ½(1 - s_ij) max(0, m - d_ij) / (d_ij Σ(1 - s))
    ∂L/∂z_i   = 4 Σ_j g_ij (z_i - z_j)                  the pair occurs as ij and as ji
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, s: Tensor, margin: float, weight: float) -> Tensor:
        norms = z.square().sum(dim=1)
        squared = torch.addmm(norms[:, None] + norms, z, z.T, alpha=-2.0).clamp_(min=_CLOSEST)
        distance = squared.sqrt()
        s.fill_diagonal_(0.0)
        unlike = (1.0 - s).fill_diagonal_(0.0)
        n_alike, n_unlike = s.sum().clamp(min=1), unlike.sum().clamp(min=1)
        short = (margin - distance).clamp_(min=0)
        unlike.mul_(short)
        pull = weight * (s * squared).sum() / n_alike
        push = (unlike * short).sum() / n_unlike
        g = s.mul(weight / n_alike).sub_(unlike.div_(distance.mul_(n_unlike)))
        ctx.save_for_backward(2 * (g.sum(dim=1, keepdim=True) * z - g @ z))
        return 0.5 * (pull + push)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return gradients[0] * slope, None, None, None


def mean_over_prefixes(
    loss: Callable[[Tensor, float], Tensor], z: Tensor, margin: float, nested: Sequence[int]
) -> Tensor:
    """Return the mean of a loss of (codes, margin) over the first L entries of z and over all.

        mean of loss(z_1…z_L, m·√(L/N)),   L in nested, and N

    Distances of random codes grow with the root of their length, and so do the margins.
    """
    if not nested:
        return loss(z, margin)
    n_bits = z.shape[1]
    lengths = (*nested, n_bits)
    return torch.stack([loss(z[:, :n], margin * math.sqrt(n / n_bits)) for n in lengths]).mean()


def _root(squared: Tensor) -> Tensor:
    """Square root whose gradient at zero is finite: two equal codes do not push anywhere."""
    return squared.clamp(min=_CLOSEST).sqrt()


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
            return pairwise_loss(_root(squared), *tables, margin, similar_weight)

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
            distance = _root((left - right).square().sum(dim=1))
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
            similar_weight=_SIMILAR_WEIGHT * math.sqrt(share) / max(sureness, _CLOSEST),
            weight_decay=1.0,
            dropout=0.3,
        )

    def are_few(self) -> bool:
        """Whether a row has fewer than 12 similar ones in a batch, as with very many classes."""
        return self._share_and_sureness()[0] * _BELIEVED_BATCH < _ROWS_A_CLASS

    def _share_and_sureness(self) -> tuple[float, float]:
        some = self.beliefs[:: -(-len(self.beliefs) // _MEASURED_ROWS)]
        s = probably_similar(some, exclusive=self.exclusive).fill_diagonal_(0.0)
        total = max(float(s.sum()), _CLOSEST)
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


def are_similar(left: Tensor, right: Tensor) -> Tensor:
    """Boolean table: equal labels, or at least one shared concept of multi-hot labels."""
    if left.ndim == 1:
        return left[:, None] == right[None, :]
    return (left.float() @ right.float().T) > 0


def probably_similar(beliefs: Tensor, *, exclusive: bool) -> Tensor:
    """Return the probability that two rows share a label, (m, m), given beliefs (m, c).

    s_ij = Σ_c p_ic p_jc                  one class per row
    s_ij = 1 - Π_c (1 - p_ic p_jc)        concepts, which are there or not by themselves

    """
    if exclusive:
        return beliefs @ beliefs.T
    none = beliefs.new_ones(len(beliefs), len(beliefs))
    for p in beliefs.T:
        none.addcmul_(none, torch.outer(p, p), value=-1.0)
    return 1.0 - none


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

"""Class centres: fixed target codes, one per class."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import hadamard
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from antipodal.paper.pair_sampling import Batch, PairSource, Usual

Centres = NDArray[np.int8]

COSINE_MARGIN = 0.2
_SHORT = 16  # bits up to which codes drawn one by one could well be the same


def class_centres(n_classes: int, n_bits: int, rng: np.random.Generator) -> Centres:
    """Return a code of ±1 for each class, (c, N), any two of them far apart. [Yuan2020]

    Rows of a Hadamard matrix, in random order and each with a random sign, differ in exactly N/2
    bits. From the N-th class on their negatives follow. Where N is no power of two, or 2N are too
    few, codes are drawn at random, no two the same while there are as many: they differ in about
    N/2 bits on average.
    """
    if n_bits & (n_bits - 1) or n_classes > 2 * n_bits:
        if n_bits <= _SHORT and n_classes <= 2**n_bits:
            numbers = rng.permutation(2**n_bits)[:n_classes, None]
            return (2 * (numbers >> np.arange(n_bits) & 1) - 1).astype(np.int8)
        return random_centres(n_classes, n_bits, rng)
    rows = hadamard(n_bits, np.int8)[rng.permutation(n_bits)] * random_centres(n_bits, 1, rng)
    return np.concatenate([rows, -rows])[:n_classes]


def random_centres(n_classes: int, n_bits: int, rng: np.random.Generator) -> Centres:
    """Return codes of ±1, (c, N), each bit by the toss of a coin."""
    return 2 * rng.integers(0, 2, (n_classes, n_bits), np.int8) - 1


def usual_scale(n_classes: int) -> float:
    """Return √2·ln C, how sure a small angle is of a class: the surer, the more there are."""
    return math.sqrt(2) * math.log(n_classes)


def cosine_loss(
    z: Tensor, beliefs: Tensor, *, centres: Tensor, scale: float, margin: float
) -> Tensor:
    """Cross entropy of classes that are told by the angle to their centres. [Hoe2021]

        L = -Σ_c t_c log softmax_c(s·(cos(z, h_c) - m·p_c)),    t = p / max(1, Σ_c p_c)

    the mean over rows. With labels p is 0 or 1, and with several in a row t is shared equally
    among them, as the authors have it. Beliefs stand where labels would; without a margin that is
    the expectation over classes. A row that has no label counts for nothing.
    """
    cosines = F.normalize(z, dim=1) @ centres.T / math.sqrt(centres.shape[1])
    targets = beliefs / beliefs.sum(dim=1, keepdim=True).clamp(min=1)
    logs = (scale * (cosines - margin * beliefs)).log_softmax(dim=1)
    return -(targets * logs).sum(dim=1).mean()


def central_loss(
    z: Tensor,
    beliefs: Tensor,
    *,
    centres: Tensor,
    ties: Tensor,
    quantization_weight: float,
    exclusive: bool,
) -> Tensor:
    """Cross entropy of bits with those of the centre, and distance from ±1. [Yuan2020]

        L = min(1, Σ_c p_c) · mean over bits of H(b, (z + 1)/2) + λ·log cosh(|z| - 1)
        H(b, q) = -b log q - (1 - b) log(1 - q)
        b = (Σ_c p_c h_c + 1)/2         one class per row
        b = [Σ_c p_c h_c > 0]           concepts; where the sum is 0, `ties` (N,) decides

    the mean over rows. H is linear in b, so that of one class is the expectation over classes. Of
    several concepts the majority decides, which is not linear: with beliefs it is that of the
    expected votes, in place of an expectation over all sets of concepts. A row that has no label
    counts for nothing.
    """
    votes = beliefs @ centres
    if exclusive:
        bits = ((votes + 1) / 2).clamp(0, 1)
    else:
        bits = (torch.where(votes == 0, ties, votes) > 0).to(z.dtype)
    apart = F.binary_cross_entropy((z + 1) / 2, bits, reduction="none")
    unlike_bits = (z.abs() - 1).cosh().log()
    weights = beliefs.sum(dim=1).clamp(max=1)
    return (weights * (apart + quantization_weight * unlike_bits).mean(dim=1)).mean()


@dataclass(frozen=True)
class CentreBatch:
    """Rows of a batch of pairs, each on its way to its centre, by itself or beside its pairs."""

    pairs: Batch
    beliefs: Tensor  # (rows, c)
    centre_loss: partial[Tensor]
    beside: bool

    @property
    def rows(self) -> Tensor:
        """Return which rows to encode."""
        return self.pairs.rows

    def loss(
        self, z: Tensor, margin: float, similar_weight: float, nested: Sequence[int] = ()
    ) -> Tensor:
        """Return the loss of codes z by their centres, and by their pairs where both count.

        A pair is worth up to ½m², so the other loss is multiplied by that.
        """
        alone: Tensor = self.centre_loss(z, self.beliefs)
        if not self.beside:
            return alone
        return self.pairs.loss(z, margin, similar_weight, nested) + 0.5 * margin**2 * alone

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return which pairs of the rows are similar, and which are not."""
        return self.pairs.tables()


class CentrePairs:
    """The batches of a source of pairs, with a loss that goes by centres.

    Parameters
    ----------
    pairs : PairSource
        It decides on batches and budget.
    labels : (l,), (l, c)
        Class numbers, multi-hot concepts, or beliefs of the rows.
    centre_loss : partial
        `cosine_loss` or `central_loss` with all but its first two arguments, `centres` (c, N)
        among them.
    beside : bool
        Whether the loss of the pairs counts too.
    """

    def __init__(
        self,
        pairs: PairSource,
        labels: Tensor,
        centre_loss: partial[Tensor],
        *,
        beside: bool = False,
    ) -> None:
        self.pairs, self.labels, self.centre_loss, self.beside = pairs, labels, centre_loss, beside

    def usual(self) -> Usual:
        """Return how to train: as on the pairs."""
        return self.pairs.usual()

    def tensors(self) -> dict[str, Tensor]:
        """Return the labels or beliefs, the centres, and the numbers in the loss."""
        own = {name: torch.as_tensor(value) for name, value in self.centre_loss.keywords.items()}
        return {**self.pairs.tensors(), **own}

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[CentreBatch]:
        """Yield the batches of one epoch."""
        centres: Tensor = self.centre_loss.keywords["centres"]
        for batch in self.pairs.batches(batch_size, generator):
            labels = self.labels[batch.rows]
            table = F.one_hot(labels, len(centres)) if labels.ndim == 1 else labels
            yield CentreBatch(batch, table.to(centres.dtype), self.centre_loss, self.beside)

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

from antipodal.paper.pair_sampling import Batch, Defaults, PairSource

Centres = NDArray[np.int8]

COSINE_MARGIN = 0.2
_SHORT = 16  # code length up to which independent random codes are often equal


def class_centres(n_classes: int, n_bits: int, rng: np.random.Generator) -> Centres:
    """Return a code of ±1 per class, (c, N), with large distances between them. [Yuan2020]

    The codes are rows of a Hadamard matrix in random order and with random signs, which differ in
    exactly N/2 bits. With more than N classes, the negated rows follow. If N is not a power of two,
    or if there are more than 2N classes, the codes are random and differ in N/2 bits on average. Up
    to 16 bits they are distinct if 2ᴺ codes are enough.
    """
    if n_bits & (n_bits - 1) or n_classes > 2 * n_bits:
        if n_bits <= _SHORT and n_classes <= 2**n_bits:
            numbers = rng.permutation(2**n_bits)[:n_classes, None]
            return (2 * (numbers >> np.arange(n_bits) & 1) - 1).astype(np.int8)
        return random_centres(n_classes, n_bits, rng)
    rows = hadamard(n_bits, np.int8)[rng.permutation(n_bits)] * random_centres(n_bits, 1, rng)
    return np.concatenate([rows, -rows])[:n_classes]


def random_centres(n_classes: int, n_bits: int, rng: np.random.Generator) -> Centres:
    """Return random codes of ±1, (c, N)."""
    return 2 * rng.integers(0, 2, (n_classes, n_bits), np.int8) - 1


def default_scale(n_classes: int) -> float:
    """Return √2·ln C, the default scale of the cosines for C classes."""
    return math.sqrt(2) * math.log(n_classes)


def cosine_loss(
    z: Tensor, probabilities: Tensor, *, centres: Tensor, scale: float, margin: float
) -> Tensor:
    """Return the cross entropy of classes predicted from the angles to their centres. [Hoe2021]

        L = -Σ_c t_c log softmax_c(s·(cos(z, h_c) - m·p_c)),    t = p / max(1, Σ_c p_c)

    averaged over rows, for class probabilities p (m, c). Labels are probabilities of 0 and 1;
    several labels of a row share t equally, as in the original. Without a margin, the loss is the
    expectation over classes. Rows without a label contribute nothing.
    """
    cosines = F.normalize(z, dim=1) @ centres.T / math.sqrt(centres.shape[1])
    targets = probabilities / probabilities.sum(dim=1, keepdim=True).clamp(min=1)
    logs = (scale * (cosines - margin * probabilities)).log_softmax(dim=1)
    return -(targets * logs).sum(dim=1).mean()


def central_loss(
    z: Tensor,
    probabilities: Tensor,
    *,
    centres: Tensor,
    ties: Tensor,
    quantization_weight: float,
    exclusive: bool,
) -> Tensor:
    """Return the cross entropy with the bits of the centre, plus the distance from ±1. [Yuan2020]

        L = min(1, Σ_c p_c) · mean over bits of H(b, (z + 1)/2) + λ·log cosh(|z| - 1)
        H(b, q) = -b log q - (1 - b) log(1 - q)
        b = (Σ_c p_c h_c + 1)/2         one class per row
        b = [Σ_c p_c h_c > 0]           concepts; if the sum is 0, the bit of `ties` (N,)

    averaged over rows, for class probabilities p (m, c). H is linear in b, so with one class per
    row it is the expectation over classes. The majority of several concepts is not linear: it is
    taken of the expected votes, not averaged over all sets of concepts. Rows without a label
    contribute nothing.
    """
    votes = probabilities @ centres
    if exclusive:
        bits = ((votes + 1) / 2).clamp(0, 1)
    else:
        bits = (torch.where(votes == 0, ties, votes) > 0).to(z.dtype)
    cross_entropy = F.binary_cross_entropy((z + 1) / 2, bits, reduction="none")
    quantization = (z.abs() - 1).cosh().log()
    weights = probabilities.sum(dim=1).clamp(max=1)
    loss = (cross_entropy + quantization_weight * quantization).mean(dim=1)
    return (weights * loss).mean()


@dataclass(frozen=True)
class CentreBatch:
    """Batch with a loss of class centres, optionally added to the loss of its pairs."""

    pairs: Batch
    probabilities: Tensor  # (rows, c)
    centre_loss: partial[Tensor]
    add_pair_loss: bool

    @property
    def rows(self) -> Tensor:
        """Return the rows to encode."""
        return self.pairs.rows

    def loss(
        self, z: Tensor, margin: float, similar_weight: float, nested: Sequence[int] = ()
    ) -> Tensor:
        """Return the loss of the centres, plus that of the pairs if both are used.

        The loss of a pair is at most ½m², so the loss of the centres is multiplied by ½m².
        """
        centre_loss: Tensor = self.centre_loss(z, self.probabilities)
        if not self.add_pair_loss:
            return centre_loss
        return self.pairs.loss(z, margin, similar_weight, nested) + 0.5 * margin**2 * centre_loss

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return the tables of similar and dissimilar pairs."""
        return self.pairs.tables()


class CentrePairs:
    """Source of batches with a loss of class centres.

    Parameters
    ----------
    pairs : PairSource
        Source of the batches and of the default settings.
    labels : (l,), (l, c)
        Class numbers, multi-hot concepts, or class probabilities of the rows.
    centre_loss : partial
        `cosine_loss` or `central_loss` with all arguments but the first two, including `centres`
        (c, N).
    add_pair_loss : bool
        Add the loss of the pairs.
    """

    def __init__(
        self,
        pairs: PairSource,
        labels: Tensor,
        centre_loss: partial[Tensor],
        *,
        add_pair_loss: bool = False,
    ) -> None:
        self.pairs, self.labels, self.centre_loss = pairs, labels, centre_loss
        self.add_pair_loss = add_pair_loss

    def defaults(self) -> Defaults:
        """Return the default settings of the pairs."""
        return self.pairs.defaults()

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the pairs, the centres and the parameters of the loss."""
        keywords = self.centre_loss.keywords.items()
        return {**self.pairs.tensors(), **{name: torch.as_tensor(v) for name, v in keywords}}

    def batches(self, batch_size: int, generator: torch.Generator) -> Iterator[CentreBatch]:
        """Yield the batches of one epoch."""
        centres: Tensor = self.centre_loss.keywords["centres"]
        for batch in self.pairs.batches(batch_size, generator):
            labels = self.labels[batch.rows]
            table = F.one_hot(labels, len(centres)) if labels.ndim == 1 else labels
            probabilities = table.to(centres.dtype)
            yield CentreBatch(batch, probabilities, self.centre_loss, self.add_pair_loss)

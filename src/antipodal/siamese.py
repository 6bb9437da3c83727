"""Train an encoder on similar and dissimilar pairs: one loop for all networks.

The two columns of the siamese network share their weights, so one encoder is applied to both
members of a pair. [Wang2016, Sec. 4]
"""

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from antipodal.batches import Batch, PairSource
from antipodal.pairs import PairLoss, mean_over_prefixes
from antipodal.storage.checkpoint import fingerprint, restore_checkpoint, save_checkpoint
from antipodal.threads import one_thread


@dataclass(frozen=True)
class Training:
    """How to train: what the paper leaves to a table of settings."""

    n_epochs: int
    batch_size: int
    loss: str  # its name, for what goes on from a checkpoint
    margin: float
    similar_weight: float
    optimizer: Literal["adamw", "sgd"]
    learning_rate: float
    schedule: Literal["constant", "cosine"]
    weight_decay: float
    dropout: float
    patience: int
    seed: int
    nested: tuple[int, ...] = ()  # lengths whose first bits are to be codes of their own


@dataclass(frozen=True)
class Epoch:
    """What a progress callback is told after each epoch."""

    number: int
    n_epochs: int
    loss: float
    validation_loss: float | None


@dataclass
class History:
    """Losses epoch by epoch, and the epoch whose weights were kept."""

    loss: list[float] = field(default_factory=list)
    validation_loss: list[float] = field(default_factory=list)
    best_epoch: int = 0


Progress = Callable[[Epoch], None]


def train(
    encoder: nn.Module,
    X: Tensor,
    pairs: PairSource,
    settings: Training,
    *,
    loss: PairLoss | None = None,
    validation: tuple[Tensor, PairSource] | None = None,
    progress: Progress | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 10,
) -> History:
    """Minimise the pairwise loss over the encoder's weights, in place. [Wang2016, Eq. 12]

    Parameters
    ----------
    encoder, X, pairs
        The network, its training rows (m, n) on the same device, and the source of their pairs.
    settings : Training
        Everything that decides the result, the seed included: the same settings and data give
        the same weights, on any number of CPU threads.
    loss : callable, optional
        In place of Eq. 12, what to minimise: see `antipodal.pairs`.
    validation : (rows, pairs), optional
        Held-out rows and their pairs. Training stops when their loss has not improved for
        `settings.patience` epochs, and the best weights are kept.
    progress : callable, optional
        Called with an `Epoch` after each epoch.
    checkpoint : path, optional
        Where to keep the state every `checkpoint_every` epochs. If the file is there already,
        training goes on from it and ends with the same weights as if it had not been stopped;
        a file of another run is refused.
    """
    optimizer = _optimizer(encoder, settings)
    history = History()
    best = _weights(encoder)
    run = ""
    if checkpoint is not None:
        run = fingerprint(asdict(settings), encoder.state_dict(), {"X": X, **pairs.tensors()})
        if Path(checkpoint).exists():
            losses, best = restore_checkpoint(checkpoint, run, encoder, optimizer)
            history = History(**losses)
    generator = torch.Generator(device=X.device)
    with one_thread():
        for epoch in range(len(history.loss), settings.n_epochs):
            if validation is not None and epoch - history.best_epoch > settings.patience:
                break
            # A seed per epoch, so that a resumed run draws what an uninterrupted one would.
            generator.manual_seed(settings.seed * 1_000_003 + epoch)
            mean = _epoch(encoder, X, pairs, settings, loss, optimizer, epoch, generator)
            if not math.isfinite(mean):
                own = "" if loss is None else f", or see whether {settings.loss} divides by zero"
                raise FloatingPointError(
                    f"the loss became {mean} in epoch {epoch + 1}: training diverged. "
                    f"Lower learning_rate (now {settings.learning_rate}){own}"
                )
            history.loss.append(mean)
            held_out = None
            if validation is not None:
                held_out = _validation_loss(encoder, *validation, settings, loss)
                if held_out < min(history.validation_loss, default=math.inf):
                    history.best_epoch, best = epoch, _weights(encoder)
                history.validation_loss.append(held_out)
            if progress is not None:
                progress(Epoch(epoch + 1, settings.n_epochs, mean, held_out))
            last = epoch + 1 == settings.n_epochs
            if checkpoint is not None and ((epoch + 1) % checkpoint_every == 0 or last):
                save_checkpoint(checkpoint, run, encoder, optimizer, asdict(history), best)
    if validation is not None:
        encoder.load_state_dict(best)
    else:
        history.best_epoch = max(0, len(history.loss) - 1)
    return history


def _epoch(
    encoder: nn.Module,
    X: Tensor,
    pairs: PairSource,
    settings: Training,
    own_loss: PairLoss | None,
    optimizer: torch.optim.Optimizer,
    epoch: int,
    generator: torch.Generator,
) -> float:
    """One pass over the pairs; the mean loss of its batches."""
    encoder.train()
    batches = list(pairs.batches(settings.batch_size, generator))
    losses = []
    for i, batch in enumerate(batches):
        if settings.schedule == "cosine":
            done = (epoch + i / len(batches)) / settings.n_epochs
            rate = settings.learning_rate * 0.5 * (1 + math.cos(math.pi * done))
            for group in optimizer.param_groups:
                group["lr"] = rate
        y = X[batch.rows]
        if settings.dropout:
            kept = torch.rand(y.shape, generator=generator, device=y.device) >= settings.dropout
            y = y * kept / (1 - settings.dropout)
        loss = _loss(batch, encoder(y), settings, own_loss)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    encoder.eval()
    return float(torch.stack(losses).mean())


def _loss(batch: Batch, z: Tensor, settings: Training, own: PairLoss | None) -> Tensor:
    """Return the loss of a batch with codes z, by Eq. 12 or the function that was given."""
    if own is None:
        return batch.loss(z, settings.margin, settings.similar_weight, settings.nested)
    similar, dissimilar = batch.tables()
    targets = similar.to(z.dtype) - dissimilar.to(z.dtype)

    def own_loss(z: Tensor, _: float) -> Tensor:
        value = own(z, targets)
        if not isinstance(value, Tensor) or value.ndim:
            is_tensor = isinstance(value, Tensor)
            got = f"shape {tuple(value.shape)}" if is_tensor else type(value).__name__
            raise TypeError(f"{settings.loss} must return a tensor without dimensions: got {got}")
        return value

    return mean_over_prefixes(own_loss, z, settings.margin, settings.nested)


@torch.no_grad()
def _validation_loss(
    encoder: nn.Module,
    X: Tensor,
    pairs: PairSource,
    settings: Training,
    own_loss: PairLoss | None,
) -> float:
    """Loss of the held-out pairs, dealt out the same way every time."""
    generator = torch.Generator(device=X.device).manual_seed(settings.seed)
    losses = [
        _loss(batch, encoder(X[batch.rows]), settings, own_loss)
        for batch in pairs.batches(settings.batch_size, generator)
    ]
    return float(torch.stack(losses).mean())


def _optimizer(encoder: nn.Module, settings: Training) -> torch.optim.Optimizer:
    """Weight decay is for matrices: biases and bounds are left alone."""
    decayed: list[Tensor] = []
    others: list[Tensor] = []
    for name, parameter in encoder.named_parameters():
        (decayed if name.rpartition(".")[2] in ("W", "S") else others).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=settings.learning_rate)
    return torch.optim.SGD(groups, lr=settings.learning_rate)


def _weights(encoder: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in encoder.state_dict().items()}

"""Training loop of the siamese networks, with checkpoints."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from antipodal import __version__
from antipodal.errors import ModelFileError
from antipodal.io.model_file import read_model_file, write_model_file
from antipodal.paper.losses import PairLoss, mean_over_prefixes
from antipodal.paper.pair_sampling import Batch, PairSource
from antipodal.threads import one_thread

Tensors = Mapping[str, Tensor]

_CHECKPOINT_EPOCHS = 10  # epochs between two checkpoints
_NEVER_NEGATIVE = (".step", "_avg_sq")  # endings of arrays in the state of an optimiser


def fingerprint(settings: Mapping[str, Any], *parts: Tensors) -> str:
    """Return a digest of everything that determines the result of a run."""
    digest = hashlib.sha256(json.dumps(settings).encode())
    for tensors in parts:
        for name, tensor in tensors.items():
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
    return digest.hexdigest()


def save_checkpoint(
    path: str | os.PathLike[str],
    run: str,
    encoder: nn.Module,
    optimizer: torch.optim.Optimizer,
    history: Mapping[str, Any],
    best: Tensors,
) -> None:
    """Write the weights, optimiser state, losses and best weights of an unfinished run."""
    tensors = {f"encoder.{name}": value for name, value in encoder.state_dict().items()}
    tensors |= {f"best.{name}": value for name, value in best.items()}
    for i, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{i}.{key}": value for key, value in state.items()}
    arrays = {name: value.detach().cpu().numpy() for name, value in tensors.items()}
    header = {"run": run, "history": history, "antipodal": __version__}
    write_model_file(path, "checkpoint", header, arrays)


def restore_checkpoint(
    path: str | os.PathLike[str],
    run: str,
    encoder: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Restore encoder and optimiser from a file; return the losses and the best weights."""
    header, arrays = read_model_file(path, "checkpoint")
    if header.get("run") != run:
        raise ModelFileError(
            f"{path} is a checkpoint of a run with other data or settings. Delete it to start "
            "again, or choose another file"
        )
    weights = {f"encoder.{name}": value for name, value in encoder.state_dict().items()}
    weights |= {f"best.{name}": value for name, value in encoder.state_dict().items()}
    # The optimiser has no state for weights that the loss does not depend on.
    known = {name.split(".")[1] for name in arrays if name.startswith("optimizer.")}
    state = {
        f"optimizer.{number}.{key}": value
        for number, values in _state_after_a_step(optimizer).items()
        for key, value in values.items()
        if str(number) in known
    }
    _check_arrays(path, arrays, weights | state)
    history = header.get("history")
    _check_history(path, history)
    parts: dict[str, dict[str, Tensor]] = {"encoder": {}, "best": {}, "optimizer": {}}
    for name, array in arrays.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = torch.from_numpy(array.copy())
    encoder.load_state_dict(parts["encoder"])
    restored: dict[int, dict[str, Tensor]] = {}
    for name, value in parts["optimizer"].items():
        number, _, key = name.partition(".")
        restored.setdefault(int(number), {})[key] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": restored})
    device = next(encoder.parameters()).device
    return dict(history or {}), {name: value.to(device) for name, value in parts["best"].items()}


def _state_after_a_step(optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Tensor]]:
    """Return the tensors that an optimiser keeps per weight, from a copy that made a step."""
    probe = deepcopy(optimizer)
    for group in probe.param_groups:
        for weight in group["params"]:
            weight.grad = torch.zeros_like(weight)
    probe.step()
    state: dict[int, dict[str, Tensor]] = probe.state_dict()["state"]
    return {
        number: {key: value for key, value in values.items() if isinstance(value, Tensor)}
        for number, values in state.items()
    }


def _check_arrays(
    path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], expected: Tensors
) -> None:
    """Require the array names, shapes and types of this run, and finite values."""
    if odd := sorted(arrays.keys() ^ expected.keys()):
        raise ModelFileError(
            f"{path} is not a checkpoint of this run: {odd[0]} is missing or unexpected"
        )
    for name, array in arrays.items():
        wanted = np.atleast_1d(expected[name].detach().cpu().numpy())  # files have no scalars
        if array.shape != wanted.shape or array.dtype != wanted.dtype:
            raise ModelFileError(
                f"{path} is not a checkpoint of this run: {name} is {array.dtype} {array.shape}, "
                f"expected {wanted.dtype} {wanted.shape}"
            )
        if not np.isfinite(array).all():
            raise ModelFileError(f"{path} is damaged: {name} must be finite")
        if name.endswith(_NEVER_NEGATIVE) and (array < 0).any():
            raise ModelFileError(f"{path} is damaged: {name} must not be negative")


def _check_history(path: str | os.PathLike[str], history: Any) -> None:
    """Require a history of losses as `History` stores it."""

    def are_numbers(values: Any) -> bool:
        return isinstance(values, list) and all(type(value) in (int, float) for value in values)

    good = (
        isinstance(history, dict)
        and history.keys() == {"loss", "validation_loss", "best_epoch"}
        and are_numbers(history["loss"])
        and are_numbers(history["validation_loss"])
        and len(history["validation_loss"]) in (0, len(history["loss"]))
        and type(history["best_epoch"]) is int
        and 0 <= history["best_epoch"] <= len(history["loss"])
    )
    if not good:
        raise ModelFileError(f"{path} is not a checkpoint: its history of losses is invalid")


@dataclass(frozen=True)
class TrainingRun:
    """Settings of one training run, with all defaults resolved."""

    n_epochs: int
    batch_size: int
    loss: str  # name of the loss, which identifies it in checkpoints
    margin: float
    similar_weight: float
    optimizer: Literal["adamw", "sgd"]
    learning_rate: float
    schedule: Literal["constant", "cosine"]
    weight_decay: float
    dropout: float
    noise: float  # in standard deviations of each input feature
    patience: int
    seed: int
    nested: tuple[int, ...] = ()  # lengths of the prefixes that are trained as codes


@dataclass(frozen=True)
class Epoch:
    """Argument of a progress callback, after each epoch."""

    number: int
    n_epochs: int
    loss: float
    validation_loss: float | None


@dataclass
class History:
    """Losses per epoch, and the epoch whose weights are used."""

    loss: list[float] = field(default_factory=list)
    validation_loss: list[float] = field(default_factory=list)
    best_epoch: int = 0


Progress = Callable[[Epoch], None]


def train(
    encoder: nn.Module,
    X: Tensor,
    pairs: PairSource,
    settings: TrainingRun,
    *,
    loss: PairLoss | None = None,
    validation: tuple[Tensor, PairSource] | None = None,
    progress: Progress | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> History:
    """Minimise the pairwise loss over the encoder's weights, in place. [Wang2016, Eq. 12]

    Parameters
    ----------
    encoder, X, pairs
        The network, its training rows (m, n) on the same device, and the source of their pairs.
    settings : TrainingRun
        All settings, including the seed: the same settings and data give the same weights on any
        number of CPU threads.
    loss : callable, optional
        Function of (codes, targets) to minimise instead of Eq. 12.
    validation : (rows, pairs), optional
        Held-out rows and their pairs. Training stops when their loss has not improved for
        `settings.patience` epochs, and the best weights are kept.
    progress : callable, optional
        Called with an `Epoch` after each epoch.
    checkpoint : path, optional
        File that the state is saved to every 10 epochs and at the end. If it exists, training
        resumes from it and ends with the weights of an uninterrupted run. A checkpoint of another
        run raises `ModelFileError`.
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
    noise = settings.noise * X.std(dim=0, correction=0) if settings.noise else None
    with one_thread():
        for epoch in range(len(history.loss), settings.n_epochs):
            if validation is not None and epoch - history.best_epoch > settings.patience:
                break
            # One seed per epoch: a resumed run draws the same numbers as an uninterrupted one.
            generator.manual_seed(settings.seed * 1_000_003 + epoch)
            mean = _epoch(encoder, X, noise, pairs, settings, loss, optimizer, epoch, generator)
            if not math.isfinite(mean):
                hint = "" if loss is None else f", or check {settings.loss} for divisions by zero"
                raise FloatingPointError(
                    f"training diverged: the loss is {mean} in epoch {epoch + 1}. "
                    f"Lower learning_rate, which is {settings.learning_rate}{hint}"
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
            if checkpoint is not None and ((epoch + 1) % _CHECKPOINT_EPOCHS == 0 or last):
                save_checkpoint(checkpoint, run, encoder, optimizer, asdict(history), best)
    if validation is not None:
        encoder.load_state_dict(best)
    else:
        history.best_epoch = max(0, len(history.loss) - 1)
    return history


def _epoch(
    encoder: nn.Module,
    X: Tensor,
    noise: Tensor | None,
    pairs: PairSource,
    settings: TrainingRun,
    custom: PairLoss | None,
    optimizer: torch.optim.Optimizer,
    epoch: int,
    generator: torch.Generator,
) -> float:
    """Train for one epoch; return the mean loss of its batches."""
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
        if noise is not None:
            y = y + noise * torch.randn(y.shape, generator=generator, device=y.device)
        if settings.dropout:
            kept = torch.rand(y.shape, generator=generator, device=y.device) >= settings.dropout
            y = y * kept / (1 - settings.dropout)
        loss = _loss(batch, encoder(y), settings, custom)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    encoder.eval()
    return float(torch.stack(losses).mean())


def _loss(batch: Batch, z: Tensor, settings: TrainingRun, custom: PairLoss | None) -> Tensor:
    """Return the loss of a batch with codes z, by Eq. 12 or a custom function."""
    if custom is None:
        return batch.loss(z, settings.margin, settings.similar_weight, settings.nested)
    similar, dissimilar = batch.tables()
    targets = similar.to(z.dtype) - dissimilar.to(z.dtype)

    def custom_loss(z: Tensor, _: float) -> Tensor:
        value = custom(z, targets)
        if not isinstance(value, Tensor) or value.ndim:
            is_tensor = isinstance(value, Tensor)
            got = f"shape {tuple(value.shape)}" if is_tensor else type(value).__name__
            raise TypeError(f"{settings.loss} must return a tensor without dimensions: got {got}")
        return value

    return mean_over_prefixes(custom_loss, z, settings.margin, settings.nested)


@torch.no_grad()
def _validation_loss(
    encoder: nn.Module,
    X: Tensor,
    pairs: PairSource,
    settings: TrainingRun,
    custom: PairLoss | None,
) -> float:
    """Return the loss of the held-out pairs, in the same batches every time."""
    generator = torch.Generator(device=X.device).manual_seed(settings.seed)
    losses = [
        _loss(batch, encoder(X[batch.rows]), settings, custom)
        for batch in pairs.batches(settings.batch_size, generator)
    ]
    return float(torch.stack(losses).mean())


def _optimizer(encoder: nn.Module, settings: TrainingRun) -> torch.optim.Optimizer:
    """Return the optimiser, with weight decay for matrices but not for biases and bounds."""
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

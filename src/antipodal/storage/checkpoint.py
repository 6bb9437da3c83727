"""The state of a training run in one file, from which it goes on as if it had not stopped."""

import hashlib
import json
import os
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from antipodal import __version__
from antipodal.errors import ModelFileError
from antipodal.storage.modelfile import read_model_file, write_model_file

Tensors = Mapping[str, Tensor]

_NEVER_NEGATIVE = (".step", "_avg_sq")  # in what an optimiser remembers


def fingerprint(settings: Mapping[str, Any], *parts: Tensors) -> str:
    """Identify a run by all that decides its result, so that checkpoints are not mixed up."""
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
    """Write weights, optimiser state, losses so far and the best weights so far."""
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
    """Set encoder and optimiser to what was saved; return the losses and the best weights."""
    header, arrays = read_model_file(path, "checkpoint")
    if header.get("run") != run:
        raise ModelFileError(
            f"{path} is a checkpoint of other data or settings. Remove it to start afresh, "
            "or name another file"
        )
    weights = {f"encoder.{name}": value for name, value in encoder.state_dict().items()}
    weights |= {f"best.{name}": value for name, value in encoder.state_dict().items()}
    # A weight that takes no part in the loss never has a gradient, and nothing is remembered of it.
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
    """Return what an optimiser remembers of each weight, from a copy that has made a step."""
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
    """Refuse a file without the very arrays of this run: names, shapes, kinds, finite values."""
    if odd := sorted(arrays.keys() ^ expected.keys()):
        raise ModelFileError(f"{path} is no checkpoint of this run: {odd[0]} is missing or unknown")
    for name, array in arrays.items():
        wanted = np.atleast_1d(expected[name].detach().cpu().numpy())  # as files have them
        if array.shape != wanted.shape or array.dtype != wanted.dtype:
            raise ModelFileError(
                f"{path} is no checkpoint of this run: {name} is {array.dtype} {array.shape}, "
                f"expected {wanted.dtype} {wanted.shape}"
            )
        if not np.isfinite(array).all():
            raise ModelFileError(f"{path} cannot be gone on from: {name} must be finite")
        if name.endswith(_NEVER_NEGATIVE) and (array < 0).any():
            raise ModelFileError(f"{path} cannot be gone on from: {name} must not be negative")


def _check_history(path: str | os.PathLike[str], history: Any) -> None:
    """Refuse losses that no training leaves."""

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
        raise ModelFileError(f"{path} is no checkpoint: it does not say what the losses were")

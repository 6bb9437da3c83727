"""The state of a training run in one file, from which it goes on as if it had not stopped."""

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from antipodal.errors import ModelFileError
from antipodal.storage.modelfile import read_model_file, write_model_file

Tensors = Mapping[str, Tensor]


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
    write_model_file(path, "checkpoint", {"run": run, "history": history}, arrays)


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
    parts: dict[str, dict[str, Tensor]] = {"encoder": {}, "best": {}, "optimizer": {}}
    for name, array in arrays.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = torch.from_numpy(array.copy())
    encoder.load_state_dict(parts["encoder"])
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in parts["optimizer"].items():
        number, _, key = name.partition(".")
        state.setdefault(int(number), {})[key] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    device = next(encoder.parameters()).device
    return header["history"], {name: value.to(device) for name, value in parts["best"].items()}

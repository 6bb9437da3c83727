"""Training options of the networks, validated before training."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from antipodal.hashers.preprocessing import check_scaling
from antipodal.validation import check_whole

_LEAST = {
    "n_stages": 0,
    "n_hidden": 1,
    "n_anchors": 1,
    "n_unlabelled": 0,
    "n_pairs": 1,
    "n_epochs": 1,
    "patience": 0,
    "batch_size": 2,
}
_ALLOWED = {
    "optimizer": ("adamw", "sgd"),
    "schedule": ("constant", "cosine"),
    "pairs": ("batch", "sampled"),
    "front": ("auto", "none", "hidden", "kernel"),
}


def check_settings(settings: Mapping[str, Any]) -> None:
    """Check the parameters of a `NetworkHasher`, whose types are right already."""
    for name, least in _LEAST.items():
        if settings[name] is not None:
            check_whole(settings[name], name, least)
    check_nested(settings["nested"], settings["n_bits"])
    for name in ("learning_rate", "belief_power"):
        if not 0 < settings[name] < math.inf:
            raise ValueError(f"{name} must be positive and finite: got {settings[name]}")
    for name in ("margin", "similar_weight"):
        if settings[name] is not None and not 0 < settings[name] < math.inf:
            raise ValueError(f"{name} must be positive and finite, or None: got {settings[name]}")
    check_scaling(settings["scaling"])
    dropout, weight_decay = settings["dropout"], settings["weight_decay"]
    if dropout is not None and not 0 <= dropout < 1:
        raise ValueError(f"dropout must be in [0, 1): got {dropout}")
    if not 0 <= settings["validation_fraction"] <= 0.5:
        raise ValueError(
            f"validation_fraction must be in [0, 0.5]: got {settings['validation_fraction']}"
        )
    if weight_decay is not None and not 0 <= weight_decay < math.inf:
        raise ValueError(f"weight_decay must not be negative: got {weight_decay}")
    for name, allowed in _ALLOWED.items():
        if settings[name] not in allowed:
            raise ValueError(f"{name} must be one of {allowed}: got {settings[name]!r}")
    _check_device(settings["device"])
    _check_loss(settings)


def check_nested(nested: Sequence[int], n_bits: int) -> None:
    """Refuse lengths of prefixes that are not ascending, or not below n_bits."""
    lengths = list(nested)
    if lengths != sorted(set(lengths)) or not all(1 <= n < n_bits for n in lengths):
        raise ValueError(
            "nested must be lengths in ascending order, each once, at least 1 and below the "
            f"{n_bits} of n_bits: got {nested}"
        )


def find_device(name: str) -> torch.device:
    """Return the device of that name; "auto" is a GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def _check_device(name: str) -> None:
    try:
        torch.zeros(1, device=find_device(name)).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(
            "device must be 'auto', 'cpu', or another that PyTorch can use here: "
            f"got {name!r} ({reason})"
        ) from error


def _check_loss(settings: Mapping[str, Any]) -> None:
    loss = settings["loss"]
    if loss not in ("contrastive", "triplet") and not callable(loss):
        raise ValueError(
            f"loss must be 'contrastive', 'triplet' or a function of (codes, targets): got "
            f"{loss!r}. A model that was loaded knows its own loss by name only"
        )
    if settings["centres"] and (loss != "contrastive" or settings["nested"]):
        raise ValueError(
            "centres stand beside the pairs of loss='contrastive' and have one length: leave "
            f"them at None with loss={loss!r} and nested={settings['nested']}"
        )
    if loss == "triplet" and settings["pairs"] == "sampled":
        raise ValueError(
            "loss must not be 'triplet' with pairs='sampled': pairs that are drawn one by one "
            "make no triplets"
        )

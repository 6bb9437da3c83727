"""Mutations of JSON values, arrays and bytes that keep most of their structure."""

import json
import random
from copy import deepcopy
from typing import Any

import numpy as np

ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 9, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, 10**9,
    0.5, -0.0, 1e308, 1e-320, float("nan"), float("inf"), "", "x", "é", "\0", "\ud800", "0", "NaN",
    [], {}, [[]], [1, "x"], {"": 0}, "x" * 5000,
)  # fmt: skip
_PIECES = (b"\0", b"\xff", b"\n", b'"', b"{", b"[", b" ", b",", b"\r\n", b"\xc3", b"\xef\xbb\xbf")
_DEEP = "\ue000deep"  # placeholder for nesting deeper than json.dumps supports


def changed_json(draw: random.Random, value: Any) -> Any:
    """Return a copy of a JSON value with one or a few nodes changed."""
    value = json.loads(json.dumps(value))
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        value = _changed_once(draw, value)
    return value


def _changed_once(draw: random.Random, value: Any) -> Any:
    if not isinstance(value, (dict, list)) or not value or draw.random() < 0.15:
        return deepcopy(draw.choice((*ODD, _DEEP, [value], {"a": value})))
    key = draw.choice(list(value)) if isinstance(value, dict) else draw.randrange(len(value))
    how = draw.random()
    if how < 0.6:
        value[key] = _changed_once(draw, value[key])
    elif how < 0.7:
        del value[key]
    elif isinstance(value, dict):
        value[draw.choice(("", "x", "n_bits", "format", "é", str(key) + "x", str(key)[:-1]))] = (
            deepcopy(draw.choice((*ODD, value[key])))
        )
    else:
        value.insert(key, deepcopy(draw.choice((*ODD, value[key]))))
    return value


def json_text(value: Any) -> str:
    """Return a value as JSON, with deep nesting in place of the placeholder."""
    text = json.dumps(value)
    return text.replace(json.dumps(_DEEP), "[" * 3000 + "]" * 3000)


def changed_array(draw: random.Random, array: np.ndarray) -> np.ndarray:
    """Return an array with a different shape, type or values."""
    how = draw.randrange(9)
    if how == 0:
        return array[None]
    if how == 1:
        kinds = ("f2", "f4", "f8", "i1", "u1", "i4", "i8", "u8", "?")
        with np.errstate(all="ignore"):
            return np.nan_to_num(array).astype(draw.choice(kinds))
    if how == 2:
        return np.zeros(array.shape, array.dtype)
    if how == 3 and array.dtype.kind == "f":
        return np.full_like(array, draw.choice((np.nan, np.inf, -np.inf, 1e38, -1.0)))
    if not array.ndim or not array.size:
        return np.zeros(draw.choice(((), (0,), (3,), (2, 0))), array.dtype)
    if how == 4:
        return array[: draw.randrange(len(array) + 1)]
    if how == 5:
        return array[..., : draw.randrange(array.shape[-1] + 1)]
    if how == 6:
        return np.concatenate([array, array])
    if how == 7:
        return np.ascontiguousarray(array.T)
    other = array.copy()
    place = draw.randrange(array.size)
    odd = (0, 1, -1, 255, 2**31 - 1, np.nan, np.inf, -1e30) if array.dtype.kind == "f" else (0, 1)
    other.reshape(-1)[place] = draw.choice(odd)
    return other


def changed_bytes(draw: random.Random, data: bytes) -> bytes:
    """Return the bytes with some changed, removed, inserted or repeated."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 5))):
        place = draw.randrange(len(changed) + 1)
        how = draw.randrange(5)
        if how == 0:
            changed[place:place] = draw.choice(
                (
                    b"\0",
                    b"\xff",
                    b"\n",
                    b'"',
                    b"{",
                    b"[",
                    b" ",
                    b",",
                    b"\r\n",
                    b"\xc3",
                    b"\xef\xbb\xbf",
                )
            )
        elif how == 1:
            del changed[place : place + draw.choice((1, 2, 10, 1000))]
        elif how == 2:
            changed[place:place] = changed[place : place + draw.randrange(1, 50)]
        elif place < len(changed):
            changed[place] = draw.choice((0, 255, changed[place] ^ 1 << draw.randrange(8)))
    return bytes(changed)

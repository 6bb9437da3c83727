"""Model files: safetensors with a readable, checksummed header."""

import hashlib
import json
import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from antipodal.errors import ModelFileError
from antipodal.io.atomic import replacing

FORMAT_VERSION = 1

Arrays = dict[str, NDArray[Any]]


class ModelFile(NamedTuple):
    """What is in a file, whatever its kind."""

    kind: str
    identity: str
    header: dict[str, Any]
    arrays: Arrays


def write_model_file(
    path: str | os.PathLike[str], kind: str, header: Mapping[str, Any], arrays: Mapping[str, Any]
) -> None:
    """Write arrays and a JSON-able header; `kind` says what they are, such as "hasher"."""
    metadata, tensors = _described(kind, header, arrays)
    with replacing(path) as file:
        file.write(save(tensors, metadata))


def contents_identity(kind: str, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> str:
    """Return what `model_identity` says of the file that `write_model_file` makes of these."""
    return _described(kind, header, arrays)[0]["sha256"]


def _described(
    kind: str, header: Mapping[str, Any], arrays: Mapping[str, Any]
) -> tuple[dict[str, str], Arrays]:
    """Return the metadata of a file, its checksum included, and its arrays as they are written."""
    tensors = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    metadata = {
        "format": "antipodal",
        "version": str(FORMAT_VERSION),
        "kind": kind,
        "header": json.dumps(header, sort_keys=True, allow_nan=False),
    }
    metadata["sha256"] = _digest(metadata, tensors)
    return metadata, tensors


def read_model_file(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], Arrays]:
    """Read what `write_model_file` wrote, or raise ModelFileError saying what is wrong with it."""
    found = open_model_file(path, kind)
    if found.kind != kind:
        raise ModelFileError(f"{path} holds a {found.kind}, not a {kind}")
    return found.header, found.arrays


def open_model_file(path: str | os.PathLike[str], expected: str = "model") -> ModelFile:
    """Read a file of any kind; messages name the one that is expected."""
    data = _read(path, expected)
    metadata = _metadata(path, data)
    if metadata.get("format") != "antipodal":
        raise ModelFileError(f"{path} is a safetensors file, but was not written by antipodal")
    version = metadata.get("version", "")
    if not version.isdecimal():
        raise ModelFileError(f"{path} is damaged: its format version reads {version!r}")
    if int(version) > FORMAT_VERSION:
        raise ModelFileError(
            f"{path} has format version {version}, this antipodal reads up to {FORMAT_VERSION}. "
            "It was written by a newer version: upgrade antipodal"
        )
    try:
        arrays = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise ModelFileError(f"{path} is truncated or damaged: {error}") from error
    if metadata.get("sha256") != _digest(metadata, arrays):
        raise ModelFileError(f"{path} does not match its checksum: it was changed or damaged")
    try:
        header = dict(json.loads(metadata["header"]))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} has no header that can be read") from error
    return ModelFile(metadata.get("kind", ""), metadata["sha256"], header, arrays)


def model_identity(path: str | os.PathLike[str]) -> str:
    """Return what tells one model from another: the SHA-256 of what its file says.

    Equal models have equal identities, although their files may order their parts differently.
    """
    return _metadata(path, _read(path, "hasher")).get("sha256", "")


def model_bits(path: str | os.PathLike[str]) -> int:
    """Return the length of the codes that a saved hasher makes, without making the hasher."""
    header, _ = read_model_file(path, "hasher")
    try:
        return operator.index(header["parameters"]["n_bits"])
    except (KeyError, TypeError):
        raise ModelFileError(f"{path} does not say how long its codes are") from None


def _read(path: str | os.PathLike[str], kind: str) -> bytes:
    expected = f"Expected a {kind}, in a file that antipodal wrote"
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise ModelFileError(f"cannot read {path}: {reason}. {expected}") from error
    if not data:
        raise ModelFileError(f"cannot read {path}: it is empty. {expected}")
    if data[8:9] not in (b"", b"{"):  # where the JSON of a safetensors file begins
        raise ModelFileError(f"{path} is not an antipodal file, but something else. {expected}")
    return data


def _metadata(path: str | os.PathLike[str], data: bytes) -> dict[str, str]:
    """Return the metadata of a safetensors file: 8 bytes of length, then as much JSON."""
    length = int.from_bytes(data[:8], "little")
    try:
        if len(data) < 8 or length > len(data) - 8:
            raise ValueError(f"its header should have {length} bytes, the file has {len(data)}")
        header = json.loads(data[8 : 8 + length])
        metadata = header["__metadata__"]
        if not all(isinstance(value, str) for value in metadata.values()):
            raise TypeError("its metadata is not text")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelFileError(
            f"{path} is not an antipodal file, or was truncated ({error})"
        ) from error
    return dict(metadata)


def _digest(metadata: Mapping[str, str], arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of everything in the file but the digest itself, in one fixed order."""
    digest = hashlib.sha256()
    described = {name: [str(array.dtype), array.shape] for name, array in arrays.items()}
    signed = {key: value for key, value in metadata.items() if key != "sha256"}
    digest.update(json.dumps([signed, described], sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()

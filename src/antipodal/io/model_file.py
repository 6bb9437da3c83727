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
    """The contents of a model file of any kind."""

    kind: str
    identity: str
    header: dict[str, Any]
    arrays: Arrays

    def check_kind(self, path: str | os.PathLike[str], kind: str) -> None:
        """Raise ModelFileError if the file is of another kind."""
        if self.kind != kind:
            raise ModelFileError(f"{path} contains a {self.kind}, not a {kind}")


def write_model_file(
    path: str | os.PathLike[str], kind: str, header: Mapping[str, Any], arrays: Mapping[str, Any]
) -> None:
    """Write arrays and a JSON-serialisable header; `kind` is their type, such as "hasher"."""
    data = model_file_bytes(kind, header, arrays)
    with replacing(path) as file:
        file.write(data)


def model_file_bytes(kind: str, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> bytes:
    """Return the contents of the file that `write_model_file` writes."""
    metadata, tensors = _with_metadata(kind, header, arrays)
    return save(tensors, metadata)


def contents_identity(kind: str, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> str:
    """Return the `model_identity` of the file that `write_model_file` would write."""
    return _with_metadata(kind, header, arrays)[0]["sha256"]


def _with_metadata(
    kind: str, header: Mapping[str, Any], arrays: Mapping[str, Any]
) -> tuple[dict[str, str], Arrays]:
    """Return the metadata of a file, with its checksum, and its arrays, contiguous."""
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
    """Read a file of `write_model_file`; raise ModelFileError for any other file."""
    found = open_model_file(path, kind)
    found.check_kind(path, kind)
    return found.header, found.arrays


def open_model_file(path: str | os.PathLike[str], expected: str = "model") -> ModelFile:
    """Read a model file of any kind; `expected` is the kind named in error messages."""
    return parse_model_file(read_model_bytes(path, expected), path)


def parse_model_file(data: bytes, path: str | os.PathLike[str]) -> ModelFile:
    """Read the bytes of a model file; `path` names them in error messages."""
    metadata = _metadata(path, data)
    if metadata.get("format") != "antipodal":
        raise ModelFileError(f"{path} is a safetensors file, but was not written by antipodal")
    version = metadata.get("version", "")
    if not version.isdecimal():
        raise ModelFileError(f"{path} is damaged: its format version is {version!r}")
    if int(version) > FORMAT_VERSION:
        raise ModelFileError(
            f"{path} has format version {version}, but this version of antipodal reads versions "
            f"up to {FORMAT_VERSION}. The file was written by a newer version: upgrade antipodal"
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
        raise ModelFileError(f"{path} has no valid header") from error
    return ModelFile(metadata.get("kind", ""), metadata["sha256"], header, arrays)


def model_identity(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of the contents of a model file.

    Equal models have equal identities, although the order of the arrays in their files may differ.
    """
    return _metadata(path, read_model_bytes(path)).get("sha256", "")


def model_bits(path: str | os.PathLike[str]) -> tuple[int, str]:
    """Return the code length and the identity of a saved hasher, without creating the hasher."""
    found = open_model_file(path, "hasher")
    found.check_kind(path, "hasher")
    try:
        return operator.index(found.header["parameters"]["n_bits"]), found.identity
    except (KeyError, TypeError):
        raise ModelFileError(f"{path} does not contain the length of its codes, n_bits") from None


def read_model_bytes(path: str | os.PathLike[str], kind: str = "hasher") -> bytes:
    """Return the bytes of a model file; `kind` is the kind named in error messages."""
    name = "model" if kind == "hasher" else kind
    expected = f"Expected a {name} file written by antipodal"
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise ModelFileError(f"cannot read {path}: {reason}. {expected}") from error
    if not data:
        raise ModelFileError(f"cannot read {path}: it is empty. {expected}")
    if data[8:9] not in (b"", b"{"):  # the first byte of the JSON header of a safetensors file
        raise ModelFileError(f"{path} is not an antipodal file. {expected}")
    return data


def _metadata(path: str | os.PathLike[str], data: bytes) -> dict[str, str]:
    """Return the metadata of a safetensors file: 8 bytes of length, then the JSON header."""
    length = int.from_bytes(data[:8], "little")
    try:
        if len(data) < 8 or length > len(data) - 8:
            raise ValueError(f"its header should have {length} bytes, but the file has {len(data)}")
        header = json.loads(data[8 : 8 + length])
        metadata = header["__metadata__"]
        if not all(isinstance(value, str) for value in metadata.values()):
            raise TypeError("its metadata are not strings")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelFileError(
            f"{path} is not an antipodal file, or is truncated ({error})"
        ) from error
    return dict(metadata)


def _digest(metadata: Mapping[str, str], arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 of the contents of a file, without the digest, in a fixed order."""
    digest = hashlib.sha256()
    described = {name: [str(array.dtype), array.shape] for name, array in arrays.items()}
    signed = {key: value for key, value in metadata.items() if key != "sha256"}
    digest.update(json.dumps([signed, described], sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()

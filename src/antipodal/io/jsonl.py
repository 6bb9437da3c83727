"""JSON Lines files: one object per line.

Lines are parsed with the standard library. pyarrow is an optional dependency, requires the values
of a field to have one type, and does not report line numbers.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodal.errors import AntipodalError
from antipodal.io.columns import Column, NoRowsError, Role, Table
from antipodal.io.formats import JSON_LINES, DataFile

_BATCH_LINES = 4096
_NUMBER, _LIST = "a number", "a list"
_TYPES = {int: _NUMBER, float: _NUMBER, str: "text", bool: "true or false", list: _LIST}


class JsonLine(NamedTuple):
    """The object in a line, and the line number, from 1."""

    number: int
    fields: dict[str, Any]


def read_objects(path: str | os.PathLike[str]) -> Iterator[JsonLine]:
    """Yield the objects in the lines of a file, gzip-compressed or not; skip blank lines."""
    return _objects(DataFile(os.fspath(path), JSON_LINES, "as required here"))


def _objects(file: DataFile) -> Iterator[JsonLine]:
    with file.naming_errors(), file.open() as lines:
        for number, line in enumerate(lines, start=1):
            if line.isspace():
                continue
            try:
                value = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:  # ValueError: also invalid UTF-8
                raise AntipodalError(f"{file.path}, line {number} is not JSON: {error}") from error
            if not isinstance(value, dict):
                raise AntipodalError(
                    f"{file.path}, line {number} must be a JSON object: got {_shown(value)}"
                )
            yield JsonLine(number, value)


class JsonTable(Table):
    """A JSON Lines file. Its columns are the fields of the first object.

    Parameters
    ----------
    file : DataFile
    dtype : numpy.dtype
        The dtype of vectors.
    """

    def __init__(self, file: DataFile, dtype: np.dtype[Any]) -> None:
        first = next(_objects(file), None)
        if first is None:
            raise NoRowsError(file.path)
        super().__init__(file, {name: _column(value) for name, value in first.fields.items()})
        self._dtype = dtype
        self._first = first

    @property
    def layout(self) -> Mapping[str, str]:
        """Return nothing to compare: objects may lack fields that are not read."""
        return {}

    def count(self, names: Sequence[str]) -> int:
        """Count the lines that are not blank, without parsing them."""
        with self.file.naming_errors(), self.file.open() as lines:
            return sum(1 for line in lines if not line.isspace())

    def blocks(
        self, names: Sequence[str], max_rows: int, width: int | None = None
    ) -> Iterator[NDArray[Any]]:
        """Yield the vectors of up to max_rows lines at a time."""
        for lines in self._batches(max_rows):
            columns = [self._field(lines, name) for name in names]
            vectors = columns[0] if len(names) == 1 else list(zip(*columns, strict=True))
            yield self._matrix(lines, vectors, width or len(vectors[0]), self._dtype)

    def values(self, name: str) -> NDArray[Any]:
        """Return a whole column, whose values must have one type."""
        parts: list[NDArray[Any]] = []
        first = self._first.fields[name]
        expected = _TYPES.get(type(first))
        for lines in self._batches(_BATCH_LINES):
            values = self._field(lines, name)
            for line, value in zip(lines, values, strict=True):
                if expected is None or _TYPES.get(type(value)) != expected:
                    rule = expected or "a number, text, true or false, or a list"
                    raise self._error(line, f"{name!r} must be {rule}", value)
            if expected == _LIST:
                parts.append(self._matrix(lines, values, len(first), np.dtype(np.float64)))
            else:
                parts.append(np.array(values))
        return np.concatenate(parts)

    def records(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield these fields of each object; missing fields are None."""
        for line in _objects(self.file):
            yield {name: line.fields.get(name) for name in names}

    def _batches(self, size: int) -> Iterator[list[JsonLine]]:
        lines = _objects(self.file)
        while batch := list(islice(lines, size)):
            yield batch

    def _field(self, lines: list[JsonLine], name: str) -> list[Any]:
        for line in lines:
            if name not in line.fields:
                fields = ", ".join(line.fields) or "no fields"
                raise AntipodalError(
                    f"{self.file.path}, line {line.number} has no {name!r}: it has {fields}"
                )
        return [line.fields[name] for line in lines]

    def _matrix(
        self, lines: list[JsonLine], vectors: list[Any], width: int, dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        """Stack lists of numbers, or name the first line without a valid vector."""
        try:
            matrix = np.array(vectors)
        except ValueError:  # vectors of unequal length
            matrix = np.empty(0)
        if matrix.shape != (len(vectors), width) or matrix.dtype.kind not in "iufb":
            for line, vector in zip(lines, vectors, strict=True):
                if not isinstance(vector, (list, tuple)):
                    raise self._error(line, "the vector must be a list of numbers", vector)
                if len(vector) != width:
                    rule = f"the vector must have {width} dimensions, as in the first line"
                    raise self._error(line, rule, len(vector))
                for value in vector:
                    if not isinstance(value, (int, float)) or abs(value) > sys.float_info.max:
                        raise self._error(line, "vectors must contain numbers only", value)
            matrix = np.array(vectors, np.float64)  # integers of more than 64 bits
        with np.errstate(invalid="ignore"):
            numbers: NDArray[Any] = matrix.astype(dtype)
        if dtype.kind in "iu" and (numbers != matrix).any():
            row = int((numbers != matrix).any(axis=1).argmax())
            raise self._error(lines[row], f"values must be {dtype}", matrix[row])
        return numbers

    def _error(self, line: JsonLine, rule: str, value: Any) -> AntipodalError:
        return AntipodalError(f"{self.file.path}, line {line.number}: {rule}: got {_shown(value)}")


def _column(value: Any) -> Column:
    """Describe a column by its first value."""
    kind = _TYPES.get(type(value))
    if kind == _LIST and value and all(_TYPES.get(type(entry)) == _NUMBER for entry in value):
        return Column("vectors", Role.VECTOR)
    return Column(kind or "JSON objects or null", Role.NUMBER if kind == _NUMBER else Role.OTHER)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"

"""JSON Lines files: one object per line."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodal.errors import AntipodalError
from antipodal.io.columns import NoRowsError, Role, Table, TableColumn, VectorType
from antipodal.io.file_kinds import FoundFile

_BATCH_LINES = 4096
_LARGEST = sys.float_info.max
_NUMBER, _LIST = "a number", "a list"
_KINDS = {int: _NUMBER, float: _NUMBER, str: "text", bool: "true or false", list: _LIST}


class JsonLine(NamedTuple):
    """The object in a line, and the number of the line, from 1."""

    number: int
    fields: dict[str, Any]


def read_objects(file: FoundFile) -> Iterator[JsonLine]:
    """Yield the objects in the lines of a file; lines of nothing but space are passed over."""
    with file.naming(), file.open() as lines:
        for number, line in enumerate(lines, start=1):
            if line.isspace():
                continue
            try:
                value = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:  # bytes that are not UTF-8, too
                raise AntipodalError(f"{file.path}, line {number} is not JSON: {error}") from error
            if not isinstance(value, dict):
                raise AntipodalError(
                    f"{file.path}, line {number} must be a JSON object: got {_shown(value)}"
                )
            yield JsonLine(number, value)


class JsonTable(Table):
    """A file of JSON lines. Its columns are those of its first line; empty lines do not count.

    Parameters
    ----------
    file : FoundFile
    dtype : numpy.dtype
        That numbers of vectors are read as.
    """

    def __init__(self, file: FoundFile, dtype: np.dtype[Any]) -> None:
        self.file, self._dtype = file, dtype
        first = next(read_objects(file), None)
        if first is None:
            raise NoRowsError(f"cannot read {file.path}: it has no rows")
        super().__init__(file, {name: _describe(value) for name, value in first.fields.items()})
        self._first = first

    @property
    def form(self) -> Mapping[str, str]:
        """Nothing: a line may lack fields that nobody asks for."""
        return {}

    def count(self, names: Sequence[str]) -> int:
        """Count the lines that are not empty; they are not parsed."""
        with self.file.naming(), self.file.open() as lines:
            return sum(1 for line in lines if not line.isspace())

    def vector_type(self, names: Sequence[str]) -> VectorType:
        """Return what the first vector is."""
        alone = len(names) == 1
        return VectorType(len(self._first.fields[names[0]] if alone else names), self._dtype)

    def matrices(
        self, names: Sequence[str], rows: VectorType, max_rows: int
    ) -> Iterator[NDArray[Any]]:
        """Yield the vectors of some lines at a time."""
        for lines in self._batches(max_rows):
            columns = [self._values(lines, name) for name in names]
            vectors = columns[0] if len(names) == 1 else list(zip(*columns, strict=True))
            yield self._matrix(vectors, lines, rows.n_features, rows.dtype)

    def values(self, name: str) -> NDArray[Any]:
        """Return a whole column, of which each value must be of one kind."""
        parts: list[NDArray[Any]] = []
        kind = _kind(self._first.fields[name])
        for lines in self._batches(_BATCH_LINES):
            column = self._values(lines, name)
            for line, value in zip(lines, column, strict=True):
                if kind is None or _kind(value) is not kind:
                    rule = kind or "a number, text, true or false, or a list"
                    raise self._wrong(line, f"{name!r} must be {rule}", value)
            if kind == _LIST:
                width = len(self._first.fields[name])
                parts.append(self._matrix(column, lines, width, np.dtype(np.float64)))
            else:
                parts.append(np.array(column))
        return np.concatenate(parts)

    def records(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield these fields of each line; what a line does not have is None."""
        for line in read_objects(self.file):
            yield {name: line.fields.get(name) for name in names}

    def _batches(self, size: int) -> Iterator[list[JsonLine]]:
        lines = read_objects(self.file)
        while batch := list(islice(lines, size)):
            yield batch

    def _values(self, lines: list[JsonLine], name: str) -> list[Any]:
        try:
            return [line.fields[name] for line in lines]
        except KeyError:
            line = next(line for line in lines if name not in line.fields)
            held = ", ".join(line.fields) or "nothing"
            raise AntipodalError(
                f"{self.file.path}, line {line.number} has no {name!r}: it has {held}"
            ) from None

    def _matrix(
        self, vectors: list[Any], lines: list[JsonLine], width: int, dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        """Stack lists of numbers, or name the first that is none, or of another length."""
        try:
            matrix = np.array(vectors)
        except ValueError:  # of unequal lengths
            matrix = np.empty(0)
        if matrix.shape != (len(vectors), width) or matrix.dtype.kind not in "iufb":
            for line, vector in zip(lines, vectors, strict=True):
                if not isinstance(vector, (list, tuple)):
                    raise self._wrong(line, "a vector must be a list of numbers", vector)
                if len(vector) != width:
                    raise self._wrong(
                        line, f"a vector must have {width} numbers, as before", len(vector)
                    )
                for value in vector:
                    if not isinstance(value, (int, float)) or abs(value) > _LARGEST:
                        raise self._wrong(line, "vectors must be of numbers", value)
            matrix = np.array(vectors, np.float64)  # integers of more than 64 bits
        with np.errstate(invalid="ignore"):
            numbers: NDArray[Any] = matrix.astype(dtype)
        if dtype.kind in "iu":
            changed = (numbers != matrix).any(axis=1)
            if changed.any():
                line = lines[int(changed.argmax())]
                raise self._wrong(line, f"numbers must be {dtype}", matrix[changed.argmax()])
        return numbers

    def _wrong(self, line: JsonLine, rule: str, value: Any) -> AntipodalError:
        return AntipodalError(f"{self.file.path}, line {line.number}: {rule}: got {_shown(value)}")


def _describe(value: Any) -> TableColumn:
    """Say what a field can be to a vector, by its first value."""
    kind = _kind(value)
    if kind == _LIST and value and all(_kind(entry) == _NUMBER for entry in value):
        return TableColumn("vectors", Role.VECTOR)
    return TableColumn(kind or "other things", Role.NUMBER if kind == _NUMBER else Role.OTHER)


def _kind(value: Any) -> str | None:
    """Return what a value is called, of which a column must have one kind."""
    return _KINDS.get(type(value))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"

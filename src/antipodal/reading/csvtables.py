"""CSV files, by pyarrow. Vectors are in columns of numbers, or in one as text: [0.1, 0.2]."""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.reading.arrowcolumns import arrow_module, as_values, stack_vectors
from antipodal.reading.arrowtables import BatchTable
from antipodal.reading.columns import Role, TableColumn
from antipodal.reading.filekinds import FoundFile
from antipodal.reading.table import NoRowsError

_BLOCK_BYTES = 2**23  # more than any row has
_AROUND = "[]() \t\r\n"  # a vector that is written as text
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_JSON_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_CONSTANTS = {None: None, "null": None, "true": True, "false": False}


class CsvTable(BatchTable):
    """A CSV file with a line of names, or with numbers only, in columns f0, f1, ….

    Parameters
    ----------
    file : FoundFile
        Tabulators part its columns if its name says .tsv, commas otherwise.
    dtype : numpy.dtype
        That numbers of vectors are read as.
    """

    def __init__(self, file: FoundFile, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._names: list[str] | None = None  # where there is no line of names
        super().__init__(file)

    @property
    def form(self) -> Mapping[str, str]:
        """The names: types are a guess from the first rows."""
        return dict.fromkeys(self.columns, "there")

    def _read_columns(self) -> Mapping[str, TableColumn]:
        batch = self._first_batch()
        names = batch.schema.names
        if all(map(_NUMBER.fullmatch, names)):
            self._names = names = [f"f{place}" for place in range(len(names))]
            batch = self._first_batch()
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise ValueError(f"it has several columns {repeated!r}")
        return {name: _describe(batch.column(name)) for name in names}

    def _first_batch(self) -> Any:
        batch = next(self._read(None), None)
        if batch is None:
            raise NoRowsError(f"cannot read {self.file.path}: it has no rows")
        return batch

    def _batches(self, names: Sequence[str], max_rows: int) -> Iterator[Any]:
        text = import_module("pyarrow").string()
        return self._read(dict.fromkeys(names, text))

    def _vector_batches(self, names: Sequence[str], max_rows: int) -> Iterator[Any]:
        arrow = import_module("pyarrow")
        alone = len(names) == 1
        kind = arrow.string() if alone else arrow.from_numpy_dtype(self._dtype)
        return self._read(dict.fromkeys(names, kind))

    def _read(self, types: Mapping[str, Any] | None) -> Iterator[Any]:
        """Read these columns as these types, or all as what they seem to be at first."""
        csv = arrow_module("pyarrow.csv", self.file.path)
        tabs = self.file.path.lower().endswith((".tsv", ".tsv.gz"))
        with self.file.open() as stream:
            yield from csv.open_csv(
                stream,
                # with threads an error would not name the row
                csv.ReadOptions(
                    use_threads=False, block_size=_BLOCK_BYTES, column_names=self._names
                ),
                csv.ParseOptions(delimiter="\t" if tabs else ",", newlines_in_values=True),
                csv.ConvertOptions(
                    strings_can_be_null=True,
                    null_values=[""],
                    include_columns=None if types is None else list(types),
                    column_types=types,
                ),
            )

    def _vectors(
        self, batch: Any, names: Sequence[str], first: int, width: int | None
    ) -> NDArray[Any]:
        if len(names) > 1:
            return super()._vectors(batch, names, first, width)
        return self._parsed(batch.column(0), names[0], first, width)

    def _values(self, values: Any, name: str, first: int, width: int | None) -> NDArray[Any]:
        """Return lists as numbers, and words as they are: `values` makes numbers of them."""
        if self.columns[name].role is Role.VECTOR:
            return self._parsed(values, name, first, width)
        return as_values(values, name, first, width)

    def values(self, name: str) -> NDArray[Any]:
        """Return a whole column; one of whole numbers as numbers."""
        words = super().values(name)
        if words.dtype.kind != "U":
            return words
        try:
            numbers = words.astype(np.int64)
        except (ValueError, OverflowError):
            return words
        # 007 is a word
        return numbers if (numbers.astype(words.dtype) == words).all() else words

    def _json_value(self, value: Any) -> Any:
        """Return what is a number, true, false or null in JSON as that, the rest as text."""
        if value in _CONSTANTS:
            return _CONSTANTS[value]
        if not _JSON_NUMBER.fullmatch(value):
            return value
        return float(value) if set(value) & set(".eE") else int(value)

    def _parsed(self, texts: Any, name: str, first: int, width: int | None) -> NDArray[Any]:
        """Read vectors that are text: brackets around, commas or spaces between."""
        arrow, compute = import_module("pyarrow"), import_module("pyarrow.compute")
        numbers = compute.split_pattern_regex(compute.utf8_trim(texts, _AROUND), r"[\s,;]+")
        kind = arrow.list_(arrow.from_numpy_dtype(self._dtype))
        try:
            return stack_vectors(numbers.cast(kind), name, first, width)
        except arrow.ArrowInvalid as error:
            for place, row in enumerate(numbers):
                try:
                    row.cast(kind)
                except arrow.ArrowInvalid:
                    raise ValueError(
                        f"the column {name!r} must be of vectors, such as [0.1, 0.2]: row "
                        f"{first + place} is {str(texts[place])[:60]!r}"
                    ) from error
            raise


def _describe(column: Any) -> TableColumn:
    """Say what a column can be, by the type that its first rows seem to be of."""
    types = import_module("pyarrow.types")
    if types.is_integer(column.type) or types.is_floating(column.type):
        return TableColumn("numbers", Role.NUMBER)
    first = column[0].as_py() if len(column) else None
    if isinstance(first, bytes):  # some of it is not UTF-8
        first = first.decode(errors="replace")
    if isinstance(first, str) and first.lstrip().startswith(("[", "(")):
        return TableColumn("vectors", Role.VECTOR)
    return TableColumn("text", Role.OTHER)

"""Ids and metadata of rows, for `build`, `add` and `index`: options, reading and validation."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from antipodal.cli.app import TABLE, split_commas
from antipodal.errors import AntipodalError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from antipodal.io.vectors import VectorFile
    from antipodal.stores.items import MetadataText

IdFile = Annotated[
    str | None, typer.Option("--ids", help=f"Item ids, integers or strings, one per row: {TABLE}.")
]
IdColumn = Annotated[str | None, typer.Option(help="Id column of the file: integers or strings.")]
MetadataFile = Annotated[
    Path | None,
    typer.Option("--metadata", help="Item metadata: JSON Lines, one object per row."),
]
MetadataColumns = Annotated[
    str | None, typer.Option(help="Comma-separated metadata columns of the file.")
]


class RowOptions:
    """Options for the ids and metadata of rows.

    Parameters
    ----------
    ids, id_column : str, optional
        A file of ids, or the id column of the row file.
    metadata, metadata_columns : path and str, optional
        A file of metadata, or the metadata columns of the row file.
    """

    def __init__(
        self,
        ids: str | None,
        id_column: str | None,
        metadata: Path | None,
        metadata_columns: str | None,
    ) -> None:
        if ids is not None and id_column is not None:
            raise typer.BadParameter("pass --ids or --id-column, not both")
        if metadata is not None and metadata_columns is not None:
            raise typer.BadParameter("pass --metadata or --metadata-columns, not both")
        self._ids, self._id_column, self._metadata = ids, id_column, metadata
        self._columns = split_commas(metadata_columns)
        self.has_metadata = metadata is not None or metadata_columns is not None

    def open(self, source: str, text_dtype: "DTypeLike" = "float64") -> "VectorFile":
        """Open the rows, without the columns of ids and metadata."""
        from antipodal.io.vectors import open_vectors

        own = self._columns if self._id_column is None else [self._id_column, *self._columns]
        return open_vectors(source, leave_out=own, text_dtype=text_dtype)

    def read_ids(self, file: "VectorFile") -> "NDArray[Any] | None":
        """Return the ids of the rows, or None if they have none."""
        from antipodal.io.vectors import read_column

        if self._id_column is not None:
            found = file.column(self._id_column)
        elif self._ids is not None:
            found = read_column(self._ids)
        else:
            return None
        if found.shape != (len(file),):
            raise ValueError(
                f"{self._ids or self._id_column} must contain one id for each of {len(file)} rows: "
                f"got shape {found.shape}"
            )
        return found

    def read_metadata(self, file: "VectorFile", stack: ExitStack) -> "CheckedMetadata | None":
        """Return the validated metadata of the rows, or None if they have none."""
        if not self.has_metadata:
            return None
        temporary = TemporaryFile("w+", encoding="utf-8", newline="\n")  # noqa: SIM115
        copy = stack.enter_context(temporary)
        if self._metadata is not None:
            return CheckedMetadata(_line_texts(self._metadata), copy, len(file))
        return CheckedMetadata(_column_texts(file, self._columns), copy, len(file))


class CheckedMetadata:
    """Validated metadata of all rows, which can be iterated more than once.

    The texts are written to a temporary file, because the input may be a pipe and must not be
    validated twice.
    """

    def __init__(self, texts: "Iterator[MetadataText]", copy: IO[str], n_rows: int) -> None:
        self._copy, self._n_rows = copy, n_rows
        n_texts = 0
        for text in texts:
            copy.write(text + "\n")
            n_texts += 1
        if n_texts != n_rows:
            raise AntipodalError(
                f"metadata must have one object for each of {n_rows} rows: got {n_texts}"
            )

    def __len__(self) -> int:
        return self._n_rows

    def __iter__(self) -> "Iterator[MetadataText]":
        from antipodal.stores.items import MetadataText

        self._copy.seek(0)
        return (MetadataText(line[:-1]) for line in self._copy)


def _line_texts(path: Path) -> "Iterator[MetadataText]":
    """Yield the validated metadata of a JSON Lines file."""
    from antipodal.io.jsonl import read_objects

    for number, fields in read_objects(path):
        yield _validated(fields, f"{path}, line {number}")


def _column_texts(file: "VectorFile", columns: list[str]) -> "Iterator[MetadataText]":
    """Yield the validated metadata in columns of the row file."""
    for row, fields in enumerate(file.records(columns)):
        yield _validated(fields, f"{file.name}, row {row}")


def _validated(fields: dict[str, Any], place: str) -> "MetadataText":
    from antipodal.stores.items import metadata_text

    try:
        return metadata_text(fields)
    except (TypeError, ValueError) as error:
        raise AntipodalError(f"{place}: {error}") from error

"""NUS-WIDE in its official layout: 500 visual words and 81 concepts per image."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodal.datasets.dataset import Dataset
from antipodal.datasets.download import find_directory
from antipodal.errors import AntipodalError

_HELP = (
    "NUS-WIDE requires registration and cannot be downloaded automatically: put the folders "
    "Low_Level_Features, ConceptsList and Groundtruth of its official distribution there"
)
_WORDS = 500
_BLOCK = 4_000_000  # bytes of text parsed at a time
_DIGITS_AND_BLANKS = b"0123456789 \t\r\n"


def nus_wide(dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Read the bag-of-words features (uint16 counts) and the concepts of every image.

    The columns of the labels are in the order of the list of concepts.

    Parameters
    ----------
    dir : path, optional
        A directory with ``Low_Level_Features/BoW_int.dat``, ``ConceptsList/Concepts81.txt`` and
        ``Groundtruth/AllLabels/Labels_<concept>.txt``. By default the environment variable
        ANTIPODAL_DATA.
    """
    directory = find_directory(dir, _HELP)
    labels = _read_labels(directory)
    path = directory / "Low_Level_Features" / "BoW_int.dat"
    features = np.empty((len(labels), _WORDS), np.uint16)
    n_rows = 0
    for block in _read_integers(path, _WORDS, np.iinfo(np.uint16).max):
        n_rows += len(block)
        if n_rows <= len(labels):
            features[n_rows - len(block) : n_rows] = block
    if n_rows != len(labels):
        raise AntipodalError(
            f"{path} has {n_rows:,} rows, but the label files have {len(labels):,} each: is one "
            "of them truncated?"
        )
    return Dataset("nus-wide", features, labels, directory=directory)


def _read_labels(directory: Path) -> NDArray[np.bool_]:
    listed = directory / "ConceptsList" / "Concepts81.txt"
    folder = directory / "Groundtruth" / "AllLabels"
    try:
        names = (line.strip() for line in listed.read_text("utf-8-sig").splitlines())
        concepts = [name for name in names if name]
        found = {path.name for path in folder.glob("Labels_*.txt")}
    except (OSError, UnicodeDecodeError) as error:
        raise AntipodalError(
            f"cannot read {listed}: {error}. Is {directory} the NUS-WIDE directory? {_HELP}"
        ) from error
    expected = {f"Labels_{concept}.txt" for concept in concepts}
    if expected != found or len(expected) != len(concepts) or not concepts:
        odd = sorted(expected ^ found)[:3]
        raise AntipodalError(
            f"{folder} must have one Labels_<concept>.txt for each of the {len(concepts)} "
            f"concepts in {listed}, but has {len(found)}"
            + (f"; without a counterpart: {', '.join(odd)}" if odd else "")
        )
    columns: list[NDArray[np.bool_]] = []
    for concept in concepts:
        path = folder / f"Labels_{concept}.txt"
        blocks = [block[:, 0].astype(bool) for block in _read_integers(path, 1, 1)]
        columns.append(np.concatenate(blocks) if blocks else np.empty(0, bool))
        if len(columns[-1]) != len(columns[0]) or len(columns[-1]) == 0:
            raise AntipodalError(
                f"{path} has {len(columns[-1]):,} rows, but Labels_{concepts[0]}.txt has "
                f"{len(columns[0]):,}: is one of them truncated?"
            )
    return np.stack(columns, axis=1)


def _read_integers(path: Path, n_columns: int, most: int) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of a text file of integers from 0 to `most`, a few megabytes at a time."""
    line = 1  # the number of the first line of the block
    try:
        with path.open("rb") as file:
            while text := file.read(_BLOCK):
                text += file.readline()
                yield _parse(path, text, line, n_columns, most)
                line += text.count(b"\n")
    except OSError as error:
        raise AntipodalError(f"cannot read {path}: {error.strerror or error}. {_HELP}") from error


def _parse(path: Path, text: bytes, line: int, n_columns: int, most: int) -> NDArray[np.int64]:
    """Parse lines of text, of which the first has the number `line`; skip blank lines."""
    if text.translate(None, _DIGITS_AND_BLANKS):
        bad = (bool(row.translate(None, _DIGITS_AND_BLANKS)) for row in text.split(b"\n"))
        raise AntipodalError(
            f"{path}, line {line + list(bad).index(True)}: only digits and blanks are allowed"
        )
    counts = _count_numbers(text)
    wrong = np.flatnonzero((counts != n_columns) & (counts != 0))
    if len(wrong):
        raise AntipodalError(
            f"{path}, line {line + wrong[0]}: expected {n_columns} number{'s' * (n_columns > 1)}, "
            f"got {counts[wrong[0]]}"
        )
    filled = np.flatnonzero(counts)
    if len(filled) == 0:
        return np.empty((0, n_columns), np.int64)
    # The text was checked above: fromstring does not report other characters.
    values: NDArray[Any] = np.fromstring(text, np.int64, sep=" ").reshape(-1, n_columns)
    if values.max() > most:
        row, column = np.argwhere(values > most)[0]
        raise AntipodalError(
            f"{path}, line {line + filled[row]}: numbers must be from 0 to {most}, "
            f"got {values[row, column]}"
        )
    return values


def _count_numbers(text: bytes) -> NDArray[np.int64]:
    """Count the numbers in each line."""
    characters = np.frombuffer(text, np.uint8)
    begins = characters > ord(" ")
    begins[1:] &= ~begins[:-1]  # a digit after a blank, or the first character
    line_starts = np.flatnonzero(characters[:-1] == ord("\n")) + 1
    return np.add.reduceat(begins, np.concatenate([[0], line_starts]), dtype=np.int64)

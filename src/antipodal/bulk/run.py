"""A folder of parquet to a folder of parquet with codes."""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Event
from typing import Literal, NamedTuple

from antipodal.bulk.batchencoder import BatchEncoder
from antipodal.bulk.manifest import Manifest
from antipodal.bulk.onefile import FileJob, FileRecord, encode_file
from antipodal.bulk.raycluster import encode_on_cluster
from antipodal.errors import AntipodalError
from antipodal.reading.arrowtables import ParquetTable
from antipodal.reading.filekinds import PARQUET, FoundFile, find_files, split_column
from antipodal.storage.modelfile import model_identity

Progress = Callable[[int, int], None]  # files done, of how many


class Report(NamedTuple):
    """What `encode` did: all files and rows of the folder, and those encoded in this run."""

    files: int
    rows: int
    files_encoded: int
    rows_encoded: int


def encode(
    model: str | os.PathLike[str],
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    column: str | Sequence[str] | None = None,
    columns: Collection[str] | None = None,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Encode a folder of parquet files: each becomes a file of the same name in `target`.

    It has the columns of its source and `code`, fixed-size binary. A file is there whole or not at
    all. The folder also says what it holds, in `_manifest.json`: the identity of the model, and the
    rows and SHA-256 of every file. Memory does not grow with the rows.

    Parameters
    ----------
    model : path
        Written by `save`.
    source : path
        A parquet file, a folder of them, with folders within, or a pattern; `FOLDER:COLUMN` names
        the column of vectors too.
    target : path
        A folder. It must be new or empty, or `resume` true.
    column : str or sequence of str, optional
        The column of vectors, or several of numbers that make one. By default the only one.
    columns : collection of str, optional
        Which columns to keep beside the codes. By default all.
    engine : {"local", "ray"}
        This process, on all its cores, or Ray Data, an actor per core. Files are the same.
    address : str, optional
        Of a Ray cluster that is running, on whose machines model, source and target must have the
        paths they have here. By default one is started on this machine, and stopped in the end.
    resume : bool
        Whether to go on with a folder that an earlier run of the same model left: finished files
        stay if their checksums are right and their sources have not changed.
    progress : callable, optional
        Called with the number of files done, and of all.
    """
    if engine not in ("local", "ray"):
        raise ValueError(f"engine must be 'local' or 'ray': got {engine!r}")
    if address is not None and engine != "ray":
        raise ValueError("address is that of a Ray cluster: it needs engine='ray'")
    place = os.fspath(source)
    if column is None:
        place, column = split_column(place)
    model, folder = os.path.abspath(model), Path(os.path.abspath(target))
    encoder = BatchEncoder(model, column=column, columns=columns)
    files = _parquet_files(place, folder)
    first = ParquetTable(files[0])
    encoder.column = encoder.vector_columns(first.schema(), files[0].path)  # for all files the same
    encoder.schema(first.schema(), files[0].path)
    jobs = _jobs(place, files, folder)
    about = {
        "model": model_identity(model),
        "method": type(encoder.hasher).__name__,
        "bits": encoder.hasher.n_bits,
        "vectors": list(encoder.column),
        "columns": None if columns is None else sorted(columns),
    }
    manifest = Manifest(folder, about)
    with manifest.held():
        left = manifest.begin(jobs, resume=resume)
        rows_before = sum(record.rows for record in manifest.done.values())
        for record in _records(engine, encoder, model, left, address):
            manifest.add(record)
            if progress is not None:
                progress(len(manifest.done), len(jobs))
        contents = manifest.finish()
    return Report(len(jobs), contents["rows"], len(left), contents["rows"] - rows_before)


def _records(
    engine: str, encoder: BatchEncoder, model: str, jobs: Sequence[FileJob], address: str | None
) -> Iterator[FileRecord]:
    if not jobs:
        return iter(())
    if engine == "local":
        return encode_here(encoder, jobs)
    return encode_on_cluster(encoder, model, jobs, address)


def encode_here(encoder: BatchEncoder, jobs: Sequence[FileJob]) -> Iterator[FileRecord]:
    """Encode the files on all cores of this machine, and yield them as they are done.

    Each thread of `files` reads and writes a file, those of `encoding` compute for all.
    """
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    n_cores = n_cores or 1
    n_files = min(n_cores, len(jobs))
    n_ahead = max(2, n_cores // n_files)
    stop = Event()
    with ThreadPoolExecutor(n_cores) as encoding, ThreadPoolExecutor(n_files) as files:
        running = [files.submit(encode_file, encoder, job, encoding, n_ahead, stop) for job in jobs]
        try:
            for done in as_completed(running):
                yield done.result()
        finally:
            stop.set()
            files.shutdown(cancel_futures=True)


def _parquet_files(place: str, target: Path) -> list[FoundFile]:
    files = find_files(place)
    if files[0].kind is not PARQUET:
        raise AntipodalError(
            f"a folder of codes is made of parquet files: {files[0].path} is "
            f"{files[0].kind.called}. Name a file for the codes, such as codes.npy"
        )
    for file in files:
        if target in Path(os.path.abspath(file.path)).parents:
            raise AntipodalError(
                f"the codes must go to another folder than their source: {file.path} is in {target}"
            )
    return files


def _jobs(place: str, files: Sequence[FoundFile], target: Path) -> list[FileJob]:
    """Name every output as its input, seen from the folder that all inputs are in."""
    paths = [os.path.abspath(file.path) for file in files]
    root = (
        place if os.path.isdir(place) else os.path.commonpath([os.path.dirname(p) for p in paths])
    )
    names = [Path(os.path.relpath(path, os.path.abspath(root))).as_posix() for path in paths]
    return [
        FileJob(name, path, str(target / name)) for name, path in zip(names, paths, strict=True)
    ]

"""Bulk encoding of a folder of parquet files, locally or on Ray."""

import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from antipodal.bulk.encoder import BatchEncoder, FileJob, FileRecord, encode_file
from antipodal.bulk.manifest import Manifest
from antipodal.errors import AntipodalError, missing_extra
from antipodal.io.formats import PARQUET, DataFile, find_files, split_column
from antipodal.io.model_file import model_identity
from antipodal.io.tables import ParquetTable


class FileEncoder:
    """The actor: encodes the files that the rows of a batch name, and returns their records."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        self.encoder = BatchEncoder(model, **options)

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Encode each of the files."""
        with ThreadPoolExecutor(1) as pool:
            jobs = [FileJob(**row) for row in batch.to_pylist()]
            records = [encode_file(self.encoder, job, pool) for job in jobs]
        return pa.Table.from_pylist([record._asdict() for record in records])


def encode_on_cluster(
    encoder: BatchEncoder, model: str, jobs: Sequence[FileJob], address: str | None
) -> Iterator[FileRecord]:
    """Encode the files on a cluster, and yield them as they are done."""
    with connected(address) as ray:
        n_actors = min(len(jobs), max(1, int(ray.cluster_resources().get("CPU", 1))))
        files = ray.data.from_items([job._asdict() for job in jobs], override_num_blocks=len(jobs))
        records = files.map_batches(
            FileEncoder,
            fn_constructor_args=(model, {"column": encoder.column, "columns": encoder.columns}),
            batch_size=1,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=n_actors),
            num_cpus=0.5,  # of each core: where actors hold all of them, Ray Data waits for more
        )
        try:
            for record in records.iter_rows():
                yield FileRecord(**record)
        except ray.exceptions.RayTaskError as error:
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            raise AntipodalError(str(cause)) from error


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Use the cluster there is, the one at an address, or one of this machine alone; give Ray."""
    try:
        ray = import_module("ray")  # here: it takes seconds
        import_module("ray.data")
    except ImportError as error:
        raise AntipodalError(missing_extra("engine='ray'", str(error.name), "ray")) from error
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    ray.data.DataContext.get_current().enable_progress_bars = False
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        # Nobody else can reach it. With one core Ray would wait for a second.
        options |= {"_node_ip_address": "127.0.0.1", "include_dashboard": False}
        options["num_cpus"] = max(2, os.cpu_count() or 1)
    ray.init(address="local" if address is None else address, **options)
    try:
        yield ray
    finally:
        ray.shutdown()


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


def _parquet_files(place: str, target: Path) -> list[DataFile]:
    files = find_files(place)
    if files[0].format is not PARQUET:
        raise AntipodalError(
            f"a folder of codes is made of parquet files: {files[0].path} is "
            f"{files[0].format.description}. Name a file for the codes, such as codes.npy"
        )
    for file in files:
        if target in Path(os.path.abspath(file.path)).parents:
            raise AntipodalError(
                f"the codes must go to another folder than their source: {file.path} is in {target}"
            )
    return files


def _jobs(place: str, files: Sequence[DataFile], target: Path) -> list[FileJob]:
    """Name every output as its input, seen from the folder that all inputs are in."""
    paths = [os.path.abspath(file.path) for file in files]
    root = (
        place if os.path.isdir(place) else os.path.commonpath([os.path.dirname(p) for p in paths])
    )
    names = [Path(os.path.relpath(path, os.path.abspath(root))).as_posix() for path in paths]
    return [
        FileJob(name, path, str(target / name)) for name, path in zip(names, paths, strict=True)
    ]

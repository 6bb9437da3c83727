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

from antipodal.bulk.encoder import BatchEncoder, FileJob, FileRecord, encode_file
from antipodal.bulk.manifest import Manifest
from antipodal.errors import AntipodalError, missing_extra
from antipodal.io.formats import PARQUET, DataFile, find_files, split_column
from antipodal.io.tables import ParquetTable


class FileEncoder:
    """Ray actor that encodes files."""

    def __init__(self, model: str, identity: str, options: dict[str, Any]) -> None:
        self.encoder = BatchEncoder(model, **options)
        if self.encoder.identity != identity:
            raise AntipodalError(f"{model} was replaced by another model: start again")

    def encode(self, job: FileJob) -> FileRecord:
        """Encode one file."""
        with ThreadPoolExecutor(1) as pool:
            return encode_file(self.encoder, job, pool)


def encode_on_cluster(
    encoder: BatchEncoder, model: str, jobs: Sequence[FileJob], address: str | None
) -> Iterator[FileRecord]:
    """Encode the files on a Ray cluster, and yield their records as they finish.

    Actors read and write whole files. Ray Data would move the rows between processes, and takes ten
    seconds to start.
    """
    with connected(address) as ray:
        n_actors = min(len(jobs), max(1, int(ray.available_resources().get("CPU", 1))))
        # If a process or machine is lost, its actor and the file in progress are restarted.
        create = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=3)(FileEncoder).remote
        options = {"column": encoder.column, "columns": encoder.columns}
        actors = [create(model, encoder.identity, options) for _ in range(n_actors)]
        pool = import_module("ray.util").ActorPool(actors)
        try:
            yield from pool.map_unordered(lambda actor, job: actor.encode.remote(job), jobs)
        except ray.exceptions.RayError as error:
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            raise AntipodalError(str(cause)) from error
        finally:
            for actor in actors:
                ray.kill(actor)


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Connect to the current cluster, the one at an address, or a new local one; yield ray."""
    try:
        ray = import_module("ray")  # not at the top: it takes seconds
    except ImportError as error:
        raise AntipodalError(missing_extra("engine='ray'", str(error.name), "ray")) from error
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        # Not reachable from other machines.
        options |= {"_node_ip_address": "127.0.0.1", "include_dashboard": False}
    ray.init(address="local" if address is None else address, **options)
    try:
        yield ray
    finally:
        ray.shutdown()


Progress = Callable[[int, int], None]  # files done, files in total


class Report(NamedTuple):
    """The files and rows of a folder of codes, and those encoded by this run."""

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

    It has the columns of its source and `code`, fixed-size binary. Files are written atomically.
    The folder gets a manifest, `_manifest.json`: the identity of the model, and the number of rows
    and the SHA-256 of every file. Memory use does not depend on the number of rows.

    Parameters
    ----------
    model : path
        A model file.
    source : path
        A parquet file, a folder of them (searched recursively), or a glob pattern, optionally with
        the vector column: `FOLDER:COLUMN`.
    target : path
        A folder, new or empty unless `resume` is true. It may be inside the source folder.
    column : str or sequence of str, optional
        The vector column, or several columns of numbers that form the vector. By default the only
        vector column.
    columns : collection of str, optional
        Columns to keep with the codes. By default all.
    engine : {"local", "ray"}
        Threads of this process on all its cores, or Ray with an actor per core. Both write
        the same files.
    address : str, optional
        Address of a running Ray cluster. Its machines must have access to model, source and target
        under the same paths. By default a local cluster is started, and stopped at the end.
    resume : bool
        Resume an earlier run of the same model: files are kept if their checksums match and their
        sources are unchanged.
    progress : callable, optional
        Called with the number of finished files and the total number.
    """
    if engine not in ("local", "ray"):
        raise ValueError(f"engine must be 'local' or 'ray': got {engine!r}")
    if address is not None and engine != "ray":
        raise ValueError("address is the address of a Ray cluster: it requires engine='ray'")
    place = os.fspath(source)
    if column is None:
        place, column = split_column(place)
    model, folder = os.path.abspath(model), Path(os.path.abspath(target))
    encoder = BatchEncoder(model, column=column, columns=columns)
    files = _parquet_files(place, folder)
    first = ParquetTable(files[0])
    encoder.column = encoder.vector_columns(first.schema(), files[0].path)  # the same for all files
    encoder.schema(first.schema(), files[0].path)
    jobs = _jobs(place, files, folder)
    about = {
        "model": encoder.identity,
        "method": type(encoder.hasher).__name__,
        "bits": encoder.hasher.n_bits,
        "vectors": list(encoder.column),
        "columns": None if columns is None else sorted(columns),
    }
    manifest = Manifest(folder, about)
    with manifest.locked():
        remaining = manifest.begin(jobs, resume=resume)
        rows_before = sum(record.rows for record in manifest.done.values())
        for record in _records(engine, encoder, model, remaining, address):
            manifest.add(record)
            if progress is not None:
                progress(len(manifest.done), len(jobs))
        contents = manifest.finish()
    return Report(len(jobs), contents["rows"], len(remaining), contents["rows"] - rows_before)


def _records(
    engine: str, encoder: BatchEncoder, model: str, jobs: Sequence[FileJob], address: str | None
) -> Iterator[FileRecord]:
    if not jobs:
        return iter(())
    if engine == "local":
        return encode_locally(encoder, jobs)
    return encode_on_cluster(encoder, model, jobs, address)


def encode_locally(encoder: BatchEncoder, jobs: Sequence[FileJob]) -> Iterator[FileRecord]:
    """Encode the files on all cores, and yield the record of each finished file.

    Each thread of `files` reads and writes one file; the threads of `encoding` serve all files.
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
            f"only parquet files are encoded into a folder: {files[0].path} is "
            f"{files[0].format.description}. Choose a file for the codes, such as codes.npy"
        )
    # If the target is inside the source, its files are the output of an earlier run.
    sources = [file for file in files if target not in Path(os.path.abspath(file.path)).parents]
    if not sources:
        raise AntipodalError(
            f"source and target must be different folders: {files[0].path} is in {target}"
        )
    return sources


def _jobs(place: str, files: Sequence[DataFile], target: Path) -> list[FileJob]:
    """Name every output by the path of its source relative to their common folder."""
    paths = [os.path.abspath(file.path) for file in files]
    root = (
        place if os.path.isdir(place) else os.path.commonpath([os.path.dirname(p) for p in paths])
    )
    names = [Path(os.path.relpath(path, os.path.abspath(root))).as_posix() for path in paths]
    return [
        FileJob(name, path, str(target / name)) for name, path in zip(names, paths, strict=True)
    ]

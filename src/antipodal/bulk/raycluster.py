"""The same files by Ray Data: an actor per core holds the model and encodes file after file.

The data set is the list of files, not their rows: actors read and write files themselves, so that
a file is written whole or not at all by whoever writes it, and no row goes through Ray's memory.
What an actor was at when it died, Ray gives to another.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pyarrow as pa

from antipodal.bulk.batchencoder import BatchEncoder
from antipodal.bulk.onefile import FileJob, FileRecord, encode_file
from antipodal.errors import AntipodalError, missing_extra


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

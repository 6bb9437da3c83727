"""Process pool for independent jobs that share the cores."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from antipodal.errors import AntipodalError

Job = TypeVar("Job")
Result = TypeVar("Result")


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    with suppress(AttributeError):  # not available on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_jobs(
    run: Callable[[Any, Job], Result], shared: Any, jobs: Iterable[Job], n_processes: int
) -> Iterator[tuple[Job, Result | Exception]]:
    """Yield each finished job with the result of run(shared, job), or its error.

    One process means the current one. Several processes are spawned, receive `shared` once and use
    an equal number of cores each. A script that starts several processes needs
    ``if __name__ == "__main__"``.
    """
    queue = list(jobs)
    n_processes = min(n_processes, len(queue))
    if n_processes <= 1:
        for job in queue:
            yield job, _outcome(run, shared, job)
        return
    n_threads = max(1, available_cores() // n_processes)
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        n_processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start,
        initargs=(run, shared, n_threads),
    )
    try:
        with _interrupts_blocked():
            futures: dict[Future[Any], Job] = {pool.submit(_work, job): job for job in queue}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool as error:
        raise AntipodalError(
            "a worker process ended unexpectedly, possibly for lack of memory: use fewer processes"
        ) from error
    finally:  # also if the caller stops early or is interrupted
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT within the context; processes started in it inherit the blocked signal.

    Otherwise Ctrl-C during their start would make each of them print a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_task: tuple[Callable[[Any, Any], Any], Any]


def _start(run: Callable[[Any, Any], Any], shared: Any, n_threads: int) -> None:
    """Initialise a worker process."""
    global _task
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it and stops the workers
    os.environ["OMP_NUM_THREADS"] = str(n_threads)  # for PyTorch, which is imported later
    threadpool_limits(n_threads)
    _task = (run, shared)


def _work(job: Any) -> Any:
    return _outcome(*_task, job)


def _outcome(run: Callable[[Any, Any], Any], shared: Any, job: Any) -> Any:
    """Return the result, or the error, so that a failing job does not stop the others."""
    try:
        return run(shared, job)
    except (AntipodalError, ValueError, TypeError, FloatingPointError, MemoryError) as error:
        return error

"""Run independent pieces of work side by side, each on its own share of the cores."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from threadpoolctl import threadpool_limits

from antipodal.errors import AntipodalError

Job = TypeVar("Job")
Result = TypeVar("Result")


def available_cores() -> int:
    """Return how many cores this process may use."""
    with suppress(AttributeError):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_jobs(
    run: Callable[[Any, Job], Result], shared: Any, jobs: Iterable[Job], n_processes: int
) -> Iterator[tuple[Job, Result | Exception]]:
    """Yield each job with the result of run(shared, job), or the error it raised, as they finish.

    With one process everything happens in this one. Otherwise each process is started afresh,
    gets `shared` once, and keeps to its share of the cores. A script that calls this with
    several processes needs ``if __name__ == "__main__"``.
    """
    waiting = list(jobs)
    n_processes = min(n_processes, len(waiting))
    if n_processes <= 1:
        for job in waiting:
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
        with _interrupts_later():
            futures: dict[Future[Any], Job] = {pool.submit(_work, job): job for job in waiting}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool as error:
        raise AntipodalError(
            "a worker process ended before its work was done, perhaps for lack of memory: "
            "use fewer processes at a time"
        ) from error
    finally:  # also when the caller stops early, or is interrupted
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Hold Ctrl-C back until the block ends; processes started in it never see one.

    Otherwise one that comes while they start would have each of them print where it was.
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
    """Prepare a worker process."""
    global _task
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent sees it and stops the workers
    torch.set_num_threads(n_threads)
    threadpool_limits(n_threads)
    _task = (run, shared)


def _work(job: Any) -> Any:
    return _outcome(*_task, job)


def _outcome(run: Callable[[Any, Any], Any], shared: Any, job: Any) -> Any:
    """Return the result or the error, so that one job that fails leaves the others alone."""
    try:
        return run(shared, job)
    except (AntipodalError, ValueError, TypeError, FloatingPointError, MemoryError) as error:
        return error

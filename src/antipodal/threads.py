"""Limits on the number of threads of PyTorch, BLAS and OpenMP.

The number of threads of PyTorch and of the BLAS behind NumPy and SciPy belongs to the process. If
several Python threads limit it at once, the first saves the previous number and the last restores
it, in whatever order they enter and leave.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from threadpoolctl import ThreadpoolController

_MIN_PARALLEL = 2**26  # multiplications per step from which more threads are faster

_lock = threading.Lock()
_local = threading.local()  # depth of nested limits in this Python thread
_n_torch_limits = 0  # Python threads that limit PyTorch
_torch_threads = 1  # threads of PyTorch before the first limit
_n_blas_limits = 0  # Python threads that limit BLAS
_blas_limit: Any = None


def one_thread_if_small(multiplications: int) -> AbstractContextManager[None]:
    """Limit PyTorch to one CPU thread if each step of a computation is small.

    More threads do not speed up a small step. On a busy machine, synchronising them after every
    step makes it many times slower.
    """
    return one_torch_thread() if multiplications < _MIN_PARALLEL else nullcontext()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit PyTorch, BLAS and OpenMP to one CPU thread, for reproducible results.

    The number of threads that share a sum decides how it is rounded, and training amplifies
    rounding. On one thread a seed gives the same weights on any number of cores.
    """
    controller = ThreadpoolController()
    with (
        one_torch_thread(),
        _one_blas_thread(controller),
        # OpenMP has a separate number for each Python thread, so no counting is needed.
        controller.select(user_api="openmp", threading_layer="openmp").limit(limits=1),
    ):
        yield


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Limit PyTorch to one thread, in this Python thread and in new ones."""
    global _n_torch_limits, _torch_threads
    depth = getattr(_local, "depth", 0)
    _local.depth = depth + 1
    if depth == 0:
        with _lock:
            if _n_torch_limits == 0:
                _torch_threads = torch.get_num_threads()
            _n_torch_limits += 1
            torch.set_num_threads(1)
    try:
        yield
    finally:
        _local.depth = depth
        if depth == 0:
            with _lock:
                _n_torch_limits -= 1
                torch.set_num_threads(_torch_threads)


@contextmanager
def _one_blas_thread(controller: ThreadpoolController) -> Iterator[None]:
    """Limit BLAS for the whole process; the last context to exit restores the previous number."""
    global _n_blas_limits, _blas_limit
    process_wide = [
        library.filepath
        for library in controller.lib_controllers
        if library.user_api == "blas" and getattr(library, "threading_layer", "") != "openmp"
    ]
    blas = controller.select(filepath=process_wide)
    with _lock:
        if _n_blas_limits == 0:
            _blas_limit = blas.limit(limits=1)
            _release(blas)
        _n_blas_limits += 1
    try:
        yield
    finally:
        with _lock:
            _n_blas_limits -= 1
            if _n_blas_limits == 0:
                _blas_limit.restore_original_limits()
                _release(blas)


def _release(blas: ThreadpoolController) -> None:
    """Allow another Python thread to set the number next.

    threadpoolctl obeys the Python thread that set a limit last, until it exits a context.
    """
    with blas.limit(limits=None):
        pass

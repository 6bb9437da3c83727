"""Number of threads: limits of BLAS, OpenMP and PyTorch, and the cores that this process may use.

The number of BLAS threads belongs to the process. If several Python threads limit it at once, the
first saves the previous number and the last restores it, in any order of entry and exit.
"""

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from threadpoolctl import ThreadpoolController

_CGROUP = Path("/sys/fs/cgroup/cpu.max")

_lock = threading.Lock()
_local = threading.local()  # depth of `one_core` contexts in this Python thread
_n_limits = 0  # contexts that limit BLAS
_saved: dict[str, tuple[Any, int]] = {}  # BLAS libraries and their threads before the first limit
_n_torch_limits = 0  # Python threads that limit PyTorch
_torch_threads = 1  # threads of PyTorch before the first limit
_fit_on_all = False  # whether `one_thread` does nothing


def usable_cores() -> int:
    """Return the number of cores that this process may use, at least 1.

    It is bounded by the CPU affinity, by the quota of the control group (a container's limit) and
    by OMP_NUM_THREADS. Within `one_core` it is 1.
    """
    if getattr(_local, "depth", 0):
        return 1
    requested = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    limits = [_cores(), int(requested) if requested.isdecimal() else sys.maxsize]
    return max(1, min(limits))


@cache
def _cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        quota, period = _CGROUP.read_text().split()
        return min(cores or 1, int(quota) // int(period))
    except (OSError, ValueError):  # no control groups, or "max": no quota
        return cores or 1


@contextmanager
def one_core() -> Iterator[None]:
    """Make `usable_cores` return 1 in this Python thread; entering takes no time."""
    _local.depth = getattr(_local, "depth", 0) + 1
    try:
        yield
    finally:
        _local.depth -= 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS, OpenMP and, if it is imported, PyTorch to one CPU thread.

    The rounding of a sum depends on the number of threads, and training amplifies rounding. On one
    thread a seed determines the weights, on any number of cores. Within `all_threads` the limit
    does not apply.

    """
    if _fit_on_all:
        yield
        return
    # Libraries that `fit` loaded later would not be limited. scikit-learn loads BLAS and OpenMP.
    import_module("sklearn.utils")
    controller = ThreadpoolController()
    with (
        one_core(),
        _one_torch_thread(),
        _limited(_process_wide_blas(controller)),
        # OpenMP has a separate number for each Python thread, so no counting is needed.
        controller.select(user_api="openmp", threading_layer="openmp").limit(limits=1),
    ):
        yield


@contextmanager
def all_threads() -> Iterator[None]:
    """Let `fit` use several threads in the whole process; weights then depend on their number."""
    global _fit_on_all
    _fit_on_all = True
    try:
        yield
    finally:
        _fit_on_all = False


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit the BLAS of NumPy to one thread; entering takes microseconds."""
    with _limited(_numpy_blas()):
        yield


@cache
def _numpy_blas() -> list[Any]:
    import numpy as np

    np.ones((2, 2)) @ np.ones((2, 2))  # loads the library
    return _process_wide_blas(ThreadpoolController())


def _process_wide_blas(controller: ThreadpoolController) -> list[Any]:
    return [
        library
        for library in controller.lib_controllers
        if library.user_api == "blas" and getattr(library, "threading_layer", "") != "openmp"
    ]


@contextmanager
def _limited(libraries: Iterable[Any]) -> Iterator[None]:
    """Limit BLAS libraries; the last context to exit restores the previous numbers."""
    global _n_limits
    with _lock:
        _n_limits += 1
        for library in libraries:
            if library.filepath not in _saved:
                _saved[library.filepath] = library, library.get_num_threads()
                _set_threads(library, 1)
    try:
        yield
    finally:
        with _lock:
            _n_limits -= 1
            if _n_limits == 0:
                for library, n_threads in _saved.values():
                    _set_threads(library, n_threads)
                _saved.clear()


def _set_threads(library: Any, n_threads: int) -> None:
    """Set the number of threads, and allow another Python thread to set it next.

    Recent versions of threadpoolctl accept changes only from the Python thread that made the first
    one.
    """
    library.set_num_threads(n_threads)
    release = getattr(library, "clear_controlling_thread", None)
    if release is not None:
        release()


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Limit PyTorch to one thread, in this Python thread and in new ones."""
    global _n_torch_limits, _torch_threads
    torch = sys.modules.get("torch")
    if torch is None or getattr(_local, "limits_torch", False):
        yield
        return
    with _lock:
        if _n_torch_limits == 0:
            _torch_threads = torch.get_num_threads()
        _n_torch_limits += 1
        torch.set_num_threads(1)
    _local.limits_torch = True
    try:
        yield
    finally:
        _local.limits_torch = False
        with _lock:
            _n_torch_limits -= 1
            torch.set_num_threads(_torch_threads)

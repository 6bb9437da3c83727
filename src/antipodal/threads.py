"""How many threads a computation gets.

PyTorch's number of threads, and that of the libraries behind NumPy and SciPy, belongs to the
whole process. Where several threads of Python narrow it at once, the first to come remembers what
it was, and all who leave give that back: no matter in which order they come and go.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from threadpoolctl import ThreadpoolController

_WORTH_SHARING = 2**26  # multiplications in one step

_lock = threading.Lock()
_here = threading.local()  # how often this thread of Python is inside
_n_inside = 0  # threads of Python that keep PyTorch to one
_outside = 1  # PyTorch's threads before the first of them came
_n_fits = 0  # the same two for BLAS
_blas: Any = None


def one_thread_if_small(multiplications: int) -> AbstractContextManager[None]:
    """Keep PyTorch to one CPU thread for a computation of many steps that are each small.

    More threads do not make a small step faster, and where other programs want the cores as
    well, threads that wait for each other after every step make it many times slower.
    """
    return one_torch_thread() if multiplications < _WORTH_SHARING else nullcontext()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one CPU thread, in PyTorch, BLAS and OpenMP: for what must come out the same.

    How many threads share a sum decides how it is rounded, and training makes much of a little
    rounding: on one thread a seed gives the same weights on any number of cores.
    """
    controller = ThreadpoolController()
    with (
        one_torch_thread(),
        _one_blas_thread(controller),
        # OpenMP has a number for each thread of Python: nobody else has to wait for it.
        controller.select(user_api="openmp", threading_layer="openmp").limit(limits=1),
    ):
        yield


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Compute on one thread in PyTorch: in this thread of Python, and in those that are new."""
    global _n_inside, _outside
    depth = getattr(_here, "depth", 0)
    _here.depth = depth + 1
    if depth == 0:
        with _lock:
            if _n_inside == 0:
                _outside = torch.get_num_threads()
            _n_inside += 1
            torch.set_num_threads(1)
    try:
        yield
    finally:
        _here.depth = depth
        if depth == 0:
            with _lock:
                _n_inside -= 1
                torch.set_num_threads(_outside)


@contextmanager
def _one_blas_thread(controller: ThreadpoolController) -> Iterator[None]:
    """Set the number for all; the last one to leave gives the old one back."""
    global _n_fits, _blas
    shared = [
        library.filepath
        for library in controller.lib_controllers
        if library.user_api == "blas" and getattr(library, "threading_layer", "") != "openmp"
    ]
    blas = controller.select(filepath=shared)
    with _lock:
        if _n_fits == 0:
            _blas = blas.limit(limits=1)
            _let_go(blas)
        _n_fits += 1
    try:
        yield
    finally:
        with _lock:
            _n_fits -= 1
            if _n_fits == 0:
                _blas.restore_original_limits()
                _let_go(blas)


def _let_go(blas: ThreadpoolController) -> None:
    """Allow another thread of Python to set the number next.

    threadpoolctl obeys the thread that set it last until that leaves a context.
    """
    with blas.limit(limits=None):
        pass

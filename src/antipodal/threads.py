"""How many threads a computation is worth."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_WORTH_SHARING = 2**26  # multiplications in one step


@contextmanager
def one_thread_if_small(multiplications: int) -> Iterator[None]:
    """Keep PyTorch to one CPU thread for a computation of many steps that are each small.

    More threads do not make a small step faster, and where other programs want the cores as
    well, threads that wait for each other after every step make it many times slower.
    """
    threads = torch.get_num_threads()
    if multiplications < _WORTH_SHARING:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

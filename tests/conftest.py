"""Settings for all tests: the same examples every time, and one thread."""

import torch
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
torch.set_num_threads(1)  # the problems are small, and the cores may have other work

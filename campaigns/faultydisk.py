"""Run a function in a process whose file system calls are logged or made to fail (faultydisk.c)."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
COMPILER = shutil.which("gcc") or shutil.which("cc")
IS_AVAILABLE = COMPILER is not None and sys.platform == "linux"
FULL, BROKEN, SHORT = 1, 2, 3  # faults: ENOSPC, EIO and short writes

_CALL = """
import importlib, json, sys
module, name, arguments = json.loads(sys.argv[1])
print(json.dumps(getattr(importlib.import_module(module), name)(*arguments)))
"""


def call(module: str, name: str, *arguments: Any) -> Any:
    """Call a function of a module in a process with a faulty disk and return its result."""
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/faultydisk.so"
        subprocess.run(
            [COMPILER, "-shared", "-fPIC", "-O1", "-o", library, HERE / "faultydisk.c", "-ldl"],
            check=True,
        )
        done = subprocess.run(
            [sys.executable, "-c", _CALL, json.dumps([module, name, arguments])],
            env={**os.environ, "LD_PRELOAD": library, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            check=True,
        )
    return json.loads(done.stdout.splitlines()[-1])


class FaultyDisk:
    """The disk of this process, below one folder."""

    def __init__(self, folder: Path) -> None:
        self._library = ctypes.CDLL(None)
        self._library.disk_calls.restype = ctypes.c_long
        self._library.disk_failed_syncs.restype = ctypes.c_long
        self._library.disk_watch(os.fsencode(folder))

    def record(self, journal: Path) -> None:
        """Log the file system calls on the folder from now on."""
        self._library.disk_record(os.fsencode(journal))

    def mark(self, number: int) -> None:
        """Write a numbered mark to the log."""
        self._library.disk_mark(ctypes.c_long(number))

    def fail(self, at: int, how: int, *, lasting: bool) -> None:
        """Make the call of this number (from 0) fail and, with `lasting`, all later ones."""
        self._library.disk_fail(ctypes.c_long(at), how, int(lasting))

    def heal(self) -> tuple[int, int]:
        """Stop failing; return the numbers of calls that could have failed and of failed syncs."""
        n_calls, failed_syncs = self._library.disk_calls(), self._library.disk_failed_syncs()
        self._library.disk_fail(ctypes.c_long(0), 0, 0)
        return n_calls, failed_syncs

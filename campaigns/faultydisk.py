"""Run a function in a process whose disk can be watched and broken: see faultydisk.c."""

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
FULL, BROKEN, SHORT = 1, 2, 3  # ways to fail: ENOSPC, EIO, and less written than was asked for

_CALL = """
import importlib, json, sys
module, name, arguments = json.loads(sys.argv[1])
print(json.dumps(getattr(importlib.import_module(module), name)(*arguments)))
"""


def call(module: str, name: str, *arguments: Any) -> Any:
    """Call a function of a module in a process with such a disk; return what it returns."""
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
        """Write down from now on what is done to the folder."""
        self._library.disk_record(os.fsencode(journal))

    def mark(self, number: int) -> None:
        """Write down a number between what is done."""
        self._library.disk_mark(ctypes.c_long(number))

    def fail(self, at: int, how: int, *, lasting: bool) -> None:
        """Let the call of this number fail, counted from 0, and with `lasting` those after it."""
        self._library.disk_fail(ctypes.c_long(at), how, int(lasting))

    def heal(self) -> tuple[int, int]:
        """Fail no more; return how many calls could have failed, and how many syncs did."""
        n_calls, failed_syncs = self._library.disk_calls(), self._library.disk_failed_syncs()
        self._library.disk_fail(ctypes.c_long(0), 0, 0)
        return n_calls, failed_syncs

"""Commands and programs for tests, without the seconds that a new process spends on imports."""

import multiprocessing
import os
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from antipodal.cli import main

HANG = 600  # seconds that only a hang exceeds
processes = multiprocessing.get_context("forkserver")
# Modules that the process has imported from which all children are forked.
PRELOADED = [
    "antipodal.bench.runner",
    "antipodal.bulk.run",
    "antipodal.cli",
    "antipodal.datasets",
    "antipodal.index.hamming",
    "antipodal.service.server",
    "pytest",
    "torch",
    "torch._dynamo",  # imported by the first optimiser
]


def run_command(*arguments, cwd="."):
    """Run the command line in this process; return its exit code and its output."""
    output, errors, code = StringIO(), StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(errors):
        patch.chdir(cwd)
        patch.setattr(sys, "argv", ["antipodal", *map(str, arguments)])
        patch.setattr("warnings.showwarning", None)  # `main` replaces it
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code or 0
    return SimpleNamespace(returncode=code, stdout=output.getvalue(), stderr=errors.getvalue())


def run_program(code, *arguments):
    """Run Python code in a forked process; return its exit code and its output."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("stdout", "stderr")]
        child = start_program(code, *arguments, files=files)
        child.wait()
        output, errors = (file.read_text() for file in files)
    return SimpleNamespace(returncode=child.returncode, stdout=output, stderr=errors)


def start_program(code, *arguments, **options):
    """Start Python code in a forked process."""
    return Forked(_program, code, *map(str, arguments), **options)


def start_command(*arguments, **options):
    """Start the command line in a forked process."""
    return Forked(_command, *map(str, arguments), **options)


class Forked:
    """A function in a forked process, with the methods of `subprocess.Popen`.

    Its standard output and standard error are appended to the given files.
    """

    def __init__(self, target, *arguments, cwd=None, env=None, files=()):
        cwd, env = str(cwd or os.getcwd()), dict(os.environ if env is None else env)
        arguments = (target, arguments, cwd, env, [*map(str, files)])
        self._process = processes.Process(target=_call, args=arguments)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self.returncode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def wait(self, timeout=HANG):
        self._process.join(timeout)
        assert self.returncode is not None, "the process hangs"
        return self.returncode


def lines_of(file, n_lines):
    """Wait until a process has written some lines, and return them."""
    deadline = time.monotonic() + HANG
    while (text := Path(file).read_text() if Path(file).exists() else "").count("\n") < n_lines:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return text.split("\n")[:-1]


def _call(target, arguments, cwd, env, files):
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    target(*arguments)


def _command(*arguments):
    sys.argv = ["antipodal", *arguments]
    main()


def _program(code, *arguments):
    sys.argv = ["-c", *arguments]
    exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})

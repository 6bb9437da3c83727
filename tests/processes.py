"""Commands and programs for tests, without the seconds that a new process spends on imports."""

import multiprocessing
import os
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from antipodal.cli import main

processes = multiprocessing.get_context("forkserver")
# Modules that the process has imported from which all children are forked.
PRELOADED = [
    "antipodal.bulk.run",
    "antipodal.cli",
    "antipodal.datasets",
    "antipodal.index.hamming",
    "antipodal.service.server",
    "pytest",
    "torch",
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


def fork_command(*arguments, **options):
    """Start the command line in a forked process; see `fork`."""
    return fork(_command, *map(str, arguments), **options)


def run_program(code, *arguments, **options):
    """Run Python code in a forked process; return its exit code and its output."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("stdout", "stderr")]
        child = fork(_program, code, *map(str, arguments), files=files, **options)
        child.join()
        output, errors = (file.read_text() for file in files)
    return SimpleNamespace(returncode=child.exitcode, stdout=output, stderr=errors)


def fork(target, *arguments, cwd=None, env=None, files=()):
    """Call a function in a forked process and return the process.

    Its standard output and standard error are appended to the given files.
    """
    cwd, env = str(cwd or os.getcwd()), dict(os.environ if env is None else env)
    child = processes.Process(target=_call, args=(target, arguments, cwd, env, [*map(str, files)]))
    child.start()
    return child


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

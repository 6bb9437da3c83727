"""A real browser for the tests: Debian's Chromium."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

CHROMIUM = "/usr/bin/chromium"
PATIENCE = 120_000  # timeout in milliseconds, exceeded only by a hanging page


def install_chromium():
    """Install Debian's Chromium if it is missing; fail with the reason otherwise.

    One test process installs, and the others wait for it. apt-get waits for other programs.
    """
    if os.path.exists(CHROMIUM):
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        pytest.fail(f"the web UI tests require {CHROMIUM}: apt-get install chromium, as root")
    with open(Path(tempfile.gettempdir()) / "antipodal-tests-chromium.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(CHROMIUM):
            return
        for command in (["update", "-qq"], ["install", "-y", "-qq", "chromium"]):
            done = subprocess.run(
                ["apt-get", "-o", "DPkg::Lock::Timeout=600", *command],
                capture_output=True,
                text=True,
            )
            if done.returncode:
                pytest.fail(f"{CHROMIUM} is missing and cannot be installed: {done.stderr[-500:]}")


@contextmanager
def chromium():
    """Start a browser and close it afterwards."""
    from playwright.sync_api import expect, sync_playwright

    install_chromium()
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


_idle = {}  # tabs that a test has left, by browser and options


@contextmanager
def tab(browser, **options):
    """Open a tab without state. It is used again, since a new one takes seconds on a busy core."""
    wrong = []
    kind = browser, repr(options)
    page = _idle.pop(kind, None) or browser.new_context(**options).new_page()
    page.set_default_timeout(PATIENCE)

    def note_error(error):
        wrong.append(str(error))

    def note_line(line):
        # The browser logs error responses itself.
        if line.type == "error" and "Failed to load resource" not in line.text:
            wrong.append(line.text)

    page.on("pageerror", note_error)
    page.on("console", note_line)
    yield page  # after a failure, the tab is not used again
    page.evaluate("location.protocol.startsWith('http') && sessionStorage.clear()")
    page.remove_listener("pageerror", note_error)
    page.remove_listener("console", note_line)
    page.unroute_all()
    page.mouse.move(0, 0)
    page.goto("about:blank")
    _idle[kind] = page
    assert wrong == []

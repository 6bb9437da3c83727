"""A real browser for the tests: Debian's Chromium."""

import os
import shutil
import subprocess
from contextlib import contextmanager

import pytest

CHROMIUM = "/usr/bin/chromium"
PATIENCE = 120_000  # timeout in milliseconds, exceeded only by a hanging page


def install_chromium():
    """Install Debian's Chromium if it is missing; fail with the reason otherwise."""
    if os.path.exists(CHROMIUM):
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        pytest.fail(f"the web UI tests require {CHROMIUM}: apt-get install chromium, as root")
    for command in (["update", "-qq"], ["install", "-y", "-qq", "chromium"]):
        done = subprocess.run(["apt-get", *command], capture_output=True, text=True)
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


@contextmanager
def tab(browser, **options):
    wrong = []
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "console",
        # The browser logs error responses itself.
        lambda line: (
            wrong.append(line.text)
            if line.type == "error" and "Failed to load resource" not in line.text
            else None
        ),
    )
    yield page
    context.close()
    assert wrong == []

"""Screenshot of an audit report: `python docs/figures/audit.py report.html`."""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": 1180, "height": 1460})
    page.goto(Path(sys.argv[1]).resolve().as_uri())
    page.screenshot(path=Path(__file__).parent / "audit.png")
    browser.close()

"""Screenshots of the web UI, docs/figures/page*.png: `python docs/figures/page.py`.

They show the two collections of `antipodal demo --open`: docstrings and handwritten digits.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, sync_playwright

from antipodal import Collection

FIGURES = Path(__file__).parent
DESKTOP, PHONE = (1280, 900), (390, 844)


def photograph(
    browser: Browser, address: str, name: str, ready: str, size: tuple[int, int] = DESKTOP
) -> None:
    """Save a screenshot of an address when the element `ready` is visible."""
    page = browser.new_page(viewport={"width": size[0], "height": size[1]})
    page.set_default_timeout(300_000)
    page.goto(address)
    page.locator(ready).first.wait_for()
    page.wait_for_timeout(300)
    page.screenshot(path=FIGURES / f"{name}.png")
    page.close()


def unusual_digit(place: Path) -> int:
    """Return a digit whose neighbours are of its class, with codes that differ from its own."""
    with Collection.open(place) as digits:
        items = digits.get(np.arange(400))
        found = digits.search(ids=items.ids, k=12, metadata=True)
    best, least = 0, np.inf
    for row, (number, fields) in enumerate(zip(items.ids.tolist(), items.metadata, strict=True)):
        nearest, farthest = found.distances[row][[0, -1]]
        right = all(near["label"] == fields["label"] for near in found.metadata[row])
        if right and nearest > 1 and farthest < least:
            best, least = number, farthest
    return best


def photograph_all(browser: Browser, folder: Path, address: str) -> None:
    """Save all screenshots of a running demonstration."""
    texts = f"{address}texts/#text=copy+a+directory+and+everything+in+it"
    digit = f"{address}digits/#id={unusual_digit(folder / 'digits.db')}"
    photograph(browser, texts, "page", ".result")
    photograph(browser, texts, "page-phone", ".result", PHONE)
    photograph(browser, digit, "page-images", ".result")
    photograph(browser, digit, "page-images-phone", ".result", PHONE)
    photograph(browser, f"{digit}&view=compare&b=first-16", "page-compare", "#side-b li")
    photograph(browser, f"{texts}&view=map", "page-map", ".query-ring")


if __name__ == "__main__":
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "antipodal", "demo", "--open", "--out", place]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"BROWSER": "true"}
        ) as demo:
            assert demo.stdout is not None
            address = next(line.split()[2] for line in demo.stdout if line.startswith("Web UI: "))
            chromium = playwright.chromium.launch(
                executable_path="/usr/bin/chromium", args=["--no-sandbox"]
            )
            photograph_all(chromium, Path(place), address)
            chromium.close()
            demo.terminate()

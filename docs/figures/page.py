"""Take the picture of the page, docs/figures/page.png: `python docs/figures/page.py`.

It trains as `antipodal demo --open` does, and looks at an item whose neighbours differ from it.
"""

import os
import signal
import tempfile
from pathlib import Path
from threading import Thread

import numpy as np
import torch
from playwright.sync_api import sync_playwright

from antipodal.benchmark.demo import Demo
from antipodal.cli.demo import serve_demo
from antipodal.evaluation.metrics import hamming_distances

torch.set_num_threads(1)
show = Demo(48, None, 0)
score = show.score_deep()

# An item on the way between two digits: nothing has its code, much is near.
codes = show.deep.encode(show.images[show.split.database])
distances = np.sort(hamming_distances(codes, codes), axis=1)
alone = np.flatnonzero(distances[:, 1] > 1)
chosen = int(show.split.database[alone[np.argmin(distances[alone, 12])]])


def photograph(address: str) -> None:
    """Search by the item, take the picture, and end the service as Ctrl-C does."""
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path="/usr/bin/chromium", args=["--no-sandbox"]
            )
            page = browser.new_page(
                viewport={"width": 1180, "height": 860}, device_scale_factor=1.5
            )
            page.goto(address)
            page.locator("#results li").first.wait_for()
            page.get_by_label("or its id").fill(str(chosen))
            page.keyboard.press("Enter")
            page.locator(f"#results button[title='Search by item {chosen}']").wait_for()
            page.screenshot(path=Path(__file__).parent / "page.png")
            browser.close()
    finally:
        os.kill(os.getpid(), signal.SIGINT)


with tempfile.TemporaryDirectory() as folder:
    serve_demo(
        show, Path(folder), score, lambda address: Thread(target=photograph, args=[address]).start()
    )

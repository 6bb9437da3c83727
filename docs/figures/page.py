"""Screenshots of the web UI, docs/figures/page*.png: `python docs/figures/page.py`.

The images are digits with the model of `antipodal demo --open`; the texts are the store written by
`examples/text_search.py`.
"""

import os
import runpy
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import uvicorn
from playwright.sync_api import Browser, sync_playwright

from antipodal.bench.demo import Demo
from antipodal.evaluation.metrics import hamming_distances
from antipodal.service import Engine, create_app

FIGURES = Path(__file__).parent
EXAMPLE = FIGURES.parent.parent / "examples" / "text_search.py"


@contextmanager
def serving(model: Path, store: str, images: str | None = None) -> Iterator[str]:
    """Run the service on a free local port and yield its address."""
    engine = Engine.open(store, model, images=images)
    server = uvicorn.Server(uvicorn.Config(create_app(engine), log_config=None))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


def photograph(browser: Browser, address: str, name: str, ready: str, height: int = 860) -> None:
    """Save a screenshot of an address when the element `ready` is visible."""
    page = browser.new_page(viewport={"width": 1180, "height": height})
    page.goto(address)
    page.locator(ready).first.wait_for()
    page.wait_for_timeout(300)
    page.screenshot(path=FIGURES / f"{name}.png")
    page.close()


def digits(browser: Browser, folder: Path) -> None:
    """Show an item between two digits: no other item has its code, and many are near."""
    show = Demo(48, None, 0)
    show.score_deep()
    codes = show.deep.encode(show.images[show.split.database])
    distances, labels = hamming_distances(codes, codes), show.labels[show.split.database]
    order = np.argsort(distances, axis=1, kind="stable")[:, :13]
    ranked = np.take_along_axis(distances, order, axis=1)
    right = (labels[order] == labels[:, None]).mean(axis=1) > 0.9  # avoid an example with errors
    alone = np.flatnonzero((ranked[:, 1] > 1) & right)
    chosen = int(show.split.database[alone[np.argmin(ranked[alone, 12])]])
    model, _ = show.save(folder)
    with serving(model, show.fill_store(folder, model), "pixels:8x8") as address:
        photograph(browser, f"{address}#id={chosen}", "page", ".result")


def texts(browser: Browser, folder: Path) -> None:
    """Show the neighbours of a function of Python's standard library."""
    os.chdir(folder)
    titles = [item["title"] for item in runpy.run_path(str(EXAMPLE), {}, "__main__")["items"]]
    chosen = titles.index("shutil.copytree")
    with serving(folder / "texts.antipodal", "sqlite:///texts.db") as address:
        near = f"{address}#id={chosen}"
        photograph(browser, f"{near}&view=compare&b=first-16", "page-compare", "#side-b li")
        photograph(browser, f"{near}&view=map", "page-map", ".dot", height=1000)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with (
        sync_playwright() as playwright,
        tempfile.TemporaryDirectory() as images,
        tempfile.TemporaryDirectory() as words,
    ):
        chromium = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        texts(chromium, Path(words))
        digits(chromium, Path(images))
        chromium.close()

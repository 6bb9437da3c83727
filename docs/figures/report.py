"""Screenshot of an evaluation report: `python docs/figures/report.py`.

The report evaluates DeepLinf at 32 bits on scikit-learn's handwritten digits (8 × 8 pixels),
trained on 500 of them.
"""

import base64
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright
from sklearn.datasets import load_digits

from antipodal import DeepLinf, Training

HERE = Path(__file__).parent
NAMES = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])


def metadata(pixels: np.ndarray, label: str) -> str:
    """Return a line of JSON with a title and the image."""
    file = io.BytesIO()
    picture = Image.fromarray((255 - pixels.reshape(8, 8) * 15.9).astype(np.uint8))
    picture.resize((48, 48), Image.Resampling.NEAREST).save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return json.dumps({"title": f"a {label}", "thumbnail": f"data:image/png;base64,{data}"})


def write_report(folder: Path) -> None:
    """Fit, encode and evaluate with the public interface."""
    X, y = load_digits(return_X_y=True)
    X, labels = X.astype(np.float32), NAMES[y]
    hasher = DeepLinf(32, training=Training(n_epochs=15), random_state=0).fit(X[:500], y[:500])
    hasher.save(folder / "model.antipodal")
    for name, rows in (("queries", slice(1500, None)), ("database", slice(1500))):
        np.save(folder / f"{name}.npy", hasher.encode(X[rows]))
        np.save(folder / f"{name}-labels.npy", labels[rows])
        lines = [metadata(x, label) for x, label in zip(X[rows], labels[rows], strict=True)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    command = [
        "evaluate", "queries.npy", "database.npy", "--query-labels", "queries-labels.npy",
        "--database-labels", "database-labels.npy", "--bits", "32", "--model", "model.antipodal",
        "--query-metadata", "queries.jsonl", "--database-metadata", "database.jsonl",
        "--html", "report.html",
    ]  # fmt: skip
    subprocess.run([sys.executable, "-m", "antipodal", *command], cwd=folder, check=True)


with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
    write_report(Path(place))
    browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": 1180, "height": 1900})
    page.goto((Path(place) / "report.html").as_uri())
    heading = page.get_by_role("heading", name="Classes", exact=True)
    heading.evaluate("heading => heading.scrollIntoView()")
    page.screenshot(path=HERE / "report.png")
    browser.close()

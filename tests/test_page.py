"""The page with pictures in a real browser, compared with brute force over the codes."""

import base64
import json
import os
import re
import signal
import socket
import threading
from contextlib import contextmanager
from io import BytesIO
from urllib.request import urlopen

import numpy as np
import pytest
import uvicorn
from PIL import Image
from playwright.sync_api import expect

from antipodal import LSH, Collection, load, open_store
from antipodal.bench.demo import Demo, data_url, png
from antipodal.codes import unpack
from antipodal.datasets import digits
from antipodal.service import Keys, create_app
from browsers import tab
from processes import lines_of, start_command
from served import engine_of

BITS = 20
HOSTILE = 5000  # the id of an item whose metadata attack the page
ATTACK = "<img src=x onerror=alert(1)>"


class Data:
    """Digits and their codes, by brute force."""

    def __init__(self):
        data = digits()
        self.X, self.y = np.asarray(data.features), data.labels
        self.images = np.asarray(data.images)
        self.hasher = LSH(BITS, random_state=0).fit(self.X)
        self.codes = self.hasher.encode(self.X)
        self.bits = unpack(self.codes, BITS)
        self.n_stored = 1700  # the others are new to the store

    def distances(self, row):
        """Return the distances of the stored items other than the query."""
        return np.array([distance for _, distance in self.nearest(row, self.n_stored)])

    def nearest(self, row, k):
        distances = (self.bits[: self.n_stored] != self.bits[row]).sum(axis=1)
        order = sorted(range(self.n_stored), key=lambda i: (distances[i], i))
        return [(i, int(distances[i])) for i in order if i != row][:k]


@pytest.fixture(scope="module")
def data():
    return Data()


@contextmanager
def running(app):
    """Answer on a free port."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def serving(data, folder, keys=None):
    """Run the service with digits."""
    store = open_store(f"sqlite:///{folder}/codes.db", n_bits=BITS)
    rows = range(data.n_stored)
    metadata = [{"label": int(data.y[i]), "thumbnail": data_url(data.images[i])} for i in rows]
    store.upsert(np.array(rows), data.codes[: data.n_stored], metadata)
    engine = engine_of(
        store, data.hasher, identity="0" * 64, images="pixels:8x8", scores={"map": 12.5}
    )
    with running(create_app(engine, keys=keys)) as address:
        yield address


@pytest.fixture(scope="module")
def address(data, tmp_path_factory):
    with serving(data, tmp_path_factory.mktemp("page")) as address:
        yield address


@pytest.fixture
def page(browser):
    """A tab of its own; at the end, nothing may have gone wrong in its script or its rules."""
    with tab(browser) as page:
        yield page


def shown(page):
    """Ids and distances of the results, in order."""
    found = []
    for text in page.locator("#results .result small").all_text_contents():
        item, distance = re.fullmatch(r"#(-?\d+)\D+(\d+)\D+", text).groups()
        found.append((int(item), int(distance)))
    return found


def choose(page, name, value):
    """Return the label of a radio button."""
    return page.locator(f"label:has(> input[name={name}][value={value}])")


def opened(page, address):
    page.goto(address)
    expect(page.locator("#results li").first).to_be_visible()
    return page


def search_by_id(page, data, item):
    page.locator("#words").fill(str(item))
    page.locator("#words + button").click()
    expect(page.locator("#query code")).to_have_text(data.codes[item].tobytes().hex())


def open_json_filter(page):
    page.locator("#filter > summary").click()
    page.locator("#raw > summary").click()


def test_opening_the_page_shows_neighbours_of_an_item_and_the_model(page, address):
    opened(page, address)
    expect(page.locator("#summary")).to_have_text(re.compile(r"LSH\b.*\b20\b.*\b1,700\b"))
    expect(page.locator(".sample img")).to_have_count(24)
    assert page.locator("#results li").count() == 24
    card = page.locator("#card").inner_text()
    for text in ("LSH", "64", "1,700", "balance", "correlation", "12.5", "1,000"):
        assert text in card
    page.locator("#card summary").click()
    expect(page.get_by_text("random_state")).to_be_visible()


def test_picking_an_item_shows_its_nearest_with_the_bits_that_differ(page, address, data):
    opened(page, address)
    button = page.locator(".sample button").nth(3)
    row = int(re.search(r"id (\d+)", button.get_attribute("aria-label"))[1])
    with page.expect_response("**/v1/search"):
        button.click()
    expect(page.locator("#query b")).to_have_text(str(data.y[row]))
    expect(page.locator("#query code")).to_have_text(data.codes[row].tobytes().hex())
    assert shown(page) == data.nearest(row, 24)
    strips = page.locator("#results .strip")
    for place, (item, distance) in enumerate(data.nearest(row, 24)):
        different = np.flatnonzero(data.bits[item] != data.bits[row]) + 1
        said = strips.nth(place).get_attribute("aria-label")
        assert [int(n) for n in re.findall(r"\d+", said)] == different.tolist()
        black = strips.nth(place).locator(".one").get_attribute("d")
        assert [int(x) for x in re.findall(r"M(\d+) ", black)] == np.flatnonzero(
            data.bits[item]
        ).tolist()
        assert strips.nth(place).locator(".off").get_attribute("d").count("M") == distance
    same = sum(data.y[item] == data.y[row] for item, _ in data.nearest(row, 24))
    said = re.compile(rf"\b{same} of 24\b.*\b{data.y[row]}\b")
    expect(page.locator("#status")).to_contain_text(said)


def test_a_result_is_searched_by_in_turn_with_the_keyboard_alone(page, address, data):
    opened(page, address)
    search_by_id(page, data, 17)
    second = data.nearest(17, 24)[1][0]
    button = page.locator("#results .item").nth(1)
    button.focus()
    with page.expect_response("**/v1/search"):
        page.keyboard.press("Enter")
    expect(page.locator("#query code")).to_have_text(data.codes[second].tobytes().hex())
    assert shown(page) == data.nearest(second, 24)
    expect(page.locator("#status")).to_be_focused()


def test_an_uploaded_image_finds_what_its_pixels_find(page, address, data):
    opened(page, address)
    row = data.n_stored + 5
    choose(page, "by", "image").click()
    upload = {"name": "digit.png", "mimeType": "image/png", "buffer": png(data.images[row])}
    with page.expect_response("**/v1/search"):
        page.locator("#image").set_input_files(upload)
    expect(page.locator("#query b")).to_have_text("digit.png")
    expect(page.locator("#query img")).to_have_attribute("src", data_url(data.images[row]))
    # Eight bits of grey hold a pixel's 17 levels up to rounding, so bits near zero may flip.
    code = np.frombuffer(bytes.fromhex(page.locator("#query code").inner_text()), np.uint8)
    bits = unpack(code[None], BITS)[0]
    assert (bits != data.bits[row]).sum() <= 1
    distances = (data.bits[: data.n_stored] != bits).sum(axis=1)
    nearest = sorted(range(data.n_stored), key=lambda i: (distances[i], i))[:24]
    assert shown(page) == [(i, distances[i]) for i in nearest]
    field = page.locator("#image")
    with page.expect_file_chooser():
        field.click()
    assert field.evaluate("field => field.files.length") == 0  # the same file would be a change


@pytest.mark.parametrize("form", ["json", "commas"])
def test_a_pasted_vector_finds_its_nearest(page, address, data, form):
    opened(page, address)
    row = data.n_stored + 9
    text = str(data.X[row].tolist())
    choose(page, "by", "vector").click()
    page.locator("#vector").fill(text if form == "json" else text.strip("[]"))
    with page.expect_response("**/v1/search"):
        page.locator("[data-by=vector] button").click()
    expect(page.locator("#query b")).to_contain_text("vector")
    assert shown(page) == data.nearest(row, 24)


def test_dragging_the_radius_counts_at_once_and_searches_when_it_is_let_go(page, address, data):
    opened(page, address)
    search_by_id(page, data, 42)
    distances = data.distances(42)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    slider = page.locator("#radius")
    box = slider.bounding_box()
    page.mouse.move(box["x"] + 8, box["y"] + box["height"] / 2)
    page.mouse.down()
    counts = set()
    for share in 0.1, 0.2, 0.25:
        page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
        radius = int(slider.input_value())
        inside = int((distances <= radius).sum())
        counts.add(inside)
        said = re.compile(rf"\b{radius} bit.*\b{inside:,} item.*\b1,699\b")
        expect(page.locator("#within")).to_have_text(said)
        assert page.locator("#histogram rect.in").count() == radius + 1
    assert len(counts) > 1
    assert asked == []
    with page.expect_response("**/v1/search"):
        page.mouse.up()
    said = re.compile(rf"\b{inside:,} items\b.*\b{radius} bits\b")
    expect(page.locator("#status")).to_contain_text(said)
    expected = data.nearest(42, inside)
    assert shown(page) == expected[:24]
    for start in range(24, min(inside, 72), 24):
        page.locator("#next").click()
        expect(page.locator("#place")).to_contain_text(f"{start // 24 + 1} of")
        expect(page.locator("#status")).to_contain_text(f"{start + 1} ")
        assert shown(page) == expected[start : start + 24]


def test_the_histogram_is_that_of_all_distances(page, address, data):
    opened(page, address)
    search_by_id(page, data, 7)
    titles = page.locator("#histogram title").all_text_contents()
    counts = [int(t.split()[0].replace(",", "")) for t in titles]
    assert counts == np.bincount(data.distances(7), minlength=BITS + 1).tolist()


def test_a_filter_leaves_only_items_that_pass(page, address, data):
    opened(page, address)
    search_by_id(page, data, 7)
    open_json_filter(page)
    page.locator("#where").fill('{"label": 3}')
    with page.expect_response("**/v1/search"):
        page.keyboard.press("Enter")
    expect(page.locator("#results b").first).to_have_text("3")
    assert {data.y[item] for item, _ in shown(page)} == {3}


def test_a_broken_filter_is_told_at_the_filter_and_an_id_is_not_asked_for(page, address, data):
    opened(page, address)
    open_json_filter(page)
    field, wrong = page.locator("#where"), page.locator("#where-wrong")
    for text, words in (
        ("{label: 3}", "JSON"),
        ("[3]", "object"),
        ("null", "object"),
        ('{"label": {"about": 3}}', "about"),
        ('{"label": [3]}', "[3]"),
    ):
        field.fill(text)
        page.keyboard.press("Enter")
        expect(wrong).to_contain_text(words)
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(page.get_by_role("alert")).to_be_hidden()
    assert wrong.bounding_box()["y"] > field.bounding_box()["y"]
    page.locator("#filter > summary").click()  # folded away, it opens again for a search
    page.locator(".sample button").first.click()
    expect(wrong).to_be_visible()
    field.fill('{"label": 3}')
    with page.expect_response("**/v1/search"):
        page.keyboard.press("Enter")
    expect(wrong).to_have_text("")
    expect(field).to_have_attribute("aria-invalid", "false")
    assert {data.y[item] for item, _ in shown(page)} == {3}


def test_errors_are_shown_and_disappear(page, address):
    opened(page, address)
    alert = page.get_by_role("alert")
    expect(alert).to_be_hidden()
    choose(page, "by", "vector").click()
    for text, message in (
        ("[1, 2, 3]", r"\b64\b"),
        ("1, two", r"\b2\b.*\btwo\b"),
        ("", "vector"),
    ):
        page.locator("#vector").fill(text)
        page.locator("[data-by=vector] button").click()
        expect(alert).to_contain_text(re.compile(message))
    choose(page, "by", "image").click()
    broken = {"name": "x.png", "mimeType": "image/png", "buffer": b"no image"}
    page.locator("#image").set_input_files(broken)
    expect(alert).to_contain_text("PNG")
    choose(page, "by", "item").click()
    page.locator("#words").fill("987654")
    page.keyboard.press("Enter")
    expect(page.locator("#sample-said")).to_contain_text(re.compile(r"\b0\b.*\b987654\b"))
    expect(alert).to_be_hidden()
    page.locator("#others").click()
    page.locator("#words").fill(" ")
    page.keyboard.press("Enter")
    expect(alert).to_contain_text("words")
    page.locator(".sample button").first.click()
    expect(alert).to_be_hidden()
    page.route("**/v1/search", lambda route: route.abort())
    page.locator(".sample button").nth(1).click()
    expect(alert).to_contain_text("service")


def test_metadata_is_shown_as_text_and_loads_nothing_from_elsewhere(page, data, tmp_path):
    with serving(data, tmp_path) as address:
        with open_store(f"sqlite:///{tmp_path}/codes.db") as store:
            evil = {"label": ATTACK, "title": ATTACK, "thumbnail": "https://evil.example/x.png"}
            store.upsert([HOSTILE, HOSTILE + 1], data.codes[:2], [evil, {"label": {"a": [1]}}])
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("dialog", lambda dialog: asked.append(dialog.message))
        opened(page, address)
        page.locator("#words").fill(str(HOSTILE))
        page.keyboard.press("Enter")
        expect(page.locator("#query b")).to_have_text(f"{ATTACK} · {ATTACK}")
        page.locator("#words").fill(str(HOSTILE + 1))
        page.keyboard.press("Enter")
        expect(page.locator("#query b")).to_contain_text(f"{HOSTILE + 1}")
        assert all(url.startswith((address, "data:")) for url in asked)


def test_a_key_is_asked_for_once_and_a_wrong_one_is_refused(page, data, tmp_path):
    with serving(data, tmp_path, Keys.parse("read the-right-key-of-the-page\n", "test")) as address:
        page.goto(address)
        dialog, why = page.locator("#key-dialog"), page.locator("#key-why")
        expect(dialog).to_be_visible()
        first = why.inner_text()
        assert first
        page.locator("#key").fill("a-wrong-key-of-the-page")
        page.locator("#key-dialog button").click()
        expect(why).not_to_have_text(first)  # refused
        expect(dialog).to_be_visible()
        page.locator("#key").fill("the-right-key-of-the-page")
        page.keyboard.press("Enter")
        expect(page.locator("#results li")).to_have_count(24)
        opened(page, address)  # kept for the tab
        expect(dialog).to_be_hidden()


@pytest.mark.parametrize("width", [320, 375])
def test_on_a_phone_everything_fits_the_width(browser, address, width):
    with tab(browser, viewport={"width": width, "height": 700}, has_touch=True) as page:
        opened(page, address)
        for by in "vector", "image", "item":
            choose(page, "by", by).tap()
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.locator("#card summary").tap()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for box in page.locator("button:visible, input:visible, .item:visible, svg:visible").all():
            place = box.bounding_box()
            assert place["x"] >= 0
            assert place["x"] + place["width"] <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_and_every_control_has_a_name(browser, address, scheme):
    def luminance(colour):
        c = np.array([int(n) for n in re.findall(r"\d+", colour)[:3]]) / 255
        c = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        return c @ [0.2126, 0.7152, 0.0722]

    with tab(browser, color_scheme=scheme) as page:
        opened(page, address)
        for selector in (
            "h1", "#summary", "#status", "dt", "dd", "#within", "#query code", "label", "summary",
            "button.quiet", "#ask button:not([class])", ".tabs :checked + span", "#results small",
        ):  # fmt: skip
            ink, paper = page.locator(selector).first.evaluate(
                """node => {
                    const ink = getComputedStyle(node).color;
                    let colour;
                    for (let n = node; n; n = n.parentElement) {
                        colour = getComputedStyle(n).backgroundColor;
                        if (colour !== "rgba(0, 0, 0, 0)") break;
                    }
                    return [ink, colour];
                }"""
            )
            a, b = sorted((luminance(ink), luminance(paper)))
            assert (b + 0.05) / (a + 0.05) >= 4.5, (selector, ink, paper)
        open_json_filter(page)
        page.locator("#where").fill("{")
        page.keyboard.press("Enter")
        colours = page.evaluate(
            """() => {
                const of = (selector, name) =>
                    getComputedStyle(document.querySelector(selector))[name];
                const paper = of(".panel", "backgroundColor");
                return [
                    ["a bar outside", of("#histogram rect:not(.in)", "fill"), paper, 3],
                    ["a bar inside", of("#histogram rect.in", "fill"), paper, 3],
                    ["in and out", of("#histogram rect.in", "fill"),
                        of("#histogram rect:not(.in)", "fill"), 3],
                    ["a number below", of("#histogram text", "fill"), paper, 4.5],
                    ["a wrong filter", of("#where-wrong", "color"), paper, 4.5],
                    ["an example", getComputedStyle(
                        document.querySelector("#where"), "::placeholder").color,
                        of("#where", "backgroundColor"), 4.5],
                ];
            }"""
        )
        for what, ink, paper, least in colours:
            a, b = sorted((luminance(ink), luminance(paper)))
            assert (b + 0.05) / (a + 0.05) >= least, (what, ink, paper)
        unnamed = page.evaluate(
            """[...document.querySelectorAll("button, input, select, textarea")].filter(
                node => !node.labels?.length && !node.textContent.trim()
                    && !node.getAttribute("aria-label")
            ).length"""
        )
        assert unnamed == 0


def test_the_demonstration_opens_a_browser_on_its_page_and_ends_with_ctrl_c(tmp_path):
    pytest.importorskip("torch")
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/visited\n')
    browser.chmod(0o755)
    files = [tmp_path / "stdout", tmp_path / "stderr"]
    process = start_command(
        *("demo", "--open", "--epochs", 2, "--json", "--bits", 16),
        *("--out", "a b"),  # a folder that a URL cannot hold as it is
        cwd=tmp_path, env=os.environ | {"BROWSER": str(browser)}, files=files,
    )  # fmt: skip
    try:
        built, record = map(json.loads, lines_of(files[0], 2))
        assert built["items"] > 2000
        assert record.items() >= {"method": "DeepLinf", "bits": 16}.items()
        address = record["page"]
        with urlopen(address + "v1/mounts") as answer:
            mounts = {mount["name"] for mount in json.load(answer)["mounts"]}
        with urlopen(address + "digits/v1/items?limit=1000") as answer:
            items = json.load(answer)["items"]
        with urlopen(address + "digits/v1/model") as answer:
            card = json.load(answer)
        with urlopen(address + "texts/v1/model") as answer:
            texts = json.load(answer)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
    errors = files[1].read_text()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert (tmp_path / "visited").read_text().strip() == address
    assert mounts == {"digits", "texts"}
    assert texts["texts"]
    assert texts["keep_vectors"] == "int8"
    assert card["scores"]["map"] == record["map"]
    hasher = load(tmp_path / "a b" / "digits.antipodal")
    data = digits()
    assert len(items) == 1000
    for item in items[:50]:
        row = item["id"]
        assert item["metadata"]["label"] == data.labels[row]
        assert item["code"] == hasher.encode(data.features[row : row + 1]).tobytes().hex()
        picture = base64.b64decode(item["metadata"]["thumbnail"].partition(",")[2])
        np.testing.assert_array_equal(np.asarray(Image.open(BytesIO(picture))), data.images[row])
    again = Demo(16, 1, 0)
    again.score_first()
    with Collection.open(again.build(tmp_path / "a b")) as rebuilt:  # in the old one's place
        assert rebuilt.count() == 1597
        assert rebuilt.identity != card["identity"]
    assert sorted(p.name for p in (tmp_path / "a b" / "unseen").iterdir()) == [
        f"{digit}.png" for digit in range(10)
    ]


def test_the_page_is_small_and_of_one_origin():
    from antipodal.service import app

    files = list(app._PAGE.iterdir())
    assert sum(path.stat().st_size for path in files) < 100_000
    for path in files:
        text = path.read_text()
        assert "innerHTML" not in text
        assert not re.search(r"""(?:src|href|from|import|fetch\()\s*=?\s*["'`]/""", text), path.name
        if path.suffix == ".html":
            assert "style=" not in text
            assert not re.search(r"\son\w+=", text)
            assert not re.search(r"<(script|link)[^>]*(src|href)=.https?:", text)

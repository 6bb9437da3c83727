"""The page with texts, in a real browser: words, lists, details, ties, addresses, maps, models."""

import json
import re
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from playwright.sync_api import expect
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from antipodal import ITQ, LSH, open_store, unpack
from antipodal.service import create_app
from browsers import tab
from served import engine_of
from test_page import choose, running

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from text_search import library, vectors

BITS, FEATURES = 32, 400
TOPICS = {
    "text": "textwrap string difflib",
    "numbers": "math statistics fractions",
    "files": "shutil glob tempfile",
    "formats": "json csv zipfile",
}


class Texts:
    """Docstrings and their codes, by brute force."""

    def __init__(self):
        self.items = library(TOPICS)
        self.items[3]["note"] = {"source": "by hand"}
        few = vectors(self.items, 60)
        self.X = np.hstack([few, np.zeros((len(few), FEATURES - 60))])  # too long for an address
        self.X[:, 60:] = few[:, :1] * 0.001
        self.hasher = ITQ(BITS, random_state=0).fit(self.X)
        self.codes = self.hasher.encode(self.X)
        self.bits = unpack(self.codes, BITS)

    def row(self, title):
        return next(i for i, item in enumerate(self.items) if item["title"] == title)

    def nearest(self, row, n_bits=BITS, itself=False):
        """Rank the items by brute force, without the query unless it is searched by its vector."""
        distances = (self.bits[:, :n_bits] != self.bits[row, :n_bits]).sum(axis=1)
        order = sorted(range(len(self.items)), key=lambda i: (distances[i], i))
        return [(i, int(distances[i])) for i in order if itself or i != row]


@pytest.fixture(scope="module")
def texts():
    return Texts()


@pytest.fixture(scope="module")
def address(texts, tmp_path_factory):
    """Two models of the same texts, each mounted under its name."""
    folder = tmp_path_factory.mktemp("texts")
    other = LSH(16, random_state=0).fit(texts.X)
    mounts = [("first", texts.hasher), ("second", other)]
    named = {
        "mounts": [
            {
                "name": name,
                "n_bits": hasher.n_bits,
                "method": type(hasher).__name__,
                "n_features": hasher.n_features_in_,
                "id_type": "int64",
            }
            for name, hasher in mounts
        ]
    }
    stores, apps = [], []
    for name, hasher in mounts:
        store = open_store(f"sqlite:///{folder}/{name}.db", n_bits=hasher.n_bits)
        store.upsert(range(len(texts.items)), hasher.encode(texts.X), texts.items)
        stores.append(store)
        answer = Route(f"/{name}/v1/mounts", lambda request: JSONResponse(named))
        apps += [answer, Mount(f"/{name}", create_app(engine_of(store, hasher)))]
    texts.other_codes = other.encode(texts.X)
    with running(Starlette(routes=apps)) as address:
        yield f"{address}first/"
    for store in stores:
        store.close()


@pytest.fixture
def page(browser):
    with tab(browser) as page:
        yield page


def opened(page, address, fragment=""):
    page.goto(address + fragment)
    expect(page.locator("#results li, #side-b li, .dot").first).to_be_visible()
    return page


def shown(page):
    said = page.locator("#results .result small").all_text_contents()
    return [tuple(map(int, re.match(r"#(\d+)\D+(\d+)", text).groups())) for text in said]


def fragment(page):
    return {name: one[0] for name, one in parse_qs(urlsplit(page.url).fragment).items()}


def test_texts_are_a_list_with_titles_texts_and_fields(page, address, texts):
    row = texts.row("json.loads")
    opened(page, address, f"#id={row}")
    expect(page.locator("[name=layout][value=list]")).to_be_checked()
    expect(page.locator("#query b")).to_have_text("json.loads")
    assert shown(page) == texts.nearest(row)[:24]
    for place, (item, _) in enumerate(texts.nearest(row)[:5]):
        fields, result = texts.items[item], page.locator(".result").nth(place)
        expect(result.locator("b")).to_have_text(fields["title"])
        assert result.locator(".text").inner_text()[:40] == fields["text"][:40]
        for name in ("topic", "module", "words"):
            expect(result.locator(".fields")).to_contain_text(f"{name} {fields[name]}")
    page.locator("#choice > summary").click()
    page.get_by_role("checkbox", name="words").uncheck()
    expect(page.locator(".result .fields").first).not_to_contain_text("words")
    choose(page, "layout", "grid").click()
    expect(page.locator("#results")).to_have_class("results grid")
    first = texts.items[texts.nearest(row)[0][0]]["title"]  # labels are seen there too
    expect(page.locator(".result b").first).to_have_text(first)
    assert fragment(page)["layout"] == "grid"
    page.reload()
    expect(page.locator("#results")).to_have_class("results grid")


def test_items_are_found_by_their_words(page, address, texts):
    opened(page, address)
    page.locator("#words").fill("ZIP file")
    page.keyboard.press("Enter")
    matches = [
        item["title"]
        for item in texts.items
        if all(
            any(re.search(rf"(?<![^\W_]){word}", str(value).lower()) for value in item.values())
            for word in ("zip", "file")  # at the beginning of a word
        )
    ]
    assert len(matches) > 3
    n = min(len(matches), 24)
    said = re.compile(rf"\b{n} (most relevant )?items\b.*\bZIP file\b")
    expect(page.locator("#sample-said")).to_have_text(said)
    expected = page.locator(".sample b").all_text_contents()
    assert set(expected) <= set(matches)
    assert len(expected) == n
    page.locator(".sample button").nth(2).click()
    expect(page.locator("#query b")).to_have_text(expected[2])


def test_details_show_all_metadata_and_the_bits_that_differ(page, address, texts):
    opened(page, address, "#id=3")
    item, distance = texts.nearest(3)[5]
    page.locator(".result .details").nth(5).click()
    dialog = page.locator("#detail")
    expect(dialog).to_be_visible()
    for name, value in texts.items[item].items():
        expect(dialog.locator("dl")).to_contain_text(name)
        expect(dialog.locator("dl")).to_contain_text(str(value))
    differing = np.flatnonzero(texts.bits[item] != texts.bits[3]) + 1
    caption = dialog.locator("figcaption").inner_text()
    assert f"{distance} of {BITS}" in caption
    assert ", ".join(map(str, differing)) in caption
    assert dialog.locator(".bits .off").count() == distance
    ones = texts.bits[item].sum() + texts.bits[3].sum()
    assert dialog.locator(".bits .one").count() == ones
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.go_back()  # to where the details were open
    expect(dialog).to_be_visible()
    page.locator("#detail-search").click()
    expect(dialog).to_be_hidden()
    expect(page.locator("#query b")).to_have_text(texts.items[item]["title"])
    page.goto(f"{address}#id=3&item=3")
    expect(dialog.locator("dl")).to_contain_text('"source": "by hand"')


def test_ties_are_said_with_their_number_and_order(page, address, texts):
    def tied(row):
        distances = [distance for _, distance in texts.nearest(row)]
        return sum(distance == distances[11] for distance in distances)

    row = max(range(len(texts.items)), key=tied)
    opened(page, address, f"#id={row}&k=12")
    distance = texts.nearest(row)[11][1]
    assert tied(row) > 2
    said = page.locator("#ties").inner_text()
    assert re.search(rf"\b{tied(row)}\b.*\b{distance}\b.*\bid\b", said)


def test_back_and_a_link_bring_the_same_view_again(page, address, texts, browser):
    opened(page, address, "#id=5")
    first = shown(page)
    page.locator(".result .item").nth(2).click()
    third = first[2][0]
    expect(page.locator("#query b")).to_have_text(texts.items[third]["title"])
    page.locator("#next").click()
    expect(page.locator("#status")).to_contain_text(re.compile(r"\b25\b.*\b48\b"))
    assert shown(page) == texts.nearest(third)[24:48]
    page.locator("#filter > summary").click()
    page.locator("#add-row").click()
    page.locator("#rows select").first.select_option("topic")
    page.locator("#rows [data-name=topic] input").fill("formats")
    page.keyboard.press("Enter")
    formats = [hit for hit in texts.nearest(third) if texts.items[hit[0]]["topic"] == "formats"]
    expect(page.locator("#status")).to_contain_text(f"of {len(formats)}")
    assert shown(page) == formats[:24]
    assert json.loads(fragment(page)["where"]) == {"topic": "formats"}
    with tab(browser) as other:
        opened(other, page.url)
        assert shown(other) == formats[:24]
        expect(other.locator("#rows [data-name=topic] input")).to_have_value("formats")
    page.go_back()
    expect(page.locator("#status")).to_contain_text(re.compile(r"\b25\b.*\b48\b"))
    assert shown(page) == texts.nearest(third)[24:48]
    page.go_back()
    page.go_back()
    expect(page.locator("#query b")).to_have_text(texts.items[5]["title"])
    assert shown(page) == first


def test_a_long_vector_is_left_out_of_the_address_which_has_its_code(page, address, texts):
    opened(page, address)
    choose(page, "by", "vector").click()
    page.locator("#vector").fill(str(texts.X[7].tolist()))
    page.locator("[data-by=vector] button").click()
    expect(page.locator("#query")).to_contain_text("URL")
    code = texts.codes[7].tobytes().hex()
    assert fragment(page)["code"] == code
    assert "vector" not in fragment(page)
    assert shown(page) == texts.nearest(7, itself=True)[:24]
    expect(page.locator("#rerank")).to_be_enabled()
    page.reload()
    expect(page.locator("#query b")).to_contain_text(code)
    assert shown(page) == texts.nearest(7, itself=True)[:24]
    expect(page.locator("#rerank")).to_be_disabled()


def test_asymmetric_scoring_reorders_by_the_float_values_of_the_query(page, address, texts):
    opened(page, address)
    choose(page, "by", "vector").click()
    page.locator("#vector").fill(str(texts.X[7].tolist()))
    page.locator("[data-by=vector] button").click()
    expect(page.locator("#query b")).to_contain_text("vector")
    with page.expect_response("**/v1/search"):
        page.locator("#rerank").check()
    expect(page.locator(".result small").first).to_contain_text("score")
    values = texts.hasher.query(texts.X[7:8].astype(np.float32))[0]
    scores = (2.0 * texts.bits - 1) @ values
    best = sorted(range(len(scores)), key=lambda i: (-round(float(scores[i]), 4), i))[:24]
    assert [item for item, _ in shown(page)] == best
    assert re.search(r"up \d|down \d", page.locator("#results").inner_text())


def test_the_filter_suggests_values_and_shows_errors_at_their_field(page, address, texts):
    opened(page, address, "#id=5")
    page.locator("#filter > summary").click()
    page.locator("#add-row").click()
    names = page.locator("#rows select").first.locator("option").all_text_contents()
    assert set(names) == {"title", "text", "topic", "module", "words", "note.source"}
    page.locator("#rows select").first.select_option("words")
    value = page.locator("#rows [data-name=words] input")
    words = [item["words"] for item in texts.items]
    expect(value).to_have_attribute("placeholder", f"{min(words)} to {max(words)}")
    value.fill("many")
    page.keyboard.press("Enter")
    expect(page.locator(".row-wrong")).to_contain_text("many")
    expect(value).to_have_attribute("aria-invalid", "true")
    value.fill("12")
    page.locator("#rows [data-name=words] select").nth(1).select_option("gte")
    long = [hit for hit in texts.nearest(5) if texts.items[hit[0]]["words"] >= 12]
    expect(page.locator("#status")).to_contain_text(f"of {len(long)}")
    assert shown(page) == long[:24]
    page.locator("#raw > summary").click()
    field = page.locator("#where")
    expect(field).to_have_value('{"words":{"gte":12}}')
    field.fill('{"words": {"gte": true}}')
    page.keyboard.press("Enter")
    expect(page.locator(".row-wrong")).to_contain_text(re.compile('"gte".*"words"'))
    field.fill('{"or": [{"topic": "files"}, {"topic": "text"}]}')
    page.keyboard.press("Enter")
    expect(page.locator("#too-rich")).to_be_visible()
    both = [hit for hit in texts.nearest(5) if texts.items[hit[0]]["topic"] in ("files", "text")]
    expect(page.locator("#status")).to_contain_text(f"of {len(both)}")
    assert shown(page) == both[:24]


def test_two_lengths_are_compared_and_shared_neighbours_marked(page, address, texts):
    row = texts.row("json.loads")
    opened(page, address, f"#view=compare&id={row}&b=first-8")
    left, right = texts.nearest(row)[:12], texts.nearest(row, 8)[:12]
    shared = {i for i, _ in left} & {i for i, _ in right}
    said = re.compile(rf"\b{len(shared)} of 12\b.*json\.loads")
    expect(page.locator("#shared")).to_have_text(said)
    for side, hits, bits in (("a", left, BITS), ("b", right, 8)):
        listed = page.locator(f"#side-{side} li").all()
        assert len(listed) == 12
        for node, (item, distance) in zip(listed, hits, strict=True):
            expect(node).to_contain_text(re.compile(rf"#{item}\D+{distance} of {bits}\b"))
            expect(node).to_have_class("both" if item in shared else "alone")
    distance = right[-1][1]
    tied = sum(d == distance for _, d in texts.nearest(row, 8))
    said = re.compile(rf"\b{tied} items\b.*\b{distance}\b")
    expect(page.locator("#side-b .said")).to_contain_text(said)


def test_two_models_are_compared_by_their_mounts(page, address, texts):
    opened(page, address, "#view=compare&id=5")
    expect(page.locator("#way-b").locator("option:checked")).to_have_text(
        re.compile(r"\bsecond\b.*\bLSH\b.*\b16\b")
    )
    distances = np.bitwise_count(texts.other_codes ^ texts.other_codes[5]).sum(axis=1)
    order = sorted(range(len(distances)), key=lambda i: (distances[i], i))
    order.remove(5)
    found = page.locator("#side-b small:not(.mark)").all_text_contents()
    assert [int(re.match(r"#(\d+)", text)[1]) for text in found] == order[:12]
    page.locator("#way-b").select_option("first-16")
    expect(page.locator("#side-b small").first).to_contain_text("of 16")
    assert fragment(page)["b"] == "first-16"


def test_the_map_has_every_item_in_its_colour_and_a_click_searches(page, address, texts):
    opened(page, address, "#view=map&id=5")
    n = len(texts.items)
    expect(page.locator(".dot")).to_have_count(n)
    expect(page.locator("#map-said")).to_contain_text(f"{n} of {n}")
    assert page.locator("#colour").input_value() == "topic"
    colour = {}
    for name in sorted(TOPICS):
        key = page.get_by_role("button", name=name, exact=True)
        colour[name] = re.search(r"c\d", key.get_attribute("class"))[0]
    for dot in page.locator(".dot").all()[:20]:
        topic = texts.items[int(dot.get_attribute("data-id"))]["topic"]
        assert colour[topic] in dot.get_attribute("class").split()
    query = page.locator(".dot.query")
    expect(query).to_have_attribute("data-id", "5")
    near = page.locator(".dot.near").evaluate_all("dots => dots.map(dot => dot.dataset.id)")
    assert sorted(map(int, near)) == sorted(item for item, _ in texts.nearest(5)[:24])
    page.locator("#map").focus()
    page.keyboard.press("ArrowLeft")
    item = int(re.search(r"#(\d+)$", page.locator("#map-item").inner_text())[1])
    page.keyboard.press("Enter")
    expect(page.locator("#query b")).to_have_text(texts.items[item]["title"])
    page.go_back()
    expect(page.locator("#map")).to_be_visible()
    page.locator(".dot[data-id='9']").dispatch_event("click")
    expect(page.locator("#query b")).to_have_text(texts.items[9]["title"])


@pytest.mark.parametrize("width", [320, 390])
@pytest.mark.parametrize("view", ["near", "compare", "map"])
def test_on_a_phone_texts_fit_the_width_and_nothing_is_cut(browser, address, width, view):
    with tab(browser, viewport={"width": width, "height": 800}, has_touch=True) as page:
        opened(page, address, f"#view={view}&id=5")
        page.locator("#filter > summary").tap()
        page.locator("#add-row").tap()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        cut = page.evaluate(
            """() => [...document.querySelectorAll(
                "b, small, label, legend, summary, h2, button, .text, .fields, dt, dd, p"
            )].filter(node => node.checkVisibility()
                && !node.classList.contains("unseen")
                && (node.scrollWidth > node.clientWidth + 1 && node.clientWidth > 0
                    || node.getBoundingClientRect().right > innerWidth + 0.5)
            ).map(node => node.outerHTML.slice(0, 80))"""
        )
        assert cut == []
        if view == "near":
            page.locator(".result .details").first.tap()
            expect(page.locator("#detail")).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            box = page.locator("#detail").bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
        unnamed = page.evaluate(
            """[...document.querySelectorAll("button, input, select, textarea")].filter(
                node => !node.labels?.length && !node.textContent.trim()
                    && !node.getAttribute("aria-label")
            ).length"""
        )
        assert unnamed == 0

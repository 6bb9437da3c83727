"""The page of an asymmetric collection: typed queries, string ids, reranking, a long code."""

import re
from contextlib import contextmanager
from urllib.parse import parse_qs, urlencode, urlsplit

import numpy as np
import pytest
from playwright.sync_api import expect

from antipodal import Collection
from antipodal.embedding import FunctionEmbedder
from antipodal.service import Engine, create_app
from browsers import tab
from served import listening
from test_page import choose

N, WIDTH, BITS = 300, 64, 256
X = np.random.default_rng(0).standard_normal((N, WIDTH)).astype(np.float32)
KEYS = [f"https://example.org/{i}?a=b&c#ü" for i in range(N - 1)] + [".."]


def embed(texts):
    return np.array([X[int(re.search(r"\d+", text)[0])] + 0.1 for text in texts])


@pytest.fixture(scope="module")
def docs(tmp_path_factory):
    place = tmp_path_factory.mktemp("page") / "docs.db"
    metadata = [{"title": f"Title {i}", "text": f"The text number {i} is long."} for i in range(N)]
    Collection.create(
        place, X, ids=KEYS, metadata=metadata, bits=BITS, keep_vectors="float32"
    ).close()
    with Collection.open(place, embed=FunctionEmbedder("tests:embed", embed)) as collection:
        yield collection


@pytest.fixture(scope="module")
def address(docs):
    with listening(create_app(Engine(docs))) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture
def page(browser):
    with tab(browser) as page:
        yield page


def titles(page):
    return page.locator("#results b").all_text_contents()


def expected(docs, **query):
    found = docs.search(k=24, **query)
    return [f"Title {KEYS.index(key)}" for key in found.ids[0]]


def test_a_typed_text_is_searched_for_and_reranked(page, address, docs):
    page.goto(address)
    expect(page.locator("#results li")).to_have_count(24)
    page.locator("#text").fill("item 7")
    page.keyboard.press("Enter")
    expect(page.locator("#query b")).to_contain_text("item 7")
    assert titles(page) == expected(docs, queries=embed(["7"]))
    scores = [float(text) for text in re.findall(r"score (-?[\d.]+)", page.inner_text("#results"))]
    found = docs.search(embed(["7"]), k=24)
    np.testing.assert_allclose(scores, found.scores[0], atol=6e-4)
    with page.expect_response("**/v1/search"):
        page.locator("#rerank").check()
    expect(page.locator("#status")).to_contain_text("reranked")
    assert titles(page) == expected(docs, queries=embed(["7"]), rerank=40)
    state = parse_qs(urlsplit(page.url).fragment)
    assert (state["text"], state["rerank"]) == (["item 7"], ["1"])
    page.reload()
    expect(page.locator("#text")).to_have_value("item 7")
    expect(page.locator("#rerank")).to_be_checked()


def test_hamming_distances_are_absent_and_the_code_is_not_drawn(page, address):
    page.goto(f"{address}#text=3")
    expect(page.locator("#results li")).to_have_count(24)
    for absent in ("#distances", "#radius", "#histogram"):
        expect(page.locator(absent)).to_be_hidden()
    assert page.locator("#results .strip").count() == 0
    assert "distance" not in page.inner_text("#results")
    page.locator(".details").first.click()
    expect(page.locator("#detail .strip")).to_be_visible()


@pytest.mark.parametrize("place", [5, N - 1])
def test_items_with_string_ids_are_found_opened_and_linked(page, address, docs, place, browser):
    key = KEYS[place]
    page.goto(address)
    choose(page, "by", "item").click()
    page.locator("#words").fill(f"number {place} is")
    page.keyboard.press("Enter")
    item = page.locator("#found-items .item", has_text=f"Title {place}").first
    item.click()
    expect(page.locator("#query b")).to_have_text(f"Title {place}")
    assert titles(page) == expected(docs, ids=[key])
    assert f"Title {place}" not in titles(page)
    with tab(browser) as other:  # the link, without the items seen so far
        other.goto(page.url)
        expect(other.locator("#query b")).to_have_text(f"Title {place}")
        assert titles(other) == titles(page)
    page.locator("#words").fill(key)
    page.keyboard.press("Enter")
    expect(page.locator("#query b")).to_have_text(f"Title {place}")


@contextmanager
def held(page, pattern):
    """Delay the responses to a pattern until the block ends."""
    waiting = []
    page.route(pattern, lambda route: waiting.append(route))
    yield
    page.route(pattern, lambda route: route.continue_())  # takes precedence
    for route in waiting:
        route.continue_()


def test_a_choice_made_while_the_page_loads_is_kept(page, address):
    with held(page, "**/v1/model"):
        page.goto(address)
        choose(page, "by", "item").click()  # already checked: the browser reports no change
    expect(page.locator("#results li")).to_have_count(24)
    expect(page.locator("#words")).to_be_visible()


def test_words_typed_while_the_page_loads_are_searched_for(page, address):
    with held(page, re.compile("/v1/(model|fields|items|mounts)")):
        page.goto(address)
        page.locator("#words").fill("number 7 is")
        page.keyboard.press("Enter")
    expect(page.locator("#results li")).to_have_count(24)
    expect(page.locator("#sample-said")).to_contain_text("number 7 is")
    expect(page.locator("#found-items .item").first).to_contain_text("Title 7")
    expect(page.locator("#words")).to_have_value("number 7 is")


def test_a_view_chosen_while_the_page_loads_is_kept(page, address):
    with held(page, "**/v1/model"):
        page.goto(address)
        choose(page, "view", "map").click()
    expect(page.locator(".query-ring")).to_be_visible()
    expect(page.locator("#map-view")).to_be_visible()
    expect(page.locator("#near")).to_be_hidden()


def test_a_url_without_a_query_searches_by_an_item(page, address):
    page.goto(f"{address}#text=3")
    expect(page.locator("#results li")).to_have_count(24)
    page.goto(f"{address}#view=compare")  # changes the state of the loaded page
    expect(page.locator("#side-b li")).to_have_count(12)
    expect(page.locator("#query b")).to_contain_text("Title")
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_query_replaces_one_whose_item_is_not_loaded_yet(page, address, docs):
    with held(page, "**/v1/items/get"):
        page.goto(f"{address}#{urlencode({'id': KEYS[5]})}")
        expect(page.locator("#side-items .item").first).to_be_visible()
        page.locator("#text").fill("item 7")
        page.keyboard.press("Enter")
        expect(page.locator("#query b")).to_contain_text("item 7")
    page.wait_for_load_state("networkidle")
    expect(page.locator("#query b")).to_contain_text("item 7")
    assert titles(page) == expected(docs, queries=embed(["7"]))


@pytest.mark.parametrize("path", ["model", "fields", "mounts", "items?*"])
def test_a_request_that_failed_once_is_sent_again(page, address, path):
    page.route(f"**/v1/{path}", lambda route: route.abort("connectionreset"), times=1)
    page.goto(address)
    expect(page.locator("#results li")).to_have_count(24)
    expect(page.get_by_role("alert")).to_be_hidden()


@pytest.mark.parametrize("path", ["model", "items?*", "search"])
def test_a_page_that_failed_to_load_can_try_again(page, address, path, docs):
    page.route(f"**/v1/{path}", lambda route: route.abort("connectionreset"))
    page.goto(f"{address}#text=item+7")
    expect(page.get_by_role("alert")).to_contain_text("service")
    page.unroute_all()
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#results li")).to_have_count(24)
    expect(page.get_by_role("alert")).to_be_hidden()
    assert titles(page) == expected(docs, queries=embed(["7"]))
    expect(page.locator("#text")).to_have_value("item 7")


def test_the_map_and_the_comparison_work_without_hamming_distances(page, address):
    page.goto(f"{address}#view=map&text=3")
    expect(page.locator(".dot").first).to_be_visible()
    assert page.locator(".dot.near").count() == 24
    expect(page.locator(".query-ring")).to_be_visible()  # a typed query has no point of its own
    expect(page.locator(".query-name")).to_contain_text("3")
    page.goto(f"{address}#view=compare&text=3")
    expect(page.locator("#side-b li")).to_have_count(12)
    expect(page.locator("#way-b option:checked")).to_contain_text("reranked")


def test_only_mounts_of_like_items_are_compared(page, address):
    like = {"n_bits": 8, "method": "LSH", "n_features": X.shape[1], "id_type": "string"}
    mounts = [
        {"name": "like", **like},
        {"name": "wide", **like, "n_features": X.shape[1] + 1},
        {"name": "numbered", **like, "id_type": "int64"},
    ]
    page.route("**/v1/mounts", lambda route: route.fulfill(json={"mounts": mounts}))
    page.goto(f"{address}#text=3")
    expect(page.locator("#results li")).to_have_count(24)
    page.goto(f"{address}#view=compare&text=3&b=reranked")
    expect(page.locator("#side-b li")).to_have_count(12)
    offered = page.locator("#way-b option").evaluate_all("all => all.map(one => one.value)")
    assert offered == ["", "like", "reranked"]


def test_a_vector_file_is_searched_by(page, address, docs):
    page.goto(address)
    choose(page, "by", "vector").click()
    text = ", ".join(map(str, X[9].tolist())).encode()
    file = {"name": "query.csv", "mimeType": "text/csv", "buffer": text}
    page.locator("#vector-file").set_input_files(file)
    expect(page.locator("#query b")).to_contain_text("vector")
    assert titles(page) == expected(docs, queries=X[9:10])


def test_an_unknown_item_is_reported(page, address):
    page.goto(f"{address}#id=nothing")
    expect(page.get_by_role("alert")).to_contain_text("nothing")


@pytest.mark.parametrize(("width", "height", "least"), [(1280, 900, 5), (390, 844, 3)])
def test_results_are_within_the_first_screen(browser, address, width, height, least):
    with tab(browser, viewport={"width": width, "height": height}) as page:
        page.goto(f"{address}#text=3")
        expect(page.locator("#results li")).to_have_count(24)
        boxes = [item.bounding_box() for item in page.locator("#results li").all()]
        assert sum(box["y"] + box["height"] <= height for box in boxes) >= least


def test_choosing_an_item_on_a_phone_scrolls_to_its_neighbours(browser, address):
    with tab(browser, viewport={"width": 390, "height": 844}, has_touch=True) as page:
        page.goto(address)
        item = page.locator("#side-items .item").last  # below all results
        name = item.locator("b").inner_text()
        item.tap()
        expect(page.locator("#query b")).to_have_text(name)
        expect(page.locator("#results li").first).to_be_in_viewport()


def test_a_failing_embedder_is_reported(page, address):
    page.goto(address)
    page.locator("#text").fill("no number")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("tests:embed")

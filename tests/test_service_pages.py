"""The pages that list the mounts and the API, in a browser."""

import json
import os
import re
import subprocess

import numpy as np
import pytest
from playwright.sync_api import expect

from antipodal import LSH, Collection
from antipodal.service import Engine, Keys, Limits, create_app
from antipodal.service.mounts import Mount, create_mounted_app, write_mounts
from browsers import tab
from served import listening

KEY = "read-k3y-of-articles"
ROWS = np.random.default_rng(0).standard_normal((40, 6))


@pytest.fixture
def address(tmp_path):
    """Return the address of a service with two mounts."""
    LSH(16, random_state=0).fit(ROWS).save(tmp_path / "model")
    mount = Mount(f"sqlite:///{tmp_path}/codes.db", tmp_path / "model")
    write_mounts(tmp_path / "mounts.json", {"articles": mount, "photos": mount})
    app = create_mounted_app(
        tmp_path / "mounts.json",
        lambda one: Engine.open(one.store, one.model),
        Limits(),
        Keys.parse(f"read {KEY}", "keys"),
    )
    with listening(app) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def page(browser):
    with tab(browser) as opened:  # fails if a page violates the CSP
        yield opened


def test_the_list_of_mounts_asks_for_a_key_and_shows_the_mounts(page, address):
    page.goto(f"{address}/")
    page.fill("#key", "wr0ng-k3y-that-nobody-has")
    page.click("text=Show")
    page.wait_for_selector("text=rejected")
    page.fill("#key", KEY)
    page.click("text=Show")
    page.wait_for_selector("#mounts li")
    lines = page.inner_text("#mounts").splitlines()
    assert lines == ["articles: LSH, 16 bits", "photos: LSH, 16 bits"]
    page.click("#mounts a >> nth=0")
    page.wait_for_selector("#summary:has-text('16 bits')")  # with the same key
    assert page.url == f"{address}/articles/"


@pytest.mark.parametrize("path", ["", "docs"])
def test_a_long_mount_name_does_not_widen_the_page(browser, address, path):
    mount = {"name": "photographs_" * 5, "n_bits": 16, "method": "LSH"}
    with tab(browser, viewport={"width": 360, "height": 740}) as page:
        page.route("**/v1/mounts", lambda route: route.fulfill(json={"mounts": [mount]}))
        page.goto(f"{address}/{path}")
        page.wait_for_selector(f"a:has-text('{mount['name']}')")
        assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_the_api_page_shows_every_route(page, address):
    page.goto(f"{address}/articles/docs")
    page.wait_for_selector("section")
    described = page.evaluate("fetch('openapi.json').then((answer) => answer.json())")
    wanted = {
        f"{method.upper()} {path}" for path, of in described["paths"].items() for method in of
    }
    assert set(page.locator("section h2").all_inner_texts()) == wanted
    search = page.locator("section", has=page.locator("h2", has_text="POST /v1/search")).first
    for words in ("Number of neighbours. Default: 10.", "radius", '"k": 5', "422"):
        assert words in search.inner_text()


def test_the_api_page_of_the_service_links_to_those_of_the_mounts(page, address):
    page.goto(f"{address}/docs")
    page.wait_for_selector("section")
    page.fill("#key", KEY)
    page.press("#key", "Tab")
    page.click("#contents a[href='photos/docs']")
    page.wait_for_selector("#POST-v1-search")
    assert page.url == f"{address}/photos/docs"


def trial(page, name):
    """Open the form of a route."""
    section = page.locator("section", has=page.locator(f"h2 code:text-is('{name}')"))
    section.locator(".trial > summary").click()
    return section.locator(".trial")


def send(page, form):
    with page.expect_response(re.compile("/v1/|/healthz|/readyz")) as answer:
        form.locator("button").click()
    expect(form.locator("pre")).to_contain_text(f"{answer.value.status} ")
    return answer.value.status, form.locator("pre").inner_text().partition("\n")[2]


def test_requests_of_the_api_page_work_without_changes(page, tmp_path):
    place = tmp_path / "docs.db"
    ids = [f"item {i}/ü" for i in range(len(ROWS))]
    with (
        Collection.create(place, ROWS, ids=ids, bits=16, keep_vectors="float32") as docs,
        listening(create_app(Engine(docs), keys=Keys.parse(f"write {KEY}", "keys"))) as port,
    ):
        page.goto(f"http://127.0.0.1:{port}/docs")
        assert send(page, trial(page, "POST /v1/search"))[0] == 401
        page.fill("#key", KEY)
        page.keyboard.press("Tab")
        search = page.locator("#POST-v1-search")
        expect(search.locator("> pre code").first).to_contain_text('"id":"item')  # drawn again
        answers = {}
        for name in page.locator("section h2").all_inner_texts():
            if "metrics" not in name:
                status, answers[name] = send(page, trial(page, name))
                # A check for drift needs 100 vectors, more than an example can show.
                assert status == (422 if name == "POST /v1/check" else 200), name
        own = json.loads(answers["GET /v1/items/{id}"])["id"]
        assert own in ids
        found = json.loads(answers["POST /v1/search"])
        assert [one["id"] for one in found["results"]] == docs.search(ids=[own], k=5).ids[
            0
        ].tolist()
        assert docs.count() == len(ids)  # the item added is the item deleted
        command = page.locator("#GET-v1-items-id- > pre code").first.inner_text()
        done = subprocess.run(
            ["sh", "-c", command], env=os.environ | {"KEY": KEY}, capture_output=True
        )
        assert json.loads(done.stdout)["id"] == own
        form = page.locator("#POST-v1-search .trial")
        form.locator("textarea").fill('{"text": "it\'s", "k": 1}')
        assert send(page, form)[0] == 422  # without an embedder
        command = search.locator("> pre code").first.inner_text()
        done = subprocess.run(
            ["sh", "-c", command], env=os.environ | {"KEY": KEY}, capture_output=True
        )
        assert json.loads(done.stdout)["status"] == 422


@pytest.mark.parametrize("path", ["v1/mounts", "openapi.json"])
def test_a_page_that_failed_to_load_can_try_again(page, address, path):
    page.route(f"**/{path}", lambda route: route.abort("connectionreset"))
    page.goto(f"{address}/" if path == "v1/mounts" else f"{address}/articles/docs")
    again = page.get_by_role("button", name="Try again")
    again.wait_for()
    page.unroute_all()
    again.click()
    page.wait_for_selector("text=requires an API key" if path == "v1/mounts" else "section h2")
    expect(again).to_have_count(0)

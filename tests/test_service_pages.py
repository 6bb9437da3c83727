"""The pages that list the mounts and the API, in a browser."""

import numpy as np
import pytest

from antipodal import LSH
from antipodal.service import Engine, Keys, Limits
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

"""The pages that list the mounts and the API, in a browser."""

from dataclasses import replace

import numpy as np
import pytest

from antipodal import LSH
from antipodal.service import Engine, Keys, Limits
from antipodal.service.mounts import Mount, create_mounted_app
from browsers import tab
from served import listening

KEY = "read-k3y-of-articles"
ROWS = np.random.default_rng(0).standard_normal((40, 6))


@pytest.fixture
def address(tmp_path):
    """Return the address of a service with two mounts, one of which the key may read."""
    LSH(16, random_state=0).fit(ROWS).save(tmp_path / "model")
    (tmp_path / "keys").write_text("read an0ther-k3y-of-somebody")
    mount = Mount(tmp_path / "model", f"sqlite:///{tmp_path}/codes.db")
    mounts = {"articles": mount, "photos": replace(mount, keys=tmp_path / "keys")}
    app = create_mounted_app(
        mounts,
        lambda one: Engine.open(one.model, one.store),
        limits=Limits(),
        keys=Keys.parse(f"read {KEY}", "keys"),
    )
    with listening(app) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def page(browser):
    with tab(browser) as opened:  # fails if a page violates the CSP
        yield opened


def test_the_list_of_mounts_asks_for_a_key_and_shows_the_mounts_it_permits(page, address):
    page.goto(f"{address}/")
    page.fill("#key", "wr0ng-k3y-that-nobody-has")
    page.click("text=Show")
    page.wait_for_selector("text=rejected")
    page.fill("#key", KEY)
    page.click("text=Show")
    page.wait_for_selector("#mounts li")
    assert page.inner_text("#mounts") == "articles: LSH, 16 bits"
    page.click("#mounts a")
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

"""The pages of the service beside the search page, in a browser: its models, and its API."""

from dataclasses import replace

import numpy as np
import pytest

from antipodal import LSH
from antipodal.service import Engine, Keys, Limits
from antipodal.service.mountedapp import create_mounted_app
from antipodal.service.mounts import Mount
from browsers import tab
from test_deploy import answering

KEY = "read-k3y-of-articles"
ROWS = np.random.default_rng(0).standard_normal((40, 6))


@pytest.fixture
def address(tmp_path):
    """Return the address of a service of two models, of which the key opens one."""
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
    with answering(app) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def page(browser):
    with tab(browser) as opened:  # which fails if a page breaks the policy
        yield opened


def test_the_first_page_asks_for_a_key_and_leads_to_the_models_it_opens(page, address):
    page.goto(f"{address}/")
    page.fill("#key", "wr0ng-k3y-that-nobody-has")
    page.click("text=Show")
    page.wait_for_selector("text=refused that key")
    page.fill("#key", KEY)
    page.click("text=Show")
    page.wait_for_selector("#mounts li")
    assert page.inner_text("#mounts") == "articles: LSH, 16 bits"
    page.click("#mounts a")
    page.wait_for_selector("#summary:has-text('16 bits')")  # with the same key
    assert page.url == f"{address}/articles/"


def test_the_description_of_the_api_is_drawn_from_the_service_itself(page, address):
    page.goto(f"{address}/articles/docs")
    page.wait_for_selector("section")
    described = page.evaluate("fetch('openapi.json').then((answer) => answer.json())")
    wanted = {
        f"{method.upper()} {path}" for path, of in described["paths"].items() for method in of
    }
    assert set(page.locator("section h2").all_inner_texts()) == wanted
    search = page.locator("section", has=page.locator("h2", has_text="POST /v1/search")).first
    for words in ("Nearest items; 10 if neither is given.", "radius", '"k": 5', "Problems:"):
        assert words in search.inner_text()

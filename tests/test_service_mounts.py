"""Several models behind one service: each with its keys, and replaced while requests come."""

import asyncio
import json
import stat
import threading
import time
import warnings
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from antipodal import LSH, open_store
from antipodal.cli import app as commands
from antipodal.errors import AntipodalError
from antipodal.io.model_file import model_identity
from antipodal.service import Engine, Keys, Limits
from antipodal.service.logs import JsonFormatter
from antipodal.service.mountedapp import create_mounted_app
from antipodal.service.mounts import Mount, changing_mounts, parse_mount, read_mounts, write_mounts
from antipodal.service.server import Settings, check_prefix
from antipodal.service.server import serve as listen
from antipodal.service.switchboard import Switchboard

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Using `httpx` with `starlette.testclient`")
    from starlette.testclient import TestClient

ROWS = np.random.default_rng(0).standard_normal((40, 6))
LIMITS = Limits(seconds=20)
A_KEY, B_KEY, COMMON = "read-k3y-of-articles", "read-k3y-of-pictures", "write-k3y-of-the-service"


def make(folder, name, n_bits, seed=0):
    """Make a model and a store of its codes; the metadata say whose they are."""
    hasher = LSH(n_bits, random_state=seed).fit(ROWS)
    model, url = folder / f"{name}.antipodal", f"sqlite:///{folder}/{name}.db"
    hasher.save(model)
    with open_store(url, n_bits=n_bits, model=model_identity(model)) as store:
        store.upsert(range(40), hasher.encode(ROWS), [{"of": name}] * 40)
    return Mount(model, url)


@pytest.fixture
def mounts(tmp_path):
    return {"articles": make(tmp_path, "articles", 16), "pictures": make(tmp_path, "pictures", 24)}


def open_engine(mount):
    return Engine.open(mount.model, mount.store, images=mount.images, limits=LIMITS)


@contextmanager
def client_of(mounts, keys=None):
    keys = None if keys is None else Keys.parse(keys, "keys")
    with TestClient(create_mounted_app(mounts, open_engine, limits=LIMITS, keys=keys)) as client:
        yield client


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def owners(client, name, headers=None):
    request = {"vector": ROWS[3].tolist(), "k": 5}
    answer = client.post(f"/{name}/v1/search", json=request, headers=headers)
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert results[0]["distance"] == 0
    return {result["metadata"]["of"] for result in results}


def test_each_name_leads_to_its_own_model_page_and_description(mounts):
    with client_of(mounts) as client:
        named = [
            {"name": "articles", "n_bits": 16, "method": "LSH"},
            {"name": "pictures", "n_bits": 24, "method": "LSH"},
        ]
        assert client.get("/v1/mounts").json() == {"mounts": named}
        for name, n_bits in (("articles", 16), ("pictures", 24)):
            assert owners(client, name) == {name}
            assert client.get(f"/{name}/v1/mounts").json() == {"mounts": named}
            assert client.get(f"/{name}/v1/model").json()["n_bits"] == n_bits
            assert "text/html" in client.get(f"/{name}/").headers["content-type"]
            assert client.get(f"/{name}/static/app.js").status_code == 200
            assert client.get(f"/{name}/readyz").json() == {"status": "ready"}
            moved = client.get(f"/{name}", follow_redirects=False)
            assert (moved.status_code, moved.headers["location"]) == (308, f"{name}/")
            described = client.get(f"/{name}/openapi.json").json()
            assert described["servers"] == [{"url": f"/{name}"}]
            assert "/v1/search" in described["paths"]
            assert client.get(f"/{name}/metrics").status_code == 404  # those are of all
        assert client.get("/readyz").json() == {"status": "ready"}
        assert "text/html" in client.get("/").headers["content-type"]
        assert "text/html" in client.get("/docs").headers["content-type"]
        assert client.post("/v1/search", json={"code": "0000"}).status_code == 404
        assert client.get("/others/v1/model").status_code == 404
        text = client.get("/metrics").text
    assert 'antipodal_items{mount="articles"} 40' in text
    assert '{method="POST",route="/pictures/v1/search",status="200"} 1.0' in text


def test_keys_of_a_mount_open_it_alone(mounts, tmp_path):
    files = {"articles": f"read {A_KEY}", "pictures": f"write {B_KEY}"}
    for name, text in files.items():
        (tmp_path / f"{name}.keys").write_text(text)
        mounts[name] = replace(mounts[name], keys=tmp_path / f"{name}.keys")
    mounts["others"] = make(tmp_path, "others", 8)
    with (
        pytest.raises(AntipodalError, match="mount others has no keys, and others have"),
        client_of(mounts),
    ):
        pass
    with client_of(mounts, f"write {COMMON}") as client:
        for name, good in (("articles", A_KEY), ("pictures", B_KEY), ("others", COMMON)):
            for key in (A_KEY, B_KEY, COMMON):
                status = client.get(f"/{name}/v1/model", headers=bearer(key)).status_code
                assert status == (200 if key == good else 401)
                seen = client.get("/v1/mounts", headers=bearer(good)).json()["mounts"]
                assert [one["name"] for one in seen] == [name]  # and nothing of the others
        put = {"items": [{"id": 1, "code": "0000"}]}
        assert client.put("/articles/v1/items", json=put, headers=bearer(A_KEY)).status_code == 403
        for headers in ({}, bearer("wr0ng-k3y-that-nobody-has")):
            assert client.get("/v1/mounts", headers=headers).status_code == 401
            assert client.get("/metrics", headers=headers).status_code == 401
        assert client.get("/metrics", headers=bearer(A_KEY)).status_code == 401
        assert client.get("/metrics", headers=bearer(COMMON)).status_code == 200
    del mounts["others"]
    with client_of(mounts) as client:  # without common keys nobody sees what is of all
        for key in (A_KEY, B_KEY, ""):
            assert client.get("/metrics", headers=bearer(key)).status_code == 401


# ------------------------------------------------------------------------------- switching


def test_a_name_is_switched_under_load_and_no_request_fails(mounts, tmp_path, monkeypatch):
    monkeypatch.setattr("antipodal.service.switchboard.LOOK_SECONDS", 0.05)
    file = tmp_path / "mounts.json"
    write_mounts(file, mounts)
    new = make(tmp_path, "newer", 32, seed=1)
    seen, stop, errors = [], threading.Event(), []

    with client_of(file) as client:

        def ask():
            try:
                while not stop.is_set():
                    (owner,) = owners(client, "articles")
                    seen.append(owner)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        turns = [mounts["articles"], new] * 3
        for turn in turns[1:]:
            write_mounts(file, mounts | {"articles": turn})
            expected = turn.model.stem
            wait_until(lambda expected=expected: seen[-3:] == [expected] * 3, errors)
        stop.set()
        for thread in threads:
            thread.join()
        assert not errors
        assert len(seen) > 20
        assert {"articles", "newer"} == set(seen)
        assert client.get("/articles/v1/model").json()["n_bits"] == 32
        assert owners(client, "pictures") == {"pictures"}


def wait_until(condition, errors):
    last_moment = time.monotonic() + 60
    while not condition():
        assert not errors, errors
        assert time.monotonic() < last_moment, "it did not come to pass"
        time.sleep(0.02)


def test_a_request_that_runs_keeps_its_store_until_it_is_answered(mounts, tmp_path):
    new = make(tmp_path, "newer", 32)
    began, go_on = asyncio.Event(), asyncio.Event()
    closed = []

    class Opened:
        def __init__(self, name, mount):
            self.mount, self.engine, self.keys = mount, self, None

        async def app(self, scope, receive, send):
            began.set()
            await go_on.wait()
            assert self.mount not in closed
            scope["answered_by"] = self.mount

        def close(self):
            closed.append(self.mount)

    async def story():
        board = Switchboard(Opened)
        board.open_all(mounts)
        old, scope = mounts["articles"], {}
        request = asyncio.create_task(board.answer("articles", scope, None, None))
        await began.wait()
        assert await board.change({"articles": new})  # and `pictures` is gone
        assert closed == [mounts["pictures"]]
        go_on.set()
        await request
        assert closed == [mounts["pictures"], old]
        assert scope["answered_by"] == old
        await board.answer("articles", scope, None, None)
        assert scope["answered_by"] == new

    asyncio.run(story())


def test_what_cannot_be_opened_is_logged_and_the_old_one_goes_on(
    mounts, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("antipodal.service.switchboard.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("antipodal.service.switchboard.RETRY_SECONDS", 0.02)
    file = tmp_path / "mounts.json"
    write_mounts(file, mounts)
    wrong = Mount(tmp_path / "later.antipodal", f"sqlite:///{tmp_path}/later.db")
    caplog.set_level("INFO")

    def said(words):
        lines = [JsonFormatter().format(record) for record in caplog.records]
        return any(words in line for line in lines)

    with client_of(file) as client:
        write_mounts(file, mounts | {"articles": wrong})
        wait_until(lambda: said("mount not changed: cannot read"), [])
        assert owners(client, "articles") == {"articles"}
        file.write_text("{")
        wait_until(lambda: said("mounts not changed: cannot read the mounts"), [])
        assert owners(client, "articles") == {"articles"}
        write_mounts(file, mounts | {"articles": wrong})
        make(tmp_path, "later", 8)  # what was out of reach comes back
        wait_until(lambda: owners(client, "articles") == {"later"}, [])


def test_the_command_writes_the_file_only_for_a_store_of_the_model(mounts, tmp_path):
    file = tmp_path / "mounts.json"
    (tmp_path / "keys").write_text(f"read {A_KEY}")
    invoke = CliRunner().invoke

    def argument(model, store):
        return f"articles={mounts[model].model},{mounts[store].store}"

    first = [str(file), argument("articles", "articles"), "--keys", str(tmp_path / "keys")]
    done = invoke(commands, ["switch", *first, "--json"])
    assert json.loads(done.stdout)["items"] == 40
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_bytes()
    for model, store, words in (
        ("pictures", "articles", "cannot be opened for model"),
        ("articles", "missing", "there is no store"),
    ):
        mounts["missing"] = Mount(tmp_path, f"sqlite:///{tmp_path}/missing.db")
        done = invoke(commands, ["switch", str(file), argument(model, store)])
        assert words in str(done.exception)
        assert file.read_bytes() == before
        assert not (tmp_path / "missing.db").exists()
    done = invoke(commands, ["switch", str(file), argument("pictures", "pictures")])
    assert "40 items" in done.stdout
    assert read_mounts(file)["articles"] == replace(
        mounts["pictures"],
        keys=tmp_path / "keys",  # kept
    )
    assert invoke(commands, ["switch", str(file), "articles", "--remove"]).exit_code == 0
    assert read_mounts(file) == {}
    assert invoke(commands, ["switch", str(file), "articles", "--remove"]).exit_code == 2


def test_of_changes_at_the_same_moment_none_is_lost(mounts, tmp_path):
    file, names = tmp_path / "mounts.json", [f"mount-{number}" for number in range(16)]
    together = threading.Barrier(len(names))

    def add(name):
        together.wait()
        with changing_mounts(file) as known:
            known[name] = mounts["articles"]

    threads = [threading.Thread(target=add, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read_mounts(file)) == sorted(names)


# --------------------------------------------------------------------------------- the rest


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("articles", "NAME=MODEL,STORE"),
        ("articles=model", "NAME=MODEL,STORE"),
        ("v1=model,sqlite:///a.db", "has a route of that name"),
        ("A b=model,sqlite:///a.db", "is named by a-z"),
        ("..=model,sqlite:///a.db", "is named by a-z"),
    ],
)
def test_what_is_no_mount_is_explained(text, words):
    with pytest.raises(ValueError, match=words):
        parse_mount(text)


def test_a_mount_of_files_beside_the_program_has_their_whole_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, mount = parse_mount("a-1=model.antipodal,sqlite:///b c.db?timeout=3")
    assert (name, mount.model) == ("a-1", tmp_path / "model.antipodal")
    assert mount.store == f"sqlite:///{tmp_path}/b c.db?timeout=3"
    assert parse_mount("a=m,postgresql://h/d?x=1,2")[1].store == "postgresql://h/d?x=1,2"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"a": 1}',
        '{"a": {"model": "/m"}}',
        '{"a": {"model": "m", "store": "sqlite:///a"}}',
        '{"a": {"model": "/m", "store": 3}}',
        '{"a": {"model": "/m", "store": "x", "key": "/k"}}',
        '{"../a": {"model": "/m", "store": "x"}}',
    ],
)
def test_a_file_that_is_none_of_mounts_is_refused(tmp_path, text):
    (tmp_path / "mounts.json").write_text(text)
    with pytest.raises(AntipodalError, match="cannot read the mounts in"):
        read_mounts(tmp_path / "mounts.json")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "give --model and --store, or --mount, or --mounts"),
        (["--model", "m"], "give both --model and --store"),
        (["--mount", "a=m,sqlite:///a.db", "--model", "m"], "give --model and --store, or"),
        (["--mount", "a=m,sqlite:///a.db", "--mounts", "f"], "give --model and --store, or"),
        (["--mount", "a=m,sqlite:///a.db"] * 2, "two mounts of the name a"),
        (["--mount", "a=m,sqlite:///a.db", "--mount-keys", "b=k"], "the name that of a --mount"),
        (["--mounts", "f", "--mount-keys", "b=k"], "--mount-keys goes with --mount"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, words):
    done = CliRunner().invoke(commands, ["serve", *options])
    assert done.exit_code == 2
    assert words in " ".join(done.output.replace("│", " ").split())


def test_without_keys_for_all_mounts_only_loopback_is_listened_on(mounts, tmp_path):
    settings = Settings(mounts, host="0.0.0.0", port=0)
    with pytest.raises(AntipodalError, match="--allow-anyone"):
        listen(settings)
    (tmp_path / "keys").write_text(f"read {A_KEY}")
    some = mounts | {"articles": replace(mounts["articles"], keys=tmp_path / "keys")}
    with pytest.raises(AntipodalError, match="mount pictures has no keys, and others have"):
        listen(replace(settings, mounts=some))


def test_prefixes_and_proxies_that_make_no_sense_are_refused(mounts):
    for wrong in ("search", "/search/", "/", "//a", "/a b", "/v1", "/articles/x"):
        with pytest.raises(ValueError, match="--root-path must"):
            check_prefix(wrong, frozenset(("v1", "articles")))
    check_prefix("/team/search", frozenset(("v1",)))
    for wrong in ("*", "proxy.example", "10.0.0.1/24", ""):
        with pytest.raises(ValueError, match="a proxy is named by its address"):
            listen(Settings(mounts, port=0, proxies=(wrong,)))

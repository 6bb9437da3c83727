"""Passwords and tokens in store URLs are never shown, even if the URL is invalid."""

import json
import logging
import traceback

import numpy as np
import pytest
from typer.testing import CliRunner

from antipodal.cli import app
from antipodal.service.mounts import Mount
from antipodal.service.server import Settings
from antipodal.stores import open_store
from antipodal.stores.url import parse_url, shown_url
from engines import engines  # noqa: F401

# All secrets consist of these words, so parts of a secret are also detected.
WORDS = ("SEC", "RET")
URLS = [
    "postgress://u:SECRET@host/db",
    "postgresql://u:SECRET@127.0.0.1:1/db",
    "postgresql://u:SECRET@127.0.0.1:1/db?password=SECRET",
    "postgresql://127.0.0.1:1/db?user=u&password=SECRET&sslpassword=SECRET",
    "postgresql://127.0.0.1:1/db?pasword=SECRET",
    "postgresql://127.0.0.1:1/db?SECRET",
    "postgresql://127.0.0.1:1/db?%53ECRET=1",
    "postgresql://u:SEC%40RET@127.0.0.1:1/db",
    "postgresql://u:SEC%RET@127.0.0.1:1/db",
    "postgresql://u:SEC@RET@127.0.0.1:1/db",
    "postgresql://u:SEC/RET@127.0.0.1:1/db",
    "postgresql://u:SEC?RET@127.0.0.1:1/db",
    "postgresql://u:12?RET@127.0.0.1:1/db",
    "postgresql://u:SEC#RET@127.0.0.1:1/db",
    "postgresql://u:SEC[RET@127.0.0.1:1/db",
    "postgresql://u:SEC\u2100RET@127.0.0.1:1/db",
    "postgresql://u:SEC RET@127.0.0.1:1/db",
    "postgresql://u:SECRET",
    "postgresql://u:SECRET/db",
    "postgresql://u@127.0.0.1:SECRET/db",
    "postgresql:u:SECRET@host/db",
    "host=127.0.0.1 user=u password=SECRET",
    "u:SECRET@host",
    "mysql://u:SECRET@host/db?password=SECRET",
    "mysql://u:SEC/RET@host/db",
    "sqlite://u:SECRET@host/db",
    "sqlite:///a.db?token=SECRET",
    "sqlite:///a.db?SECRET",
    "milvus://u:SECRET@host",
    "milvus+http://u:SECRET@127.0.0.1:1",
    "milvus+http://127.0.0.1:1?token=SECRET",
    "milvus+http://SECRET@127.0.0.1:1/path",
    "milvus+http://u:SECRET@127.0.0.1:port",
    "milvus+http://127.0.0.1:1?tokn=SECRET",
    "milvus+htp://u:SECRET@host?token=SECRET",
]


def traceback_of(error):
    """Return the full traceback and representation of an error."""
    return "".join(traceback.format_exception(error)) + repr(error)


def assert_hidden(text):
    assert not [word for word in WORDS if word in text], text


@pytest.mark.parametrize("url", URLS)
def test_errors_about_a_url_hide_its_secret(url, caplog, monkeypatch, tmp_path):
    caplog.set_level(logging.WARNING)
    monkeypatch.chdir(tmp_path)
    assert_hidden(shown_url(url))
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of any type
        open_store(url, n_bits=8)
    assert_hidden(traceback_of(caught.value))
    assert_hidden(caplog.text)


@pytest.mark.parametrize("command", ["index", "search"])
@pytest.mark.parametrize("from_environment", [False, True])
def test_commands_hide_secrets(tmp_path, command, from_environment):
    np.save(tmp_path / "codes.npy", np.zeros((2, 1), np.uint8))
    for url in (URLS[0], URLS[2], URLS[10]):
        arguments = [command, f"{tmp_path}/codes.npy"]
        environment = {"ANTIPODAL_STORE": url} if from_environment else {}
        arguments += [] if from_environment else ["--store", url]
        done = CliRunner(env=environment).invoke(app, arguments)
        assert done.exit_code == 1
        assert_hidden(done.output + traceback_of(done.exception))


@pytest.mark.parametrize(
    "arguments",
    [("index", "URL"), ("index", "codes.npy", "URL"), ("search", "URL"), ("search", "x.npy", "URL"),
     ("index", "c.npy", "--out", "URL"), ("search", "c.npy", "--index", "URL"),
     ("serve", "--model", "m", "--store", "s", "URL"), ("URL",), ("index", "c.npy", "--stor=URL")],
)  # fmt: skip
def test_misplaced_urls_are_not_quoted_with_their_secret(arguments):
    mistyped = ("postgresql://u:SEC)' RET@host/db", "postgresql:/u:SECRET@host/db")
    for url in (*URLS[:3], *mistyped):
        done = CliRunner().invoke(app, [word.replace("URL", url) for word in arguments])
        assert done.exit_code == 2
        assert_hidden(done.output)


def test_secrets_are_not_shown_on_success(tmp_path, engines):  # noqa: F811
    np.save(tmp_path / "codes.npy", np.arange(2, dtype=np.uint8)[:, None])
    url = engines.url("postgresql", "hidden").replace("postgres:@", "postgres:SECRET@")
    assert "SECRET" in url
    for options in (["--json"], ["--replace"]):
        done = CliRunner().invoke(app, ["index", f"{tmp_path}/codes.npy", "--store", url, *options])
        assert done.exit_code == 0, done.exception
        assert_hidden(done.output)
        if options == ["--json"]:
            shown = json.loads(done.stdout)["store"]
            assert shown == "postgresql:///postgres?table=hidden"
    done = CliRunner().invoke(app, ["search", f"{tmp_path}/codes.npy", "--store", url])
    assert (done.exit_code, done.stdout.count("\n")) == (0, 2)
    assert_hidden(done.output)
    with open_store(url) as store:
        assert_hidden(store.place + repr(store))


def test_repr_of_addresses_and_settings_hides_secrets():
    for url in (URLS[2], "milvus+http://u:SECRET@host?token=SECRET"):
        assert_hidden(repr(parse_url(url)) + str(parse_url(url)))
    assert_hidden(repr(Settings(Mount(URLS[2], "m"))))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///codes.db?timeout=3", "sqlite:///codes.db?timeout=3"),
        ("sqlite:////data/a@b.db", "sqlite:////data/a@b.db"),
        ("postgresql://u@[::1]:5432/db?table=a&x=1", "postgresql://[::1]:5432/db?table=a"),
        ("postgresql://a:1,b:2/db", "postgresql://a:1,b:2/db"),
        ("milvus+http://host:19530?collection=c&token=t", "milvus+http://host:19530?collection=c"),
        ("data/codes.db", "data/codes.db"),
    ],
)
def test_parts_without_secrets_are_shown(url, shown):
    assert shown_url(url) == shown


def test_secrets_are_removed_from_engine_messages():
    address = parse_url("postgresql://u:p%40ss@host/db?password=other&sslmode=require")
    assert address.without_secrets("p@ss, p%40ss, other, require, u") == "…, …, …, require, u"

"""Starting the service: options, addresses, passwords and settings."""

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from antipodal import LSH
from antipodal.cli import main
from antipodal.cli.serve import app as commands
from antipodal.errors import AntipodalError, StoreError
from antipodal.service import Engine, Limits
from antipodal.service.mounts import Mount
from antipodal.service.server import Settings, check_address
from served import (
    HASHER,
    READ,
    ROWS,
)


@pytest.mark.parametrize(
    ("options", "keys", "words"),
    [
        (["--host", "0.0.0.0"], None, "0.0.0.0"),
        (["--host", "0.0.0.0"], "admin x", "line 1"),
        (["--keys", "missing"], None, "missing: "),
        (["--images", "pixels:8x8"], None, "64"),
        (["--model", "missing"], None, "missing"),
        (["--scores", "missing"], None, "missing: "),
    ],
)
def test_errors_are_reported_before_the_service_listens(
    tmp_path, monkeypatch, options, keys, words
):
    monkeypatch.delenv("ANTIPODAL_KEYS", raising=False)
    if keys is not None:
        monkeypatch.setenv("ANTIPODAL_KEYS", keys)
    HASHER.save(tmp_path / "model")
    arguments = ["--model", str(tmp_path / "model"), "--store", f"sqlite:///{tmp_path}/codes.db"]
    result = CliRunner().invoke(commands, ["serve", *arguments, *options])
    assert isinstance(result.exception, (AntipodalError, ValueError))
    assert words in str(result.exception)


@pytest.mark.parametrize("by_variable", [False, True])
def test_the_password_of_a_store_is_not_printed(tmp_path, monkeypatch, capsys, by_variable):
    HASHER.save(tmp_path / "model")
    secret = "s3cret-of-the-database"
    url = f"postgresql://reader:{secret}@127.0.0.1:9/codes"  # where nothing listens
    given = [] if by_variable else ["--store", url]
    if by_variable:
        monkeypatch.setenv("ANTIPODAL_STORE", url)
    model = ["--model", str(tmp_path / "model")]
    monkeypatch.setattr("sys.argv", ["antipodal", "serve", "--port", "0", *model, *given])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert ended.value.code == 1
    assert "127.0.0.1" in printed.err  # the store is named
    assert secret not in printed.out + printed.err
    assert secret not in repr(Settings(Mount(url, tmp_path)))


def test_an_unusable_address_is_reported_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ANTIPODAL_KEYS", f"read {READ}")
    model = ["--model", "missing", "--store", f"sqlite:///{tmp_path}/codes.db"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for host, words in (
            ("127.0.0.1", "in use"),
            ("192.0.2.7", "assign"),  # reserved for documentation
            ("no.such.name.invalid", "port"),
        ):
            arguments = ["antipodal", "serve", *model, "--host", host, "--port", port]
            monkeypatch.setattr("sys.argv", arguments)
            with pytest.raises(SystemExit) as ended:
                main()
            printed = capsys.readouterr()
            assert (ended.value.code, printed.out) == (1, "")
            *notice, error = printed.err.splitlines()
            assert len(notice) == (host != "127.0.0.1")  # which recommends a reverse proxy
            assert host in error
            assert port in error
            assert words in error
    check_address("127.0.0.1", int(port))
    check_address("localhost", 0)


def test_a_store_of_another_model_is_refused(tmp_path):
    for seed in (0, 1):
        LSH(16, random_state=seed).fit(ROWS).save(tmp_path / f"model{seed}")
    url = f"sqlite:///{tmp_path}/codes.db"
    engine = Engine.open(url, tmp_path / "model0")  # creates it
    assert (engine.store.n_bits, engine.store.count()) == (16, 0)
    engine.store.close()
    with pytest.raises(StoreError, match=r"codes\.db"):
        Engine.open(url, tmp_path / "model1")


def test_settings_survive_the_way_to_the_workers(tmp_path):
    settings = Settings(
        mount=Mount(
            "sqlite:///codes.db", tmp_path / "model", "gist", "module:embed", tmp_path / "scores"
        ),
        mounts_file=tmp_path / "mounts",
        keys=tmp_path / "keys",
        proxies=("10.0.0.7", "10.0.1.0/24"),
        limits=Limits(k=7, seconds=1.5),
    )
    assert Settings.from_json(settings.to_json()) == settings
    relative = Settings(Mount("sqlite:///codes.db", Path("model")), keys=Path("keys"))
    again = Settings.from_json(relative.to_json())
    assert again.mount.model == Path("model").absolute()
    assert again.keys == Path("keys").absolute()


def test_listening_beyond_loopback_recommends_a_reverse_proxy(tmp_path, monkeypatch):
    HASHER.save(tmp_path / "model")
    served = []
    monkeypatch.setattr("antipodal.service.server.serve", served.append)
    options = ["--model", str(tmp_path / "model"), "--store", "sqlite:///codes.db"]
    for host, expected in (("127.0.0.1", False), ("0.0.0.0", True)):
        result = CliRunner().invoke(commands, ["serve", *options, "--host", host])
        assert ("reverse proxy" in result.stderr) == expected
    assert [settings.host for settings in served] == ["127.0.0.1", "0.0.0.0"]
    assert Settings().host == "127.0.0.1"

"""The examples run as they stand, and what they print is what they promise."""

import os
import re
import runpy
import socket
import subprocess
import sys
import threading
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import uvicorn

from antipodal import open_store
from antipodal.io.model_file import model_identity
from antipodal.service import Engine, create_app
from engines import engines  # noqa: F401

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, folder, *arguments):
    """Run an example of Python as a program, and return what it prints.

    In this process: it would spend most of its time on importing what is imported here.
    """
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.chdir(folder)
        patch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return printed.getvalue()


def scores(printed):
    """Every mAP with the chance that stands behind it."""
    return [
        (float(mean), float(chance))
        for mean, chance in re.findall(
            r"mAP ([\d.]+).*?(?:by chance|would have) ([\d.]+)", printed, re.DOTALL
        )
    ]


@pytest.fixture(scope="module")
def own_features(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    return folder, run("own_features.py", folder)


def test_own_features_are_learned_scored_searched_and_saved(own_features):
    folder, printed = own_features
    [(score, chance)] = scores(printed)
    assert score > 60 > 15 > chance
    assert printed.count("nearest are") == 3
    assert (folder / "digits.antipodal").exists()


def test_texts_are_kept_and_functions_of_one_kind_are_near_each_other(tmp_path):
    run("texts.py", tmp_path)
    with open_store(f"sqlite:///{tmp_path}/texts.db") as store:
        items = store.get(np.arange(store.count()))
        titles = [fields["title"] for fields in items.metadata]
        query = titles.index("json.loads")
        nearest = store.search(items.codes[query : query + 1], k=6).ids[0]
    assert "json.load" in [titles[i] for i in nearest]
    assert store.model == model_identity(tmp_path / "texts.antipodal")


def test_the_shell_does_the_same_and_writes_a_report(tmp_path):
    # `python` and `antipodal` are those beside the interpreter of the tests.
    tools = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", EXAMPLES / "own_features.sh"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout
    assert re.search(r"│ map +│ +\d", printed)
    assert '"query": 0, "ids": [' in printed
    assert "<h2>Examples</h2>" in (tmp_path / "report.html").read_text()


def test_an_own_method_and_an_own_loss_are_scored_beside_itq_and_saved(tmp_path):
    printed = run("own_method.py", tmp_path)
    assert re.findall(r"^\w+", printed, re.MULTILINE) == ["MedianHash", "ITQ", "DeepLinf"]
    (median, chance), (itq, _), (network, _) = scores(printed)
    assert chance + 15 < median < itq < network
    assert (tmp_path / "own.antipodal").exists()


@pytest.mark.parametrize("name", ["explicit_pairs.py", "multi_label.py"])
def test_pairs_and_concepts_are_learned_from(tmp_path, name):
    found = scores(run(name, tmp_path))
    assert found
    for score, chance in found:
        assert score > chance + 15


def test_postgresql_and_a_file_give_the_same_answers(tmp_path, engines):  # noqa: F811
    printed = run("search_postgres.py", tmp_path, engines.url("postgresql", "examples"))
    assert printed == run("search_postgres.py", tmp_path, "sqlite:///digits.db")
    assert re.search(r"\b1,797\b.*\b183\b", printed)
    assert re.search(r"^distances \[0, ", printed, re.MULTILINE)


def test_the_service_answers_the_example(own_features, tmp_path):
    engine = Engine.open(own_features[0] / "digits.antipodal", f"sqlite:///{tmp_path}/digits.db")
    server = uvicorn.Server(uvicorn.Config(create_app(engine), log_config=None))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            address = f"http://127.0.0.1:{listening.getsockname()[1]}"
            printed = run("service.py", tmp_path, address)
        finally:
            server.should_exit = True
            thread.join()
    assert re.search(r"\b1000\b", printed)
    assert set(re.findall(r"a (\d),", printed)) <= set("13579")
    assert "422 " in printed
    assert "64" in printed.splitlines()[-1]


@pytest.mark.parametrize("name", ["search_postgres.py", "service.py"])
def test_an_example_without_its_address_says_how_it_is_called(tmp_path, name):
    with pytest.raises(SystemExit, match=f"python examples/{name}"):
        run(name, tmp_path)


def test_every_example_is_listed_and_a_page_at_most():
    listed = re.findall(r"\]\((\w+\.\w+)\)", (EXAMPLES / "README.md").read_text())
    files = sorted(p.name for p in EXAMPLES.iterdir() if p.suffix in (".py", ".sh"))
    assert sorted(listed) == files
    for name in files:
        assert len((EXAMPLES / name).read_text().splitlines()) <= 60

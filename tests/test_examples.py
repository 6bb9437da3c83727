"""Every example runs and prints the expected results. `campaigns/test_ray.py` runs that of Ray."""

import re
import runpy
import shlex
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
from antipodal.service import Engine, create_app
from engines import engines  # noqa: F401
from processes import run_command

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, folder, *arguments):
    """Run a Python example as a program and return its output.

    It runs in this process, since a new one would spend most of its time on imports.
    """
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.chdir(folder)
        patch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return printed.getvalue()


def scores(printed):
    """Return every printed mAP with the mAP of a random ranking."""
    return [
        (float(mean), float(chance))
        for mean, chance in re.findall(r"mAP ([\d.]+).*?by chance ([\d.]+)", printed, re.DOTALL)
    ]


@pytest.fixture(scope="module")
def supervised_codes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("supervised")
    return folder, run("supervised_codes.py", folder)


def test_supervised_codes_are_learned_scored_searched_and_saved(supervised_codes):
    folder, printed = supervised_codes
    [(score, chance)] = scores(printed)
    assert score > 60 > 15 > chance
    assert printed.count("nearest are") == 3
    assert (folder / "digits.antipodal").exists()


def test_compressed_embeddings_have_the_recall_of_the_audit(tmp_path):
    printed = run("compress_embeddings.py", tmp_path)
    audited = dict(re.findall(r"^(.+) search: recall@10 ([\d.]+)", printed, re.MULTILINE))
    searched = dict(re.findall(r"^(codes alone|reranked): recall@10 ([\d.]+)", printed, re.M))
    plain, reranked = (float(searched[name]) for name in ("codes alone", "reranked"))
    ours = float(audited["LinfHash.asymmetric, asymmetric"])
    assert ours > float(audited["ITQ, asymmetric"]) > float(audited["ITQ, hamming"])
    assert plain == pytest.approx(ours, abs=0.05)  # other queries
    assert reranked > 0.9 > plain
    assert "1,920,000 bytes of vectors, 60,000 bytes of codes" in printed


def test_the_paper_is_solved_unfolded_and_trained(tmp_path):
    exact, unfolded, trained = scores(run("paper.py", tmp_path))
    assert exact[0] > unfolded[0] > exact[1] + 15  # three iterations are close to the solution
    assert trained[0] > exact[0] + 40


def test_a_convolutional_network_is_trained_saved_and_loaded(tmp_path):
    convolutional, itq = scores(run("convolutional.py", tmp_path))
    assert convolutional[0] > itq[0] > convolutional[1] + 15


def test_similar_texts_are_neighbours_and_the_service_opens_them(tmp_path):
    run("text_search.py", tmp_path)
    url = f"sqlite:///{tmp_path}/texts.db"
    with open_store(url) as store:
        items = store.get(np.arange(store.count()))
        titles = [fields["title"] for fields in items.metadata]
        query = titles.index("json.loads")
        nearest = store.search(items.codes[query : query + 1], k=6).ids[0]
    assert "json.load" in [titles[i] for i in nearest]
    engine = Engine.open(url, tmp_path / "texts.antipodal")
    assert engine.store.count() == len(titles)
    engine.store.close()


def test_langchain_finds_documents_with_scores_and_filters(tmp_path):
    pytest.importorskip("langchain_core", reason="needs the dependency group integrations")
    first, *nearest, others, diverse = run("langchain_search.py", tmp_path).splitlines()
    assert "documents" in first
    assert len(nearest) == 3
    assert any("shutil.copytree" in line for line in nearest)
    assert "random." not in others
    assert "json.load" in diverse
    assert (tmp_path / "python.db").exists()


def test_shell_example_prints_scores_and_writes_a_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = EXAMPLES / "supervised_codes.sh"
    subprocess.run(["sh", "-n", file], check=True)  # its syntax; the commands run in this process
    before, program, after = re.split(
        r"python - <<'PYTHON'\n|^PYTHON\n", file.read_text(), flags=re.M
    )
    exec(program, {})
    printed = ""
    for line in (before + after).replace("\\\n", " ").splitlines():
        command, *filters = line.split(" | ")
        match shlex.split(command, comments=True):
            case ["antipodal", *arguments]:
                done = run_command(*arguments)
                assert done.returncode == 0, (line, done.stderr)
                assert filters in ([], ["head -n 1"])
                printed += done.stdout
            case words:
                assert words in ([], ["set", "-eu"])
    assert re.search(r"│ map +│ +\d", printed)
    assert '"query": 0, "ids": [' in printed
    assert "<h2>Example queries</h2>" in (tmp_path / "report.html").read_text()


def test_custom_method_and_loss_are_compared_with_itq_and_saved(tmp_path):
    printed = run("custom_method.py", tmp_path)
    assert re.findall(r"^\w+", printed, re.MULTILINE) == ["MedianHash", "ITQ", "DeepLinf"]
    (median, chance), (itq, _), (network, _) = scores(printed)
    assert chance + 15 < median < itq < network
    assert (tmp_path / "custom.antipodal").exists()


@pytest.mark.parametrize("name", ["explicit_pairs.py", "multi_label.py"])
def test_pairs_and_multiple_labels_are_learned_from(tmp_path, name):
    found = scores(run(name, tmp_path))
    assert found
    for score, chance in found:
        assert score > chance + 15


def test_postgresql_and_sqlite_give_the_same_results(tmp_path, engines):  # noqa: F811
    printed = run("search_postgres.py", tmp_path, engines.url("postgresql", "examples"))
    assert printed == run("search_postgres.py", tmp_path, "sqlite:///digits.db")
    assert re.search(r"\b1,797\b.*\b183\b", printed)
    assert re.search(r"^distances \[0, ", printed, re.MULTILINE)


def test_service_example_stores_and_searches(supervised_codes, tmp_path):
    model = supervised_codes[0] / "digits.antipodal"
    engine = Engine.open(f"sqlite:///{tmp_path}/digits.db", model)
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
def test_an_example_without_its_address_prints_its_usage(tmp_path, name):
    with pytest.raises(SystemExit, match=f"python examples/{name}"):
        run(name, tmp_path)


def test_every_example_is_listed_and_at_most_a_page_long():
    listed = re.findall(r"\]\((\w+\.\w+)\)", (EXAMPLES / "README.md").read_text())
    files = sorted(p.name for p in EXAMPLES.iterdir() if p.suffix in (".py", ".sh"))
    assert sorted(listed) == files
    for name in files:
        assert len((EXAMPLES / name).read_text().splitlines()) <= 60

"""Help of the commands: examples that run, suggested next commands, shell completion."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from sklearn.datasets import load_digits
from typer.main import get_command
from typer.testing import CliRunner

from antipodal.cli import app

# Not run: they need the network, run until stopped, or take minutes.
NOT_RUN = {"datasets", "serve", "demo"}
# Options that make the examples fast; the last value of a repeated option counts.
QUICK = {
    "fit": ["--set", "n_epochs=2"],
    "build": ["--bytes", "8"],
    "audit": ["--sample", "100", "--baselines", "none", "--n-queries", "10", "--bits", "16",
              "--methods", "LSH"],
    "bench": ["--methods", "LSH", "--bits", "8", "--seeds", "0", "--train", "5", "--queries", "5",
              "--processes", "1"],
}  # fmt: skip
# Later examples read files of earlier ones.
ORDER = ["fit", "encode", "index", "audit", "build", "switch", "search", "add", "get", "delete",
         "export", "evaluate", "report", "bench", "info", "store list", "store backup",
         "store restore", "store attach", "store copy", "store vacuum"]  # fmt: skip


def commands(command=None, path=()):
    command = command or get_command(app)
    if not hasattr(command, "commands"):
        return {" ".join(path): command}
    found = {}
    for name, child in command.commands.items():
        found |= commands(child, (*path, name))
    return found


def example(name):
    text = " ".join(commands()[name].epilog.split())
    text = text[text.index(f"antipodal {name} ") :]
    return shlex.split(text)[1:]


def test_every_command_has_an_example_in_its_help():
    assert set(ORDER) | NOT_RUN == set(commands())
    for name in commands():
        shown = CliRunner().invoke(app, [*name.split(), "--help"]).stdout
        assert f" antipodal {name} " in " ".join(shown.split())
        words = example(name)
        known = {option for parameter in commands()[name].params for option in parameter.opts}
        assert {word.split("=")[0] for word in words if word.startswith("-")} <= known


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the files named in the examples."""
    folder = tmp_path_factory.mktemp("examples")
    X, y = load_digits(return_X_y=True)
    X = X.astype(np.float32)
    np.save(folder / "features.npy", X[:300])
    np.save(folder / "labels.npy", y[:300])
    np.save(folder / "queries.npy", X[300:320])
    np.save(folder / "query-labels.npy", y[300:320])
    for name, rows in (("vectors", slice(300)), ("more", slice(290, 310))):
        ids = np.arange(len(X))[rows]
        columns = {"id": ids, "title": [f"row {i}" for i in ids], "url": [f"/{i}" for i in ids]}
        embedding = pa.FixedSizeListArray.from_arrays(X[rows].ravel(), X.shape[1])
        parquet.write_table(
            pa.table(columns | {"embedding": embedding}), folder / f"{name}.parquet"
        )
    return folder


def test_examples_run_in_order_and_suggest_existing_commands(folder, monkeypatch):
    monkeypatch.chdir(folder)
    results = {}
    for name in ORDER:
        if name == "evaluate":
            run("encode", "model.antipodal", "queries.npy", "--out", "query-codes.npy")
        if name == "switch":
            shutil.copy("docs.db", "articles.db")
        if name == "report":
            for file in ("run1.json", "run2.json"):
                words = [*example("evaluate"), "--json"]
                Path(file).write_text(run(*words).stdout)
        results[name] = run(*example(name), *QUICK.get(name, []))
    for file in (
        "report.html",
        "audit.html",
        "runs.html",
        "items.parquet",
        "copy.db",
    ):
        assert Path(file).exists(), file
    # These commands end with a suggestion for the next one.
    for name in ("fit", "encode", "index", "audit", "build", "bench", "store attach"):
        (following,) = [
            line for line in results[name].stdout.splitlines() if line.startswith("Next: ")
        ]
        words = shlex.split(following.removeprefix("Next: antipodal "))
        assert words[0] in commands()
        known = {option for parameter in commands()[words[0]].params for option in parameter.opts}
        assert {word.split("=")[0] for word in words if word.startswith("-")} <= known
    assert "Next:" not in results["search"].output


def test_json_output_contains_nothing_else(folder, monkeypatch):
    monkeypatch.chdir(folder)
    if not Path("codes.npy").exists():
        np.save("codes.npy", np.zeros((3, 8), np.uint8))
    done = run("index", "codes.npy", "--out", "again.index", "--json")
    json.loads(done.stdout)
    assert "Next:" not in done.stderr + done.stdout


def run(*words):
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done


def test_bash_completes_commands_and_options():
    antipodal = str(Path(sys.executable).with_name("antipodal"))
    # typer detects the parent shell; `:` prevents bash from replacing itself by the command.
    shown = subprocess.run(
        ["bash", "-c", f"{antipodal} --show-completion; :"], capture_output=True, text=True
    )
    assert "complete -o default -F _antipodal_completion antipodal" in shown.stdout
    script = (
        f"{shown.stdout}\nPATH={Path(antipodal).parent}:$PATH\n"
        "COMP_WORDS=(antipodal store co); COMP_CWORD=2; _antipodal_completion antipodal\n"
        'echo "${COMPREPLY[@]}"\n'
        "COMP_WORDS=(antipodal fit --unl); COMP_CWORD=2; _antipodal_completion antipodal\n"
        'echo "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["copy", "--unlabelled"], done.stderr


def test_help_mentions_shell_completion():
    shown = " ".join(CliRunner().invoke(app, ["--help"]).stdout.split())
    assert "antipodal --install-completion" in shown
    assert "--show-completion" in shown

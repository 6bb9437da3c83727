"""The code of README and the tutorials runs as it stands; their numbers are the records'."""

import json
import re
import shlex
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import mean

import pytest
from typer.testing import CliRunner

from antipodal.benchmark.records import read_records
from antipodal.benchmark.summary import published_scores
from antipodal.cli import app

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
sys.path.insert(0, str(ROOT / "benchmarks"))
from render import current_pages, encoding_speed  # noqa: E402

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d+")


def run_shell(code):
    """Run the commands of a block, all of them `antipodal …`, and return what the last printed."""
    for line in code.replace("\\\n", " ").splitlines():
        name, *arguments = shlex.split(line, comments=True)
        assert name == "antipodal", line
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, (line, done.output, done.exception)
    return done.output


def same_but_for_rounding(printed, promised):
    """Compare texts. Another processor rounds differently, and training carries that on."""
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", promised)
    expected = [int(n) for n in NUMBER.findall(promised)]
    assert [int(n) for n in NUMBER.findall(printed)] == pytest.approx(expected, abs=3)


PAGES = [
    "README.md",
    "docs/quickstart.md",
    "docs/guide/supervised.md",
    "docs/guide/custom-methods.md",
    "docs/research/reproducing.md",
]


@pytest.mark.parametrize("name", PAGES)
def test_the_blocks_of_a_page_run_in_order_and_print_what_it_says(name, tmp_path, monkeypatch):
    """`python` and `sh` run; `text` and `json` are what they print; `console` is not run."""
    monkeypatch.chdir(tmp_path)
    names, printed = {"__name__": "__main__"}, ""
    for kind, code in BLOCK.findall((ROOT / name).read_text()):
        if kind == "python":
            with redirect_stdout(StringIO()) as output:
                exec(compile(code, name, "exec"), names)
            printed = output.getvalue()
        elif kind == "sh":
            printed = run_shell(code)
        elif kind == "text":
            same_but_for_rounding(printed, code)
        elif kind == "json":
            assert json.loads(printed.splitlines()[0]).keys() == json.loads(code).keys()
        else:
            assert kind in ("console", "toml")


def test_the_page_of_own_methods_has_the_code_of_the_example():
    example = (ROOT / "examples" / "own_method.py").read_text()
    page = (ROOT / "docs" / "guide" / "custom-methods.md").read_text()
    for beginning in ("@register\nclass MedianHash", "def likelihood"):
        start = example.index(beginning)
        assert example[start : example.index("\n\n\n", start)] in page


def test_tables_and_the_reference_of_commands_are_not_stale():
    """`make results` writes them."""
    for page, text in current_pages().items():
        assert page.read_text() == text, page


def test_the_scores_in_readme_are_those_of_the_records():
    runs = read_records(RESULTS / "cifar10.jsonl")

    def scores(method):
        cells = [[r for r in runs if (r["method"], r["bits"]) == (method, b)] for b in (48, 64)]
        return [mean(r["map"] for r in cell) for cell in cells]

    paper = [
        published_scores({**runs[0], "method": "DeepLinf", "bits": b})["map"] for b in (48, 64)
    ]
    text = " ".join((ROOT / "README.md").read_text().split())
    assert "`DeepLinf` has mAP {:.1f} and {:.1f}.".format(*scores("DeepLinf")) in text
    assert (
        "The paper reports {:.1f} and {:.1f}; its own recipe gives {:.0f} here.".format(
            *paper, mean(scores("DeepLinf.paper"))
        )
        in text
    )


def test_the_speed_of_the_service_is_what_was_recorded():
    record = json.loads((RESULTS / "service.json").read_text())
    text = " ".join((ROOT / "docs" / "guide" / "service.md").read_text().split())
    by_code, by_vector = record["median_run"], record["by_vector"]["median_run"]
    rates = sorted(run["searches_per_second"] for run in record["by_vector"]["runs"])
    paced = sorted(run["p99_ms"] for run in record["paced"]["runs"])
    many, bare = record["many_in_a_request"].values()
    for said in (
        f"{record['connections']} connections, the median of three runs: "
        f"{by_code['searches_per_second']:.0f} searches by code per second, 99 of 100 answered "
        f"within {by_code['p99_ms']:.0f} ms;",
        f"{by_vector['searches_per_second']:.0f} ({rates[0]:.0f} to {rates[-1]:.0f}), within "
        f"{by_vector['p99_ms']:.0f} ms;",
        f"answered within {paced[1]:.0f} ms ({paced[0]:.0f} to {paced[-1]:.0f})",
        f"{many['median_run']['searches_per_second']:,.0f} per second with items, "
        f"{many['times_one_by_one']:.0f} times one by one",
        f"ids and distances alone, {bare['times_one_by_one']} times",
    ):
        assert said in text
    assert by_code["wrong"] == by_vector["wrong"] == 0


def test_the_table_of_speed_is_what_was_recorded():
    text = (ROOT / "docs" / "research" / "results-appendix.md").read_text()
    solvers = json.loads((RESULTS / "solver.json").read_text())["solvers"]
    encode = json.loads((RESULTS / "encode.json").read_text())
    metrics = json.loads((RESULTS / "metrics.json").read_text())["one label"]["runs"]
    pursuit = json.loads((RESULTS / "ksvd.json").read_text())["pursuit_seconds"]
    ratio = {name: run["times_evaluate_wall_median"] for name, run in metrics.items()}
    for line in (
        f"OSQP, factored once | {solvers['OSQP']['times_ours']:.0f} times faster",
        f"SciPy `lsq_linear` (bvls) | {solvers['lsq_linear bvls']['times_ours']:.0f} times faster",
        f"the bare product X·Wᵀ | {encode['hidden_ratio']:.1f} times its time",
        f'`scaling="root-each"`) | | {encode["hidden_with_roots_ratio"]:.1f} times its time',
        f'`front="none"` | | {encode["none_ratio"]:.1f} times its time',
        f'`front="kernel"`, 2,000 anchors | | {encode["kernel_ratio"]:.0f} times its time',
        f"mAP alone | {ratio['loop, default sort, cumsum']:.0f} times faster",
        f'`kind="stable"` | {ratio["loop, stable sort, cumsum"]:.1f} times faster',
        f"scikit-learn's OMP | {pursuit['times_ksvd']:.0f} times faster",
    ):
        assert line in text


def test_the_numbers_of_which_method_are_those_of_the_records():
    rows = (ROOT / "docs" / "guide" / "choosing.md").read_text().splitlines()
    alone = "DeepLinf:n_unlabelled=0"
    for start, name, methods, bits, keys in (
        ("ten classes, CIFAR-10", "cifar10", ["DeepLinf", "KSH", "ClassifierLSH"], 64, ["map"]),
        ("ten classes, Fashion-MNIST", "fashion-mnist",
         ["DeepLinf", "KSH", "ClassifierLSH", "ITQ"], 64, ["map"]),
        ("150 classes", "clinc150", ["DeepLinf", "ClassifierLSH", "KSH"], 64, ["map"]),
        ("several labels, COCO", "coco_bow500-without-top-1", ["DeepLinf", "KSH"], 64, ["map"]),
        ("several labels, Corel16k", "corel16k", ["DeepLinf", "KSH"], 64, ["map"]),
        ("lookup within two bits, CIFAR-10", "cifar10",
         ["DeepLinf.lookup", "DeepLinf", "KSH", "ClassifierLSH"], 48,
         ["precision_r2", "recall_r2"]),
        ("lookup within two bits, CLINC150", "clinc150", ["ClassifierLSH"], 64,
         ["precision_r2", "recall_r2"]),
        ("no labels, CIFAR-10", "cifar10", ["ITQ", "LinfHash", "LSH"], 64, ["map"]),
        ("unseen classes", "cifar10-unseen", ["ITQ", "DeepLinf", "KSH"], 64, ["map"]),
        ("encoding, CIFAR-10", "cifar10", ["ITQ", "DeepLinf", alone], 64, ["speed"]),
        ("training, CIFAR-10", "cifar10", ["ClassifierLSH", "KSH", "DeepLinf"], 64,
         ["fit_seconds"]),
    ):  # fmt: skip
        [row] = [row for row in rows if row.startswith(f"| {start}")]
        records = read_records(RESULTS / f"{name}.jsonl")
        for method in methods:
            mine = [r for r in records if (r["method"], r["bits"]) == (method, bits)]
            for key in keys:
                if key == "speed":
                    text = f"{round(encoding_speed(mine), -3):,.0f}"
                else:
                    text = f"{mean(r[key] for r in mine):.1f}"
                assert re.search(rf"\b{re.escape(text)}\b", row), (start, method, key, text)

"""Code of README and tutorials runs as printed, and measured numbers match the records."""

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

from antipodal.bench.records import read_records
from antipodal.cli import app

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
sys.path.insert(0, str(ROOT / "benchmarks"))
from render import current_pages, encoding_speed  # noqa: E402

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d+")


def run_shell(code):
    """Run the `antipodal` commands of a block and return the output of the last one."""
    for line in code.replace("\\\n", " ").splitlines():
        name, *arguments = shlex.split(line, comments=True)
        assert name == "antipodal", line
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, (line, done.output, done.exception)
    return done.output


def has_in_order(text, *numbers):
    """Return whether a text contains these numbers close together, in this order."""
    each = (rf"(?<![\d.,]){re.escape(str(number))}(?![\d]|[.,]\d)" for number in numbers)
    return re.search(".{0,120}?".join(each), text) is not None


def assert_equal_up_to_rounding(printed, expected):
    """Compare texts; numbers may differ slightly, as rounding depends on the processor."""
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", expected)
    numbers = [int(n) for n in NUMBER.findall(expected)]
    assert [int(n) for n in NUMBER.findall(printed)] == pytest.approx(numbers, abs=3)


PAGES = [
    "README.md",
    "docs/quickstart.md",
    "docs/guide/audit.md",
    "docs/guide/supervised.md",
    "docs/guide/custom-methods.md",
    "docs/research/reproducing.md",
]


@pytest.mark.parametrize("name", PAGES)
def test_code_blocks_of_a_page_run_in_order_and_print_the_shown_output(name, tmp_path, monkeypatch):
    """`python` and `sh` blocks run, `text` and `json` are their output, `console` is not run."""
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
            assert_equal_up_to_rounding(printed, code)
        elif kind == "json":
            assert json.loads(printed.splitlines()[0]).keys() == json.loads(code).keys()
        else:
            assert kind in ("console", "toml")


def test_custom_methods_page_has_the_code_of_the_example():
    example = (ROOT / "examples" / "custom_method.py").read_text()
    page = (ROOT / "docs" / "guide" / "custom-methods.md").read_text()
    for beginning in ("@register\nclass MedianHash", "def likelihood"):
        start = example.index(beginning)
        assert example[start : example.index("\n\n\n", start)] in page


def test_tables_and_command_reference_are_up_to_date():
    """`make results` writes them."""
    for page, text in current_pages().items():
        assert page.read_text() == text, page


def test_service_speed_matches_the_record():
    record = json.loads((RESULTS / "service.json").read_text())
    text = (ROOT / "docs" / "guide" / "service.md").read_text()
    measured = [record, record["by_vector"], record["paced"], *record["many_in_a_request"].values()]
    for run in (one["median_run"] for one in measured):
        assert f"| {run['searches_per_second']:,.0f} | {run['p99_ms']:.0f} ms |" in text
        assert run["wrong"] == 0
    rates = record["encode"]["vectors_per_second"]
    assert has_in_order(text, f"{rates['json']:,}", f"{rates['bytes']:,}")


def test_index_memory_matches_the_record():
    ways = json.loads((RESULTS / "search.json").read_text())["memory"]["ways"]
    text = (ROOT / "docs" / "guide" / "search.md").read_text()
    times = (f"{ways[way]['times_codes']:.2f}" for way in ("at once", "in parts", "loaded"))
    assert has_in_order(" ".join(text.split()), *times)


def test_speed_table_matches_the_records():
    text = (ROOT / "docs" / "research" / "results-appendix.md").read_text()
    solvers = json.loads((RESULTS / "solver.json").read_text())["solvers"]
    encode = json.loads((RESULTS / "encode.json").read_text())
    metrics = json.loads((RESULTS / "metrics.json").read_text())["one label"]["runs"]
    pursuit = json.loads((RESULTS / "ksvd.json").read_text())["pursuit_seconds"]
    ratio = {name: run["times_evaluate_wall_median"] for name, run in metrics.items()}
    rows = [row for row in text.splitlines() if row.startswith("|")]
    for words, number in (
        ("OSQP", f"{solvers['OSQP']['times_ours']:.0f}"),
        ("`lsq_linear` (bvls)", f"{solvers['lsq_linear bvls']['times_ours']:.0f}"),
        ("X·Wᵀ", f"{encode['hidden_ratio']:.1f}"),
        ('`scaling="root-each"`', f"{encode['hidden_with_roots_ratio']:.1f}"),
        ('`feature_map="none"`', f"{encode['none_ratio']:.1f}"),
        ('`feature_map="kernel"`', f"{encode['kernel_ratio']:.0f}"),
        ("`argsort`", f"{ratio['loop, default sort, cumsum']:.0f}"),
        ('`kind="stable"`', f"{ratio['loop, stable sort, cumsum']:.1f}"),
        ("OMP", f"{pursuit['times_ksvd']:.0f}"),
    ):
        assert any(words in row and has_in_order(row, number) for row in rows), (words, number)


def test_numbers_for_choosing_a_method_match_the_records():
    rows = (ROOT / "docs" / "guide" / "choosing.md").read_text().splitlines()
    alone = "DeepLinf:n_unlabelled=0"
    for name, methods, bits, keys in (
        ("cifar10", ["DeepLinf", "KSH", "ClassifierLSH"], 64, ["map"]),
        ("fashion-mnist", ["DeepLinf", "KSH", "ClassifierLSH", "ITQ"], 64, ["map"]),
        ("clinc150", ["DeepLinf", "ClassifierLSH", "KSH"], 64, ["map"]),
        ("coco_bow500-without-top-1", ["DeepLinf", "KSH"], 64, ["map"]),
        ("corel16k", ["DeepLinf", "KSH"], 64, ["map"]),
        ("cifar10", ["DeepLinf.lookup", "DeepLinf", "KSH", "ClassifierLSH"], 48,
         ["precision_r2", "recall_r2"]),
        ("clinc150", ["ClassifierLSH"], 64, ["precision_r2", "recall_r2"]),
        ("cifar10", ["ITQ", "LinfHash", "LSH"], 64, ["map"]),
        ("cifar10-unseen", ["ITQ", "DeepLinf", "KSH"], 64, ["map"]),
        ("cifar10", ["ITQ", "DeepLinf", alone], 64, ["speed"]),
        ("cifar10", ["ClassifierLSH", "KSH", "DeepLinf"], 64, ["fit_seconds"]),
    ):  # fmt: skip
        records = read_records(RESULTS / f"{name}.jsonl")
        numbers = []
        for method in methods:
            cells = [r for r in records if (r["method"], r["bits"]) == (method, bits)]
            for key in keys:
                if key == "speed":
                    numbers.append(f"{round(encoding_speed(cells), -3):,.0f}")
                else:
                    numbers.append(f"{mean(r[key] for r in cells):.1f}")
        matching = [
            row
            for row in rows
            if row.startswith("|")
            and all(has_in_order(row, number) for number in numbers)
            and all(method.split(":")[0] in row for method in methods)
        ]
        assert matching, (name, methods, keys, numbers)

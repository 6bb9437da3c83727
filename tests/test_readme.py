"""The README's code runs as it stands, prints what it says, and its numbers are the records'."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
sys.path.insert(0, str(ROOT / "benchmarks"))
from render import current_pages  # noqa: E402

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path, language):
    return [code for kind, code in BLOCK.findall(path.read_text()) if kind == language]


@pytest.mark.parametrize("page", ["README.md", "docs/own-methods.md"])
def test_the_python_blocks_of_a_page_run_and_print_what_it_says(
    page, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for code in blocks(ROOT / page, "python"):
        exec(compile(code, page, "exec"), names)
    printed, promised = capsys.readouterr().out, "".join(blocks(ROOT / page, "text"))
    number = re.compile(r"\d+")
    assert number.sub("#", printed) == number.sub("#", promised)
    found = [int(n) for n in number.findall(printed)]
    # Another processor rounds differently, and training carries that on.
    assert found == pytest.approx([int(n) for n in number.findall(promised)], abs=3)


def test_the_page_of_own_methods_has_the_code_of_the_example():
    example = (ROOT / "examples" / "own_method.py").read_text()
    page = (ROOT / "docs" / "own-methods.md").read_text()
    for beginning in ("@register\nclass MedianHash", "def likelihood"):
        start = example.index(beginning)
        assert example[start : example.index("\n\n\n", start)] in page


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
def test_links_within_the_project_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_tables_and_the_reference_of_commands_are_not_stale():
    """`make results` writes them."""
    for page, text in current_pages().items():
        assert page.read_text() == text, page


def test_the_speed_of_the_service_is_what_was_recorded():
    record = json.loads((RESULTS / "service.json").read_text())
    median = record["median_run"]
    text = " ".join((ROOT / "docs" / "service.md").read_text().split())
    assert (
        f"one worker and {record['connections']} connections: "
        f"{median['searches_per_second']:.0f} searches a second, 99 of 100 answered within "
        f"{median['p99_ms']:.0f} ms, none wrong."
    ) in text
    assert all(run["wrong"] == run["failed"] == 0 for run in record["runs"])


def test_the_table_of_speed_is_what_was_recorded():
    text = (ROOT / "README.md").read_text()
    solvers = json.loads((RESULTS / "solver.json").read_text())["solvers"]
    encode = json.loads((RESULTS / "encode.json").read_text())
    metrics = json.loads((RESULTS / "metrics.json").read_text())["one label"]["runs"]
    pursuit = json.loads((RESULTS / "ksvd.json").read_text())["pursuit_seconds"]
    ratio = {name: run["times_evaluate_wall_median"] for name, run in metrics.items()}
    for line in (
        f"OSQP, factored once | {solvers['OSQP']['times_ours']:.0f} times faster",
        f"SciPy `lsq_linear` (bvls) | {solvers['lsq_linear bvls']['times_ours']:.0f} times faster",
        f"the bare product X·Wᵀ | {encode['linear_ratio']:.2f} times its time",
        f"2,000 anchors | | {encode['rbf_ratio']:.0f} times its time",
        f"mAP alone | {ratio['loop, default sort, cumsum']:.0f} times faster",
        f'`kind="stable"` | {ratio["loop, stable sort, cumsum"]:.1f} times faster',
        f"scikit-learn's OMP | {pursuit['times_ksvd']:.0f} times faster",
    ):
        assert line in text

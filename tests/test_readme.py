"""The README's code runs as it stands, prints what it says, and its numbers are the records'."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path, language):
    return [code for kind, code in BLOCK.findall(path.read_text()) if kind == language]


def test_the_python_blocks_of_the_readme_run_and_print_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for code in blocks(ROOT / "README.md", "python"):
        exec(compile(code, "README.md", "exec"), names)
    printed, promised = capsys.readouterr().out, "".join(blocks(ROOT / "README.md", "text"))
    number = re.compile(r"\d+")
    assert number.sub("#", printed) == number.sub("#", promised)
    found = [int(n) for n in number.findall(printed)]
    # Another processor rounds differently, and training carries that on.
    assert found == pytest.approx([int(n) for n in number.findall(promised)], abs=3)


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
def test_links_within_the_project_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target

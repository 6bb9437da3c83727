"""The language of the documentation: established terms, and lines of at most 100 characters.

    python tests/test_language.py [FILE ...]

prints every finding as FILE:LINE, including those of the files in PENDING.
"""

import io
import re
import sys
import tokenize
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from antipodal.cli import app

ROOT = Path(__file__).parent.parent
WIDTH = 100

# Files and commands that are still to be rewritten: their findings do not fail the tests.
PENDING: set[str] = set()

# Written by `make results` from the help of the commands, which is checked itself.
GENERATED = {"docs/reference/cli.md"}

# Pattern → the term to use. A space in a pattern matches any white space, also a line break.
# Inline code and blocks of code are not checked, except for the comments in blocks.
TERMS = {
    # Queries as float vectors against binary codes.
    r"real queries|quer(y|ies) that stays? real|quer(y|ies) stays? real": "float queries",
    # Recall in other words.
    r"shares? found|what (the |these )?codes (keep|lose|cost)": "recall@k; recall loss",
    # The second pass over candidates with the stored vectors.
    r"in order by their vectors|(put|puts|putting) in order|finer order": "rerank; reranking",
    r"candidates per result": "oversampling factor",
    # The uncompressed reference. The method called `Ceiling` keeps its capital letter.
    r"no code: the SVM's probabilities|(?-i:\bceilings?\b)": "upper bound",
    # Software does not believe.
    r"\bbelie(fs?|ve|ves|ved|ving)\b": "pseudo-labels; class probabilities",
    r"\bballs?\b": "radius search; within radius r",
    # The noun: "in front of a service" and "front end" are ordinary English.
    r"\b(an?|the|its|this|each|every|whose|hidden|kernel|no|of|and) fronts?\b(?!( of|-| end)\b)":
        "feature map",
    r"\blift(s|ed|ing)?\b": "feature map; kernel features",
    # Packages as rooms of a house. "Room for more" is ordinary English.
    r"\brooms\b|\b(an?|own|each|every) room\b|\bhouses?\b": "packages; layout",
    # Other libraries. The peer of a connection is ordinary English.
    r"(?<![-\w])peers?\b(?! (address|certificate|closed))": "baselines; other libraries",
    r"campaigns? of faults": "fault-injection tests",
    r"\bone moment\b": "snapshot consistency",
    # To continue. "Goes on the disk" is ordinary English.
    r"\b(goes|go|gone|went) on\b(?! (an?|the)\b)": "resumes; continues",
    r"\banew\b": "rebuilt; again",
    # In place of "exists". A question may begin with it.
    r"\b(is|are|was|were) there\b(?![^.:;]*\?)": "exists; is available",
    # In place of "explicitly". "Sorted by name" and "loaded by name" are ordinary English.
    r", by name\b|\b(only|chosen|switched|asked for|made|done) by name\b": "explicitly; opt-in",
    r"\bbeside\b": "next to; compared with",
    r"\bso many\b": "N; the number",
    # "As many threads as cores" is ordinary English.
    r"\bas many\b(?!( [\w-]+){0,4} as\b)": "the same number of",
    # "Your own loss" is ordinary English.
    r"(?<!your\s)(?<!its\s)(?<!their\s)\bown (methods?|loss(es)?|hashers?|networks?)\b|"
    r"\bmethods? of your own\b": "custom method",
    # "Looking up" and "looking for" are ordinary English.
    r"\blook(s|ed|ing)? at\b|\blooking\b(?! (up|for)\b)": "inspect; browse",
    r"past one process": "scaling",
    r"less (their|its) means?\b": "mean-centred vectors",
    # The values of a vector, as in "384 numbers" and "numbers of a row".
    r"\b\d[\d,]* numbers\b|\bnumbers (of|in|per) (an? |the |each |every )?"
    r"(vectors?|rows?|embeddings?)\b": "dimensions; values",
    # Relative clauses in place of nouns.
    r"\bwhat (was|is|were) found\b": "the results",
    r"\bwho asks\b": "the caller",
}  # fmt: skip
PATTERNS = {
    re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE): term for pattern, term in TERMS.items()
}


def pages() -> list[str]:
    """Return the Markdown files whose language is checked."""
    names = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "RELEASING.md"]
    paths = [ROOT / name for name in names] + sorted((ROOT / "docs").rglob("*.md"))
    paths += sorted((ROOT / "examples").glob("*.md"))
    return [name for path in paths if (name := path.relative_to(ROOT).as_posix()) not in GENERATED]


def scripts() -> list[str]:
    """Return the examples whose comments, docstrings and output are checked."""
    folder = ROOT / "examples"
    paths = (p for p in folder.rglob("*") if p.suffix in (".py", ".sh", ".js"))
    return sorted(p.relative_to(ROOT).as_posix() for p in paths if "node_modules" not in p.parts)


def commands(command=None, path=("antipodal",)) -> dict[str, list[str]]:
    """Return the arguments of each command and group by its full name."""
    command = command or get_command(app)
    found = {" ".join(path): list(path[1:])}
    for name, child in getattr(command, "commands", {}).items():
        found |= commands(child, (*path, name))
    return found


def blank(match: re.Match[str]) -> str:
    """Replace a match by spaces, keeping its line breaks and so the line numbers."""
    return re.sub(r"[^\n]", " ", match[0])


def prose(name: str) -> str:
    """Return the text of a file, or the help of a command, with code replaced by spaces."""
    if name.startswith("antipodal"):
        shown = CliRunner().invoke(app, [*commands()[name], "--help"], env={"COLUMNS": "200"})
        return re.sub("[│╭╮╰╯─]", " ", shown.stdout)
    text = (ROOT / name).read_text()
    if name.endswith(".md"):
        return markdown_prose(text)
    if name.endswith(".py"):
        return python_prose(text)
    return re.sub(r"^(?!\s*(#|//)).*$", blank, text, flags=re.MULTILINE)


def markdown_prose(text: str) -> str:
    """Blank the code of a page: blocks but for their comments, inline code, link targets."""
    text = re.sub(
        r"^( *)(`{3,}).*?^\1\2",
        lambda block: re.sub(r"^[^#\n]*", blank, block[0], flags=re.MULTILINE),
        text,
        flags=re.MULTILINE | re.DOTALL,
    )
    text = re.sub(r"`[^`]+`|^::: .*$", blank, text, flags=re.MULTILINE)
    return re.sub(r"(?<=\])\([^)\s]*\)", blank, text)


def python_prose(text: str) -> str:
    """Blank all of a script but its comments and strings."""
    lines = [" " * len(line) for line in text.splitlines()]
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            for offset, part in enumerate(token.string.splitlines()):
                row, start = token.start[0] - 1 + offset, 0 if offset else token.start[1]
                lines[row] = lines[row][:start] + part + lines[row][start + len(part) :]
    return re.sub("``[^`]+``|`[^`]+`", blank, "\n".join(lines))


def forbidden_terms(name: str) -> list[str]:
    """List the private terms in a file or in the help of a command."""
    text = prose(name)
    found = [
        (text.count("\n", 0, match.start()) + 1, " ".join(match[0].split()), term)
        for pattern, term in PATTERNS.items()
        for match in pattern.finditer(text)
    ]
    return [f"{name}:{line}: {words!r}: write {term!r}" for line, words, term in sorted(found)]


def can_be_broken(line: str) -> bool:
    """Say whether a line has a space to break it at; list markers and single links have not."""
    body = re.sub(r"^\s*([-*>]\s+|\d+\.\s+)*", "", line).rstrip()
    return " " in body and not re.fullmatch(r"!?\[[^\]]*\](\([^)]*\)|: \S+)\W?", body)


def long_lines(name: str) -> list[str]:
    """List the lines of a page that should be wrapped: not code, tables or generated parts."""
    text = (ROOT / name).read_text()
    for outside in (r"^ *(`{3,}).*?^ *\1", r"<!-- table: .*?<!-- end -->", r"^ *\|.*?$"):
        text = re.sub(outside, blank_short, text, flags=re.MULTILINE | re.DOTALL)
    return [
        f"{name}:{number}: {len(line)} characters, at most {WIDTH}"
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > WIDTH and can_be_broken(line)
    ]


def blank_short(match: re.Match[str]) -> str:
    """Keep only the line breaks of a match."""
    return "\n" * match[0].count("\n")


@cache
def findings(name: str) -> list[str]:
    """List all findings of a file or command."""
    return forbidden_terms(name) + (long_lines(name) if name.endswith(".md") else [])


CHECKED = [*pages(), *scripts(), *commands()]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xfail(reason="pending") if name in PENDING else ())
        for name in CHECKED
    ],
)
def test_pages_use_established_terms_and_wrapped_lines(name):
    assert not findings(name), "\n".join(findings(name))


@pytest.mark.parametrize("name", pages())
def test_no_merge_conflicts_are_left(name):
    assert not re.search(r"^(<{7} |>{7} |={7}$)", (ROOT / name).read_text(), re.MULTILINE)


def test_pending_names_checked_files():
    assert set(CHECKED) >= PENDING


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a table\nbeside\nanother", ["beside"]),
        ("besides, `beside`, ```beside```", []),
        ("items that are there", ["are there"]),
        ("How many items are there in a store?", []),
        ("as many threads as cores, as many as needed", []),
        ("finds as many neighbours", ["as many"]),
        ("a proxy in front of the front end", []),
        ("the front and its\nlift", ["the front", "lift"]),
        ("a vector of 384 numbers; line numbers", ["384 numbers"]),
        ("```python\nbeside()  # beside\n```", ["beside"]),
        ("[a](beside.md) [beside](a.md)", ["beside"]),
        ("`antipodal bench --methods Ceiling`: Ceiling is no ceiling", ["ceiling"]),
        ("look up, looking for, looked at", ["looked at"]),
        ("your own loss, an own method", ["own method"]),
        ("sorted by name; HNSW, by name", [", by name"]),
    ],
)
def test_ordinary_english_is_allowed(text, words):
    found = [match[0] for pattern in PATTERNS for match in pattern.finditer(markdown_prose(text))]
    assert sorted(found) == sorted(words)


def test_lines_are_located_and_code_and_tables_may_be_long(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    long = "word " * 30
    link = f"- [the text]({'x' * 100})."
    parts = ["# Title", long, f"| {long} |", "```text", long, "```", link, "x" * 120]
    parts += ["<!-- table: a -->", long, "<!-- end -->", "beside"]
    (tmp_path / "page.md").write_text("\n".join(parts))
    assert long_lines("page.md") == ["page.md:2: 150 characters, at most 100"]
    assert forbidden_terms("page.md") == [
        f"page.md:12: 'beside': write {'next to; compared with'!r}"
    ]


def test_strings_and_comments_of_examples_are_checked(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    source = '"""Two\nbeside."""\nbeside = f"{1} beside"  # beside\n'
    (tmp_path / "example.py").write_text(source)
    assert [line.split(":")[1] for line in forbidden_terms("example.py")] == ["2", "3", "3"]


if __name__ == "__main__":
    for checked in sys.argv[1:] or CHECKED:
        print(*findings(checked), sep="\n", end="\n" if findings(checked) else "")

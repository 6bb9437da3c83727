"""Documentation: links, navigation, names, interactive examples, and hooks of the site."""

import doctest
import importlib
import importlib.util
import json
import pkgutil
import re
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import markdown
import pytest
from mkdocs.exceptions import PluginError

import antipodal
from test_imports import ORDER

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md"]
PAGES += sorted(DOCS.rglob("*.md"))
NAV = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("\n\n")[0]

spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site_hooks.py")
hooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hooks)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_have_existing_targets(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_navigation_lists_every_page_once():
    listed = re.findall(r"[\w/-]+\.md", NAV)
    pages = [str(page.relative_to(DOCS)) for page in PAGES if DOCS in page.parents]
    assert sorted(listed) == sorted([*pages, *hooks.COPIED.values()])


def test_reference_has_every_public_name_once():
    text = "".join(page.read_text() for page in (DOCS / "reference" / "api").glob("*.md"))
    described = re.findall(r"^::: antipodal\.(\w+)$", text, re.MULTILINE)
    assert sorted(described) == sorted(antipodal.__all__)


def test_architecture_page_has_all_packages_and_the_import_order():
    page = (DOCS / "reference" / "architecture.md").read_text()
    blocks = re.findall(r"^```text\n(.*?)^```", page, re.M | re.S)
    package = Path(antipodal.__file__).parent
    packages = {p.stem for p in package.iterdir() if not p.name.startswith("_") and p.stem != "py"}
    assert {line.split()[0].rstrip("/") for line in blocks[1].splitlines()[1:]} == packages
    assert blocks[2].splitlines() == ORDER[::-1]


def test_functions_listed_for_equations_of_the_paper_exist():
    table = (
        (DOCS / "research" / "method.md").read_text().partition("| paper |")[2].partition("\n\n")[0]
    )
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    assert len(rows) >= 13
    for equation, _, code in rows:
        files = [ROOT / "src" / "antipodal" / name for name in re.findall(r"[\w/]+\.py\b", code)]
        sources = "".join(path.read_text() for path in files if path.exists())
        names = [name.split(".")[-1] for name in re.findall(r"`([\w.]+)`", code)]
        assert names or "tests/" in code, equation
        for name in names:
            assert re.search(rf"(def|class) {name}\b", sources), (equation, name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_in_pages_exist(page):
    pytest.importorskip("torch")
    for name in set(re.findall(r"\bantipodal(?:\.[A-Za-z_]\w*)+", page.read_text())):
        if not name.endswith((".npz", ".py")):
            module = ".".join(name.split(".")[:3])
            if module.startswith("antipodal.integrations.") and not _is_installed(module):
                continue
            assert pkgutil.resolve_name(name)


def _is_installed(integration):
    """Return whether the project of an integration is installed."""
    try:
        importlib.import_module(integration)
    except ModuleNotFoundError as error:
        if error.name.startswith("antipodal"):
            raise
        return False
    return True


FORMER_OPTIONS = re.compile(
    r"\bbelief_power\b|\bfront=|--max-(request|key)-pixels"
    r"|\b(DeepLinf|NNHash|SparseHash|OrthoHash|CSQ)\((?![^)]*training=)[^)]*"
    r"\b(n_epochs|batch_size|margin|similar_weight|n_unlabelled|centres|patience|device)="
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_use_the_options_of_this_version(page):
    assert not FORMER_OPTIONS.search(page.read_text())


WITH_EXAMPLES = [page for page in PAGES if ">>> " in page.read_text()]


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: str(page.relative_to(ROOT)))
def test_interactive_examples_print_the_shown_output(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(>>> .*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page.name, None, 0)
    assert doctest.DocTestRunner().run(test).failed == 0


def on_site(written, name):
    """Return the Markdown that MkDocs renders for a page with this name and text."""
    place = hooks.COPIED.get(name, name.removeprefix("docs/"))
    file = SimpleNamespace(abs_src_path=str(ROOT / name), src_uri=place)
    return hooks.on_page_markdown(
        written, SimpleNamespace(file=file), SimpleNamespace(docs_dir=DOCS), None
    )


@pytest.mark.parametrize(
    ("name", "written", "shown"),
    [
        ("README.md", "[a](docs/research/method.md#the-loss)", "[a](research/method.md#the-loss)"),
        ("README.md", "![a](docs/figures/page.png)", "![a](figures/page.png)"),
        ("README.md", "[the licence](LICENSE)", "`LICENSE`"),
        ("README.md", "[security](SECURITY.md)", "[security](guide/security.md)"),
        ("SECURITY.md", "[a](docs/guide/service.md)", "[a](service.md)"),
        (
            "docs/research/method.md",
            "[admm.py](../../src/antipodal/paper/admm.py)",
            "`src/antipodal/paper/admm.py`",
        ),
        (
            "docs/research/method.md",
            "[a](notation.md), [b](#below)",
            "[a](notation.md), [b](#below)",
        ),
        (
            "docs/research/method.md",
            "<https://a.b> [c](https://d.e/f)",
            "<https://a.b> [c](https://d.e/f)",
        ),
        ("docs/research/method.md", "`$HOME` costs $ 3", "`$HOME` costs $ 3"),
        ("docs/research/method.md", "```sh\necho $A $B\n```", "```sh\necho $A $B\n```"),
    ],
)
def test_links_are_rewritten_for_the_site_and_code_is_unchanged(name, written, shown):
    assert on_site(written, name) == shown


def test_formulas_are_rendered_as_mathml():
    written = "a code of $N$ bits\n\n$$\\frac{1}{2}$$"
    shown = on_site(written, "docs/research/method.md")
    assert "<mi>N</mi>" in shown
    assert "<mfrac>" in shown
    assert 'display="block"' in shown
    assert "$" not in shown


def test_a_line_may_start_with_a_formula():
    shown = markdown.markdown(on_site("codes of\n$N$ bits", "docs/research/method.md"))
    assert shown.count("<p>") == 1
    assert shown.endswith(" bits</p>")


def test_a_formula_may_continue_on_the_next_line():
    assert "$" not in on_site("The code is $x +\ny$, of one row.", "docs/research/method.md")
    assert on_site("5 $\n\na $ b", "docs/research/method.md") == "5 $\n\na $ b"


@pytest.mark.parametrize(
    "page", sorted((DOCS / "research").glob("*.md")), ids=lambda page: page.stem
)
def test_every_formula_of_a_page_is_rendered(page):
    shown = on_site(page.read_text(), str(page.relative_to(ROOT)))
    assert "$" not in hooks.CODE.sub("", shown)


def test_overlines_cover_their_formula():
    shown = on_site(r"$$\overline{a + b} + \overline{c}$$", "docs/research/method.md")
    assert shown.count('<mrow class="overline">') == 2
    assert "mover" not in shown
    assert ElementTree.fromstring(shown.strip()).tag.endswith("math")


def test_the_search_finds_american_spellings(tmp_path):
    (tmp_path / "search").mkdir()
    file = tmp_path / "search" / "search_index.json"
    texts = ["Normalised neighbours, otherwise precise", "Quantisation of colours", "rerank"]
    docs = [{"title": "Noise", "text": text} for text in texts]
    file.write_text(json.dumps({"docs": docs}))
    hooks.on_post_build(SimpleNamespace(site_dir=tmp_path))
    changed = [section["text"] for section in json.loads(file.read_text())["docs"]]
    added = [new.removeprefix(old).split() for new, old in zip(changed, texts, strict=True)]
    assert added == [["neighbors", "normalized"], ["colors", "quantization"], []]
    assert file.with_suffix(".js").read_text() == f"var __index = {file.read_text()}"


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/x.js"></script>',
        "<link rel=stylesheet href=//fonts.example/css>",
        '<img alt="" src="http://example/x.png">',
        "<style>@import 'https://example/x.css'</style>",
        "<style>a { background: url(https://example/x.png) }</style>",
    ],
)
def test_pages_with_external_resources_fail_the_build(tmp_path, text):
    site = SimpleNamespace(site_dir=tmp_path)
    (tmp_path / "index.html").write_text('<a href="https://example.org">external link</a>')
    hooks.on_post_build(site)
    (tmp_path / "page.html").write_text(text)
    with pytest.raises(PluginError, match=r"\bpage\.html\b"):
        hooks.on_post_build(site)

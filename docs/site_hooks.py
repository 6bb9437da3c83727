"""Hooks of the site.

README, SECURITY and CHANGELOG become pages, links that leave docs/ become paths, formulas become
MathML, options do not break at hyphens, the search finds American spellings, and no page may load
an external script, font or image.
On the code host the same links and formulas work as they are written.
"""

import json
import os.path
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
# Files of the project's root that are pages of the site.
COPIED = {
    "README.md": "index.md",
    "SECURITY.md": "guide/security.md",
    "CHANGELOG.md": "reference/changelog.md",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:)([^)#\s]*)(#[^)\s]*)?\)")
# Code is not translated: fenced blocks first, then inline code.
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
# An inline formula may continue on the next line of its paragraph.
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(?!\s)((?:[^$\n]|\n(?!\s*\n))+?)(?<!\s)\$", re.DOTALL)
# Resources that a browser loads without a click.
LOADED = re.compile(r"<(?:script|img|iframe)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^>]*>|"
                    r"<link\b[^>]*\bhref=[\"']?(?:https?:)?//[^>]*>|"
                    r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)\"';]*")  # fmt: skip

# British spellings of these pages and their American counterparts, for the search.
STEMS = (
    "character|equal|factor|final|general|initial|maxim|minim|normal|optim|organ|parallel|penal|"
    "quant|random|recogn|regular|serial|special|standard|synchron|token|util|vector|visual"
)
AMERICAN = [
    (re.compile(british), spelled)
    for british, spelled in {
        rf"\b((?:re|un|non)?(?:{STEMS}))is(?=e|ing|ation|able)": r"\1iz",
        r"(neighb|col|behavi|fav)our": r"\1or",
        r"\bcentre": "center",
        r"\bgrey": "gray",
        r"\blicence": "license",
        r"\b(label|model|cancel)l(?=ed|ing)": r"\1",
    }.items()
]
OVERLINE = re.compile(r'<mover>((?:(?!<mover>).)*)<mo accent="true">&#x02015;</mo></mover>')


def on_config(config: MkDocsConfig) -> None:
    """Show the version in the title of the site."""
    source = (ROOT / "src" / "antipodal" / "__init__.py").read_text()
    version = re.search(r'__version__ = "(.+)"', source)
    config.site_name = f"antipodal {version[1] if version else ''}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages whose files are outside docs/."""
    for source, page in COPIED.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Translate links and formulas."""
    parts = CODE.split(markdown)
    parts[::2] = [FORMULA.sub(formula, text) for text in parts[::2]]
    home = Path(page.file.abs_src_path or "").parent
    here = (Path(config.docs_dir) / page.file.src_uri).parent
    return LINK.sub(lambda found: link(found, home, here), "".join(parts))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mark options such as --host, which must not be broken after a hyphen."""
    return re.sub(r"<code>(-[^<\s]{1,30})</code>", r'<code class="option">\1</code>', html)


def formula(found: re.Match[str]) -> str:
    """Return a formula as MathML, which browsers render without a script."""
    math = convert((found[1] or found[2]).strip(), display="block" if found[1] else "inline")
    # Without a font for mathematics, browsers do not stretch the bar of an overline.
    math = OVERLINE.sub(r'<mrow class="overline">\1</mrow>', math)
    # At the start of a line, <math> would begin a block and end the paragraph; <span> does not.
    return math if found[1] else f"<span>{math}</span>"


def link(found: re.Match[str], home: Path, here: Path) -> str:
    """Return a link relative to its page; a target outside docs/ becomes inline code."""
    image, label, target, anchor = found.groups(default="")
    if not target:
        return found[0]
    path = Path(os.path.normpath(home / target))
    if page := COPIED.get(str(path.relative_to(ROOT))):
        path = ROOT / "docs" / page
    if ROOT / "docs" in path.parents:
        return f"{image}[{label}]({os.path.relpath(path, here)}{anchor})"
    return f"`{path.relative_to(ROOT)}`"


def american(text: str) -> list[str]:
    """Return the American spellings of the words of a text that are spelled otherwise in it."""
    words = set(re.findall(r"[a-z]+", text.lower()))
    spelled = set()
    for word in words:
        for british, replacement in AMERICAN:
            spelled.add(british.sub(replacement, word))
    return sorted(spelled - words)


def on_post_build(config: MkDocsConfig) -> None:
    """Add American spellings to the search; fail if a page loads an external resource."""
    folder = Path(config.site_dir)
    if (file := folder / "search" / "search_index.json").exists():
        index = json.loads(file.read_text())
        for section in index["docs"]:
            added = american(f"{section['title']} {section['text']}")
            section["text"] = " ".join([section["text"], *added])
        text = json.dumps(index, separators=(",", ":"))
        file.write_text(text)
        file.with_suffix(".js").write_text(f"var __index = {text}")  # opened from the disk
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".html", ".css") and (found := LOADED.search(path.read_text())):
            raise PluginError(f"{path} loads an external resource: {found[0]}")

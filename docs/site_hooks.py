"""Hooks of the site.

README, SECURITY and CHANGELOG become pages, links that leave docs/ become paths, formulas become
MathML, and no page may load an external script, font or image. On the code host the same links and
formulas work as they are written.
"""

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
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(?!\s)([^$\n]+?)(?<!\s)\$", re.DOTALL)
# Resources that a browser loads without a click.
LOADED = re.compile(r"<(?:script|img|iframe)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^>]*>|"
                    r"<link\b[^>]*\bhref=[\"']?(?:https?:)?//[^>]*>|"
                    r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)\"';]*")  # fmt: skip


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


def formula(found: re.Match[str]) -> str:
    """Return a formula as MathML, which browsers render without a script."""
    if found[1]:
        return convert(found[1].strip(), display="block")
    # At the start of a line, <math> would begin a block and end the paragraph; <span> does not.
    return f"<span>{convert(found[2])}</span>"


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


def on_post_build(config: MkDocsConfig) -> None:
    """Fail if a page or style sheet loads an external resource."""
    for path in sorted(Path(config.site_dir).rglob("*")):
        if path.suffix in (".html", ".css") and (found := LOADED.search(path.read_text())):
            raise PluginError(f"{path} loads an external resource: {found[0]}")

"""Self-contained HTML pages: layout, tables, colours."""

import platform
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape

import numpy as np

from antipodal import __version__

INK = "#222222"  # of methods that are not named here

# The first three are Paul Tol's "high contrast": told apart by colour-blind readers, and as three
# greys in print. Methods that are often shown together have colours far apart.
METHOD_COLOURS = {
    "DeepLinf": "#004488",
    "NNHash": "#BB5566",
    "SparseHash": "#DDAA33",
    "LinfHash": "#1B7A3D",
    "ITQ": "#7B3294",
    "SignHash": "#C4610A",
    "LSH": "#6B6B6B",
    "RaBitQ": "#D6246A",
    "TurboQuant": "#0A93B5",
    "PQ": "#7A5C00",
    "KSH": "#00707A",
    "SDH": "#A0522D",
    "PSH": "#B0489A",
    "LDAHash": "#3F6FCE",
    "BRE": "#5D4E8C",
    "AGH": "#6E8B3D",
    "SpectralHash": "#3D9970",
    "OrthoHash": "#4B6584",
    "CSQ": "#8C4A4A",
    "OneHotHash": "#8A8A1A",
    "ClassifierLSH": "#2F4F6F",
}


def base_method(method: str) -> str:
    """Return the name of a method without its settings.

    Examples
    --------
    >>> [base_method(m) for m in ("SignHash:rotate=false", "LinfHash.quick", "PQ", "ITQ (yours)")]
    ['SignHash', 'LinfHash', 'PQ', 'ITQ']
    """
    return re.split(r"[:., ]", method, maxsplit=1)[0]


def method_colour(method: str) -> str:
    """Return the colour of a method, whatever its settings."""
    return METHOD_COLOURS.get(base_method(method), INK)


def method_class(method: str) -> str:
    """Return the class that gives a mark in a report the colour of its method."""
    base = base_method(method)
    return f"m-{base}" if base in METHOD_COLOURS else "m-other"


# What may stand in src: a small picture within the file, as the page of the service shows it.
_PICTURE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}")
_MOST_TEXT = 160  # letters of a title
_STYLE = """
:root { --ink: #1c2126; --soft: #566069; --paper: #fff; --line: #d5dade; --fill: #8ba6c1;
  --panel: #f5f7f9; --c0: #004488; --c1: #b3203c; --c2: #8a6400;
  font: 15px/1.5 system-ui, sans-serif; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ebee; --soft: #a5b0ba; --paper: #14181c;
  --line: #3a434c; --fill: #4d6f92; --panel: #1c2228; --c0: #8cbcf2; --c1: #ff8296;
  --c2: #e5b94e; } }
body { max-width: 70rem; margin: 0 auto; padding: 1rem; color: var(--ink);
  background: var(--paper); }
h1 { font-size: 1.6rem; margin: .5rem 0; line-height: 1.25; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .3rem; padding-top: .8rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1rem 0 .3rem; }
p, .soft { color: var(--soft); margin: .3rem 0; max-width: 46rem; overflow-wrap: anywhere; }
.lead { color: var(--ink); font-size: 1.05rem; }
.figures { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1rem 0; padding: 0; }
.figures div { background: var(--panel); border-radius: .5rem; padding: .6rem 1rem;
  min-width: 8rem; flex: 1 1 8rem; }
.figures b { display: block; font-size: 1.5rem; line-height: 1.3;
  font-variant-numeric: tabular-nums; }
.figures span { color: var(--soft); font-size: .85rem; }
details { margin: .5rem 0; } summary { cursor: pointer; color: var(--c0); }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr));
  gap: 1rem 2rem; }
.examples { grid-template-columns: repeat(auto-fit, minmax(min(31rem, 100%), 1fr)); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem .25rem 0; text-align: right; border-bottom: 1px solid var(--line); }
th { font-weight: 600; white-space: nowrap; } td { white-space: nowrap; }
td:first-child { white-space: normal; }
.about td { white-space: normal; overflow-wrap: anywhere; text-align: left; }
.about td:first-child { min-width: 7rem; overflow-wrap: normal; color: var(--soft); }
th:first-child, td:first-child, .examples th:last-child { text-align: left; }
caption { text-align: left; color: var(--soft); padding: .3rem 0; }
svg { display: block; } .chart { width: 100%; max-width: 34rem; height: auto; }
text { fill: var(--soft); font-size: 12px; }
.grid { stroke: var(--line); } .axis { stroke: var(--soft); fill: none; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.c0 { --own: var(--c0); } .c1 { --own: var(--c1); } .c2 { --own: var(--c2); }
.line { stroke: var(--own); } .dot { fill: var(--own); }
.line.c1, .line.dashed { stroke-dasharray: 7 3; }
.line.c2, .line.dotted { stroke-dasharray: 2 3; }
.line.mixed { stroke-dasharray: 9 3 2 3; } .line.long { stroke-dasharray: 16 4; }
.key { white-space: nowrap; color: var(--ink); margin-right: .6rem; }
.key::before { content: "— "; color: var(--own); font-weight: 700; }
.key.c1::before, .key.dashed::before { content: "- - "; }
.key.c2::before, .key.dotted::before { content: "··· "; }
.key.mixed::before { content: "–· "; } .key.long::before { content: "—— "; }
.bar { fill: var(--fill); } .level { stroke: var(--c1); stroke-dasharray: 4 3; }
.value { stroke: var(--ink); stroke-width: 2; } .range { width: 14rem; height: 1rem; }
.strip { background: #fff; border: 1px solid var(--soft); shape-rendering: crispEdges;
  min-width: 8rem; } .one { fill: #000; } .off { fill: #c40f36; }
.hit, .best { color: var(--c0); font-weight: 600; }
.heat { max-width: 100%; height: auto; } .heat .grid { fill: none; }
.right { fill: var(--c0); } .wrong { fill: var(--c1); }
.share { font-size: 11px; fill: var(--ink); } .share.light { fill: var(--paper); }
.thing { display: flex; gap: .6rem; align-items: center; text-align: left; max-width: 20rem;
  min-width: 7rem; white-space: normal; line-height: 1.3; overflow-wrap: anywhere; }
.examples .thing { min-width: 8.5rem; max-width: 11rem; margin-top: .2rem; font-size: .9rem; }
.examples td { vertical-align: middle; } caption .thing { max-width: none; }
.neighbours td { width: 50%; text-align: left; vertical-align: top; }
.neighbours th { text-align: left; } .neighbours table { width: 100%; }
.neighbours .thing { display: inline-flex; max-width: 100%; }
.thing img { width: 48px; height: 48px; object-fit: contain; image-rendering: auto;
  background: #fff; border: 1px solid var(--line); border-radius: .25rem; flex: none; }
caption .thing { color: var(--ink); padding: .2rem 0; }
"""
_STYLE += "@media (max-width: 40rem) { .chart text { font-size: 16px; } .range { width: 7rem; } }\n"
# A colour a method; on dark paper a lighter shade of it.
_STYLE += "".join(f".m-{name} {{ --base: {c}; }}\n" for name, c in METHOD_COLOURS.items())
_STYLE += f""".m-other {{ --base: {INK}; }}
[class*="m-"] {{ --own: var(--base); }}
@media (prefers-color-scheme: dark) {{
  [class*="m-"] {{ --own: color-mix(in srgb, var(--base) 45%, white); }} }}
"""


def html_page(title: str, sections: Sequence[str]) -> str:
    """Return a whole page with these sections, which are HTML already."""
    body = "\n".join(sections)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>"
        f"<h1>{escape(title)}</h1>\n{body}\n"
        f"<p>Written by antipodal {__version__}.</p></body></html>\n"
    )


def text(value: object) -> str:
    """Make any text safe inside HTML; characters that cannot be printed are replaced."""
    return escape("".join(c if c.isprintable() else "\ufffd" for c in str(value)))


def thing(fields: Mapping[str, object] | None, name: str, *, is_hit: bool = False) -> str:
    """Show an item by what its metadata say of it: a picture and a title, as the page knows them.

    A hit is marked. A `thumbnail` that is not a picture within the text itself is not shown:
    nothing is loaded.
    """
    known = fields or {}
    title = str(known.get("title") or known.get("text") or known.get("label") or name)
    shown = text(title if len(title) <= _MOST_TEXT else f"{title[: _MOST_TEXT - 1]}…")
    if is_hit:
        shown = f'<span class="hit">✓</span> {shown}'
    picture = known.get("thumbnail")
    if isinstance(picture, str) and _PICTURE.fullmatch(picture):
        return f'<span class="thing"><img alt="" src="{picture}"/><span>{shown}</span></span>'
    return f'<span class="thing"><span>{shown}</span></span>'


def key_figures(figures: Mapping[str, str]) -> str:
    """Show a few numbers large, each with what it is."""
    cells = "".join(
        f"<div><b>{text(value)}</b><span>{text(name)}</span></div>"
        for name, value in figures.items()
    )
    return f'<div class="figures">{cells}</div>'


def origin(**versions: str) -> list[tuple[str, str]]:
    """Say when a report is made, and by which versions of what."""
    used = {"antipodal": __version__, **versions, "NumPy": np.__version__}
    said = ", ".join(f"{name} {version}" for name, version in used.items())
    return [
        ("made", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"),
        ("versions", f"{said}, Python {platform.python_version()}"),
    ]


def about_table(facts: Sequence[tuple[str, str]]) -> str:
    """Make a table of what was measured, how and by what, from any text."""
    rows = "".join(f"<tr><td>{text(name)}</td><td>{text(fact)}</td></tr>\n" for name, fact in facts)
    return f'<table class="about"><tbody>{rows}</tbody></table>'


def html_table(headings: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """Make a table of cells that are HTML already."""
    head = "".join(f"<th>{heading}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n" for row in rows)
    title = f"<caption>{caption}</caption>" if caption else ""
    return (
        f'<div class="wide"><table>{title}<thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )

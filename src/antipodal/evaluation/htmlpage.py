"""One HTML file that holds everything it shows: no network, no script, no library."""

from collections.abc import Sequence
from html import escape

from antipodal import __version__

_STYLE = """
:root { --ink: #1c2126; --soft: #566069; --paper: #fff; --line: #d5dade; --fill: #8ba6c1;
  --c0: #004488; --c1: #b3203c; --c2: #8a6400; --c3: #1b7a3d; --c4: #7b3294;
  --c5: #b35806; --c6: #00707a; --c7: #5c5c5c; font: 15px/1.5 system-ui, sans-serif; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ebee; --soft: #a5b0ba; --paper: #14181c;
  --line: #3a434c; --fill: #4d6f92; --c0: #8cbcf2; --c1: #ff8296; --c2: #e5b94e;
  --c3: #7fd49a; --c4: #d3a4e8; --c5: #f0a860; --c6: #6fd0da; --c7: #b8b8b8; } }
body { max-width: 70rem; margin: 0 auto; padding: 1rem; color: var(--ink);
  background: var(--paper); }
h1 { font-size: 1.5rem; margin: .5rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .3rem; }
p, .soft { color: var(--soft); margin: .3rem 0; max-width: 46rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr));
  gap: 1rem 2rem; }
.examples { grid-template-columns: repeat(auto-fit, minmax(min(31rem, 100%), 1fr)); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem .25rem 0; text-align: right; border-bottom: 1px solid var(--line); }
th { font-weight: 600; } td { white-space: nowrap; } td:first-child { white-space: normal; }
.about td { white-space: normal; overflow-wrap: anywhere; text-align: left; }
th:first-child, td:first-child, .examples th:last-child { text-align: left; }
caption { text-align: left; color: var(--soft); padding: .3rem 0; }
svg { display: block; } .chart { width: 100%; max-width: 34rem; height: auto; }
text { fill: var(--soft); font-size: 12px; }
.grid { stroke: var(--line); } .axis { stroke: var(--soft); fill: none; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.c0 { --own: var(--c0); } .c1 { --own: var(--c1); } .c2 { --own: var(--c2); }
.c3 { --own: var(--c3); }
.c4 { --own: var(--c4); } .c5 { --own: var(--c5); } .c6 { --own: var(--c6); }
.c7 { --own: var(--c7); }
.line { stroke: var(--own); } .key { color: var(--own); } .dot { fill: var(--own); }
.line.c1, .line.dashed { stroke-dasharray: 7 3; } .line.c2 { stroke-dasharray: 2 3; }
.key { white-space: nowrap; } .key::before { content: "— "; }
.key.c1::before, .key.dashed::before { content: "- - "; } .key.c2::before { content: "··· "; }
.bar { fill: var(--fill); } .level { stroke: var(--c1); stroke-dasharray: 4 3; }
.value { stroke: var(--ink); stroke-width: 2; } .range { width: 14rem; height: 1rem; }
.strip { background: #fff; border: 1px solid var(--soft); shape-rendering: crispEdges;
  min-width: 8rem; } .one { fill: #000; } .off { fill: #c40f36; }
.hit { color: var(--c0); font-weight: 600; }
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

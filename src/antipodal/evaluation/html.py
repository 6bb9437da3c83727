"""HTML reports from Jinja2 templates, and the colours of methods in reports and figures."""

import os
import platform
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from antipodal import __version__
from antipodal.io.atomic import replacing

INK = "#222222"  # methods without an assigned colour

# The first three are Paul Tol's "high contrast" scheme, which works for colour-blind readers and in
# greyscale. Methods that are often shown together have clearly different colours.
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


# For further settings of a method in the same chart.
VARIANT_COLOURS = ("#00A08A", "#3355DD", "#8B6F00", "#E0559B", "#B02418", "#557A2B")


def base_method(method: str) -> str:
    """Return the name of a method without its settings.

    Examples
    --------
    >>> [base_method(m) for m in ("SignHash:rotate=false", "LinfHash.quick", "PQ", "ITQ (yours)")]
    ['SignHash', 'LinfHash', 'PQ', 'ITQ']
    """
    return re.split(r"[:., ]", method, maxsplit=1)[0]


def method_colour(method: str) -> str:
    """Return the colour of a method, independent of its settings."""
    return METHOD_COLOURS.get(base_method(method), INK)


def method_class(method: str) -> str:
    """Return the CSS class that sets the colour of a method."""
    base = base_method(method)
    return f"m-{base}" if base in METHOD_COLOURS else "m-other"


def _printable(value: object) -> object:
    """Replace the characters of a text that cannot be printed; markup is returned unchanged."""
    if hasattr(value, "__html__"):
        return value
    return "".join(c if c.isprintable() else "\ufffd" for c in str(value))


TEMPLATES = Environment(
    loader=PackageLoader("antipodal.evaluation"),
    autoescape=True,
    finalize=_printable,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def write_page(path: str | os.PathLike[str], template: str, *, title: str, **context: Any) -> None:
    """Render a template of this package and write it as one HTML file, completely or not at all."""
    page = TEMPLATES.get_template(f"{template}.html.j2").render(
        title=title,
        version=__version__,
        method_colours=METHOD_COLOURS,
        other_colour=INK,
        variant_colours=VARIANT_COLOURS,
        **context,
    )
    with replacing(path) as file:
        file.write(page.encode())


def provenance(**versions: str) -> list[tuple[str, str]]:
    """Return the date of a report and the versions of the software, as rows of a table."""
    used = {"antipodal": __version__, **versions, "NumPy": np.__version__}
    listed = ", ".join(f"{name} {version}" for name, version in used.items())
    return [
        ("created", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"),
        ("versions", f"{listed}, Python {platform.python_version()}"),
    ]


# Only images embedded in the text are shown, so that a report loads nothing.
_EMBEDDED_IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}")
_MAX_TITLE = 160


class ShownItem(NamedTuple):
    """The title of an item and its thumbnail, if it has one."""

    title: str
    thumbnail: str | None = None


def shown_item(fields: Mapping[str, object] | None, name: str = "") -> ShownItem:
    """Return the title and thumbnail of an item from its metadata; without a title, its name."""
    known = fields or {}
    title = str(known.get("title") or known.get("text") or known.get("label") or name)
    image = known.get("thumbnail")
    embedded = isinstance(image, str) and _EMBEDDED_IMAGE.fullmatch(image)
    return ShownItem(
        title if len(title) <= _MAX_TITLE else f"{title[: _MAX_TITLE - 1]}…",
        str(image) if embedded else None,
    )

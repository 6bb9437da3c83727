"""How figures look and how they are written: one font, one palette, the same bytes every time."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from antipodal.errors import AntipodalError, missing_extra
from antipodal.evaluation.colours import INK, METHOD_COLOURS, base_method, method_colour
from antipodal.storage.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.typing import RcKeyType

# Inches: a column and a page of text, as most proceedings have them.
COLUMN, PAGE = 3.4, 7.0

BLUE = METHOD_COLOURS["DeepLinf"]
FAINT = "#BBBBBB"

_SETTINGS: "dict[RcKeyType, Any]" = {
    "font.family": "DejaVu Sans",  # Matplotlib brings it along, so it is there everywhere
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.title_fontsize": 7,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "lines.markeredgecolor": "white",
    "lines.markeredgewidth": 0.4,
    "svg.fonttype": "path",  # letters look the same where the font is missing
    "svg.hashsalt": "antipodal",  # names inside the file are random otherwise
}


class Look(NamedTuple):
    """What tells a method's marks from those of others."""

    colour: str
    marker: str
    line: str


# The three networks that differ in their encoder alone.
NETWORKS = {
    name: Look(METHOD_COLOURS[name], marker, "-")
    for name, marker in (("DeepLinf", "o"), ("NNHash", "s"), ("SparseHash", "^"))
}
LINES = ("-", "--", ":", "-.")


def network_of(method: str) -> str | None:
    """Return which of the three networks a method is, whatever its settings."""
    name = base_method(method)
    return name if name in NETWORKS else None


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """Give each method its own colour, and settings of one method other lines."""
    found: dict[str, Look] = {}
    seen: Counter[str] = Counter()
    for method in methods:
        base = base_method(method)
        look = NETWORKS.get(base) or Look(method_colour(method), "D", "-")
        found[method] = look._replace(line=LINES[seen[base] % len(LINES)])
        seen[base] += 1
    return found


def require_matplotlib() -> None:
    """Say what to install if Matplotlib is missing: call it before long work."""
    try:
        import_module("matplotlib.figure")
    except ImportError as error:
        raise AntipodalError(
            missing_extra("a figure", "Matplotlib", "plots")
            if isinstance(error, ModuleNotFoundError) and str(error.name).startswith("matplotlib")
            else f"figures need Matplotlib, which is installed but does not load: {error}"
        ) from error


@contextmanager
def house_style() -> Iterator[None]:
    """Draw with our settings alone, whatever the user's are; afterwards hers hold again."""
    require_matplotlib()
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        yield


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure, in inches, that no window or global list knows of."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: "Figure", directory: str | os.PathLike[str], name: str) -> list[Path]:
    """Write NAME.svg and NAME.png (200 dpi), whole or not at all; return their paths.

    The same figure gives the same bytes: no date is written.
    """
    options: dict[str, dict[str, Any]] = {"svg": {"metadata": {"Date": None}}, "png": {"dpi": 200}}
    paths = []
    for suffix, how in options.items():
        path = Path(directory) / f"{name}.{suffix}"
        with house_style(), replacing(path) as file:
            figure.savefig(file, format=suffix, **how)
        paths.append(path)
    return paths

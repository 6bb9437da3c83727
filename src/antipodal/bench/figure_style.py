"""Style of Matplotlib figures: sizes, fonts, colours, and writing files."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from antipodal.errors import AntipodalError, missing_extra
from antipodal.evaluation.html import INK, METHOD_COLOURS, base_method, method_colour
from antipodal.io.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.typing import RcKeyType

# Width of a column and of a page of most proceedings, in inches.
COLUMN, PAGE = 3.4, 7.0

BLUE = METHOD_COLOURS["DeepLinf"]
FAINT = "#BBBBBB"

_SETTINGS: "dict[RcKeyType, Any]" = {
    "font.family": "DejaVu Sans",  # part of Matplotlib, hence always installed
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
    "svg.fonttype": "path",  # text looks the same without the font
    "svg.hashsalt": "antipodal",  # otherwise ids in the file are random
}


class Look(NamedTuple):
    """Colour, marker and line style of a method."""

    colour: str
    marker: str
    line: str


# The three networks that differ only in their encoder.
NETWORKS = {
    name: Look(METHOD_COLOURS[name], marker, "-")
    for name, marker in (("DeepLinf", "o"), ("NNHash", "s"), ("SparseHash", "^"))
}
LINES = ("-", "--", ":", "-.")


def network_of(method: str) -> str | None:
    """Return the network of a method without its settings, or None for other methods."""
    name = base_method(method)
    return name if name in NETWORKS else None


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """Return the look of each method: its colour, and different lines for its variants."""
    result: dict[str, Look] = {}
    variants: Counter[str] = Counter()
    for method in methods:
        base = base_method(method)
        look = NETWORKS.get(base) or Look(method_colour(method), "D", "-")
        result[method] = look._replace(line=LINES[variants[base] % len(LINES)])
        variants[base] += 1
    return result


def require_matplotlib() -> None:
    """Raise an error with installation instructions if Matplotlib is missing."""
    try:
        import_module("matplotlib.figure")
    except ImportError as error:
        raise AntipodalError(
            missing_extra("a figure", "Matplotlib", "plots")
            if isinstance(error, ModuleNotFoundError) and str(error.name).startswith("matplotlib")
            else f"figures need Matplotlib, which is installed but cannot be imported: {error}"
        ) from error


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply the settings of this module, independent of the user's, and restore them afterwards."""
    require_matplotlib()
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        yield


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of a size in inches, not registered with pyplot."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: "Figure", directory: str | os.PathLike[str], name: str) -> list[Path]:
    """Write NAME.svg and NAME.png (200 dpi), completely or not at all; return their paths.

    The same figure produces the same bytes, since no date is written.
    """
    options: dict[str, dict[str, Any]] = {"svg": {"metadata": {"Date": None}}, "png": {"dpi": 200}}
    paths = []
    for suffix, arguments in options.items():
        path = Path(directory) / f"{name}.{suffix}"
        with figure_style(), replacing(path) as file:
            figure.savefig(file, format=suffix, **arguments)
        paths.append(path)
    return paths

"""Matplotlib figures of the paper."""

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
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from statistics import mean, stdev
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipodal.bench.records import Record
from antipodal.codes import pack
from antipodal.evaluation.metrics import bit_health
from antipodal.paper.neurons import BLU, HELU, SHeLU

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


FloatArray = NDArray[np.floating[Any]]

_TRADED = {"map": "mAP", "precision_r2": "precision, radius ≤ 2"}
_BINS = 20  # of the histograms: the last is what lies within 5 % of the bound


class Values(NamedTuple):
    """Rows of real values before the sign, Z (m, N), and the bound of each column (N,)."""

    Z: FloatArray
    bound: FloatArray

    @property
    def scaled(self) -> FloatArray:
        """Z/bound, in [-1, 1] whatever the rounding."""
        return np.clip(self.Z / self.bound, -1, 1)

    @property
    def quantisation_error(self) -> float:
        """As `bit_health` measures it over these rows, in percent."""
        health = bit_health(pack(self.Z > 0), self.Z.shape[1], self.Z)
        return cast(float, health.quantisation_error)  # it is there, as the projections are


@house_style()
def neurons() -> "Figure":
    """Draw tanh, ReLU, SHeLU, HELU and BLU with threshold 1. [Wang2016, Fig. 3]"""
    units: dict[str, Callable[[Tensor], Tensor]] = {
        "tanh": torch.tanh,
        "ReLU": torch.relu,
        "SHeLU": SHeLU(1),
        "HELU": HELU(1),
        "BLU": BLU(1),
    }
    u = torch.linspace(-3, 3, 1201, dtype=torch.float64)[:, None]
    figure = new_figure(PAGE, 1.75)
    panels: Sequence[Axes] = figure.subplots(1, len(units), sharex=True, sharey=True)
    for axes, (name, unit) in zip(panels, units.items(), strict=True):
        with torch.no_grad():
            f = unit(u)
        axes.axhline(0, color=FAINT, linewidth=0.6, zorder=0)
        axes.axvline(0, color=FAINT, linewidth=0.6, zorder=0)
        ours = name == "BLU"
        axes.plot(*_broken_at_jumps(u[:, 0].numpy(), f[:, 0].numpy()), color=BLUE if ours else INK)
        axes.set_title(name, fontweight="bold" if ours else "normal")
        axes.set(aspect="equal", xlim=(-3, 3), ylim=(-3, 3))
        axes.set(xticks=[-3, -1, 0, 1, 3], yticks=[-3, -1, 0, 1, 3], xlabel="input $u$")
    panels[0].set_ylabel("output $f(u)$")
    return figure


@house_style()
def initialisation(
    curves: Mapping[str, Sequence[FloatArray]], *, n_bits: int, dataset: str
) -> "Figure":
    """Draw the training loss by epoch, for each start: a thin line per seed, a thick their mean.

    Parameters
    ----------
    curves : mapping
        By start, the `loss_curve_` of each seed.
    n_bits : int
        The length of the codes, to be named.
    dataset : str
        The name of the data.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    figure = new_figure(COLUMN, 2.5)
    axes = figure.subplots()
    marks = ((BLUE, "o", "-"), (INK, "s", "--"))  # one method, started in two ways
    for (start, losses), (colour, marker, line) in zip(curves.items(), marks, strict=True):
        epochs = np.arange(1, len(losses[0]) + 1)
        for loss in losses if len(losses) > 1 else ():
            axes.plot(epochs, loss, line, color=colour, linewidth=0.5, alpha=0.6)
        average = np.mean(losses, axis=0)
        axes.plot(epochs, average, line, color=colour, marker=marker, label=start)
    axes.set(xlabel="epoch", ylabel="training loss (mean over the epoch)", yscale="log")
    axes.locator_params(axis="x", integer=True)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend(title=f"{dataset}, {n_bits} bits, starting from", alignment="left")
    return figure


@house_style()
def radius_lookup(records: Sequence[Record]) -> "Figure":
    """Draw precision and recall within Hamming radius 2 by code length. [Wang2016, Fig. 6]

    Of a run's records those of the three networks are shown: means over seeds, with standard
    deviations where there are several. There must be two lengths or more.
    """
    shown = [record for record in records if network_of(record["method"])]
    lengths = sorted({record["bits"] for record in shown})
    if len(lengths) < 2:
        raise ValueError(
            "it needs records of two code lengths or more, by "
            f"{', '.join(NETWORKS)}: got {len(lengths)}"
        )
    n_seeds = len({record["seed"] for record in shown})
    figure = new_figure(PAGE * 0.8, 2.5)
    panels: Sequence[Axes] = figure.subplots(1, 2)
    for axes, name in zip(panels, ("precision", "recall"), strict=True):
        for method, look in looks(dict.fromkeys(record["method"] for record in shown)).items():
            scores = {bits: _scores(shown, method, bits, f"{name}_r2") for bits in lengths}
            scores = {bits: found for bits, found in scores.items() if found}
            deviations = [stdev(found) if len(found) > 1 else 0 for found in scores.values()]
            axes.errorbar(
                list(scores), [mean(found) for found in scores.values()],
                deviations if n_seeds > 1 else None, label=method, color=look.colour,
                marker=look.marker, linestyle=look.line, capsize=2, elinewidth=0.8,
            )  # fmt: skip
        axes.set(xlabel="code length (bits)", ylabel=f"{name}, radius ≤ 2 (%)", xticks=lengths)
        axes.set_ylim(0, 1.04 * axes.get_ylim()[1])
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3,
        title=_datasets(shown)
        + (f", mean ± standard deviation over {n_seeds} seeds" if n_seeds > 1 else ""),
    )  # fmt: skip
    return figure


@house_style()
def trade_off(records: Sequence[Record]) -> "Figure":
    """Draw what recall within Hamming radius 2 costs in mAP, and what precision comes with it.

    One curve a code length, of the records of ``DeepLinf:similar_weight=W``; each point is the mean
    over seeds for one W, written beside it. There must be two or more. All are of one method, so
    they have its colour.
    """
    from matplotlib.patheffects import withStroke

    prefix = "DeepLinf:similar_weight="
    shown = [record for record in records if record["method"].startswith(prefix)]
    weights = sorted({record["method"].removeprefix(prefix) for record in shown}, key=float)
    if len(weights) < 2:
        raise ValueError(
            f"it needs records of two weights or more, as {prefix}0.5: got {len(weights)}"
        )
    figure = new_figure(PAGE * 0.8, 2.6)
    panels: Sequence[Axes] = figure.subplots(1, 2)
    lengths = sorted({record["bits"] for record in shown})
    for axes, (key, name) in zip(panels, _TRADED.items(), strict=True):
        for bits, line, marker in zip(lengths, cycle(LINES), cycle("os^D")):
            points = [
                (mean(_scores(shown, prefix + w, bits, "recall_r2")),
                 mean(_scores(shown, prefix + w, bits, key)), w)
                for w in weights if _scores(shown, prefix + w, bits, key)
            ]  # fmt: skip
            x, y, names = zip(*points, strict=True)
            axes.plot(x, y, line, color=BLUE, marker=marker, label=f"{bits} bits")
            for at, value, w in zip(x, y, names, strict=True):
                axes.annotate(
                    w, (at, value), xytext=(3, 4), textcoords="offset points", fontsize=6,
                    color=INK, path_effects=[withStroke(linewidth=2, foreground="white")],
                )  # fmt: skip
        axes.set(xlabel="recall, radius ≤ 2 (%)", ylabel=f"{name} (%)")
        axes.margins(0.12)
    n_seeds = len({record["seed"] for record in shown})
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=4,
        title=f"{_datasets(shown)}, DeepLinf, mean over {n_seeds} seed{'s' * (n_seeds > 1)}; "
        "beside each point its similar_weight",
    )  # fmt: skip
    return figure


@house_style()
def one_image(
    values: Mapping[str, Values], image: NDArray[np.uint8] | None = None, *, dataset: str
) -> "Figure":
    """Draw one item's representation and code, a method below the other. [Wang2016, Fig. 5]

    Parameters
    ----------
    values : mapping
        By method, one row of values before the sign.
    image : uint8 (h, w) or (h, w, 3), optional
        The picture that they describe.
    dataset : str
        The name of the data.
    """
    _check_any(values)
    figure = new_figure(PAGE, 0.6 + 1.15 * len(values))
    figure.suptitle(f"{dataset}, a query, {_n_bits(values)} bits", fontsize=8)
    panels = figure.add_gridspec(
        2 * len(values), 1 if image is None else 2, height_ratios=[5, 1] * len(values),
        width_ratios=None if image is None else [1, 6],
    )  # fmt: skip
    if image is not None:
        picture = figure.add_subplot(panels[:2, 0])
        picture.imshow(image, cmap="gray", interpolation="none")
        picture.set_axis_off()
        picture.set_title("query")
    for place, (method, look) in enumerate(looks(values).items()):
        item = values[method]
        bits = np.arange(1, item.Z.shape[1] + 1)
        bars = figure.add_subplot(panels[2 * place, -1])
        bars.axhline(0, color=INK, linewidth=0.6)
        bars.bar(bits, item.scaled[0], color=look.colour, width=0.7)
        bars.set(ylim=(-1.08, 1.08), yticks=[-1, 0, 1], ylabel="$z$ / bound")
        bars.spines.bottom.set_visible(False)
        bars.set_title(method, loc="left")
        bars.set_title(f"quantisation error {item.quantisation_error:.0f} %", loc="right")
        strip = figure.add_subplot(panels[2 * place + 1, -1], sharex=bars)
        shades = np.where(item.Z[0] > 0, "black", "white").tolist()
        strip.bar(bits, 1, color=shades, width=1, edgecolor=FAINT, linewidth=0.5, clip_on=False)
        strip.set(xlim=(0.5, len(bits) + 0.5), ylim=(0, 1), yticks=[])
        strip.set_ylabel("code", rotation=0, ha="right", va="center")
        strip.spines[:].set_visible(False)
        last = place == len(values) - 1
        bars.tick_params(bottom=False, labelbottom=False)
        strip.tick_params(bottom=False, labelbottom=last)
        if last:
            strip.set_xlabel("bit (black is 1, white is 0)")
    return figure


@house_style()
def antipodality(values: Mapping[str, Values], *, dataset: str) -> "Figure":
    """Draw how near the values before the sign come to their bounds: |z|/bound, all rows and bits.

    An antipodal code has all of them at 1.
    """
    _check_any(values)
    n_columns = min(3, len(values))
    n_rows = -(-len(values) // n_columns)
    figure = new_figure(PAGE, 0.2 + 2.0 * n_rows)
    n_items = len(next(iter(values.values())).Z)
    title = f"{dataset}, {n_items:,} rows of the database, {_n_bits(values)} bits"
    figure.suptitle(title, fontsize=8)
    edges = np.linspace(0, 1, _BINS + 1)
    axes = None
    for place, (method, look) in enumerate(looks(values).items(), start=1):
        counts, _ = np.histogram(np.abs(values[method].scaled), edges)
        share = 100 * counts / counts.sum()
        axes = figure.add_subplot(n_rows, n_columns, place, sharey=axes)
        axes.stairs(share, edges, fill=True, color=look.colour)
        axes.text(
            0.5, 0.9, f"{share[-1]:.0f} % ≥ {edges[-2]:g}", ha="center", transform=axes.transAxes
        )
        axes.set_title(method)
        axes.set(xlim=(0, 1), xlabel="|$z$| / bound")
        if place % n_columns == 1 % n_columns:
            axes.set_ylabel("share of values (%)")
        else:
            axes.tick_params(labelleft=False)
    return figure


def _check_any(values: Mapping[str, Values]) -> None:
    if not values:
        raise ValueError("there is no network whose values could be drawn")


def _n_bits(values: Mapping[str, Values]) -> int:
    return int(next(iter(values.values())).Z.shape[1])


def _datasets(records: Sequence[Record]) -> str:
    return ", ".join(dict.fromkeys(record["dataset"] for record in records))


def _broken_at_jumps(u: FloatArray, f: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Put NaN where f jumps, so that a line through the points does not pretend to be a slope."""
    jumps = 1 + np.flatnonzero(np.abs(np.diff(f)) > 0.5)
    return np.insert(u, jumps, np.nan), np.insert(f, jumps, np.nan)


def _scores(records: Sequence[Record], method: str, bits: int, key: str) -> list[float]:
    return [r[key] for r in records if (r["method"], r["bits"]) == (method, bits)]

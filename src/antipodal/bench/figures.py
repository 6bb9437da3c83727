"""Figures of the paper and of benchmark runs.

Each figure is a function that takes numbers and returns a Matplotlib `Figure`. `draw_figures` fits
the models that they need and writes them all.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import cycle
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from antipodal.bench.diagrams import iteration, siamese, unfolded
from antipodal.bench.figure_style import (
    BLUE,
    COLUMN,
    FAINT,
    LINES,
    NETWORKS,
    PAGE,
    figure_style,
    looks,
    network_of,
    new_figure,
    require_matplotlib,
    save_figure,
)
from antipodal.bench.records import Record
from antipodal.bench.runner import Benchmark
from antipodal.codes import pack
from antipodal.evaluation.html import INK
from antipodal.evaluation.metrics import bit_health
from antipodal.hashers.base import BaseHasher
from antipodal.hashers.deeplinf import DeepLinf
from antipodal.hashers.network import NetworkHasher
from antipodal.hashers.registry import make_hasher
from antipodal.io.atomic import make_folder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FloatArray = NDArray[np.floating[Any]]
Log = Callable[[str], None]

DEFAULT_METHODS = tuple(NETWORKS)  # of the figures of representations
MAX_ROWS = 10_000  # of the database in a histogram
_STARTS = {"ksvd": "K-SVD and ADMM", "random": "random weights"}

_TRADED = {"map": "mAP", "precision_r2": "precision, radius ≤ 2"}
_BINS = 20  # bins of the histograms; the last one covers 5 % below the bound


class Values(NamedTuple):
    """Values before the sign, Z (m, N), and the bound of each column (N,)."""

    Z: FloatArray
    bound: FloatArray

    @property
    def scaled(self) -> FloatArray:
        """Z/bound, clipped to [-1, 1] against rounding."""
        return np.clip(self.Z / self.bound, -1, 1)

    @property
    def quantisation_error(self) -> float:
        """Quantisation error of these rows in percent, as `bit_health` defines it."""
        health = bit_health(pack(self.Z > 0), self.Z.shape[1], self.Z)
        return cast(float, health.quantisation_error)  # not None, since projections are given


@figure_style()
def neurons() -> "Figure":
    """Draw tanh, ReLU, SHeLU, HELU and BLU with threshold 1. [Wang2016, Fig. 3]"""
    import torch

    from antipodal.paper.neurons import BLU, HELU, SHeLU

    units: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
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


@figure_style()
def initialisation(
    curves: Mapping[str, Sequence[FloatArray]], *, n_bits: int, dataset: str
) -> "Figure":
    """Draw the training loss by epoch for each start: thin lines are seeds, thick lines means.

    Parameters
    ----------
    curves : mapping
        `loss_curve_` of each seed, by start.
    n_bits : int
        Code length, for the legend.
    dataset : str
        Name of the dataset, for the legend.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    figure = new_figure(COLUMN, 2.5)
    axes = figure.subplots()
    marks = ((BLUE, "o", "-"), (INK, "s", "--"))  # one method with two initialisations
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


@figure_style()
def radius_lookup(records: Sequence[Record]) -> "Figure":
    """Draw precision and recall within Hamming radius 2 by code length. [Wang2016, Fig. 6]

    Shows the records of the three networks: means over seeds, with standard deviations if there
    are several. At least two code lengths are required.
    """
    shown = [record for record in records if network_of(record["method"])]
    lengths = sorted({record["bits"] for record in shown})
    if len(lengths) < 2:
        raise ValueError(
            f"at least two code lengths of {', '.join(NETWORKS)} are required: got {len(lengths)}"
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


@figure_style()
def trade_off(records: Sequence[Record]) -> "Figure":
    """Draw mAP and precision against recall within Hamming radius 2, by `similar_weight`.

    One curve per code length, from the records of ``DeepLinf:similar_weight=W``. Each point is the
    mean over seeds for one W and is labelled with it. At least two weights are required.
    """
    from matplotlib.patheffects import withStroke

    prefix = "DeepLinf:similar_weight="
    shown = [record for record in records if record["method"].startswith(prefix)]
    weights = sorted({record["method"].removeprefix(prefix) for record in shown}, key=float)
    if len(weights) < 2:
        raise ValueError(
            f"at least two weights, such as {prefix}0.5, are required: got {len(weights)}"
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
        "points are labelled with similar_weight",
    )  # fmt: skip
    return figure


@figure_style()
def one_image(
    values: Mapping[str, Values], image: NDArray[np.uint8] | None = None, *, dataset: str
) -> "Figure":
    """Draw the representation and the code of one item by method. [Wang2016, Fig. 5]

    Parameters
    ----------
    values : mapping
        One row of values before the sign, by method.
    image : uint8 (h, w) or (h, w, 3), optional
        Image of the item.
    dataset : str
        Name of the dataset, for the title.
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


@figure_style()
def antipodality(values: Mapping[str, Values], *, dataset: str) -> "Figure":
    """Draw the distribution of |z|/bound over all rows and bits, by method.

    All values of an antipodal code are 1.
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
        raise ValueError("values of at least one network are required: got none")


def _n_bits(values: Mapping[str, Values]) -> int:
    return int(next(iter(values.values())).Z.shape[1])


def _datasets(records: Sequence[Record]) -> str:
    return ", ".join(dict.fromkeys(record["dataset"] for record in records))


def _broken_at_jumps(u: FloatArray, f: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Insert NaN where f jumps, so that no line is drawn across."""
    jumps = 1 + np.flatnonzero(np.abs(np.diff(f)) > 0.5)
    return np.insert(u, jumps, np.nan), np.insert(f, jumps, np.nan)


def _scores(records: Sequence[Record], method: str, bits: int, key: str) -> list[float]:
    return [r[key] for r in records if (r["method"], r["bits"]) == (method, bits)]


def prepare_directory(directory: str | os.PathLike[str]) -> Path:
    """Create the folder and check for Matplotlib, so that errors appear before a long run."""
    require_matplotlib()
    return make_folder(directory)


def draw_figures(
    benchmark: Benchmark,
    directory: str | os.PathLike[str],
    *,
    methods: Sequence[str],
    lengths: Sequence[int],
    seeds: Sequence[int],
    records: Sequence[Record],
    images: NDArray[np.uint8] | None = None,
    n_epochs: int | None = None,
    say: Log,
) -> None:
    """Write the figures of a run, as SVG and PNG.

    Parameters
    ----------
    benchmark : Benchmark
        Benchmark of the run.
    directory : path
        Output folder, created if missing.
    methods, lengths, seeds
        Grid of the run. Representations are drawn for the three networks with default settings and
        for their variants in `methods`, at the longest code length and the first seed; training is
        drawn at the first length for all seeds.
    records : sequence of records
        Records of the run.
    images : uint8 array, optional
        Images of the dataset.
    n_epochs : int, optional
        Training epochs in the figure of initialisations; those of `DeepLinf.paper` by default.
    say : callable
        Called with one line for each fit, each figure written and each figure skipped.
    """
    path = prepare_directory(directory)
    dataset = benchmark.dataset.name
    networks = dict.fromkeys([*DEFAULT_METHODS, *filter(network_of, methods)])

    @cache
    def values() -> tuple[dict[str, Values], dict[str, Values]]:
        return representations(benchmark, [*networks], max(lengths), seeds[0], say)

    drawings: dict[str, Callable[[], Figure]] = {
        "iteration": iteration,
        "unfolded": unfolded,
        "neurons": neurons,
        "siamese": siamese,
        "initialisation": lambda: initialisation(
            loss_curves(benchmark, lengths[0], seeds, n_epochs=n_epochs, say=say),
            n_bits=lengths[0],
            dataset=dataset,
        ),
        "radius_lookup": lambda: radius_lookup(records),
        "trade_off": lambda: trade_off(records),
        "one_image": lambda: one_image(
            values()[0],
            None if images is None else images[benchmark.draw(seeds[0]).query[0]],
            dataset=dataset,
        ),
        "antipodality": lambda: antipodality(values()[1], dataset=dataset),
    }
    for name, draw in drawings.items():
        try:
            figure = draw()
        except (ValueError, FloatingPointError) as error:
            say(f"figure {name} is skipped: {error}")
        else:
            say(f"figure {name}: " + ", ".join(map(str, save_figure(figure, path, name))))


def loss_curves(
    benchmark: Benchmark,
    n_bits: int,
    seeds: Sequence[int],
    *,
    n_epochs: int | None = None,
    say: Log,
) -> dict[str, list[FloatArray]]:
    """Return the losses of `DeepLinf.paper` from K-SVD and ADMM and from random weights.

    Both starts of a seed use the same rows, pairs, batches and constant learning rate.
    """
    curves: dict[str, list[FloatArray]] = {start: [] for start in _STARTS.values()}
    for seed in seeds:
        rows = benchmark.rows(seed)
        for init, start in _STARTS.items():
            hasher = DeepLinf.paper(n_bits, random_state=seed).set_params(init=init)
            if n_epochs is not None:
                hasher.set_params(training__n_epochs=n_epochs)
            say(f"training DeepLinf.paper from {start}, {n_bits} bits, seed {seed}")
            rows.fit(hasher)
            curves[start].append(hasher.loss_curve_)
    return curves


def representations(
    benchmark: Benchmark, methods: Sequence[str], n_bits: int, seed: int, say: Log
) -> tuple[dict[str, Values], dict[str, Values]]:
    """Fit networks; return their values for the first query and for the database, by method.

    At most `MAX_ROWS` rows of the database are drawn. Methods that cannot be fitted are skipped.
    """
    rows = benchmark.rows(seed)
    items = rows.split.database
    if len(items) > MAX_ROWS:
        drawn = np.random.default_rng(seed).choice(items, MAX_ROWS, replace=False)
        items = np.sort(drawn)
    query: dict[str, Values] = {}
    database: dict[str, Values] = {}
    for method in methods:
        hasher = make_hasher(method, n_bits, seed)
        say(f"fitting {method}, {n_bits} bits, seed {seed}")
        try:
            rows.fit(hasher)
        except (ValueError, FloatingPointError) as error:
            say(f"{method} is skipped in the figures: {error}")
            continue
        bound = _bound(hasher)
        query[method] = Values(rows.values(hasher.project, rows.split.query[:1]), bound)
        database[method] = Values(rows.values(hasher.project, items), bound)
    return query, database


def _bound(hasher: BaseHasher) -> FloatArray:
    """Return the greatest possible |z| of each bit: λ of the encoder, or 1 for tanh."""
    weights = hasher.weights_ if isinstance(hasher, NetworkHasher) else {}
    if "encoder_.blu.log_threshold" in weights:
        bound: FloatArray = np.exp(weights["encoder_.blu.log_threshold"])
        return bound
    return np.ones(hasher.n_bits, np.float32)

"""Figures of a benchmark run: fit the models they need, draw, write."""

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from antipodal.bench import plots
from antipodal.bench.plots import (
    NETWORKS,
    FloatArray,
    Values,
    network_of,
    require_matplotlib,
    save_figure,
)
from antipodal.bench.records import Record
from antipodal.bench.runner import Benchmark
from antipodal.hashers.base import BaseHasher
from antipodal.hashers.deeplinf import DeepLinf
from antipodal.hashers.network import NetworkHasher
from antipodal.hashers.registry import make_hasher
from antipodal.io.atomic import make_folder
from antipodal.paper.encoders import LinfEncoder

if TYPE_CHECKING:
    from matplotlib.figure import Figure
from antipodal.bench.plots import (
    antipodality,
    initialisation,
    neurons,
    one_image,
    radius_lookup,
    trade_off,
)

Say = Callable[[str], None]

MOST_ROWS = 10_000  # of the database that a histogram is made of
_STARTS = {"ksvd": "K-SVD and ADMM", "random": "random weights"}


def prepare_directory(directory: str | os.PathLike[str]) -> Path:
    """Make the folder, and see that figures can be drawn at all: call it before long work."""
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
    say: Say,
) -> None:
    """Write the figures of a run, as SVG and PNG.

    Parameters
    ----------
    benchmark : Benchmark
        What was run.
    directory : path
        Where the files go; made if missing.
    methods, lengths, seeds
        Of the run. Representations are shown of the three networks with default settings, and of
        those of them that `methods` names with others, at the greatest length and the first seed;
        training at the first length and all seeds.
    records : sequence of records
        What the run's cells scored.
    images : uint8 array, optional
        The dataset's.
    n_epochs : int, optional
        How long to train for the figure of initialisations; by default as `DeepLinf.paper` does.
    say : callable
        Called with a line for each fit, each figure written and each left out.
    """
    path = prepare_directory(directory)
    name_of_data = benchmark.dataset.name
    networks = dict.fromkeys([*NETWORKS, *filter(network_of, methods)])

    @cache
    def values() -> tuple[dict[str, Values], dict[str, Values]]:
        return representations(benchmark, [*networks], max(lengths), seeds[0], say)

    drawings: dict[str, Callable[[], Figure]] = {
        "neurons": plots.neurons,
        "initialisation": lambda: plots.initialisation(
            loss_curves(benchmark, lengths[0], seeds, n_epochs=n_epochs, say=say),
            n_bits=lengths[0],
            dataset=name_of_data,
        ),
        "radius_lookup": lambda: plots.radius_lookup(records),
        "trade_off": lambda: plots.trade_off(records),
        "one_image": lambda: plots.one_image(
            values()[0],
            None if images is None else images[benchmark.draw(seeds[0]).query[0]],
            dataset=name_of_data,
        ),
        "antipodality": lambda: plots.antipodality(values()[1], dataset=name_of_data),
    }
    for name, draw in drawings.items():
        try:
            figure = draw()
        except (ValueError, FloatingPointError) as error:
            say(f"figure {name} is left out: {error}")
        else:
            say(f"figure {name}: " + ", ".join(map(str, save_figure(figure, path, name))))


def loss_curves(
    benchmark: Benchmark,
    n_bits: int,
    seeds: Sequence[int],
    *,
    n_epochs: int | None = None,
    say: Say,
) -> dict[str, list[FloatArray]]:
    """Train `DeepLinf.paper` from K-SVD and ADMM and from random weights; return the losses.

    Both starts of a seed see the same rows, pairs and batches at the same constant rate.
    """
    curves: dict[str, list[FloatArray]] = {start: [] for start in _STARTS.values()}
    for seed in seeds:
        rows = benchmark.rows(seed)
        for init, start in _STARTS.items():
            hasher = DeepLinf.paper(n_bits, random_state=seed).set_params(init=init)
            if n_epochs is not None:
                hasher.set_params(n_epochs=n_epochs)
            say(f"training DeepLinf.paper from {start}, {n_bits} bits, seed {seed}")
            rows.fit(hasher)
            curves[start].append(hasher.loss_curve_)
    return curves


def representations(
    benchmark: Benchmark, methods: Sequence[str], n_bits: int, seed: int, say: Say
) -> tuple[dict[str, Values], dict[str, Values]]:
    """Fit networks, and return by method what they make of the first query and of the database.

    Of a large database `MOST_ROWS` rows are drawn. A method that cannot be fitted is left out.
    """
    rows = benchmark.rows(seed)
    items = rows.split.database
    if len(items) > MOST_ROWS:
        drawn = np.random.default_rng(seed).choice(items, MOST_ROWS, replace=False)
        items = np.sort(drawn)
    query: dict[str, Values] = {}
    database: dict[str, Values] = {}
    for method in methods:
        hasher = make_hasher(method, n_bits, seed)
        say(f"fitting {method}, {n_bits} bits, seed {seed}")
        try:
            rows.fit(hasher)
        except (ValueError, FloatingPointError) as error:
            say(f"{method} is left out of the figures: {error}")
            continue
        bound = _bound(hasher)
        query[method] = Values(rows.values(hasher.project, rows.split.query[:1]), bound)
        database[method] = Values(rows.values(hasher.project, items), bound)
    return query, database


def _bound(hasher: BaseHasher) -> FloatArray:
    """Return the greatest |z| that a network's encoder can give, bit by bit: λ, or 1 of tanh."""
    encoder = hasher.encoder_ if isinstance(hasher, NetworkHasher) else None
    if isinstance(encoder, LinfEncoder):
        bound: FloatArray = encoder.threshold.detach().numpy()
        return bound
    return np.ones(hasher.n_bits, np.float32)


__all__ = [
    "Values",
    "antipodality",
    "draw_figures",
    "initialisation",
    "loss_curves",
    "neurons",
    "one_image",
    "prepare_directory",
    "radius_lookup",
    "save_figure",
    "trade_off",
]

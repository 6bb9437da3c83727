"""Small charts as SVG inside HTML: text alone, so that a report needs no library and no network."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from math import ceil
from typing import Any

from numpy.typing import NDArray

WIDTH, HEIGHT = 520, 280
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 42

_COLOURS = 8  # of the style sheet; further curves are dashed
_ROW = 64  # bits of a code on one line
_TICKS = range(0, 101, 20)  # percent, on the y axis


def line_chart(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x_axis: str,
    y_axis: str,
    x_max: float,
    y_max: float = 100,
) -> str:
    """Draw curves through points (x, y) with x in [0, x_max] and y in percent, up to y_max."""
    across = (WIDTH - LEFT - RIGHT) / x_max
    drawn = []
    for number, (name, points) in enumerate(curves.items()):
        places = [(LEFT + across * x, _height(100 * y / y_max)) for x, y in points]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        drawn.append(
            f'<path class="line c{number}" d="{path}"><title>{escape(name)}</title></path>'
        )
    step = x_max / 5 if x_max <= 5 else _step(x_max)
    ticks = [i * step for i in range(int(x_max / step + 1e-9) + 1)]
    labels = [(LEFT + across * x, f"{x:g}") for x in ticks]
    legend = "".join(
        f'<span class="key c{number}">{escape(name)}</span> ' for number, name in enumerate(curves)
    )
    described = f"{', '.join(curves)}: {y_axis} against {x_axis}"
    chart = _frame(drawn, labels, x_axis, y_axis, described, y_max)
    return chart if len(curves) == 1 else f'<p class="legend">{legend}</p>{chart}'


def log_chart(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x_axis: str,
    y_axis: str,
    x_range: tuple[float, float],
    names: Sequence[str],
) -> str:
    """Draw curves through points (x, y), x on a scale of powers of two and y in percent.

    A name has its colour by its place among `names`, the same in several charts.
    """
    low = math.floor(math.log2(x_range[0]))
    high = max(math.ceil(math.log2(x_range[1])), low + 1)
    across = (WIDTH - LEFT - RIGHT) / (high - low)
    drawn, keys = [], []
    for name, points in curves.items():
        number = names.index(name)
        look = f"c{number % _COLOURS}" + " dashed" * (number >= _COLOURS)
        places = [(LEFT + across * (math.log2(x) - low), _height(y)) for x, y in points]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        title = f"<title>{escape(name)}</title>"
        drawn.append(f'<path class="line {look}" d="{path}">{title}</path>')
        drawn += [
            f'<circle class="dot {look}" cx="{x:.1f}" cy="{y:.1f}" r="3">{title}</circle>'
            for x, y in places
        ]
        keys.append(f'<span class="key {look}">{escape(name)}</span> ')
    labels = [(LEFT + across * (e - low), f"{2**e:,}") for e in range(low, high + 1)]
    described = f"{', '.join(curves)}: {y_axis} against {x_axis}"
    frame = _frame(drawn, labels, x_axis, y_axis, described)
    return f'{frame}<p class="legend">{"".join(keys)}</p>'


def bar_chart(values: Sequence[float], *, x_axis: str, y_axis: str, level: float) -> str:
    """Draw a bar for each value, in percent, and a line at the level a perfect one has."""
    step = (WIDTH - LEFT - RIGHT) / len(values)
    bars = [
        f'<rect class="bar" x="{LEFT + i * step:.2f}" y="{_height(value):.2f}" '
        f'width="{step * 0.85:.2f}" height="{_height(0) - _height(value):.2f}">'
        f"<title>{i + 1}: {value:.2f} %</title></rect>"
        for i, value in enumerate(values)
    ]
    y = f"{_height(level):.1f}"
    bars.append(f'<path class="level" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>')
    every = _step(len(values))
    numbers = [1, *range(every, len(values) + 1, every)] if every > 1 else range(1, len(values) + 1)
    labels = [(LEFT + (i - 0.5) * step, str(i)) for i in numbers]
    return _frame(bars, labels, x_axis, y_axis, f"{y_axis} of each of {len(values)} bits")


def range_chart(low: float, value: float, high: float, level: float) -> str:
    """Draw where a value lies between its least and its greatest, in percent, and a level."""
    across = 2.0  # of 200 units
    return (
        '<svg class="range" viewBox="0 0 200 14" role="img" '
        f'aria-label="{value:.2f}, from {low:.2f} to {high:.2f}">'
        '<path class="axis" d="M0 7H200"/>'
        f'<rect class="bar" x="{across * low:.2f}" y="3" height="8" '
        f'width="{max(across * (high - low), 0.5):.2f}"/>'
        f'<path class="level" d="M{across * level:.2f} 1V13"/>'
        f'<path class="value" d="M{across * value:.2f} 0V14"/></svg>'
    )


def bit_strip(bits: NDArray[Any], query: NDArray[Any] | None = None) -> str:
    """Draw 0/1 bits as white and black cells, and a mark below each that differs from the query's.

    Examples
    --------
    >>> import numpy as np
    >>> '<path class="off" d="M1 9h1v4h-1z"/>' in bit_strip(np.array([1, 0]), np.array([1, 1]))
    True
    """
    different = [] if query is None else [i for i, bit in enumerate(bits) if bit != query[i]]
    high = 9 if query is None else 13
    wide, lines = min(_ROW, len(bits)), ceil(len(bits) / _ROW)

    def cells(places: Sequence[int], top: int, tall: int) -> str:
        return "".join(f"M{i % _ROW} {high * (i // _ROW) + top}h1v{tall}h-1z" for i in places)

    said = "code"
    if query is not None:
        said = (
            f"differs in bits {', '.join(str(i + 1) for i in different)}" if different else "same"
        )
    return (
        f'<svg class="strip" viewBox="0 0 {wide} {high * lines}" width="{4 * wide}" '
        f'height="{high * lines}" preserveAspectRatio="none" role="img" aria-label="{said}">'
        f'<path class="one" d="{cells([i for i, bit in enumerate(bits) if bit], 0, 9)}"/>'
        f'<path class="off" d="{cells(different, 9, 4)}"/></svg>'
    )


def _height(percent: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - percent / 100)


def _step(most: float) -> int:
    """Return a round distance between labels, of which there are then five to twelve or so."""
    return next((s * 10**e for e in range(9) for s in (1, 2, 5) if most / (s * 10**e) <= 10), 10**9)


def _frame(
    marks: Sequence[str],
    labels: Sequence[tuple[float, str]],
    x_axis: str,
    y_axis: str,
    described: str,
    y_max: float = 100,
) -> str:
    """Put marks between axes."""
    grid = "".join(
        f'<path class="grid" d="M{LEFT} {_height(y):.1f}H{WIDTH - RIGHT}"/>'
        f'<text x="{LEFT - 6}" y="{_height(y) + 4:.1f}" text-anchor="end">'
        f"{y * y_max / 100:g}</text>"
        for y in _TICKS
    )
    numbers = "".join(
        f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{escape(text)}</text>'
        for x, text in labels
    )
    middle = (LEFT + WIDTH - RIGHT) / 2
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(described)}">{grid}{"".join(marks)}'
        f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>{numbers}'
        f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_axis)}</text>'
        f'<text transform="translate(12 {HEIGHT / 2 - 12}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_axis)}</text></svg>"
    )

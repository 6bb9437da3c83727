"""SVG charts for reports."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any

from numpy.typing import NDArray

from antipodal.evaluation.html import method_class, text

WIDTH, HEIGHT = 520, 280
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 42

_DASHES = ("", " dashed", " dotted", " mixed", " long")  # of curves that share a colour
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
        drawn.append(f'<path class="line c{number}" d="{path}"><title>{text(name)}</title></path>')
    step = x_max / 5 if x_max <= 5 else _step(x_max)
    ticks = [i * step for i in range(int(x_max / step + 1e-9) + 1)]
    labels = [(LEFT + across * x, f"{x:g}") for x in ticks]
    legend = "".join(
        f'<span class="key c{number}">{text(name)}</span> ' for number, name in enumerate(curves)
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
    looks: Mapping[str, str],
) -> str:
    """Draw curves through points (x, y), x on a scale of powers of two and y in percent.

    `looks` has the classes that give each curve its colour and its line: `method_looks` of all
    curves that are to be told apart.
    """
    low = math.floor(math.log2(x_range[0]))
    high = max(math.ceil(math.log2(x_range[1])), low + 1)
    across = (WIDTH - LEFT - RIGHT) / (high - low)
    drawn, keys = [], []
    for name, points in curves.items():
        look = looks[name]
        places = [(LEFT + across * (math.log2(x) - low), _height(y)) for x, y in points]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        title = f"<title>{text(name)}</title>"
        drawn.append(f'<path class="line {look}" d="{path}">{title}</path>')
        drawn += [
            f'<circle class="dot {look}" cx="{x:.1f}" cy="{y:.1f}" r="3">{title}</circle>'
            for x, y in places
        ]
        keys.append(f'<span class="key {look}">{text(name)}</span> ')
    labels = [(LEFT + across * (e - low), f"{2**e:,}") for e in range(low, high + 1)]
    described = f"{', '.join(curves)}: {y_axis} against {x_axis}"
    frame = _frame(drawn, labels, x_axis, y_axis, described)
    return f'{frame}<p class="legend">{"".join(keys)}</p>'


def method_looks(names: Iterable[str]) -> dict[str, str]:
    """Give each method the class of its colour, and settings of one method lines of their own."""
    found: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for name in names:
        colour = method_class(name)
        found[name] = colour + _DASHES[seen[colour] % len(_DASHES)]
        seen[colour] += 1
    return found


def heat_map(names: Sequence[str], shares: Sequence[Sequence[float | None]], said: str) -> str:
    """Draw a table of shares in percent: right ones, on the diagonal, in blue, wrong ones in red.

    A row that is None has no shares.
    """
    n, left, top = len(names), 110, 78
    side = max(14, min(34, 380 // n))
    cells = []
    for i, row in enumerate(shares):
        y = top + side * i
        cells.append(
            f'<text x="{left - 6}" y="{y + side / 2 + 4:.1f}" text-anchor="end">'
            f"{text(_short(names[i]))}</text>"
        )
        for j, share in enumerate(row):
            if share is None:
                continue
            x = left + side * j
            title = f"{names[i]} finds {names[j]}: {share:.1f} %"
            cells.append(
                f'<rect class="{"right" if i == j else "wrong"}" x="{x}" y="{y}" '
                f'width="{side - 1}" height="{side - 1}" fill-opacity="{share / 100:.3f}">'
                f"<title>{text(title)}</title></rect>"
            )
            if side >= 26 and share >= 0.5:
                light = " light" * (share > 55)
                cells.append(
                    f'<text class="share{light}" x="{x + side / 2:.1f}" '
                    f'y="{y + side / 2 + 4:.1f}" text-anchor="middle">{share:.0f}</text>'
                )
    columns = "".join(
        f'<text transform="translate({left + side * (j + 0.5) + 4:.1f} {top - 6}) rotate(-60)">'
        f"{text(_short(name))}</text>"
        for j, name in enumerate(names)
    )
    width, height = left + side * n + 46, top + side * n + 2
    return (
        f'<svg class="heat" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="{text(said)}"><rect class="grid" x="{left - 1}" y="{top - 1}" '
        f'width="{side * n + 1}" height="{side * n + 1}"/>{columns}{"".join(cells)}</svg>'
    )


def _short(name: str) -> str:
    return name if len(name) <= 15 else f"{name[:14]}…"


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
        f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{text(label)}</text>'
        for x, label in labels
    )
    middle = (LEFT + WIDTH - RIGHT) / 2
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{text(described)}">{grid}{"".join(marks)}'
        f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>{numbers}'
        f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{text(x_axis)}</text>'
        f'<text transform="translate(12 {HEIGHT / 2 - 12}) rotate(-90)" text-anchor="middle">'
        f"{text(y_axis)}</text></svg>"
    )

"""SVG charts of reports: coordinates are computed here, `charts.svg.j2` writes the elements."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from antipodal.evaluation.html import TEMPLATES, VARIANT_COLOURS, method_class

Curves = Mapping[str, Sequence[tuple[float, float]]]

# A phone shows a chart of this width at 85 % of its size, with text of 10 pixels.
WIDTH, HEIGHT = 420, 280
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 12, 42

_LABEL_GAP = 14  # between the baselines of two labels
_LABEL_LENGTH = 24  # characters
_CHARACTER = 6.4  # width of an average character
_MAX_DOTS = 16  # points per curve that are drawn; with more, points only respond to the pointer
_MAX_LOG_TICKS = 6
_DASHES = ("", " dashed", " dotted", " mixed", " long")  # for settings of the same method
# Around (0, 0): circle, square, triangle, diamond, cross, triangle down, saltire, bar, hourglass,
# triangle right, dash, triangle left.
_MARKERS = (
    "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z", "M-3 -3h6v6h-6z", "M0 -4l4 7h-8z",
    "M0 -4.5l4 4.5l-4 4.5l-4 -4.5z", "M-1 -4h2v3h3v2h-3v3h-2v-3h-3v-2h3z", "M0 4l4 -7h-8z",
    "M-4 -2.6l1.4 -1.4l2.6 2.6l2.6 -2.6l1.4 1.4l-2.6 2.6l2.6 2.6l-1.4 1.4l-2.6 -2.6l-2.6 2.6"
    "l-1.4 -1.4l2.6 -2.6z",
    "M-1.2 -4.5h2.4v9h-2.4z", "M-3.5 -4h7l-7 8h7z", "M4 0l-7 4v-8z", "M-4.5 -1.2h9v2.4h-9z",
    "M-4 0l7 4v-8z",
)  # fmt: skip
_BITS_PER_LINE = 64

_SVG: Any = TEMPLATES.get_template("charts.svg.j2").module


class Look(NamedTuple):
    """The CSS classes of a curve, for colour and dashes, and the path of its marker."""

    classes: str
    marker: str


class Axis(NamedTuple):
    """A range of values, its ticks, and the transform that maps values to positions."""

    low: float
    high: float
    ticks: list[tuple[float, str]]
    transform: Callable[[float], float] = float

    def place(self, value: float, start: float, end: float) -> float:
        """Return the position of a value between start, for `low`, and end, for `high`."""
        low, high = self.transform(self.low), self.transform(self.high)
        share = (self.transform(value) - low) / (high - low)
        return round(start + (end - start) * share, 2)


def linear_axis(values: Iterable[float], *, tight: bool = False) -> Axis:
    """Return an axis around the values, with limits at round numbers or, if tight, at the values.

    Examples
    --------
    >>> axis = linear_axis([91.2, 99.4])
    >>> axis.low, axis.high, [label for _, label in axis.ticks]
    (90.0, 100.0, ['90', '92', '94', '96', '98', '100'])
    """
    found = list(values)
    low, high = min(found), max(found)
    if low == high:
        low, high = (low - 0.1 * abs(low), high) if high else (0.0, 1.0)
    step = _round_step(high - low)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    ticks = [(i * step, f"{i * step:,.{decimals}f}") for i in range(first, last + 1)]
    if tight:
        return Axis(low, high, [tick for tick in ticks if low <= tick[0] <= high])
    return Axis(ticks[0][0], ticks[-1][0], ticks)


def _round_step(span: float) -> float:
    """Return 1, 2 or 5 times a power of ten that divides the span into at most 6 steps."""
    power = 10.0 ** math.floor(math.log10(span / 6))
    return next(s * power for s in (1, 2, 5, 10) if span / (s * power) <= 6)


def log2_axis(values: Iterable[float]) -> Axis:
    """Return an axis around positive values that is logarithmic, with ticks at powers of two."""
    found = list(values)
    low = math.floor(math.log2(min(found)))
    high = max(math.ceil(math.log2(max(found))), low + 1)
    step = -(-(high - low) // (_MAX_LOG_TICKS if high < 10 else 3))  # labels from 1,024 are wide
    ticks = [(2.0**e, f"{2**e:,}") for e in range(low, high + 1, step)]
    return Axis(2.0**low, 2.0**high, ticks, math.log2)


def recall_axis(values: Iterable[float]) -> Axis:
    """Return an axis for percentages; logarithmic in 100 - y if the misses differ tenfold.

    Methods at 98 and 99.5 % differ by a factor of four in their misses, which a linear axis from
    20 to 100 % would not show. A value of 100 is drawn at the upper limit.

    Examples
    --------
    >>> [label for _, label in recall_axis([85, 98.2]).ticks]
    ['85', '90', '95', '100']
    >>> [label for _, label in recall_axis([40, 99.3]).ticks]
    ['0', '50', '80', '90', '95', '98', '99', '99.5']
    """
    found = list(values)
    if max(found) <= 95 or 100 - min(found) < 10 * max(100 - max(found), 0.1):
        return linear_axis(found)
    labels = [0, 50, 80, 90, 95, 98, 99, 99.5, 99.8, 99.9, 99.95]
    low = max(y for y in labels if y <= min(found))
    imperfect = max((y for y in found if y < 99.95), default=99.9)
    high = min(y for y in labels if y >= imperfect)
    ticks = [(float(y), f"{y:g}") for y in labels if low <= y <= high]
    least = 100 - high  # misses at the highest labelled value
    if max(found) > high:
        least, high = least / 2, 100
        ticks.append((100.0, "100"))
    return Axis(low, high, ticks, lambda y: -math.log(max(100 - y, least)))


@dataclass(frozen=True)
class Frame:
    """The plot area of a chart, its ticks in pixels and its texts."""

    x_axis: str
    y_axis: str
    description: str
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    right: float
    height: int
    width: int = WIDTH
    left: int = LEFT
    top: int = TOP

    @property
    def bottom(self) -> int:
        """The y coordinate of the horizontal axis."""
        return self.height - BOTTOM


def line_chart(
    curves: Curves,
    *,
    x_axis: str,
    y_axis: str,
    x: Axis | None = None,
    y: Axis | None = None,
    looks: Mapping[str, Look] | None = None,
) -> Markup:
    """Draw curves through points (x, y), each with its name at its right end.

    Parameters
    ----------
    curves : mapping
        Points of each curve by its name, at least one.
    x_axis, y_axis : str
        Texts at the axes.
    x, y : Axis, optional
        Ranges and scales; by default linear, over the range of the points.
    looks : mapping, optional
        Appearance of each curve, such as `method_looks` returns.
    """
    x = x or linear_axis((px for points in curves.values() for px, _ in points), tight=True)
    y = y or linear_axis(py for points in curves.values() for _, py in points)
    looks = looks or {name: Look(f"c{i % 3}", _marker(i)) for i, name in enumerate(curves)}
    labels = {name: _shortened(name, _LABEL_LENGTH) for name in curves}
    right, height = WIDTH - RIGHT, HEIGHT
    if len(curves) > 1:
        right -= 16 + int(_CHARACTER * max(map(len, labels.values())))
        height = max(HEIGHT, TOP + BOTTOM + _LABEL_GAP * len(curves))
    bottom = height - BOTTOM
    drawn: list[dict[str, Any]] = []
    for name, points in curves.items():
        places = [(x.place(px, LEFT, right), y.place(py, bottom, TOP)) for px, py in points]
        drawn.append({
            "name": name, "look": looks[name].classes, "dots": len(points) <= _MAX_DOTS,
            "marker": looks[name].marker, "label": None,
            "path": "M" + "L".join(f"{px} {py}" for px, py in places),
            "points": [
                {"x": px, "y": py, "x_value": _number(x_value), "y_value": _number(y_value)}
                for (px, py), (x_value, y_value) in zip(places, points, strict=True)
            ],
        })  # fmt: skip
    if len(curves) > 1:
        ends = [max((p["x"], p["y"]) for p in curve["points"]) for curve in drawn]
        shifted = separate([py for _, py in ends], TOP + 4, bottom, _LABEL_GAP)
        for curve, (px, py), label_y in zip(drawn, ends, shifted, strict=True):
            curve["label"] = labels[curve["name"]]
            curve["label_y"] = round(label_y + 4, 2)
            curve["leader"] = f"M{px} {py}H{right}L{right + 13} {label_y:.2f}"
    frame = _frame(x, y, x_axis, y_axis, right, height, f"{', '.join(curves)}: {y_axis}")
    return Markup(_SVG.line_chart(frame, drawn))


def separate(places: Sequence[float], low: float, high: float, gap: float) -> list[float]:
    """Move places as little as possible so that they are `gap` apart, within [low, high].

    The range must have space for all. Squared moves are minimised: subtracting i·gap from the i-th
    place turns the condition into an order, which isotonic regression solves.

    Examples
    --------
    >>> separate([50, 51, 90], 0, 100, 10)
    [45.5, 55.5, 90.0]
    """
    order = np.argsort(places, kind="stable")
    steps = gap * np.arange(len(places))
    moved = isotonic_regression(np.asarray(places, float)[order] - steps).x
    result = np.empty(len(places))
    result[order] = np.clip(moved, low, high - steps[-1]) + steps
    return [float(place) for place in result]


def method_looks(names: Iterable[str]) -> dict[str, Look]:
    """Return the appearance of each curve, for all charts of a report.

    A curve is named by its method, or by the method and a run: "ITQ · first". The first settings of
    a method have the colour of the method, and other settings have other colours. Curves of one
    method differ in their dashes.
    """
    looks: dict[str, Look] = {}
    colours: dict[str, str] = {}  # by method with its settings
    n_curves: Counter[str] = Counter()
    n_variants = 0
    for i, name in enumerate(names):
        method, base = name.partition(" · ")[0], method_class(name)
        if method not in colours:
            colours[method] = base
            if n_curves[base]:
                colours[method] = f"m-v{n_variants % len(VARIANT_COLOURS)}"
                n_variants += 1
        dashes = _DASHES[n_curves[base] % len(_DASHES)]
        n_curves[base] += 1
        looks[name] = Look(colours[method] + dashes, _marker(i))
    return looks


def _marker(number: int) -> str:
    return _MARKERS[number % len(_MARKERS)]


def bar_chart(values: Sequence[float], *, x_axis: str, y_axis: str, level: float) -> Markup:
    """Draw one bar per value in percent, numbered from 1, and a dashed line at the ideal level."""
    y = linear_axis([0, level, *values])
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    step = (right - LEFT) / len(values)
    bars = []
    for i, value in enumerate(values):
        top = y.place(value, bottom, TOP)
        bars.append({
            "x": round(LEFT + i * step, 2), "y": top, "width": round(0.85 * step, 2),
            "height": round(bottom - top, 2), "title": f"{x_axis} {i + 1}: {value:.2f} %",
        })  # fmt: skip
    every = max(1, int(_round_step(len(values)))) if len(values) > 1 else 1
    numbers = [1, *range(every, len(values) + 1, every)] if every > 1 else range(1, len(values) + 1)
    x = Axis(0.5, len(values) + 0.5, [(float(i), str(i)) for i in numbers])
    frame = _frame(x, y, x_axis, y_axis, right, HEIGHT, y_axis)
    return Markup(_SVG.bar_chart(frame, bars, y.place(level, bottom, TOP)))


def _frame(
    x: Axis, y: Axis, x_axis: str, y_axis: str, right: float, height: int, drawn: str
) -> Frame:
    bottom = height - BOTTOM
    return Frame(
        x_axis, y_axis, f"{drawn} against {x_axis}",
        [(x.place(value, LEFT, right), label) for value, label in x.ticks],
        [(y.place(value, bottom, TOP), label) for value, label in y.ticks],
        right, height,
    )  # fmt: skip


def heat_map(
    names: Sequence[str], shares: Sequence[Sequence[float | None]], description: str
) -> Markup:
    """Draw a square table of percentages: blue on the diagonal, red elsewhere, None is empty."""
    left, top = 110, 78
    side = max(14, min(34, 380 // len(names)))
    cells = []
    for i, row in enumerate(shares):
        for j, share in enumerate(row):
            if share is not None:
                cells.append({
                    "x": left + side * j, "y": top + side * i, "diagonal": i == j,
                    "opacity": f"{share / 100:.3f}", "light": share > 55,
                    "title": f"queries: {names[i]}, items: {names[j]}, {share:.1f} %",
                    "label": f"{share:.0f}" if side >= 26 and share >= 0.5 else "",
                })  # fmt: skip
    shown = [_shortened(name, 15) for name in names]
    rows = [(top + side * (i + 0.5) + 4, name) for i, name in enumerate(shown)]
    columns = [(left + side * (j + 0.5) + 4, name) for j, name in enumerate(shown)]
    width, height = left + side * len(names) + 46, top + side * len(names) + 2
    return Markup(_SVG.heat_map(width, height, left, top, side, rows, columns, cells, description))


def range_charts(
    ranges: Sequence[tuple[float, float, float]], level: float
) -> tuple[str, list[Markup]]:
    """Draw each value within its range, from least to greatest, on one common axis.

    Returns
    -------
    heading : str
        The limits of the axis.
    charts : list
        A chart for each (least, value, greatest); `level` is marked where the axis covers it.
    """
    axis = linear_axis(value for each in ranges for value in each)
    charts = []
    for each in ranges:
        low, value, high = (axis.place(v, 0, 200) for v in each)
        mark = axis.place(level, 0, 200) if axis.low <= level <= axis.high else None
        described = f"{each[1]:.2f}, from {each[0]:.2f} to {each[2]:.2f}"
        charts.append(Markup(_SVG.range_chart(low, value, high, mark, described)))
    return f"{axis.ticks[0][1]} to {axis.ticks[-1][1]}", charts


def bit_strip(bits: NDArray[Any], query: NDArray[Any] | None = None) -> Markup:
    """Draw 0/1 bits as white and black cells, with a mark below each that differs from the query.

    Examples
    --------
    >>> '<path class="off" d="M1 9h1v4h-1z"/>' in bit_strip(np.array([1, 0]), np.array([1, 1]))
    True
    """
    different = [] if query is None else [i for i, bit in enumerate(bits) if bit != query[i]]
    line_height = 9 if query is None else 13
    n_lines = -(-len(bits) // _BITS_PER_LINE)

    def cells(places: Sequence[int], top: int, height: int) -> str:
        return "".join(
            f"M{i % _BITS_PER_LINE} {line_height * (i // _BITS_PER_LINE) + top}h1v{height}h-1z"
            for i in places
        )

    if query is None:
        description = "code"
    elif different:
        description = f"differs in bits {', '.join(str(i + 1) for i in different)}"
    else:
        description = "equal to the code of the query"
    ones = cells([i for i, bit in enumerate(bits) if bit], 0, 9)
    return Markup(
        _SVG.bit_strip(
            min(_BITS_PER_LINE, len(bits)), line_height * n_lines, ones, cells(different, 9, 4),
            description,
        )
    )  # fmt: skip


def _shortened(name: str, length: int) -> str:
    """Cut the middle out of a long name, since variants often differ at the end."""
    if len(name) <= length:
        return name
    half = (length - 1) // 2
    return f"{name[: length - 1 - half]}…{name[-half:]}"


def _number(value: float) -> str:
    """Format a value with at most two decimals."""
    text = f"{value:,.2f}"
    return text.rstrip("0").rstrip(".")

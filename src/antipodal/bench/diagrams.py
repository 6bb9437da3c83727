"""Diagrams of the method: the iteration, the unfolded network and the siamese network."""

from typing import TYPE_CHECKING, Any

from antipodal.bench.figure_style import BLUE, COLUMN, FAINT, PAGE, figure_style, new_figure
from antipodal.evaluation.html import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[float, float]
_HALF = 0.4  # half the height of a box; a sum has this diameter


@figure_style()
def iteration() -> "Figure":
    """Draw the recurrent iteration z ← B_λ(Wy + Sz + b). [Wang2016, Fig. 1]"""
    figure, axes = _canvas(COLUMN, 1.5, (7.6, 3.2))
    _text(axes, (0.2, 2.2), "$y$")
    _box(axes, (1.6, 2.2), "$W$")
    _sum(axes, (3.1, 2.2))
    _box(axes, (4.9, 2.2), r"$B_\lambda$", neuron=True)
    _text(axes, (7.3, 2.2), "$z$")
    _text(axes, (3.1, 3.1), "$b_t$")
    _box(axes, (4.9, 0.6), "$S$")
    _arrow(axes, (0.4, 2.2), (1.1, 2.2))
    _arrow(axes, (2.1, 2.2), (2.9, 2.2))
    _arrow(axes, (3.3, 2.2), (4.4, 2.2))
    _arrow(axes, (5.4, 2.2), (7.1, 2.2))
    _arrow(axes, (3.1, 2.9), (3.1, 2.4))
    _arrow(axes, (6.4, 2.2), (6.4, 0.6), (5.4, 0.6))
    _arrow(axes, (4.4, 0.6), (3.1, 0.6), (3.1, 2.0))
    return figure


@figure_style()
def unfolded(n_stages: int = 2) -> "Figure":
    """Draw the network of K unfolded stages. [Wang2016, Fig. 2]

    Each BLU consists of two diagonal scalings around a neuron with threshold 1.
    """
    width = 3.4 + 4.2 * n_stages + 3.0
    figure, axes = _canvas(PAGE, 1.7, (width, 3.0))
    top, low = 2.8, 1.6
    _text(axes, (0.2, low), "$y$")
    _box(axes, (1.4, low), "$W$")
    _box(axes, (3.4, low), "BLU", neuron=True)
    _arrow(axes, (0.4, low), (0.9, low))
    _arrow(axes, (1.9, low), (2.9, low))
    x = 3.4
    for stage in range(1, n_stages + 1):
        _text(axes, (x + 0.85, low + 0.35), f"$z^{stage - 1}$")
        _box(axes, (x + 1.7, low), f"$S_{stage}$")
        _sum(axes, (x + 2.8, low))
        _box(axes, (x + 4.2, low), "BLU", neuron=True)
        _text(axes, (x + 2.8, low - 1.1), f"$b_{stage}$")
        _arrow(axes, (x + 0.5, low), (x + 1.2, low))
        _arrow(axes, (x + 2.2, low), (x + 2.6, low))
        _arrow(axes, (x + 3.0, low), (x + 3.7, low))
        _arrow(axes, (x + 2.8, low - 0.85), (x + 2.8, low - 0.2))
        _arrow(axes, (2.4, low), (2.4, top), (x + 2.8, top), (x + 2.8, low + 0.2))
        x += 4.2
    _arrow(axes, (x + 0.5, low), (x + 1.3, low))
    _text(axes, (x + 0.85, low + 0.35), f"$z^{n_stages}$")
    _text(axes, (x + 2.1, low), "sign: bits")
    _text(
        axes, (width / 2, 0.05),
        r"BLU:  $u \to \mathrm{diag}(1/\lambda) \to B_1 \to \mathrm{diag}(\lambda)$",
    )  # fmt: skip
    return figure


@figure_style()
def siamese() -> "Figure":
    """Draw two encoders with shared weights and the pairwise loss. [Wang2016, Fig. 4]"""
    figure, axes = _canvas(COLUMN, 2.1, (7.6, 4.6))
    for x, row, code in ((1.7, "$y$", "$x(y)$"), (5.9, r"$y^\pm$", r"$x(y^\pm)$")):
        _text(axes, (x, 0.2), row)
        _box(axes, (x, 1.6), "deep $\\ell_\\infty$\nencoder", neuron=True, half=(1.2, 0.7))
        _arrow(axes, (x, 0.45), (x, 0.9))
        _arrow(axes, (x, 2.3), (x, 3.5))
        _text(axes, (x + (-0.75 if x < 3 else 0.75), 2.85), code)
    axes.plot([2.9, 4.7], [1.6, 1.6], color=FAINT, linestyle="--", linewidth=0.8)
    _text(axes, (3.8, 2.1), "shared\nweights")
    loss = (
        r"$\frac{1}{2}\Vert x(y) - x(y^+)\Vert^2"
        r" + \frac{1}{2}\max(0,\,m - \Vert x(y) - x(y^-)\Vert)^2$"
    )
    _box(axes, (3.8, 4.0), loss, half=(3.75, 0.5))
    return figure


def _canvas(width: float, height: float, size: Point) -> "tuple[Figure, Axes]":
    """Return a figure of a size in inches and its axes, in units of the drawing."""
    figure = new_figure(width, height)
    axes = figure.subplots()
    axes.set(xlim=(0, size[0]), ylim=(-0.2, size[1] + 0.2), aspect="equal")
    axes.set_axis_off()
    return figure, axes


def _text(axes: "Axes", at: Point, text: str, **options: Any) -> None:
    axes.text(*at, text, ha="center", va="center", **options)


def _box(
    axes: "Axes", at: Point, text: str, *, neuron: bool = False, half: Point = (0.5, _HALF)
) -> None:
    """Draw a box with a text; boxes with a neuron are blue."""
    from matplotlib.patches import Rectangle

    corner, size = (at[0] - half[0], at[1] - half[1]), (2 * half[0], 2 * half[1])
    axes.add_patch(
        Rectangle(corner, *size, facecolor="white", edgecolor=BLUE if neuron else INK, linewidth=1)
    )
    _text(axes, at, text, color=BLUE if neuron else INK)


def _sum(axes: "Axes", at: Point) -> None:
    """Draw a circle with a plus."""
    from matplotlib.patches import Circle

    axes.add_patch(Circle(at, _HALF / 2, facecolor="white", edgecolor=INK, linewidth=1))
    _text(axes, at, "+")


def _arrow(axes: "Axes", *corners: Point) -> None:
    """Draw straight lines through the corners, with a head at the last."""
    x, y = zip(*corners[:-1], strict=True)
    axes.plot(x, y, color=INK, linewidth=0.8, solid_capstyle="butt", zorder=0)
    axes.annotate(
        "", corners[-1], corners[-2],
        arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 0.8, "shrinkA": 0,
                    "shrinkB": 0, "mutation_scale": 7},
    )  # fmt: skip

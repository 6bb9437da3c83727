"""The paper's figures, drawn from this library's own classes, fits and records.

`draw_figures` writes all of them, as `antipodal bench … --figures DIR` does. Matplotlib comes with
the extra `plots`.
"""

from antipodal.benchmark.figures.drawing import draw_figures, loss_curves, prepare_directory
from antipodal.benchmark.figures.plots import (
    Values,
    antipodality,
    initialisation,
    neurons,
    one_image,
    radius_lookup,
    trade_off,
)
from antipodal.benchmark.figures.style import save_figure

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

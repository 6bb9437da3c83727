"""The filters of GIST, and every other step that depends on the images' size alone, as matrices.

The formulas are in the docstring of `antipodal.features.gist.gist`; frequencies are in cycles a
pixel.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FloatArray = NDArray[np.float64]

_CUTOFF = 4  # cycles an image, where the prefilter's low-pass has fallen to a half
PREFILTER_BORDER = 5  # pixels
_MAX_BORDER = 32  # pixels
_NEGLIGIBLE = 1e-5  # gain of a filter below which a frequency is left out


class Filter(NamedTuple):
    """A Gabor filter, cut to the rectangle of frequencies that it passes."""

    rows: slice  # of the spectrum
    columns: slice
    gain: Tensor  # (rows, 1, columns, 1)


class FilterBank(NamedTuple):
    """What depends on the images' size alone."""

    lowpass: tuple[Tensor, Tensor]  # padded and low-passed, (h + 10, h) and (w + 10, w)
    pad: tuple[Tensor, Tensor]  # indices of the pixels that the padding repeats
    spread: tuple[Tensor, Tensor]  # low-passed and cropped, (h, h + 10) and (w, w + 10)
    spectrum: tuple[Tensor, Tensor]  # padded and transformed, (2nᵧ, h) and (2nₓ, 2w)
    filters: list[Filter]
    inverse: tuple[Tensor, Tensor]  # transformed back and cropped, (2h, nᵧ, 2) and (2w, 2, nₓ)
    cells: tuple[Tensor, Tensor]  # means over the cells, (grid, h) and (grid, w)


@lru_cache(maxsize=4)
def make_bank(
    height: int, width: int, orientations: tuple[int, ...], grid: int, border: int | None
) -> FilterBank:
    """Put every step into matrices, for images of one size."""
    sides = (height, width)
    longest = max(sides) + 2 * PREFILTER_BORDER
    pads, lowpasses, spreads, spectra, inverses, frequencies = [], [], [], [], [], []
    for side in sides:
        pad = np.pad(np.arange(side), PREFILTER_BORDER, mode="symmetric")
        blur = _blur(len(pad), longest)
        pads.append(torch.from_numpy(pad))
        lowpasses.append(_as_tensor(blur @ np.eye(side)[pad]))
        spreads.append(_as_tensor(blur[PREFILTER_BORDER:-PREFILTER_BORDER]))

        margin = min(side // 2, _MAX_BORDER) if border is None else border
        pad = np.pad(np.arange(side), margin, mode="symmetric")
        n = len(pad)
        f = np.arange(-(n // 2), n // 2 + 1) / n  # with both signs of Nyquist, if n is even
        wave = np.exp(2j * np.pi * np.outer(np.arange(n), f))  # pixel by frequency
        spectra.append(wave.conj().T @ np.eye(side)[pad])
        inverses.append(wave[margin : margin + side] / n)
        frequencies.append(f)
    return FilterBank(
        lowpass=(lowpasses[0], lowpasses[1]),
        pad=(pads[0], pads[1]),
        spread=(spreads[0], spreads[1]),
        # The parts of a number are neighbours along the first axis, halves along the second.
        spectrum=(
            _as_tensor(np.stack([spectra[0].real, spectra[0].imag], axis=1)).flatten(0, 1),
            _as_tensor(_halves(spectra[1])),
        ),
        filters=[
            _cut(_gabor(frequencies[0], frequencies[1], i, j, o))
            for i, o in enumerate(orientations)
            for j in range(o)
        ],
        inverse=(
            _as_tensor(_halves(inverses[0]))
            .view(2, height, 2, -1)
            .permute(1, 0, 3, 2)
            .flatten(0, 1),
            _as_tensor(_halves(inverses[1])).view(2 * width, 2, -1),
        ),
        cells=(_as_tensor(_cell_means(height, grid)), _as_tensor(_cell_means(width, grid))),
    )


def _blur(n: int, longest: int) -> FloatArray:
    """Return the circular Gaussian low-pass along a side of n pixels, as a matrix (n, n)."""
    f = np.fft.fftfreq(n) * longest  # cycles an image
    kernel = np.fft.ifft(np.exp(-(f**2) * math.log(2) / _CUTOFF**2)).real
    circulant: FloatArray = kernel[np.subtract.outer(np.arange(n), np.arange(n)) % n]
    return circulant


def _gabor(fy: FloatArray, fx: FloatArray, i: int, j: int, o: int) -> FloatArray:
    """G(f) = exp(-3.5 (|f| / fᵢ - 1)² - 2π (16 o² / 32²) θ²) of scale i and direction -πj / o."""
    y, x = fy[:, None], fx[None, :]
    theta = np.angle(np.exp(1j * (np.arctan2(y, x) + np.pi * j / o)))
    radial = 10 * 0.35 * (np.hypot(y, x) / (0.3 / 1.85**i) - 1) ** 2
    G: FloatArray = np.exp(-radial - 2 * (16 * o**2 / 32**2) * np.pi * theta**2)
    # Both signs of the Nyquist frequency are here and are the same wave: each counts half.
    G *= np.where(np.abs(y) == 0.5, 0.5, 1.0) * np.where(np.abs(x) == 0.5, 0.5, 1.0)
    G[(y == 0) & (x == 0)] = 0
    return G


def _cut(gain: FloatArray) -> Filter:
    """Leave out the rows and columns of frequencies where the gain is negligible."""
    is_passed = gain > _NEGLIGIBLE
    rows, columns = (_extent(is_passed.max(axis=axis)) for axis in (1, 0))
    kept = np.where(is_passed, gain, 0)[rows, columns]  # no tiny numbers: they are slow
    return Filter(rows, columns, _as_tensor(kept)[:, None, :, None])


def _extent(mask: NDArray[np.bool_]) -> slice:
    """Return the slice from the first to the last that is set."""
    places = np.flatnonzero(mask)
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 1)


def _halves(matrix: Any) -> FloatArray:
    """[[Re, -Im], [Im, Re]]: the complex matrix as a real one, on vectors [real; imaginary]."""
    return np.block([[matrix.real, -matrix.imag], [matrix.imag, matrix.real]])


def _cell_means(side: int, grid: int) -> FloatArray:
    """Return the weights (grid, side) of the pixels in each cell's mean, by the length shared."""
    edges = np.arange(grid + 1) * side / grid
    pixels = np.arange(side)
    ends = np.minimum(edges[1:, None], pixels + 1)
    starts = np.maximum(edges[:-1, None], pixels)
    shared: FloatArray = np.maximum(ends - starts, 0)
    return shared * grid / side


def _as_tensor(values: FloatArray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))

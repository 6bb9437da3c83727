"""GIST image descriptors: energy of Gabor filters on a grid. [Oliva2001]"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antipodal.threads import one_blas_thread, usable_cores
from antipodal.validation import check_whole

FloatArray = NDArray[np.float64]
Array = NDArray[np.float32]

_CUTOFF = 4  # cycles per image at which the gain of the low-pass prefilter is 1/2
PREFILTER_BORDER = 5  # pixels
_MAX_BORDER = 32  # pixels
_NEGLIGIBLE = 1e-5  # gain of a filter below which a frequency is omitted


class Filter(NamedTuple):
    """A Gabor filter, cut to the rectangle of frequencies that it passes."""

    rows: slice  # of the spectrum
    columns: slice
    gain: Array  # (rows, 1, columns, 1)


class FilterBank(NamedTuple):
    """The matrices of all steps, which depend on the image size only."""

    lowpass: tuple[Array, Array]  # padded and low-passed, (h + 10, h) and (w + 10, w)
    pad: tuple[NDArray[np.intp], NDArray[np.intp]]  # indices of the pixels that the padding repeats
    spread: tuple[Array, Array]  # low-passed and cropped, (h, h + 10) and (w, w + 10)
    spectrum: tuple[Array, Array]  # padded and transformed, (2nᵧ, h) and (2nₓ, 2w)
    filters: list[Filter]
    inverse: tuple[Array, Array]  # transformed back and cropped, (2h, nᵧ, 2) and (2w, 2, nₓ)
    cells: tuple[Array, Array]  # means over the cells, (grid, h) and (grid, w)


@lru_cache(maxsize=4)
def make_bank(
    height: int, width: int, orientations: tuple[int, ...], grid: int, border: int | None
) -> FilterBank:
    """Return the matrices of all steps for images of one size."""
    sides = (height, width)
    longest = max(sides) + 2 * PREFILTER_BORDER
    pads, lowpasses, spreads, spectra, inverses, frequencies = [], [], [], [], [], []
    for side in sides:
        pad = np.pad(np.arange(side), PREFILTER_BORDER, mode="symmetric")
        blur = _blur(len(pad), longest)
        pads.append(pad)
        lowpasses.append(_as_array(blur @ np.eye(side)[pad]))
        spreads.append(_as_array(blur[PREFILTER_BORDER:-PREFILTER_BORDER]))

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
        # Real and imaginary parts alternate along the first axis, and are halves of the second.
        spectrum=(
            _as_array(np.stack([spectra[0].real, spectra[0].imag], axis=1)).reshape(-1, height),
            _as_array(_halves(spectra[1])),
        ),
        filters=[
            _cut(_gabor(frequencies[0], frequencies[1], i, j, o))
            for i, o in enumerate(orientations)
            for j in range(o)
        ],
        inverse=(
            _as_array(_halves(inverses[0]).reshape(2, height, 2, -1).transpose(1, 0, 3, 2)).reshape(
                2 * height, -1, 2
            ),
            _as_array(_halves(inverses[1])).reshape(2 * width, 2, -1),
        ),
        cells=(_as_array(_cell_means(height, grid)), _as_array(_cell_means(width, grid))),
    )


def _blur(n: int, longest: int) -> FloatArray:
    """Return the circular Gaussian low-pass along a side of n pixels, as a matrix (n, n)."""
    f = np.fft.fftfreq(n) * longest  # cycles per image
    kernel = np.fft.ifft(np.exp(-(f**2) * math.log(2) / _CUTOFF**2)).real
    circulant: FloatArray = kernel[np.subtract.outer(np.arange(n), np.arange(n)) % n]
    return circulant


def _gabor(fy: FloatArray, fx: FloatArray, i: int, j: int, o: int) -> FloatArray:
    """G(f) = exp(-3.5 (|f| / fᵢ - 1)² - 2π (16 o² / 32²) θ²) of scale i and direction -πj / o."""
    y, x = fy[:, None], fx[None, :]
    theta = np.angle(np.exp(1j * (np.arctan2(y, x) + np.pi * j / o)))
    radial = 10 * 0.35 * (np.hypot(y, x) / (0.3 / 1.85**i) - 1) ** 2
    G: FloatArray = np.exp(-radial - 2 * (16 * o**2 / 32**2) * np.pi * theta**2)
    # Both signs of the Nyquist frequency are the same wave: each has half the gain.
    G *= np.where(np.abs(y) == 0.5, 0.5, 1.0) * np.where(np.abs(x) == 0.5, 0.5, 1.0)
    G[(y == 0) & (x == 0)] = 0
    return G


def _cut(gain: FloatArray) -> Filter:
    """Remove the rows and columns of frequencies where the gain is negligible."""
    is_passed = gain > _NEGLIGIBLE
    rows, columns = (_extent(is_passed.max(axis=axis)) for axis in (1, 0))
    kept = np.where(is_passed, gain, 0)[rows, columns]  # denormal numbers are slow
    return Filter(rows, columns, _as_array(kept)[:, None, :, None])


def _extent(mask: NDArray[np.bool_]) -> slice:
    """Return the slice from the first to the last True value."""
    places = np.flatnonzero(mask)
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 1)


def _halves(matrix: Any) -> FloatArray:
    """[[Re, -Im], [Im, Re]]: the complex matrix as a real one, on vectors [real; imaginary]."""
    return np.block([[matrix.real, -matrix.imag], [matrix.imag, matrix.real]])


def _cell_means(side: int, grid: int) -> FloatArray:
    """Return the weights (grid, side) of the pixels in the mean of each cell, by overlap."""
    edges = np.arange(grid + 1) * side / grid
    pixels = np.arange(side)
    ends = np.minimum(edges[1:, None], pixels + 1)
    starts = np.maximum(edges[:-1, None], pixels)
    overlap: FloatArray = np.maximum(ends - starts, 0)
    return overlap * grid / side


def _as_array(values: FloatArray) -> Array:
    return np.ascontiguousarray(values, dtype=np.float32)


_BLOCK_BYTES = 16 << 20  # size of the temporaries, which should stay in the cache


def gist(
    images: ArrayLike,
    *,
    orientations: Sequence[int] = (8, 8, 8),
    grid: int = 4,
    colour: bool = False,
    border: int | None = None,
    block_size: int | None = None,
) -> NDArray[np.float32]:
    """Compute the GIST descriptor of each image, (m, filters × grid²). [Oliva2001]

        I ← log(1 + I)
        I ← I - g∗I                          g: Gaussian, 1/2 at 4 cycles per image
        I ← I / (0.2 + √(g∗I²))              local contrast normalisation
        r = |ifft(G · fft(I))|               G: a Gabor filter per scale and orientation
        d = mean of r over a grid cell

        G(f) = exp(-3.5 (|f| / fᵢ - 1)² - 2π (16 o² / 32²) θ²),    fᵢ = 0.3 / 1.85ⁱ

    for scale i = 0, 1, …, the finest first, with o orientations; θ in (-π, π] is the angle between
    the direction -πj / o of the filter and that of f.

    Parameters
    ----------
    images : array-like (m, h, w) or (m, h, w, 3)
        Grey or colour, of any size, with values from 0 to 255: floats are not rescaled.
    orientations : sequence of int
        Number of orientations at each scale, the finest scale first.
    grid : int
        Number of cells along each side. If it does not divide the side, a pixel on a boundary
        contributes to both cells, weighted by its overlap.
    colour : bool
        Concatenate the descriptors of the three channels, which share the local contrast of their
        mean. Otherwise colour images are converted to grey, the mean of the channels.
    border : int, optional
        Width of the symmetric padding for the Gabor filters, in pixels. By default half of each
        side, at most 32.
    block_size : int, optional
        Number of images processed at a time; by default about 16 MB of temporaries. The result
        is the same up to rounding.

    Returns
    -------
    array (m, d), float32
        Ordered by channel, scale, orientation, row and column of the grid: d = 384 by default,
        512 with orientations (8, 8, 8, 8), 960 in colour with (8, 8, 4).

    Notes
    -----
    The published filters are slightly asymmetric at frequencies without a direction: at zero, and
    at the Nyquist frequency, which equals its negative. Here the gain is 0 at zero, and the mean
    over both signs at Nyquist, so mirrored images have mirrored descriptors: see
    `mirror_permutation`.

    Examples
    --------
    >>> stripes = np.tile(np.array([0, 0, 255, 255]), (1, 32, 8))  # vertical, 4 pixels apart
    >>> descriptor = gist(stripes).reshape(3, 8, 4, 4)  # scale, orientation, row, column
    >>> descriptor.mean(axis=(2, 3))[0].round(2)
    array([0.56, 0.21, 0.01, 0.  , 0.  , 0.  , 0.01, 0.21], dtype=float32)
    """
    rates = _check_orientations(orientations)
    array = _check_images(images, grid, colour)
    n_images, height, width = array.shape[:3]
    for name, value, least in (("border", border, 0), ("block_size", block_size, 1)):
        if value is not None:
            check_whole(value, name, least)
    bank = make_bank(height, width, rates, grid, border)
    n_channels = 3 if colour else 1
    descriptors = np.empty((n_images, n_channels, len(bank.filters), grid * grid), np.float32)
    size = block_size or _block_size(bank, n_channels)

    def describe(start: int) -> None:
        block = _read_block(array, start, size, colour)  # (channels, h, w, m)
        for channel, pixels in enumerate(_prefilter(block, bank)):
            for index, cells in enumerate(_filter(pixels, bank)):
                descriptors[start : start + size, channel, index] = cells.T

    _run_blocks(describe, range(0, n_images, size))
    return descriptors.reshape(n_images, -1)


def mirror_permutation(
    orientations: Sequence[int] = (8, 8, 8), grid: int = 4, *, colour: bool = False
) -> NDArray[np.intp]:
    """Return P such that a mirrored image has the descriptor gist(image)[:, P], up to rounding.

    Mirroring reverses the columns of the grid and maps direction -πj / o to πj / o + π, which is
    direction o - j. Direction 0 is mapped to its opposite, to which a real image has the same
    response.

    Examples
    --------
    >>> mirror_permutation(orientations=(4,), grid=2)
    array([ 1,  0,  3,  2, 13, 12, 15, 14,  9,  8, 11, 10,  5,  4,  7,  6])
    """
    rates = _check_orientations(orientations)
    check_whole(grid, "grid", 1)
    filters = np.concatenate(
        [sum(rates[:i]) + (-np.arange(n)) % n for i, n in enumerate(rates)]  # j ↔ o - j
    )
    n_channels = 3 if colour else 1
    order = np.arange(n_channels * len(filters) * grid * grid)
    return order.reshape(n_channels, -1, grid, grid)[:, filters, :, ::-1].reshape(-1)


def _run_blocks(describe: Callable[[int], None], starts: range) -> None:
    """Run the blocks on the usable cores, one block per thread.

    Synchronising threads within a block is slow if other programs use the cores as well.
    """
    pool = ThreadPoolExecutor(min(usable_cores(), len(starts)))
    try:
        with one_blas_thread():
            for _ in pool.map(describe, starts):
                pass  # raises the error of the first block that failed
    finally:
        pool.shutdown(cancel_futures=True)


def _prefilter(images: Array, bank: FilterBank) -> Array:
    """Normalise brightness and local contrast of images (channels, h, w, m)."""
    detail = np.stack(
        [
            channel[bank.pad[0]][:, bank.pad[1]] - _both_sides(bank.lowpass, channel)
            for channel in np.log1p(images)
        ]
    )
    variance = _both_sides(bank.spread, np.square(detail.mean(axis=0)))
    edge = slice(PREFILTER_BORDER, -PREFILTER_BORDER)
    normalised = detail[:, edge, edge] / (np.float32(0.2) + np.sqrt(np.abs(variance)))
    return normalised.astype(np.float32, copy=False)


def _filter(image: Array, bank: FilterBank) -> Iterator[Array]:
    """Yield the mean magnitude in each cell, (grid², m), for each filter; image: (h, w, m).

    Complex numbers are represented by two rows of a real matrix, real and imaginary part.
    """
    height, width, m = image.shape
    down_columns = (bank.spectrum[0] @ image.reshape(height, -1)).reshape(-1, 2 * width, m)
    spectrum = bank.spectrum[1] @ down_columns
    spectrum = spectrum.reshape(len(spectrum), 2, -1, m)  # (nᵧ, real or imaginary, nₓ, m)
    for gabor in bank.filters:
        passed = spectrum[gabor.rows, :, gabor.columns] * gabor.gain
        n_columns = passed.shape[2]
        down = bank.inverse[0][:, gabor.rows].reshape(2 * height, -1)  # (2h, 2 rows)
        along = bank.inverse[1][:, :, gabor.columns].reshape(2 * width, -1)  # (2w, 2 columns)
        response = (down @ passed.reshape(-1, n_columns * m)).reshape(height, 2 * n_columns, m)
        parts = (along @ response).reshape(height, 2, width, m)
        magnitude = np.sqrt(np.square(parts).sum(axis=1))
        yield _both_sides(bank.cells, magnitude).reshape(-1, m)


def _both_sides(matrices: tuple[Array, Array], images: Array) -> Array:
    """A·X·Bᵀ for each image X, (h, w, m) -> (h', w', m)."""
    height, width, m = images.shape
    return matrices[1] @ (matrices[0] @ images.reshape(height, -1)).reshape(-1, width, m)


def _block_size(bank: FilterBank, n_channels: int) -> int:
    """Return the number of images whose spectra and responses fit into _BLOCK_BYTES."""
    height, width = bank.spread[0].shape[0], bank.spread[1].shape[0]
    n_y, n_x = len(bank.spectrum[0]) // 2, len(bank.spectrum[1]) // 2
    numbers = 4 * n_y * n_x + 2 * height * n_x + 3 * height * width + 2 * n_channels * n_y * n_x
    return max(1, _BLOCK_BYTES // (4 * int(numbers)))


def _read_block(array: NDArray[Any], start: int, size: int, colour: bool) -> Array:
    """Return a block of images as float32 (channels, h, w, m), after checking their values."""
    block = array[start : start + size]
    with np.errstate(over="ignore"):  # overflow is reported below
        block = block.astype(np.float32)
    if block.ndim == 3:
        block = block[..., None]
    is_good = np.isfinite(block) & (block >= 0)
    if not is_good.all():
        first = int(np.flatnonzero(~is_good.all(axis=(1, 2, 3)))[0])
        raise ValueError(
            "images must be finite and not negative, with values from 0 to 255: image "
            f"{start + first} has {block[first][~is_good[first]][0]}. Were they standardised, "
            "or are values missing?"
        )
    if not colour:
        block = block.mean(axis=3, keepdims=True, dtype=np.float64).astype(np.float32)
    return np.ascontiguousarray(block.transpose(3, 1, 2, 0), dtype=np.float32)


def _check_images(images: ArrayLike, grid: int, colour: bool) -> NDArray[Any]:
    """Return the images as an array, or raise an error if they are not valid images."""
    check_whole(grid, "grid", 1)
    try:
        array = np.asarray(images)
    except ValueError as error:
        raise ValueError(f"images must all have one size: {error}") from None
    if not (np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)):
        raise TypeError(
            f"images must be real numbers, uint8 or float: got {array.dtype}. "
            "Are they file names or encoded images?"
        )
    if array.ndim not in (3, 4):
        raise ValueError(
            "images must be (m, h, w) grey or (m, h, w, 3) colour: got shape "
            f"{array.shape}. Pass a single image as images[None]"
        )
    if array.ndim == 4 and array.shape[3] != 3:
        raise ValueError(
            f"colour images must be (m, h, w, 3): got shape {array.shape}. "
            "Are the channels first, or is there a transparency channel?"
        )
    if array.size == 0:
        raise ValueError(f"images must have at least one pixel: got shape {array.shape}")
    if colour and array.ndim == 3:
        raise ValueError(
            f"colour=True needs images (m, h, w, 3): got shape {array.shape}. "
            "Is it a batch of grey images, or one colour image without images[None]?"
        )
    if min(array.shape[1:3]) < grid:
        raise ValueError(
            f"images must have a pixel for each cell of the {grid} × {grid} grid: got "
            f"{array.shape[1]} × {array.shape[2]} pixels. Is the array (m, h, w), images first?"
        )
    return array


def _check_orientations(orientations: Sequence[int]) -> tuple[int, ...]:
    """Return the orientations as a tuple of int, or raise an error."""
    expected = "orientations must be a sequence of one integer per scale, such as (8, 8, 8)"
    if isinstance(orientations, str) or not isinstance(orientations, (Sequence, np.ndarray)):
        raise TypeError(f"{expected}: got {orientations!r}")
    if len(orientations) == 0:
        raise ValueError(f"{expected}: got {orientations!r}")
    for number in orientations:
        check_whole(number, "each of orientations", 1)
    return tuple(int(number) for number in orientations)

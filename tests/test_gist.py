"""GIST compared with its definition, image by image and filter by filter, and its invariances."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antipodal.features import gist, mirror_permutation
from effort import examples


def photographs(n, height, width, n_channels=3, seed=0):
    """Return noise with the spectrum and the range of values of photographs."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((n, height, width, n_channels))
    fy, fx = np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None, :]
    falloff = 1 / (0.05 + np.hypot(fy, fx))
    smooth = np.fft.ifft2(np.fft.fft2(noise, axes=(1, 2)) * falloff[..., None], axes=(1, 2)).real
    smooth -= smooth.min(axis=(1, 2, 3), keepdims=True)
    smooth *= 255 / smooth.max(axis=(1, 2, 3), keepdims=True)
    return smooth.round().astype(np.uint8)


def reference_prefilter(image):
    """Prefilter (h, w, channels) with complex transforms in double precision."""
    padded = np.pad(np.log(1 + image), ((5, 5), (5, 5), (0, 0)), mode="symmetric")
    height, width = padded.shape[:2]
    fy, fx = np.meshgrid(np.fft.fftfreq(height), np.fft.fftfreq(width), indexing="ij")
    cycles = np.hypot(fy, fx) * max(height, width)
    lowpass = np.exp(-(cycles**2) / (4 / np.sqrt(np.log(2))) ** 2)
    blurred = [
        np.fft.ifft2(np.fft.fft2(channel) * lowpass).real for channel in padded.T.swapaxes(1, 2)
    ]
    detail = padded - np.stack(blurred, axis=-1)
    variance = np.fft.ifft2(np.fft.fft2(detail.mean(axis=2) ** 2) * lowpass)
    return (detail / (0.2 + np.sqrt(np.abs(variance)))[..., None])[5:-5, 5:-5]


def reference_gain(fy, fx, i, j, o):
    """Return the gain of a filter at a frequency in cycles per pixel."""
    if fy == 0 and fx == 0:
        return 0.0
    theta = np.arctan2(fy, fx) + np.pi * j / o
    theta = theta - 2 * np.pi if theta > np.pi else theta
    radial = -10 * 0.35 * (np.sqrt(fy**2 + fx**2) / (0.3 / 1.85**i) - 1) ** 2
    return np.exp(radial - 2 * (16 * o**2 / 32**2) * np.pi * theta**2)


def both_signs(f):
    return [0.5, -0.5] if abs(f) == 0.5 else [f]


@cache
def reference_filter(shape, i, j, o):
    """Return the gains of a filter at all frequencies."""
    return np.array(
        [
            [
                np.mean(
                    [reference_gain(y, x, i, j, o) for y in both_signs(fy) for x in both_signs(fx)]
                )
                for fx in np.fft.fftfreq(shape[1])
            ]
            for fy in np.fft.fftfreq(shape[0])
        ]
    )


def reference_gist(images, orientations, grid, border):
    """Compute GIST directly from the definition; the grid must divide the sides."""
    rows = []
    for image in images:
        row = []
        for channel in np.moveaxis(reference_prefilter(image.astype(np.float64)), 2, 0):
            padded = np.pad(channel, ((border[0],) * 2, (border[1],) * 2), mode="symmetric")
            spectrum = np.fft.fft2(padded)
            for i, o in enumerate(orientations):
                for j in range(o):
                    gabor = reference_filter(padded.shape, i, j, o)
                    magnitude = np.abs(np.fft.ifft2(spectrum * gabor))
                    height, width = channel.shape
                    magnitude = magnitude[border[0] : border[0] + height][
                        :, border[1] : border[1] + width
                    ]
                    for cells in np.split(magnitude, grid):
                        row.extend(cell.mean() for cell in np.split(cells, grid, axis=1))
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize(
    ("shape", "options", "border"),
    [
        ((32, 32), {}, (16, 16)),
        ((16, 16), {"border": 7}, (7, 7)),
        ((16, 16), {"border": 0}, (0, 0)),
        ((24, 15), {"grid": 3, "orientations": (6, 5)}, (12, 7)),  # nₓ = 29 has no Nyquist
        ((8, 8), {"grid": 2, "orientations": (4,), "border": 11}, (11, 11)),
    ],
)
def test_it_matches_the_definition(shape, options, border):
    images = photographs(2, *shape)
    orientations, grid = options.get("orientations", (8, 8, 8)), options.get("grid", 4)
    grey = images.mean(axis=3, keepdims=True)
    expected = reference_gist(grey, orientations, grid, border)
    np.testing.assert_allclose(gist(images, **options), expected, atol=1e-4, rtol=0)
    assert expected.mean() > 0.02  # much larger than the tolerance


def test_colour_matches_the_definition():
    images = photographs(2, 16, 16, seed=1)
    expected = reference_gist(images, (8, 4), 4, (8, 8))
    ours = gist(images, orientations=(8, 4), colour=True)
    np.testing.assert_allclose(ours, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("value", [0, 1, 128, 255])
def test_a_constant_image_has_no_response(value):
    descriptor = gist(np.full((1, 32, 32), value, np.uint8))
    np.testing.assert_allclose(descriptor, 0, atol=1e-4)


@examples(25)
@given(
    height=st.integers(4, 40),
    width=st.integers(4, 40),
    grid=st.integers(1, 4),
    orientations=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    colour=st.booleans(),
    border=st.none() | st.integers(0, 20),
    seed=st.integers(0, 100),
)
def test_mirrored_images_have_permuted_descriptors(
    height, width, grid, orientations, colour, border, seed
):
    images = photographs(3, height, width, seed=seed)
    options = {"orientations": orientations, "grid": grid, "colour": colour}
    permutation = mirror_permutation(**options)
    original, mirrored = (gist(x, border=border, **options) for x in (images, images[:, :, ::-1]))
    assert original.shape == (3, len(permutation))
    np.testing.assert_allclose(mirrored, original[:, permutation], atol=2e-5, rtol=0)


def test_mirroring_twice_changes_nothing_and_once_does():
    for options in ({}, {"orientations": (8, 8, 4), "colour": True}, {"orientations": (3, 1)}):
        permutation = mirror_permutation(**options)
        identity = np.arange(len(permutation))
        np.testing.assert_array_equal(permutation[permutation], identity)
        assert np.any(permutation != identity)
    images = photographs(5, 32, 32)
    assert np.abs(gist(images) - gist(images)[:, mirror_permutation()]).max() > 0.05


def test_the_result_does_not_depend_on_block_size_or_threads(monkeypatch):
    images = photographs(23, 32, 32)
    whole = gist(images)
    for size in (1, 4, 7, 16, 100):
        np.testing.assert_allclose(gist(images, block_size=size), whole, atol=2e-6, rtol=0)
    for n in (1, 3):
        monkeypatch.setenv("OMP_NUM_THREADS", str(n))
        np.testing.assert_allclose(gist(images, block_size=5), whole, atol=2e-6, rtol=0)


def test_three_equal_channels_are_a_grey_image():
    grey = photographs(4, 32, 32, n_channels=1)
    colour = np.repeat(grey, 3, axis=3)
    expected = gist(grey[..., 0])
    np.testing.assert_allclose(gist(colour), expected, atol=2e-6, rtol=0)
    in_colour = gist(colour, colour=True)
    np.testing.assert_allclose(in_colour, np.tile(expected, 3), atol=2e-6, rtol=0)


@pytest.mark.parametrize("scale", [0, 1, 2])
@pytest.mark.parametrize("orientation", range(8))
def test_a_grating_excites_its_own_orientation_most(scale, orientation):
    y, x = np.mgrid[:64, :64]
    f, direction = 0.3 / 1.85**scale, -np.pi * orientation / 8
    phase = 2 * np.pi * f * (x * np.cos(direction) + y * np.sin(direction))
    answers = gist([127 + 100 * np.cos(phase)]).reshape(3, 8, 16).mean(axis=2)
    assert answers[scale].argmax() == orientation


def test_a_corner_has_its_response_in_its_own_cell():
    image = np.full((1, 32, 32), 100.0)
    image[0, 2:6, 26:30] = 200  # top right
    answers = gist(image).reshape(24, 16).mean(axis=0)
    assert answers.argmax() == 3


def test_the_usual_settings_have_the_usual_widths():
    images = photographs(1, 32, 32)
    assert gist(images).shape == (1, 384)
    assert gist(images, orientations=(8, 8, 8, 8)).shape == (1, 512)
    assert gist(images, orientations=(8, 8, 4), colour=True).shape == (1, 960)


@pytest.mark.parametrize("dtype", [np.int16, np.float16, np.float32, np.float64])
def test_the_result_does_not_depend_on_the_dtype(dtype):
    images = photographs(3, 20, 30)
    expected = gist(images)
    assert expected.dtype == np.float32
    np.testing.assert_array_equal(gist(images.astype(dtype)), expected)
    np.testing.assert_array_equal(gist(images.astype(dtype).tolist()), expected)


def test_the_images_are_not_modified():
    images = photographs(3, 16, 16).astype(np.float32)
    images.flags.writeable = False  # like a memory map
    before = images.copy()
    gist(images)
    np.testing.assert_array_equal(images, before)


GREY = np.ones((3, 8, 8))
HOLED = np.where(np.arange(3)[:, None, None] == 1, np.nan, GREY)


@pytest.mark.parametrize(
    ("images", "options", "error", "message"),
    [
        (HOLED, {}, ValueError, r"image 1\b.*\bnan\b"),
        (GREY * np.inf, {"block_size": 2}, ValueError, r"image 0\b.*\binf\b"),
        (GREY * 1e300, {}, ValueError, r"image 0\b.*\binf\b"),
        (-GREY, {}, ValueError, r"image 0\b.*-1\.0"),
        (np.stack([GREY, -GREY / 2, GREY], axis=3), {}, ValueError, r"image 0\b.*-0\.5"),
        (np.stack([GREY * np.inf, -GREY * np.inf, GREY], axis=3), {}, ValueError, r"image 0\b"),
        (GREY[0], {}, ValueError, r"\(8, 8\)"),
        (GREY[None, None], {}, ValueError, r"\(1, 1, 3, 8, 8\)"),
        (np.ones((3, 3, 8, 8)), {}, ValueError, r"\(3, 3, 8, 8\)"),
        (GREY[:0], {}, ValueError, r"\(0, 8, 8\)"),
        (GREY, {"colour": True}, ValueError, r"colour=True.*\(3, 8, 8\)"),
        (GREY, {"grid": 9}, ValueError, r"9 × 9.*8 × 8"),
        (GREY, {"grid": 0}, ValueError, r"\bgrid\b.*\b1\b.*\b0\b"),
        (GREY, {"grid": 2.5}, TypeError, r"\bgrid\b.*\b2\.5"),
        (GREY, {"border": -1}, ValueError, r"\bborder\b.*\b0\b.*-1\b"),
        (GREY, {"block_size": 0}, ValueError, r"\bblock_size\b.*\b1\b.*\b0\b"),
        (GREY, {"orientations": 8}, TypeError, r"\borientations\b.*\b8\b"),
        (GREY, {"orientations": ()}, ValueError, r"\borientations\b.*\(\)"),
        (GREY, {"orientations": (8, 0)}, ValueError, r"\borientations\b.*\b1\b.*\b0\b"),
        (["a.png", "b.png"], {}, TypeError, "<U5"),
        (GREY * 1j, {}, TypeError, "complex128"),
        ([np.ones((8, 8)), np.ones((8, 9))], {}, ValueError, "size"),
    ],
)
def test_invalid_images_are_refused(images, options, error, message):
    with pytest.raises(error, match=message):
        gist(images, **options)


def test_the_first_invalid_image_is_named():
    images = np.ones((40, 8, 8))
    images[33:, 2, 3] = np.nan
    with pytest.raises(ValueError, match=r"image 33\b.*\bnan\b"):
        gist(images, block_size=4)

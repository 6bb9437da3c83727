"""One colour a method, in the figures and in the reports alike."""

import re

INK = "#222222"  # of methods that are not named here

# The first three are Paul Tol's "high contrast": told apart by colour-blind readers, and as three
# greys in print. Methods that are often shown together have colours far apart.
METHOD_COLOURS = {
    "DeepLinf": "#004488",
    "NNHash": "#BB5566",
    "SparseHash": "#DDAA33",
    "LinfHash": "#1B7A3D",
    "ITQ": "#7B3294",
    "SignHash": "#C4610A",
    "LSH": "#6B6B6B",
    "RaBitQ": "#D6246A",
    "TurboQuant": "#0A93B5",
    "PQ": "#7A5C00",
    "KSH": "#00707A",
    "SDH": "#A0522D",
    "PSH": "#B0489A",
    "LDAHash": "#3F6FCE",
    "BRE": "#5D4E8C",
    "AGH": "#6E8B3D",
    "SpectralHash": "#3D9970",
    "OrthoHash": "#4B6584",
    "CSQ": "#8C4A4A",
    "OneHotHash": "#8A8A1A",
    "ClassifierLSH": "#2F4F6F",
}


def base_method(method: str) -> str:
    """Return the name of a method without its settings.

    Examples
    --------
    >>> [base_method(m) for m in ("SignHash:rotate=false", "LinfHash.quick", "PQ", "ITQ (yours)")]
    ['SignHash', 'LinfHash', 'PQ', 'ITQ']
    """
    return re.split(r"[:., ]", method, maxsplit=1)[0]


def method_colour(method: str) -> str:
    """Return the colour of a method, whatever its settings."""
    return METHOD_COLOURS.get(base_method(method), INK)


def method_class(method: str) -> str:
    """Return the class that gives a mark in a report the colour of its method."""
    base = base_method(method)
    return f"m-{base}" if base in METHOD_COLOURS else "m-other"

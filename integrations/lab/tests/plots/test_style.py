"""Styles of methods are stable and can be told apart, also without colour."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from langchain_cfc_lab import get_methods
from langchain_cfc_lab.report.drawing import (
    COLOURS,
    HATCHES,
    KNOWN_METHODS,
    MARKERS,
    STYLE_COUNT,
    Style,
    assign_styles,
    select_methods,
)
from matplotlib.figure import Figure

from integrations.lab.tests.plots.reading import draw_canvas
from langchain_cfc.errors import InputError
from langchain_cfc.support.arrays import FloatArray

# Machado, Oliveira and Fernandes 2009, "A physiologically-based model for simulation of color vision
# deficiency", at full severity, on linear RGB.
SIGHT = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
# About 2.3 is the least difference that can be noticed side by side (CIE 1976); a key is not side by side.
APART = 15.0


def to_linear_rgb(colour: str) -> FloatArray:
    channels = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255.0
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def to_lab(light: FloatArray) -> FloatArray:
    ratios = XYZ @ np.clip(light, 0.0, 1.0) / XYZ.sum(axis=1)
    bent = np.where(ratios > (6 / 29) ** 3, np.cbrt(ratios), ratios / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * bent[1] - 16, 500 * (bent[0] - bent[1]), 200 * (bent[1] - bent[2])])


def compute_least_distance(colours: tuple[str, ...], sight: str) -> float:
    seen = [to_lab(SIGHT[sight] @ to_linear_rgb(colour)) for colour in colours]
    return min(float(np.linalg.norm(one - other)) for one, other in combinations(seen, 2))


@pytest.mark.parametrize("sight", SIGHT)
def test_colours_differ_under_every_colour_vision(sight: str) -> None:
    assert compute_least_distance(COLOURS, sight) > APART


def test_control_red_and_green_do_not_differ_under_every_colour_vision() -> None:
    red_and_green = ("#c1443c", "#6b7f1f")
    assert compute_least_distance(red_and_green, "normal") > APART
    assert min(compute_least_distance(red_and_green, sight) for sight in SIGHT) < APART


def compute_luminance(colour: str) -> float:
    return float((XYZ @ to_linear_rgb(colour))[1])


@pytest.mark.parametrize("page", ["#ffffff", "#121212"])
def test_colours_contrast_with_light_and_dark_pages(page: str) -> None:
    # The lightest two are below 3:1 on white: markers and bars have an edge of ink for that.
    def contrast(colour: str) -> float:
        low, high = sorted((compute_luminance(colour), compute_luminance(page)))
        return (high + 0.05) / (low + 0.05)

    assert min(map(contrast, COLOURS)) > 2.2
    yellow, blue = "#F0E442", "#00008B"
    assert min(map(contrast, (yellow, blue))) < 2.2


def draw_grey(hatch: str = "", marker: str = "", shift: float = 0.0) -> FloatArray:
    """(100, 100) brightness of a patch with a hatch, or of a marker as large as in a figure."""
    figure = Figure(figsize=(1.0, 1.0), dpi=100)
    ax = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    ax.set_axis_off()
    ax.set_xlim(shift, 1.0 + shift)
    ax.set_ylim(0.0, 1.0)
    if marker:
        ax.plot([0.5], [0.5], marker=marker, markersize=36.0, color="grey")
    else:
        ax.fill_between([-1.0, 3.0], -1.0, 3.0, facecolor="grey", edgecolor="black", hatch=hatch)
    return np.asarray(draw_canvas(figure).buffer_rgba())[:, :, 0] / 255.0


def compute_texture(hatch: str, shift: float = 0.0) -> FloatArray:
    """Return the Fourier amplitudes of a hatch, which do not depend on where it begins."""
    picture = draw_grey(hatch, shift=shift)
    return np.asarray(np.abs(np.fft.fft2(picture - picture.mean())) / picture.size)


def test_hatches_differ_without_colour() -> None:
    seen = [compute_texture(hatch) for hatch in HATCHES]
    distances = [float(np.linalg.norm(one - other)) for one, other in combinations(seen, 2)]
    again = max(
        float(np.linalg.norm(compute_texture(hatch, 0.37) - one))
        for hatch, one in zip(HATCHES, seen, strict=True)
    )
    assert min(distances) > 0.1
    assert again < 0.05


def test_markers_differ_without_colour() -> None:
    seen = [draw_grey(marker=marker) < 0.9 for marker in MARKERS]
    # Share of what either covers that only one of them covers.
    differ = [float((one ^ other).sum() / (one | other).sum()) for one, other in combinations(seen, 2)]
    assert min(differ) > 0.12
    octagon, circle = (draw_grey(marker=marker) < 0.9 for marker in "8o")
    assert (octagon ^ circle).sum() / (octagon | circle).sum() < 0.12


def test_styles_at_different_places_differ() -> None:
    assert len({Style.at(place) for place in range(STYLE_COUNT)}) == STYLE_COUNT
    for start in range(STYLE_COUNT):
        several = [Style.at(place) for place in range(start, start + len(MARKERS))]
        assert (
            len({style.marker for style in several})
            == len({style.hatch for style in several})
            == len(several)
        )


def test_every_method_has_a_known_style() -> None:
    methods = [*get_methods(), *get_methods(unit="claims")]
    assert {method.name for method in methods} == set(KNOWN_METHODS)


def test_assign_styles_depends_on_the_name_alone() -> None:
    alone = assign_styles(["mine"])["mine"]
    assert assign_styles(["CFC", "other", "mine", "marginal"])["mine"] == alone
    assert assign_styles(["marginal"]) == {"marginal": assign_styles(KNOWN_METHODS)["marginal"]}
    assert alone not in assign_styles(KNOWN_METHODS).values()


def test_assign_styles_gives_different_styles_to_forty_methods() -> None:
    # 40 names on 62 places: without a way out, two would meet with probability above 0.999.
    names = [f"method {place}" for place in range(40)]
    assert len(set(assign_styles(names).values())) == 40
    assert assign_styles(names) == assign_styles(names[::-1])
    # More methods than places: some look alike, and are drawn all the same.
    assert len(assign_styles([f"method {place}" for place in range(100)])) == 100


def test_select_methods_keeps_the_requested_order() -> None:
    there = {"a": 1, "b": 2, "c": 3}
    assert list(select_methods(there, None).items()) == [("a", 1), ("b", 2), ("c", 3)]
    assert list(select_methods(there, ["c", "a"]).items()) == [("c", 3), ("a", 1)]
    with pytest.raises(InputError, match=r"unknown method 'd'; the report holds a, b, c"):
        select_methods(there, ["a", "d"])
    with pytest.raises(InputError, match=r"unknown method 'd'; the report holds none"):
        select_methods({}, ["d"])

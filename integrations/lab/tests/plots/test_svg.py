"""`to_svg`: legible in light and dark, self-contained, and without clashing ids."""

from __future__ import annotations

import re
import warnings

import matplotlib as mpl
import pytest
from langchain_cfc_lab.report.drawing import to_svg
from langchain_cfc_lab.report.plots import plot_by_alpha, plot_group_miscoverage, plot_score_histogram
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from integrations.lab.tests.plots.inputs import HISTOGRAM, make_bin_words, make_comparison, make_level_of
from integrations.lab.tests.plots.reading import parse_svg, write_matplotlib_svg
from langchain_cfc.errors import InputError
from tests.lengths import mostly_long

SVG = "{http://www.w3.org/2000/svg}"


def draw_bars() -> Axes:
    return plot_group_miscoverage(make_level_of(["conditional", "marginal", "CFC"], make_bin_words(4)))


@pytest.fixture(scope="module")
def bars() -> Axes:
    return draw_bars()


@pytest.fixture(scope="module")
def svg(bars: Axes) -> str:
    """The bars as a page shows them."""
    return to_svg(bars, title="bars")


@pytest.fixture(scope="module")
def plain(bars: Axes) -> str:
    """The negative control: the bars as matplotlib writes them."""
    return write_matplotlib_svg(bars)


def list_ids(text: str) -> list[str]:
    return [part.attrib["id"] for part in parse_svg(text).iter() if "id" in part.attrib]


def list_references(text: str) -> set[str]:
    return {first or second for first, second in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', text)}


def test_to_svg_returns_one_element_with_a_title(bars: Axes) -> None:
    text = to_svg(bars, title='Promise "kept" & <broken>')
    root = parse_svg(text)
    assert root.tag == f"{SVG}svg"
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == 'Promise "kept" & <broken>'
    assert root[0].tag == f"{SVG}title"
    assert root[0].text == 'Promise "kept" & <broken>'
    assert text.startswith("<svg ")
    assert "viewBox" in root.attrib


def test_to_svg_keeps_text_as_text(svg: str) -> None:
    root = parse_svg(svg)
    said = ["".join(part.itertext()) for part in root.iter(f"{SVG}text")]
    for label in ("target 0.1", "conditional", "CFC", "mean score"):
        assert any(label in text for text in said)


def test_to_svg_replaces_black_and_white(svg: str, plain: str) -> None:
    root = parse_svg(svg)
    colours = set(re.findall(r"#[0-9a-fA-F]{6}\b(?!\))", re.sub(r"url\(#[^)]*\)", "", svg)))
    assert {"#0072b2", "#e69f00"} <= colours
    assert not {"#000000", "#ffffff"} & colours
    # Black is the default of SVG: what says nothing takes this one.
    assert root.attrib["fill"] == "currentColor"
    assert "stroke: currentColor" in svg
    for part in root.iter(f"{SVG}text"):
        assert "fill" not in part.attrib.get("style", "")
    assert "#000000" in plain
    assert "#ffffff" in plain


def test_to_svg_loads_nothing_and_contains_no_style_sheet(svg: str, plain: str) -> None:
    assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]
    assert not {"style", "metadata", "script", "image"} & {
        part.tag.removeprefix(SVG) for part in parse_svg(svg).iter()
    }
    assert "<style" in plain
    assert "dc:date" in plain


def test_to_svg_is_deterministic() -> None:
    def drawn() -> str:
        return to_svg(plot_score_histogram(HISTOGRAM), title="scores")

    first = drawn()
    assert drawn() == first
    assert not re.search(r"20\d\d-\d\d-\d\d", first)


def test_to_svg_ids_of_two_figures_do_not_clash(bars: Axes, svg: str, plain: str) -> None:
    texts = [
        svg,
        to_svg(bars, title="the same under another title"),
        to_svg(plot_score_histogram(HISTOGRAM), title="bars"),
    ]
    names = [name for text in texts for name in list_ids(text)]
    assert len(names) == len(set(names)) > 100
    for text in texts:
        assert list_references(text)
        assert list_references(text) <= set(list_ids(text))
    theirs = list_ids(plain) + list_ids(write_matplotlib_svg(plot_score_histogram(HISTOGRAM)))
    assert len(theirs) > len(set(theirs))


@mostly_long(
    "name",
    ["$a$ and b_", "$a", "_hidden", 'id="x" url(#y) #000000', "<b>&amp;", "a\x00\x0b\nb"],
    quick=3,
)
def test_to_svg_shows_any_name_unchanged(name: str) -> None:
    report = make_level_of([name, "CFC"], [f"prompts whose topic is '{name}'", "prompts whose topic is 'b'"])
    shown = " ".join("".join(sign if sign.isprintable() else " " for sign in name).split())
    of_groups, by_alpha = plot_group_miscoverage(report), plot_by_alpha(make_comparison([report]).sweep)
    for ax, said_too in ((of_groups, shown), (by_alpha, "alpha")):
        root = parse_svg(to_svg(ax, title=name))
        said = ["".join(part.itertext()) for part in root.iter(f"{SVG}text")]
        assert shown in said
        assert said_too in said
        assert root[0].text == shown


def test_to_svg_keeps_letters_that_the_font_lacks() -> None:
    ax = plot_group_miscoverage(
        make_level_of(["CFC"], ["prompts whose topic is '数学'", "prompts whose topic is 'b'"])
    )
    assert "数学" in to_svg(ax, title="数学")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        write_matplotlib_svg(ax)
    assert any("Glyph" in str(one.message) for one in caught)


def test_to_svg_accepts_figures_and_axes_of_subfigures() -> None:
    figure = Figure(layout="constrained")
    part = figure.add_subfigure(figure.add_gridspec(1, 1)[0])
    ax = plot_score_histogram(HISTOGRAM, part.subplots())
    for drawn in (ax, figure):
        text = to_svg(drawn, title="scores")
        assert "smaller is better" in text
        assert text.count("<svg") == 1


def test_to_svg_refuses_an_axis_without_a_figure() -> None:
    ax = plot_score_histogram(HISTOGRAM)
    ax.remove()
    with pytest.raises(InputError, match="belongs to no figure"):
        to_svg(ax, title="gone")


def test_to_svg_leaves_matplotlib_settings_unchanged() -> None:
    before = dict(mpl.rcParams)
    to_svg(plot_score_histogram(HISTOGRAM), title="scores")
    assert dict(mpl.rcParams) == before


def test_to_svg_keeps_images_inside_a_figure() -> None:
    ax = plot_score_histogram(HISTOGRAM)
    ax.imshow([[0.0, 1.0]], extent=(0.0, 1.0, 0.0, 1.0))
    (picture,) = parse_svg(to_svg(ax, title="a picture")).iter(f"{SVG}image")
    assert picture.attrib["href"].startswith("data:image/png;base64,")

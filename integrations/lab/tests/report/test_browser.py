"""The report page in a real browser; each check is also shown a page that must fail it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from langchain_cfc_lab.report import find_hardest_prompts, write_report

from integrations.lab.tests.report import browser as look
from integrations.lab.tests.report.cases import Case
from langchain_cfc import calibrate, evaluate
from langchain_cfc.demo import load_recording
from langchain_cfc.records import tabulate

if TYPE_CHECKING:
    from playwright.sync_api import Browser

KINDS = ["facts", "hostile", "claims", "bot"]
PHONE, DESKTOP = 360, 1280
# A4 less the margins that the style sheet asks for, at 96 pixels an inch.
PAPER = round((210 - 2 * 14) / 25.4 * 96)
on_every_page = pytest.mark.parametrize("kind", KINDS)
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with look.running() as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that returns the page of a kind, which is written once."""
    folder = tmp_path_factory.mktemp("pages")

    @cache
    def write(kind: str) -> Path:
        one: Case = request.getfixturevalue(kind)
        path = folder / f"{kind}.html"
        write_report(path, one.artifact, one.evaluation, one.hardest)
        return path

    return write


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A page with every fault that is looked for."""
    path = tmp_path / "broken.html"
    path.write_text(
        """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>broken</title></head><body>
        <h2>no h1 before it</h2><h4>a level left out</h4>
        <p id="twice" style="width: 2000px">wide</p><p id="twice" style="color: #999">faint</p>
        <svg width="0" height="0" aria-label="unseen"></svg><svg width="9" height="9"></svg>
        <div class="scroll" style="overflow: auto; width: 100px"><p style="width: 300px">cut off</p></div>
        <img src="http://127.0.0.1:9/picture.png" alt="from elsewhere" width="5" height="5">
        <script>window.hacked = true; console.log("a word"); throw new Error("a failure");</script>
        </body></html>"""
    )
    return path


def test_printed_report_of_a_bot_has_at_most_three_pages(chromium: Browser, tmp_path: Path) -> None:
    source = load_recording()
    bot = calibrate(source, max_wrong_rate=["0.05", "0.1"], test_fraction=0.3)
    hardest = find_hardest_prompts(bot, tabulate(source, n=bot.n), texts=source)
    write_report(tmp_path / "bot.html", artifact=bot, evaluation=evaluate(bot, source), hardest=hardest)
    with look.visit(chromium, tmp_path / "bot.html", width=DESKTOP) as seen:
        # The promise, the verdict and the figures are seen without scrolling.
        tiles: Any = seen.page.locator(".tiles").bounding_box()
        assert tiles["y"] + tiles["height"] < 800
        printed = seen.page.pdf(format="A4", print_background=True)
    assert len(re.findall(rb"/Type\s*/Page[^s]", printed)) <= 3


@on_every_page
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_report_page_is_legible_and_loads_logs_and_runs_nothing(
    chromium: Browser, pages: Callable[[str], Path], kind: str, scheme: str
) -> None:
    with look.visit(chromium, pages(kind), color_scheme=scheme) as seen:
        assert seen.asked == [seen.address]
        assert seen.said == []
        assert seen.page.evaluate("() => window.hacked === undefined")
        assert seen.page.evaluate("() => document.scripts.length") == 0
        assert look.faint(seen.page) == []
        paper = seen.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 22, 26)"}[scheme]


def test_control_page_that_loads_logs_or_runs_is_noticed(chromium: Browser, broken: Path) -> None:
    with look.visit(chromium, broken) as seen:
        assert seen.loaded == ["http://127.0.0.1:9/picture.png"]
        assert {"a word", "a failure"} <= set(seen.said)
        assert seen.page.evaluate("() => window.hacked")


def test_report_page_policy_blocks_injected_content(
    chromium: Browser, pages: Callable[[str], Path], tmp_path: Path
) -> None:
    # As if the template had failed to escape something.
    path = tmp_path / "slipped.html"
    slipped = (
        "<main><script>window.hacked = 1</script><img src='http://127.0.0.1:9/x.png' "
        "onerror='window.hacked = 2'><link rel='stylesheet' href='http://127.0.0.1:9/x.css'>"
    )
    html = pages("facts").read_text()
    assert html.count('<main id="main"') == 1
    path.write_text(html.replace('<main id="main"', f'{slipped}<main id="main"'))
    with look.visit(chromium, path) as seen:
        assert seen.page.evaluate("() => window.hacked === undefined")
        assert len([said for said in seen.said if "Content Security Policy" in said]) >= 3


@on_every_page
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_report_page_does_not_overflow_the_screen(
    chromium: Browser, pages: Callable[[str], Path], kind: str, width: int
) -> None:
    with look.visit(chromium, pages(kind), width=width) as seen:
        assert look.overflowing(seen.page) == []


@on_every_page
def test_printed_report_page_is_not_cut_off(
    chromium: Browser, pages: Callable[[str], Path], kind: str
) -> None:
    with look.visit(chromium, pages(kind), width=PAPER) as seen:
        seen.page.emulate_media(media="print")
        assert look.overflowing(seen.page) == []
        assert look.cut_off(seen.page) == []


@on_every_page
def test_report_page_headings_ids_pictures_and_links_are_valid(
    chromium: Browser, pages: Callable[[str], Path], kind: str
) -> None:
    with look.visit(chromium, pages(kind)) as seen:
        assert look.misplaced_headings(seen.page) == []
        assert look.repeated_ids(seen.page) == []
        assert look.unseen_pictures(seen.page) == []
        assert seen.page.evaluate("() => document.querySelectorAll('figure svg').length") >= 1
        aims = seen.page.evaluate(
            """() => [
              ...[...document.querySelectorAll('body a[href]')].map(one => one.getAttribute('href').slice(1)),
              ...[...document.querySelectorAll('[aria-labelledby]')]
                .map(one => one.getAttribute('aria-labelledby')),
            ].map(id => [id, document.getElementById(id) !== null])"""
        )
    assert len(aims) > 5
    assert [aim for aim, there in aims if not there] == []


def test_control_each_fault_of_a_broken_page_is_found(chromium: Browser, broken: Path) -> None:
    with look.visit(chromium, broken, width=PHONE) as seen:
        assert len(look.overflowing(seen.page)) >= 2
        assert len(look.cut_off(seen.page)) == 1
        assert look.repeated_ids(seen.page) == ["twice"]
        assert len(look.misplaced_headings(seen.page)) == 2
        assert len(look.unseen_pictures(seen.page)) == 2
        assert [line.partition(" ")[2] for line in look.faint(seen.page)] == ["faint"]

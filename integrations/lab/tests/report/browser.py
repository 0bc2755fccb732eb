"""A real browser, and checks of a page: each function returns what it finds wrong."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # tests that need no browser do not wait for it
    from playwright.sync_api import Browser, Page

_ARGUMENTS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def _executable() -> str | None:
    """A Chromium of this machine; None for the one that Playwright brings, if it is installed."""
    return os.environ.get("CFC_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def running() -> Iterator[Browser]:
    """A headless Chromium; skips where there is none."""
    alone = ["--no-sandbox"] if os.name == "posix" and os.geteuid() == 0 else []
    api = pytest.importorskip("playwright.sync_api", reason="pages are looked at with playwright")
    with api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=_executable(), args=[*_ARGUMENTS, *alone])
        except api.Error as error:
            pytest.skip(
                f"no Chromium to look at pages with (set CFC_CHROMIUM): {error.message.splitlines()[0]}"
            )
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """A page, with its console messages and requests."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(error.message))
        page.on("request", lambda request: self.asked.append(request.url))
        self.address = path.as_uri()
        page.goto(self.address)

    @property
    def loaded(self) -> list[str]:
        """Addresses asked for beside the page itself."""
        return [address for address in self.asked if address != self.address]


@contextmanager
def visit(browser: Browser, path: Path, *, width: int = 1280, **options: Any) -> Iterator[Visit]:
    """Open a page in a context of its own."""
    context = browser.new_context(viewport={"width": width, "height": 800}, offline=True, **options)
    try:
        yield Visit(context.new_page(), path)
    finally:
        context.close()


def overflowing(page: Page) -> list[str]:
    """Elements that reach beyond the viewport, except inside boxes that scroll."""
    return _strings(
        page,
        """() => {
          const width = document.documentElement.clientWidth;
          const found = [];
          if (document.documentElement.scrollWidth > width) found.push('the page scrolls sideways');
          for (const one of document.body.querySelectorAll('*')) {
            if (one.closest('.skip')) continue;
            const box = one.getBoundingClientRect();
            if (box.width === 0 || (box.right <= width + 0.5 && box.left >= -0.5)) continue;
            let parent = one.parentElement;
            while (parent && !['auto', 'scroll'].includes(getComputedStyle(parent).overflowX)) {
              parent = parent.parentElement;
            }
            if (!parent) found.push(`<${one.tagName}> ${box.left}..${box.right}`);
          }
          return found;
        }""",
    )


def cut_off(page: Page) -> list[str]:
    """Boxes whose content is wider than they are, which would be cut off on paper."""
    return _strings(
        page,
        """() => [...document.querySelectorAll('.scroll, table, pre, blockquote')]
          .filter(one => one.scrollWidth > one.clientWidth + 1)
          .map(one => `<${one.tagName} ${one.id}> ${one.scrollWidth} > ${one.clientWidth}`)""",
    )


def repeated_ids(page: Page) -> list[str]:
    return _strings(
        page,
        """() => {
          const ids = [...document.querySelectorAll('[id]')].map(one => one.id);
          return ids.filter((id, place) => ids.indexOf(id) !== place);
        }""",
    )


def misplaced_headings(page: Page) -> list[str]:
    """Headings out of order: no single h1 at the start, or a skipped level."""
    levels = page.evaluate(
        "() => [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].map(one => +one.tagName[1])"
    )
    found = [] if levels[:1] == [1] and levels.count(1) == 1 else [f"h1: {levels}"]
    return found + [f"h{after} follows h{before}" for before, after in pairwise(levels) if after > before + 1]


def unseen_pictures(page: Page) -> list[str]:
    """Pictures without a size or without a text alternative."""
    return _strings(
        page,
        """() => [...document.querySelectorAll('img, svg')].filter(one => {
          const box = one.getBoundingClientRect();
          const name = one.getAttribute('aria-label') || one.getAttribute('alt');
          return box.width === 0 || box.height === 0 || !name;
        }).map(one => `<${one.tagName}>`)""",
    )


def faint(page: Page, least: float = 4.5) -> list[str]:
    """Texts with less contrast than WCAG AA asks of small text; translucent colours are mixed. No icons."""
    return _strings(
        page,
        """least => {
          const context = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
          const parts = colour => {
            context.clearRect(0, 0, 1, 1);
            context.fillStyle = colour;
            context.fillRect(0, 0, 1, 1);
            const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
            return [r, g, b, a / 255];
          };
          const over = (top, below) => [0, 1, 2].map(at => top[at] * top[3] + below[at] * (1 - top[3]));
          const channel = value => {
            const share = value / 255;
            return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
          };
          const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
          const above = one => one ? [...above(one.parentElement), one] : [];
          const found = [];
          const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
          while (walker.nextNode()) {
            const text = walker.currentNode.textContent.trim();
            const one = walker.currentNode.parentElement;
            const hidden = !one.getClientRects().length || one.closest('style, script, noscript, title');
            if (!text || hidden || one.matches('[data-testid=stIconMaterial]')) continue;
            const chain = above(one);
            const page = chain.reduce(
              (below, at) => over(parts(getComputedStyle(at).backgroundColor), below), [255, 255, 255]);
            const style = getComputedStyle(one);
            const ink = parts(one.ownerSVGElement ? style.fill : style.color);
            ink[3] *= chain.reduce((left, at) => left * getComputedStyle(at).opacity, 1);
            const [dark, bright] = [light(over(ink, page)), light(page)].sort((a, b) => a - b);
            const ratio = (bright + 0.05) / (dark + 0.05);
            if (ratio < least) found.push(`${ratio.toFixed(2)} ${text.slice(0, 40)}`);
          }
          return found;
        }""",
        least,
    )


def _strings(page: Page, script: str, argument: Any = None) -> list[str]:
    found: list[str] = page.evaluate(script, argument)
    return found
